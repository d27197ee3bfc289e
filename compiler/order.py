"""A topological order of a graph, kept valid while its nodes merge.

Every node has a slot, and depends only on nodes in earlier ones; so whether a path leads from one
node to another is decided by looking at the slots between the two, however large the graph is.
Merging moves nothing outside that window (Pearce and Kelly, "A dynamic topological sort algorithm
for directed acyclic graphs", 2006, apply the same idea to adding edges).
"""

from __future__ import annotations

from collections.abc import Mapping


class Order:
    """Nodes by number with what they depend on; the mapping must list them in a valid order."""

    def __init__(self, deps: Mapping[int, set[int]]) -> None:
        self.deps = {node: set(found) for node, found in deps.items()}
        self.users: dict[int, set[int]] = {node: set() for node in deps}
        for node, found in deps.items():
            for dep in found:
                self.users[dep].add(node)
        self._slots: list[int | None] = list(deps)
        self._at = {node: slot for slot, node in enumerate(deps)}

    def detour(self, a: int, b: int) -> bool:
        """Whether ``b`` depends on ``a`` through a third node."""
        start = self._at[a]
        waiting = [d for d in self.deps[b] if self._at[d] > start]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            if a in self.deps[node]:
                return True
            for dep in self.deps[node]:
                if dep not in seen and self._at[dep] > start:
                    seen.add(dep)
                    waiting.append(dep)
        return False

    def merge(self, a: int, b: int) -> None:
        """Let ``a`` stand for both nodes; there must be no detour between them."""
        first, last = sorted((a, b), key=self._at.__getitem__)
        low, high = self._at[first], self._at[last]
        after = self._reached(first, last)
        window = [n for n in self._slots[low : high + 1] if n is not None and n not in (a, b)]
        placed = [*(n for n in window if n not in after), a, *(n for n in window if n in after)]
        for users, deps in ((self.users, self.deps), (self.deps, self.users)):
            for node in deps[b]:
                users[node].discard(b)
                users[node].add(a)
            deps[a] = (deps[a] | deps[b]) - {a, b}
        for relation in (self.users, self.deps):
            del relation[b]
        self.deps[a].discard(a)
        self.users[a].discard(a)
        del self._at[b]
        empty: list[int | None] = [None] * (high + 1 - low - len(placed))
        for slot, filler in enumerate([*placed, *empty], start=low):
            self._slots[slot] = filler
            if filler is not None:
                self._at[filler] = slot

    def _reached(self, first: int, last: int) -> set[int]:
        """What depends on ``first`` and lies before ``last``."""
        end = self._at[last]
        waiting = [n for n in self.users[first] if self._at[n] < end]
        reached = set(waiting)
        while waiting:
            for user in self.users[waiting.pop()]:
                if user not in reached and self._at[user] < end:
                    reached.add(user)
                    waiting.append(user)
        return reached

    def placed(self) -> list[int]:
        """All nodes in order."""
        return [node for node in self._slots if node is not None]
