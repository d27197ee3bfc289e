"""What the back half answers: a binary, its named metadata and what it needs to be loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, cast

import msgpack

from .canonical import Plain, plain
from .errors import RequestError

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class KernelMetadata:
    """What a launcher must know, and nothing else that a worker might say.

    ``shared``, scratch sizes and alignments are bytes, ``tmem_size`` is columns; scratch is per
    program. ``tensordesc_meta`` holds one entry per tensor-descriptor argument, as (name, value)
    pairs, see `tensor_descriptors`. ``cooperative`` and ``pdl`` are launch attributes.
    """

    name: str
    shared: int = 0
    num_warps: int = 4
    num_ctas: int = 1
    cluster_dims: tuple[int, ...] = (1, 1, 1)
    tmem_size: int = 0
    global_scratch_size: int = 0
    global_scratch_align: int = 1
    profile_scratch_size: int = 0
    profile_scratch_align: int = 1
    tensordesc_meta: tuple[Plain, ...] = ()
    warp_size: int = 32
    cooperative: bool = False
    pdl: bool = False

    def tensor_descriptors(self) -> list[dict[str, Any]]:
        """Return the tensor-descriptor layouts as dictionaries, in argument order."""
        return [dict(cast(Any, entry)) if entry else {} for entry in self.tensordesc_meta]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled kernel.

    ``registers`` is per thread. ``spills`` is local memory per thread in 32-bit words (AMD: spilled
    registers), the figure that drivers and Triton report. ``min_driver`` is the lowest
    ``cuDriverGetVersion`` value (12080 for CUDA 12.8) that loads the binary, 0 where none is known.
    """

    binary: bytes
    kind: Literal["cubin", "hsaco"]
    metadata: KernelMetadata
    registers: int = 0
    spills: int = 0
    min_driver: int = 0
    ptx: str | None = None

    def to_payload(self) -> bytes:
        """Return the artifact as canonical bytes: equal artifacts are equal payloads."""
        meta = asdict(self.metadata)
        row = [_FORMAT, self.kind, self.binary, self.registers, self.spills, self.min_driver]
        pairs = [[name, meta[name]] for name in sorted(meta)]
        packed = msgpack.packb([*row, self.ptx, pairs], use_bin_type=True)
        assert isinstance(packed, bytes)
        return packed

    @staticmethod
    def from_payload(payload: bytes) -> Artifact:
        """Rebuild an artifact from `to_payload`'s bytes; raises RequestError for anything else."""
        try:
            row = msgpack.unpackb(payload, use_list=False, strict_map_key=True)
            version, kind, binary, registers, spills, min_driver, ptx, pairs = row
            if version != _FORMAT or kind not in ("cubin", "hsaco"):
                raise ValueError(f"format {version!r}, kind {kind!r}")
            metadata = _metadata(dict(pairs))
            if not isinstance(binary, bytes) or not isinstance(ptx, str | None):
                raise TypeError("binary or ptx has another type")
            return Artifact(
                binary,
                kind,
                metadata,
                _count(registers),
                _count(spills),
                _count(min_driver),
                ptx,
            )
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise RequestError("artifact", f"does not decode: {error!r}") from error


def _metadata(pairs: dict[str, Any]) -> KernelMetadata:
    known = {field.name: field for field in fields(KernelMetadata)}
    if pairs.keys() != known.keys():
        raise KeyError(f"metadata fields {sorted(pairs.keys() ^ known.keys())}")
    for name, value in pairs.items():
        match name:
            case "name":
                if not isinstance(value, str):
                    raise TypeError("name is no text")
            case "cluster_dims":
                pairs[name] = tuple(_count(item) for item in value)
            case "tensordesc_meta":
                pairs[name] = plain(value, name)
            case "cooperative" | "pdl":
                if not isinstance(value, bool):
                    raise TypeError(f"{name} is no bool")
            case _:
                _count(value)
    return KernelMetadata(**pairs)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value
