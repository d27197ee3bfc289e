"""The command line: warm, stats, doctor.

Exit status: 0; 1 when a kernel or a graph failed or was not kept; 2 when the command could not be
carried out as asked, with one message that names what and what next.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .errors import KnobError, is_clear
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
    from .compiler.seam.target import Target
    from .compose import compose
    from .loading import find_function, locate
    from .notices import Notices
    from .progress import for_stream
    from .warm import warm_function

    # What can be wrong with the command itself is said before anything is started; the store and
    # the farm are opened before the file is run, so that both are ready behind `import torch`.
    targets = [Target.parse(text) for text in options.target]
    file, name = locate(options.function)
    notices = Notices(lambda text: print(text, file=sys.stderr))
    world = compose(_knobs(options), notices, demand_store=True)
    try:
        function = find_function(file, name)
        report = warm_function(
            options.function,
            function,
            targets,
            world,
            dynamic=options.dynamic,
            follow=for_stream().target,
        )
    finally:
        world.close()
    found = report.to_json()
    tell(json.dumps(found) if options.json else _warm_text(found, report.phases))
    for failure in report.failures:
        _complain(failure, FAILED)
    return OK if report.ok else FAILED


def _warm_text(report: dict[str, Any], phases: dict[str, float]) -> str:
    graphs, kernels = report["graphs"], report["kernels"]
    by = ", ".join(f"{count} {place}" for place, count in report["compiled_by"].items())
    return "\n".join(
        (
            f"targets  {', '.join(report['targets'])}",
            f"graphs   {graphs['total']} total: {graphs['compiled']} compiled, "
            f"{graphs['from_store']} from store",
            f"kernels  {kernels['distinct']} distinct: {kernels['compiled']} compiled"
            f"{f' ({by})' if by else ''}, {kernels['from_store']} from store, "
            f"{kernels['failed']} failed",
            f"seconds  {report['seconds']:.1f}, of which {phases.get('wait', 0.0):.1f} waiting "
            "for kernels",
            f"store    {report['store']}",
        )
    )


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

    parser = argparse.ArgumentParser(
        prog="kernelfarm", description="A build farm and shared compile cache for Triton kernels."
    )
    parser.add_argument("--version", action="version", version=f"kernelfarm {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    warm = _command(commands, "warm", _warm, "compile a model's kernels ahead of time, GPU or not")
    warm.add_argument(
        "function",
        metavar="FILE.py:FUNCTION",
        help='FUNCTION returns (module_or_callable, args) or (module_or_callable, args, "train")',
    )
    warm.add_argument(
        "--target",
        action="append",
        required=True,
        metavar="TARGET",
        help="h200, cuda:90, sm_90, mi300x, ...; may be given several times",
    )
    warm.add_argument(
        "--dynamic", action="store_true", help="one program for all sizes, not one for these"
    )
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
