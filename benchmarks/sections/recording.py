"""Training with the recorder on, keys and values durable on disk, beside the same training without it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target

TARGETS = {"recorded": Target("at most", 1.15), "keys only": Target("at most", 1.05)}
QUESTIONS = {"recorded": "training, keys and values recorded", "keys only": "training, keys alone recorded"}


def run(plan: Plan) -> Section:
    section = Section("recording", "Recording")
    if plan.images is None:
        why = "needs MNIST and Fashion-MNIST: name their folder with --data, or set DUALFORM_DATA"
        section.rows = [
            Row(QUESTIONS[kind], {OURS: Cell(why_not=why)}, target=target) for kind, target in TARGETS.items()
        ]
        return section
    measured: dict[str, Any] = import_module("benchmarks.recording").measure(
        plan.images, plan.folder / "recording", plan.steps, min(3, plan.repeats)
    )
    seconds, ratios = measured["seconds"], measured["ratios"]
    for kind, target in TARGETS.items():
        section.rows.append(
            Row(
                f"{QUESTIONS[kind]}, {plan.steps} steps",
                {OURS: Cell(seconds[kind], repeats=min(3, plan.repeats))},
                "the same training, unrecorded",
                seconds["unrecorded"],
                ratios[kind],
                target,
                kind,
            )
        )
    return section
