"""A training whose activations are checkpointed, with the recorder on, beside the same training without it."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from time import perf_counter

from benchmarks import networks
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target
from benchmarks.timing import Timing

_WARM_UP = 3
"""Steps: torch's first ones allocate, and the recorder's first one looks for layers."""


def run(plan: Plan) -> Section:
    section = Section("checkpointing", "Recording beside checkpointing")
    steps = 10 if plan.quick else 40
    for name, checkpointed, target in (
        ("checkpointed", True, Target("at most", 1.3)),
        ("not checkpointed", False, None),
    ):
        unrecorded: list[float] = []
        recorded: list[float] = []
        for _ in range(min(3, plan.repeats)):
            unrecorded += _steps(steps, checkpointed, None)
            recorded += _steps(steps, checkpointed, plan.folder / "checkpointing")
        ours, beside = Timing.of(recorded), Timing.of(unrecorded)
        section.rows.append(
            Row(
                f"a step of a transformer under AdamW, {name}, keys and values recorded",
                {OURS: Cell(ours.seconds, ours.best, ours.repeats)},
                "the same step, unrecorded",
                beside.seconds,
                ours.seconds / beside.seconds,
                target,
                name,
            )
        )
    section.notes.append(
        f"Two layers of width 256, 1,024 tokens a step. Medians over single steps, without the first {_WARM_UP} of "
        "each training; trainings with the recorder and without take turns. Torch keeps no activations of a "
        "checkpointed layer, so that its second forward pass is part of both."
    )
    return section


def _steps(steps: int, checkpointed: bool, memory: Path | None) -> list[float]:
    """Seconds of every step of one training."""
    ends: list[float] = []
    model = networks.Transformer(checkpointed=checkpointed)
    networks.train(model, networks.texts, steps + _WARM_UP, memory, lambda: ends.append(perf_counter()))
    if memory is not None:
        shutil.rmtree(memory)
    ends = ends[_WARM_UP - 1 :]
    return [after - before for before, after in pairwise(ends)]
