"""The Ray actor that hosts a coordinator; all it does is in coordination.py.

Coordinators are detached and named by wire version, place and number, so that whoever comes first
starts them and everybody else finds them. They restart for ever, knowing nothing: their state is
what nodes tell. Only hosts of the cluster import this module, and only its functions import Ray.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from typing import Any

from .cluster_wire import NAMESPACE, coordinator_name
from .coordination import CoordinatorHost
from .wire import Message

#: Calls at once: each node has one parked in ``listen``.
CONCURRENCY = 20_000


class Coordinator:
    """An async Ray actor around one CoordinatorHost; arguments and results are plain data."""

    def __init__(self, index: int, count: int) -> None:
        # What a plan drops is in no cycle, and a full collection with 300,000 jobs in flight would
        # stop it for a second; this leaves collections to what Ray itself may leave in cycles.
        gc.set_threshold(100_000, 50, 1_000)
        self._host = CoordinatorHost(index, count, fatal=_end)

    async def join(self, node: str, info: Message) -> Message:
        """Take a node in, or say why not."""
        return await self._host.join(node, info)

    async def send(self, node: str, messages: list[Message]) -> None:
        """Take what a node says."""
        await self._host.send(node, messages)

    async def listen(self, node: str, session: str) -> list[Message]:
        """Return what a node is to be told; parks until there is something, 5 s at most."""
        return await self._host.listen(node, session)

    async def stats(self) -> Message:
        """Return what is there and what has happened."""
        return {**await self._host.stats(), "pid": os.getpid()}

    async def ping(self) -> int:
        """Return the process's number: it lives."""
        return os.getpid()


def _end(error: Exception) -> None:
    """End the process after a bug: Ray starts a new one, and the nodes tell it all again."""
    traceback.print_exception(error, file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


def coordinators(count: int) -> list[Any]:
    """Return the handles of all coordinators, each started if it is not there.

    Ray must be initialised. Callers that race get the same actors.
    """
    import ray

    actor = ray.remote(Coordinator)
    return [
        actor.options(
            name=coordinator_name(index, count),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=CONCURRENCY,
        ).remote(index, count)
        for index in range(count)
    ]
