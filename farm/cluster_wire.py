"""What nodes and coordinators say to each other: names, versions, messages, batches.

A node calls ``join(node, info)``, ``send(node, messages)`` and ``listen(node, session)`` of each
coordinator; ``listen`` parks until there is something for the node. Messages are maps of numbers,
bytes and text, with their names under "op"::

    node         ask {key, toolchain, prio, expected, body}    raise {key, prio}    drop {key}
                 pull {credits}     beat {slots}     part
                 done {key, seconds, started, finished}    failed {key, failure}
                 unfetched {key, holder}
    coordinator  compile {key, body, asker, prio}    found {key, holder}    failed {key, failure}
                 cancel {key}       no_taker {key, why}
                 rejoin             it does not know the node (any more): join and ask again

``info`` is {wire, slots, toolchains, versions, session, shares}, the reply {ok, wire, why};
``session`` is new for each join, so that what is meant for an earlier one is dropped, and
``shares`` says that the node's agent serves what it has fetched too. ``body`` is the compressed
wire form of a CompileRequest; it is empty in a ``compile`` for who asked, who has it.
Unknown fields are ignored; any other change raises CLUSTER_WIRE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .wire import Message

#: Part of every actor's name, so that two versions never meet; checked again in ``join``.
CLUSTER_WIRE = 1
#: The Ray namespace of all our actors.
NAMESPACE = "kernelfarm"
#: Keys and bytes of one call; Ray sends arguments beyond 100 KB by another, slower way.
BATCH_KEYS = 64
BATCH_BYTES = 90_000
#: Seconds that ``listen`` parks at most.
PARK = 5.0


def coordinator_name(index: int, count: int) -> str:
    """Return the name of one of ``count`` coordinators."""
    return f"coordinator-w{CLUSTER_WIRE}-{index}of{count}"


def agent_name(node: str) -> str:
    """Return the name of a node's agent."""
    return f"agent-w{CLUSTER_WIRE}-{node}"


def shard_of(key: bytes, count: int) -> int:
    """Return which of ``count`` coordinators decides about a key."""
    return key[0] % count


def size_of(message: Message) -> int:
    """Return about how many bytes a message takes in a call."""
    size = 64
    for value in message.values():
        match value:
            case bytes() | str():
                size += len(value)
            case dict():
                size += size_of(value)
            case list() | tuple():
                size += size_of(dict(enumerate(value)))  # type: ignore[arg-type]
    return size


def batches(
    messages: list[Message], size: Callable[[Message], int] = size_of
) -> Iterator[list[Message]]:
    """Cut messages into calls, in order; one that is too large for any call goes alone."""
    batch: list[Message] = []
    filled = 0
    for message in messages:
        needs = size(message)
        if batch and (len(batch) >= BATCH_KEYS or filled + needs > BATCH_BYTES):
            yield batch
            batch, filled = [], 0
        batch.append(message)
        filled += needs
    if batch:
        yield batch
