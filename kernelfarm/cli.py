"""The command line: warm, stats, doctor.

Exit status: 0; 1 when a kernel or a graph failed or was not kept; 2 when the command, or one of the
functions that it names, could not be carried out as asked, with one message that says what and what
next. The other functions are carried out all the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from .errors import KnobError, UsageError, is_clear
from .streams import occupy_standard_descriptors, reserved_stdout

OK, FAILED, USAGE = 0, 1, 2
#: Prints a command's result; whatever else is printed meanwhile goes to stderr.
Tell = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    occupy_standard_descriptors()
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        with reserved_stdout() as tell:
            return int(options.run(options, tell))
    except KeyboardInterrupt:
        return _complain("interrupted; what is compiled so far is stored", 130)
    except Exception as error:
        if not is_clear(error):
            raise
        return _complain(str(error), USAGE)


def _complain(text: str, status: int) -> int:
    print(f"kernelfarm: {text}", file=sys.stderr)
    return status


def _warm(options: argparse.Namespace, tell: Tell) -> int:
    from .compose import compose
    from .loading import Files, locate
    from .notices import Notices
    from .progress import for_stream
    from .warm import Warming
    from .warm_report import render

    # What can be wrong with the command itself is said before anything is started; the store and
    # the farm are opened before a file is run, so that both are ready behind `import torch`.
    started = time.monotonic()
    knobs = _knobs(options)
    targets = _targets(options, knobs)
    wanted = {text: locate(text) for text in options.function}
    notices = Notices(lambda text: print(text, file=sys.stderr))
    world = compose(knobs, notices, demand_store=True)
    files, status = Files(), OK
    try:
        warming = Warming(targets, world, follow=for_stream().target, started=started)
        for text, (file, name) in wanted.items():
            try:
                begun = time.monotonic()
                try:
                    function = files.function(file, name)
                except Exception as error:
                    warming.refused(text, error)
                    raise
                finally:
                    warming.spent("import", time.monotonic() - begun)
                warming.function(text, function, dynamic=options.dynamic)
            except Exception as error:  # the other functions are warmed all the same
                status = max(status, _complain_of(error))
        report = warming.report()
    finally:
        world.close()
    if report.graphs["total"] or report.failures:  # otherwise the errors say all there is
        tell(json.dumps(report.to_json()) if options.json else render(report))
    for failure in report.failures:
        _complain(failure, FAILED)
    return max(status, OK if report.ok else FAILED)


def _targets(options: argparse.Namespace, knobs: Any) -> list[Any]:
    from .compiler.seam.target import Target, supported_targets

    texts = options.target or [text for text in (knobs.target,) if text]
    if not texts:
        known = ", ".join(supported_targets())
        raise UsageError(f"no target: give --target, or set KERNELFARM_TARGET; there are {known}")
    return [Target.parse(text) for text in texts]


def _complain_of(error: Exception) -> int:
    if is_clear(error):
        return _complain(str(error), USAGE)
    traceback.print_exception(error)  # a mistake of ours
    return FAILED


def _stats(options: argparse.Namespace, tell: Tell) -> int:
    from .stats import collect, render

    stats = collect(_knobs(options))
    tell(json.dumps(stats) if options.json else render(stats))
    return OK


def _doctor(options: argparse.Namespace, tell: Tell) -> int:
    from .doctor import collect, render

    found = collect(_knobs(options))
    tell(json.dumps(found) if options.json else render(found))
    return OK


def _knobs(options: argparse.Namespace) -> Any:
    from .knobs import resolve

    if options.store == "":  # an unset variable in somebody's script, not the working directory
        raise KnobError("store", "", "--store", "a path")
    return resolve({"store": options.store}, notice=lambda text: print(text, file=sys.stderr))


def _parser() -> argparse.ArgumentParser:
    from . import __version__
    from .compiler.seam.target import supported_targets

    parser = argparse.ArgumentParser(
        prog="kernelfarm", description="A build farm and shared compile cache for Triton kernels."
    )
    parser.add_argument("--version", action="version", version=f"kernelfarm {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    warm = _command(commands, "warm", _warm, "compile models' kernels ahead of time, GPU or not")
    warm.add_argument(
        "function",
        nargs="+",
        metavar="FILE.py:FUNCTION",
        help='FUNCTION returns (module_or_callable, args) or (module_or_callable, args, "train")',
    )
    warm.add_argument(
        "--target",
        action="append",
        metavar="TARGET",
        help="may be given several times; default: KERNELFARM_TARGET",
    )
    warm.add_argument(
        "--dynamic", action="store_true", help="one program for all sizes, not one for these"
    )
    warm.epilog = f"targets: {', '.join(supported_targets())}; sm_90 is cuda:90"
    _command(commands, "stats", _stats, "say what the store holds")
    _command(commands, "doctor", _doctor, "say which settings are in force and from where")
    return parser


def _command(commands: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    parser.add_argument("--store", metavar="DIR", help="directory of the local store")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main())
