"""Training with the recorder on, keys and values durable on disk, beside the same training without it."""

from __future__ import annotations

from benchmarks import trainings
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target
from benchmarks.timing import Timing

KINDS = {
    "values": ("training, keys and values recorded", Target("at most", 1.15)),
    "keys": ("training, keys alone recorded", Target("at most", 1.05)),
}
REPEATS = 3


def run(plan: Plan) -> Section:
    section = Section("recording", "Recording")
    if plan.images is None:
        why = "needs MNIST and Fashion-MNIST: name their folder with --data, or set DUALFORM_DATA"
        section.rows = [Row(question, {OURS: Cell(why_not=why)}, target=target) for question, target in KINDS.values()]
        return section
    folder = plan.folder / "recording"
    folder.mkdir()
    measured = trainings.measure(plan.images, folder, plan.steps, min(REPEATS, plan.repeats))
    unrecorded = Timing.of(measured["seconds"]["unrecorded"]).seconds
    for kind, (question, target) in KINDS.items():
        timing = Timing.of(measured["seconds"][kind])
        section.rows.append(
            Row(
                f"{question}, {measured['steps']:,} steps",
                {OURS: Cell(timing.seconds, timing.best, timing.repeats)},
                "the same training, unrecorded",
                unrecorded,
                measured["ratios"][kind],
                target,
                kind,
            )
        )
        written = measured["bytes_per_second"][kind]
        section.numbers[f"{kind}, byte/s"] = written
        section.facts[f"{question}: written"] = f"{measured['bytes'][kind] / 1e9:.2f} GB, {written / 1e6:,.0f} MB/s"
    section.notes.append(
        "A ratio is the median over repeats of the seconds over those of the unrecorded training of the same repeat, "
        "until the record is durable."
    )
    return section
