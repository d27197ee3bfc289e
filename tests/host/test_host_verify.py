"""What verify lets through, and that planted code reaches nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from kernelfarm.compiler import host
from kernelfarm.compiler.emit.host_python import emit_python
from kernelfarm.compiler.host_codec import decode, encode
from kernelfarm.compiler.host_errors import HostProgramError
from kernelfarm.compiler.host_verify import verify

SPEC = host.TensorSpec((4,), (1,), "float32")


def program(*lines: host.Line, outputs: tuple[host.Arg, ...] = (), **more: Any) -> host.HostProgram:
    """A program with the one input "x" and one kernel (pointer, integer)."""
    return host.HostProgram(
        inputs=(host.Input("x", SPEC),),
        kernels=(host.KernelDef("k", b"", ("*fp32", "i32")),),
        lines=lines,
        outputs=outputs,
        **more,
    )


def call(*args: host.Ref | host.Size, kernel: int = 0, grid: int = 1) -> host.KernelCall:
    return host.KernelCall(kernel, args, host.GridSpec(grid))


def test_the_sample_is_accepted(sample: host.HostProgram) -> None:
    """A program that uses the whole grammar verifies."""
    verify(sample)


BAD = {
    "defined twice": (program(host.Allocate("x", SPEC)), r"lines\[0\]\.name.*twice"),
    "not defined": (program(outputs=(host.Ref("y"),)), r"outputs\[0\].*not defined"),
    "used after free": (
        program(host.Free("x"), outputs=(host.Ref("x"),)),
        r"outputs\[0\].*after it was freed",
    ),
    "defined again after free": (
        program(host.Free("x"), host.Allocate("x", SPEC)),
        r"lines\[1\]\.name.*twice",
    ),
    "used after its storage was reused": (
        program(host.Allocate("a", SPEC), host.Reuse("a", "b", SPEC), outputs=(host.Ref("a"),)),
        "given away",
    ),
    "kernel out of range": (program(call(host.Ref("x"), 4, kernel=1)), r"lines\[0\]\.kernel"),
    "negative kernel": (program(call(host.Ref("x"), 4, kernel=-1)), r"lines\[0\]\.kernel"),
    "too few arguments": (program(call(host.Ref("x"))), r"lines\[0\]\.args"),
    "an address for a pointer": (program(call(4096, 4)), r"args\[0\].*tensor"),
    "a tensor for a number": (program(call(host.Ref("x"), host.Ref("x"))), r"args\[1\]"),
    "a number too large for its type": (program(call(host.Ref("x"), 2**31)), r"args\[1\].*i32"),
    "grid too large": (
        program(host.KernelCall(0, (host.Ref("x"), 4), host.GridSpec(1, 65536))),
        r"grid\.y",
    ),
    "negative grid": (program(call(host.Ref("x"), 4, grid=-1)), r"grid\.x"),
    "negative size": (
        program(host.Allocate("a", host.TensorSpec((-1,), (1,), "float32"))),
        r"sizes\[0\]",
    ),
    "negative stride": (
        program(host.Allocate("a", host.TensorSpec((2,), (-1,), "float32"))),
        r"strides\[0\]",
    ),
    "sizes and strides differ": (
        program(host.Allocate("a", host.TensorSpec((2, 2), (1,), "float32"))),
        "strides",
    ),
    "more bytes than any machine has": (
        program(host.Allocate("a", host.TensorSpec((2**40, 2**20), (2**20, 1), "float32"))),
        r"sizes.*bytes",
    ),
    "unknown symbol": (
        program(
            host.Allocate("a", host.TensorSpec((host.SizeExpr("sym", ("s9",)),), (1,), "float32"))
        ),
        r"s9 is not defined",
    ),
    "division by zero": (
        program(host.Allocate("a", host.TensorSpec((host.SizeExpr("mod", (4, 0)),), (1,), "int8"))),
        "division by zero",
    ),
    "view outside its source": (
        program(
            host.Allocate("a", SPEC),
            host.Reinterpret("b", "a", host.TensorSpec((4,), (1,), "float32"), 1),
        ),
        r"lines\[1\]\.spec.*leaves the 16 bytes of a",
    ),
    "view of a view outside": (
        program(
            host.Allocate("a", SPEC),
            host.Reinterpret("b", "a", host.TensorSpec((2,), (1,), "float32"), 2),
            host.Reinterpret("c", "b", host.TensorSpec((4,), (1,), "float32")),
        ),
        r"lines\[2\]\.spec",
    ),
    "reuse of too little": (
        program(
            host.Allocate("a", SPEC),
            host.Reuse("a", "b", host.TensorSpec((5,), (1,), "float32")),
        ),
        "do not fit",
    ),
    "constant of another length": (
        program(constants=(host.Constant("c", SPEC, b"1234"),)),
        r"constants\[0\]\.data",
    ),
    "symbol list names a tensor": (program(symbols=("x",)), r"symbols\[0\]"),
    "unknown operator": (
        program(host.ExternCall("y", "aten.nope.default", ())),
        "not registered in this process",
    ),
    "unknown namespace": (
        program(host.ExternCall("y", "somebodys.op.default", ())),
        "import the package",
    ),
    "no overload": (program(host.ExternCall("y", "aten.mm", ())), "form"),
    "Python attribute": (program(host.ExternCall("y", "aten.__class__.mro", ())), "form"),
    "file operator": (
        program(host.ExternCall("y", "aten.from_file.default", ("/etc/passwd",))),
        "more than its arguments",
    ),
    "TorchScript operator": (
        program(host.ExternCall("y", "aten.format.default", ("{}",))),
        "TorchScript",
    ),
    "storage operator": (
        program(host.ExternCall("y", "aten.set_.source_Storage", ())),
        "no program can hold",
    ),
    "too many operands": (
        program(host.ExternCall("y", "aten.relu.default", (host.Ref("x"), 1))),
        r"args.*takes 1",
    ),
    "missing operand": (program(host.ExternCall("y", "aten.mm.default", ())), "lacks self"),
    "unknown keyword": (
        program(host.ExternCall("y", "aten.relu.default", (host.Ref("x"),), (("self", 1),))),
        r"kwargs\[0\]",
    ),
    "line break in a comment": (program(host.Comment("a\nimport os")), r"lines\[0\]\.text"),
    "separator in a comment": (program(host.Comment("a\u2028import os")), r"lines\[0\]\.text"),
    "keyword as a name": (program(host.Allocate("lambda", SPEC)), "Python"),
    "built-in as a name": (program(host.Allocate("eval", SPEC)), "Python"),
    "printer's name": (program(host.Allocate("_k0", SPEC)), "for themselves"),
    "printer's function": (program(host.Allocate("call", SPEC)), "for themselves"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_malformed_program_names_the_field(case: str) -> None:
    """Each way to break the grammar raises HostProgramError with the field's path and reason."""
    bad, message = BAD[case]
    with pytest.raises(HostProgramError, match=message):
        verify(bad)


def test_aliasing_outside_the_schema_is_assumed_for_composites() -> None:
    """dropout may return its input without saying so; a view says so; mm returns something new."""
    from kernelfarm.compiler.host_ops import facts

    assert "input" in facts("aten.dropout.default").aliases
    assert "self" in facts("aten.view.default").aliases
    assert "self" in facts("aten.split.Tensor").aliases
    assert facts("aten.add_.Tensor").writes == {"self"}
    assert not facts("aten.mm.default").aliases


PLANTED = (
    "__import__('os').system('touch {canary}')",
    "x\n    __import__('os').system('touch {canary}')\n    y",
    "'+__import__('os').system('touch {canary}')+'",
    '"+__import__("os").system("touch {canary}")+"',
    "\\'); __import__('os').system('touch {canary}') #",
    "__builtins__",
    "__class__",
    "call",
    "eval",
    "os.system.default",
    "aten.__class__.default",
    "aten.mm.default.__init__.__globals__",
    "{canary}",
    "x;import os",
    "ｘ",
)
HUGE = (2**63, 2**64 - 1, -(2**63), 10**6, -1, 255, 3.5, True, None, b"\x00" * 64, [], [[[]]])


def paths(node: Any, prefix: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Every place of a decoded msgpack tree."""
    yield prefix
    if isinstance(node, list):
        for i, child in enumerate(node):
            yield from paths(child, (*prefix, i))


def replaced(node: Any, path: tuple[int, ...], value: Any) -> Any:
    """A copy of the tree with another value at one place."""
    if not path:
        return value
    copy = list(node)
    copy[path[0]] = replaced(node[path[0]], path[1:], value)
    return copy


def test_code_planted_in_any_field_is_refused_or_inert(
    sample: host.HostProgram, tmp_path: Path
) -> None:
    """Whatever is put into any field of a record gives one clear error, or is mere data.

    What is accepted is printed and its module executed (the function is defined, not called: its
    kernels do not exist); planted text may then stand there only as a quoted string or a comment.
    """
    canary = tmp_path / "canary"
    tree = msgpack.unpackb(encode(sample))
    values = [text.replace("{canary}", str(canary)) for text in PLANTED]
    refused = 0
    for path in paths(tree):
        for value in (*values, *HUGE):
            data = msgpack.packb(replaced(tree, path, value))
            try:
                text = emit_python(decode(data))
            except HostProgramError as error:
                refused += 1
                assert "\n" not in str(error), "one clear line"
                continue
            space: dict[str, Any] = {"__builtins__": {}}
            exec(compile(text, "<planted>", "exec"), space)
            assert space.keys() == {"__builtins__", "call"}
            assert_inert(text, values)
    assert refused > 3000
    assert not canary.exists()


def assert_inert(text: str, planted: list[str]) -> None:
    """No planted text stands in the program's code outside comments and string literals."""
    import io
    import tokenize

    code = " ".join(
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in (tokenize.COMMENT, tokenize.STRING)
    )
    for word in ("import", "system", "touch", "os", "eval", "__"):
        assert word not in code.replace("_", " ").split() and "__" not in code, (word, text)


def test_what_reads_programs_evaluates_no_text() -> None:
    """The modules between a record and the loader contain no eval, exec, pickle or sympify."""
    from kernelfarm.compiler import host_alias, host_codec, host_ops, host_plan, host_verify
    from kernelfarm.compiler.emit import host_python

    modules = (host_alias, host_codec, host_ops, host_plan, host_verify, host_python)
    for module in modules:
        text = Path(str(module.__file__)).read_text()
        for word in ("eval(", "exec(", "pickle", "sympify(", "__import__", "marshal"):
            assert word not in text, (module.__name__, word)


def test_replacing_nothing_changes_nothing(sample: host.HostProgram) -> None:
    """The mutation helper itself is sound: the unchanged tree decodes to the sample."""
    assert decode(msgpack.packb(msgpack.unpackb(encode(sample)))) == replace(sample)
