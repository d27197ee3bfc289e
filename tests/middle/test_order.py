"""The order that is kept while groups merge agrees with a search of the whole graph."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.compiler.order import Order


def _ancestors(deps: dict[int, set[int]], node: int) -> set[int]:
    found: set[int] = set()
    waiting = list(deps[node])
    while waiting:
        dep = waiting.pop()
        if dep not in found:
            found.add(dep)
            waiting += deps[dep]
    return found


@given(st.integers(2, 24), st.floats(0.05, 0.5), st.integers(0, 10_000))
def test_merging_keeps_a_valid_order_and_finds_every_detour(
    size: int, density: float, seed: int
) -> None:
    """After every merge each node lies behind all it depends on, and detours are found exactly."""
    rng = random.Random(seed)
    deps = {n: {m for m in range(n) if rng.random() < density} for n in range(size)}
    order = Order(deps)
    while len(deps) > 1:
        a, b = rng.sample(sorted(deps), 2)
        through = any(a in _ancestors(deps, d) for d in deps[b] if d != a)
        assert order.detour(a, b) == through
        back = any(b in _ancestors(deps, d) for d in deps[a] if d != b)
        assert order.detour(b, a) == back
        if through or back:
            if all(order.detour(x, y) or order.detour(y, x) for x in deps for y in deps if x < y):
                break
            continue
        order.merge(a, b)
        merged = (deps[a] | deps.pop(b)) - {a, b}
        deps = {n: {a if d == b else d for d in found} for n, found in deps.items()}
        deps[a] = merged
        assert order.deps == deps
        place = {n: s for s, n in enumerate(order.placed())}
        assert set(place) == set(deps)
        assert all(place[d] < place[n] for n, found in deps.items() for d in found)
