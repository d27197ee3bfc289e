"""What the lines of `cold_warm` amount to: kernelfarm beside Inductor, for each model and mode."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Line = dict[str, Any]


def summarise(lines: Sequence[Line]) -> list[Line]:
    """Return one line per model and mode; a figure is left out where it has no lines.

    Ratios are kernelfarm's median over Inductor's. ``warm_beyond_floor_s`` is what a warm first
    call takes beyond Dynamo, AOTAutograd and running op by op; ``warm_beyond_tracing_s`` beyond
    Dynamo and AOTAutograd of the same process.
    """
    names = dict.fromkeys((line["model"], line["mode"]) for line in lines)
    return [_one(model, mode, lines) for model, mode in names]


def _one(model: str, mode: str, lines: Sequence[Line]) -> Line:
    mine = [line for line in lines if (line["model"], line["mode"]) == (model, mode)]

    def median(system: str, start: str, figure: str) -> float | None:
        values = [
            line[figure]
            for line in mine
            if (line["system"], line["start"]) == (system, start) and line.get(figure) is not None
        ]
        return statistics.median(values) if values else None

    found: Line = {"summary": f"{model} {mode}"}
    for name, start, figure in (
        ("cold_ratio", "cold", "first_call_s"),
        ("warm_ratio", "warm", "first_call_s"),
        ("steady_ratio", "cold", "steady_ms"),
        ("queued_ratio", "cold", "queued_ms"),
        ("peak_ratio", "cold", "steady_peak_mib"),
    ):
        ours, theirs = median("kernelfarm", start, figure), median("inductor", start, figure)
        if ours is not None and theirs:
            found[name] = round(ours / theirs, 3)
    warm, floor = (
        median("kernelfarm", "warm", "first_call_s"),
        median("floor", "cold", "first_call_s"),
    )
    if warm is not None and floor is not None:
        found["warm_beyond_floor_s"] = round(warm - floor, 3)
    traced = median("kernelfarm", "warm", "beyond_tracing_s")
    if traced is not None:
        found["warm_beyond_tracing_s"] = traced
    checks = [line["check"]["wrong"] for line in mine if "check" in line]
    if checks:
        found["agrees"] = not any(checks)
    failures = sum(failed(line) for line in mine)
    if failures:
        found["failed"] = failures
    return found


def failed(line: Line) -> bool:
    """Say whether a line's process failed, or ran and was wrong, or fell back to eager."""
    wrong = line.get("check", {}).get("wrong", False)
    return bool(line.get("error") or line.get("fell_back") or wrong)
