"""The nodes that are there, their credits, and one pool for each toolchain that they have."""

from __future__ import annotations

from .cluster_jobs import ClusterLimits, Job, Node, Run
from .cluster_pool import Pool


class Roster:
    """Keeps nodes, pools and the accounts of credits and speculation together."""

    def __init__(self, limits: ClusterLimits) -> None:
        self.nodes: dict[str, Node] = {}
        self.pools: dict[bytes, Pool] = {}
        #: The slots of all nodes together.
        self.slots = 0
        #: All speculative runs.
        self.speculating = 0
        #: Pools in which a job, a credit or a node came up or went.
        self.changed: dict[bytes, Pool] = {}
        self._limits = limits

    def pool(self, job: Job) -> Pool:
        """Return the pool of a job's toolchain, whether a node has that or not."""
        return self._pool(job.toolchain)

    def _pool(self, toolchain: bytes) -> Pool:
        pool = self.pools.get(toolchain)
        if pool is None:
            pool = self.pools[toolchain] = Pool(toolchain, self._limits)
        return pool

    # -- nodes --------------------------------------------------------------------------------

    def add(self, node: Node) -> None:
        """Take in a node, for no toolchain yet."""
        self.nodes[node.name] = node
        self.slots += node.slots

    def remove(self, node: Node) -> None:
        """Let a node go, whatever it has assigned."""
        del self.nodes[node.name]
        self.slots -= node.slots
        for toolchain in list(node.toolchains):
            self.quit(node, toolchain)

    def enter(self, node: Node, toolchain: bytes) -> Pool:
        """Let a node take a toolchain's jobs; return the pool."""
        node.toolchains.add(toolchain)
        pool = self._pool(toolchain)
        pool.add(node)
        self.changed[toolchain] = pool
        return pool

    def quit(self, node: Node, toolchain: bytes) -> Pool:
        """Let a node take no more of a toolchain's jobs; return the pool."""
        node.toolchains.discard(toolchain)
        pool = self.pools[toolchain]
        pool.remove(node)
        self.changed[toolchain] = pool
        return pool

    def resize(self, node: Node, slots: int) -> None:
        """Note a node's present number of slots."""
        change = slots - node.slots
        if change == 0:
            return
        node.slots = slots
        self.slots += change
        for toolchain in node.toolchains:
            self.pools[toolchain].slots += change
        self.credits_changed(node)
        self._speculation_changed()

    def credits_changed(self, node: Node) -> None:
        """Note that a node may have more credits, or fewer."""
        for toolchain in node.toolchains:
            pool = self.pools[toolchain]
            pool.update(node)
            self.changed[toolchain] = pool

    # -- runs ---------------------------------------------------------------------------------

    def may_speculate(self, pool: Pool) -> bool:
        """Say whether one more speculative run leaves half of the slots to what is wanted."""
        return self.speculating < max(1, self.slots // 2) and pool.speculating < max(
            1, pool.slots // 2
        )

    def begin(self, run: Run) -> None:
        """Take a credit for a run."""
        run.node.recent += 1
        self.pool(run.job).recent += 1
        run.job.runs[run.node.name] = run.node.runs[run.job.key] = run
        for toolchain in run.node.toolchains:
            self.pools[toolchain].update(run.node)
        if run.speculative:
            self._count(run, 1)

    def end(self, run: Run) -> None:
        """Give a run's credit back."""
        run.ended = True
        del run.job.runs[run.node.name]
        del run.node.runs[run.job.key]
        self.credits_changed(run.node)
        self.wanted_now(run)

    def wanted_now(self, run: Run) -> None:
        """Let a run not count as speculation any more."""
        if run.speculative:
            run.speculative = False
            self._count(run, -1)
            self._speculation_changed()

    def _count(self, run: Run, change: int) -> None:
        self.speculating += change
        self.pool(run.job).speculating += change

    def _speculation_changed(self) -> None:
        # The bound is over all pools; there are as many as Triton installations, a few.
        self.changed.update(self.pools)

    def trim(self) -> None:
        """Forget the pools in which there is nothing, and half of what nodes did lately."""
        for node in self.nodes.values():
            node.named //= 2
            node.recent //= 2
        for pool in self.pools.values():
            pool.recent //= 2
        for toolchain in [name for name, pool in self.pools.items() if pool.empty()]:
            del self.pools[toolchain]
            self.changed.pop(toolchain, None)
