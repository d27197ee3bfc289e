"""What a store holds, for `kernelfarm stats`."""

from __future__ import annotations

from typing import Any

from .cache.opening import open_store
from .knobs import Knobs


def collect(knobs: Knobs) -> dict[str, Any]:
    """Return what the store holds, as the object that ``kernelfarm stats --json`` prints.

    Raises StoreUnusable.
    """
    store = open_store(knobs.store, quota_bytes=knobs.store_bytes)
    try:
        inventory = store.inventory()
    finally:
        store.close()
    return {
        "store": inventory.place,
        "records": inventory.records,
        "bytes": inventory.bytes,
        "disk_bytes": inventory.disk_bytes,
        "files": inventory.files,
        "unreadable": inventory.unreadable,
    }


def render(stats: dict[str, Any]) -> str:
    """Return the same for a person, one line per kind of record."""
    lines = [f"store {stats['store']}"]
    for kind in sorted(stats["records"]):
        count, size = stats["records"][kind], stats["bytes"].get(kind, 0)
        lines.append(f"  {kind:<8} {count:>7} records  {_human(size):>10}")
    if not stats["records"]:
        lines.append("  nothing stored yet; `kernelfarm warm` fills it")
    lines.append(f"  on disk  {stats['files']:>7} files    {_human(stats['disk_bytes']):>10}")
    if stats["unreadable"]:
        lines.append(
            f"  {stats['unreadable']} records cannot be read; they count as missing and are "
            "written again when they are needed"
        )
    return "\n".join(lines)


def _human(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError
