"""Loop bodies and fused groups as text, one statement a line: for tests, dumps and debugging.

p0 < 64, p1 < 128; r0 < 32
  %0 = load arg1[128*p0 + p1] as bfloat16 : float32
  %1 = mul %0, %0 : float32
  %2 = reduce sum %1 : float32
  store buf1[p0] = %2 as bfloat16
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .body import Body, Stmt
from .fuse import Group, merged_body
from .ir import View


def print_stmt(number: int, stmt: Stmt) -> str:
    """One statement; ``number`` is its position in the body."""
    args = ", ".join(f"%{a}" for a in stmt.args)
    match stmt.op:
        case "load":
            buffer, index, dtype = stmt.attrs
            mask = f" where {args}" if args else ""
            narrow = "" if dtype == stmt.dtype else f" as {dtype}"
            return f"%{number} = load {buffer}[{index}]{mask}{narrow} : {stmt.dtype}"
        case "store":
            buffer, index, mode, dtype = stmt.attrs
            how = "=" if mode == "set" else f"{mode}="
            where = f" where %{stmt.args[1]}" if len(stmt.args) > 1 else ""
            return f"store {buffer}[{index}] {how} %{stmt.args[0]} as {dtype}{where}"
        case _:
            words = [stmt.op, *(str(a) for a in stmt.attrs), args]
            return f"%{number} = {' '.join(w for w in words if w)} : {stmt.dtype}"


def print_body(body: Body) -> str:
    """A loop nest: its loops in the first line, one statement a line below."""
    outer = ", ".join(f"p{n} < {s}" for n, s in enumerate(body.sizes)) or "once"
    inner = ", ".join(f"r{n} < {s}" for n, s in enumerate(body.rsizes))
    head = f"{outer}; {inner}" if inner else outer
    return "\n".join([head, *(f"  {print_stmt(n, s)}" for n, s in enumerate(body.stmts))])


def print_groups(groups: Iterable[Group], live: Mapping[int, set[str]]) -> str:
    """Fused groups in order: each kernel's merged body, each library call as one line."""
    parts = []
    for position, group in enumerate(groups):
        if group.extern is not None:
            node = group.extern
            parts.append(f"call {position}: {node.name} = {node.op}({_arguments(node.args)})")
            continue
        names = ", ".join(name for _, name, _ in group.members)
        body = print_body(merged_body(group, live[group.number]))
        parts.append(f"kernel {position}: {names}\n{body}")
    return "\n\n".join(parts) + "\n"


def _arguments(tree: object) -> str:
    match tree:
        case View():
            return tree.buffer.name
        case tuple() | list():
            return ", ".join(_arguments(item) for item in tree)
        case _:
            return str(tree)
