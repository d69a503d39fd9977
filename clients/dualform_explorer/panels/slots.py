"""The training datapoints that the query attends to most (paper, figure 10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dualform.answers import MemoryInfo, Status
from dualform.methods import Answers
from dualform_explorer.groups import hue_of
from dualform_explorer.labels import label_names
from dualform_explorer.previews import ShownPreview, shown_of_slots
from dualform_explorer.questions import scored
from dualform_explorer.standard_columns import STANDARD
from dualform_explorer.state import State


@dataclass(frozen=True)
class Slot:
    rank: int
    slot: int
    score: float
    step: int | None
    dataset: str | None
    label: int | None
    label_name: str
    sample: int | None
    position: int | None
    """Of the slot's token in its sample, where it is one."""
    others: Mapping[str, Any]
    """Columns of one's own."""
    preview: ShownPreview
    hue: int
    times: int
    """How often its sample stands among the best; 1 where it is not known."""
    steps: tuple[int, int] | None
    """The first and the last step of those, where the slots of a sample are shown as one."""
    total: float
    """The sum of their scores."""


@dataclass(frozen=True)
class SlotsPanel:
    slots: tuple[Slot, ...]
    k: int
    """Slots that were ranked; where those of a sample are shown as one there are fewer to see."""
    samples: int
    """Distinct samples among them."""
    gap: float | None
    """By how much the last one that is shown is ahead of the next; None where there is no next."""
    largest: float
    """The size of the largest score that is shown."""
    kind: str
    """What slots look like: "image", "text", "table" or "none"."""
    missing: str
    """Why some are not shown as they looked; empty where there is nothing to say."""
    matching: int
    scanned: int
    space: str
    status: Status | None


def slots_panel(memory: Answers, info: MemoryInfo, state: State) -> SlotsPanel:
    hits = memory.topk(**scored(memory, info, state), k=state.k + 1)
    ids, scores = hits.slots[0].tolist(), hits.scores[0].tolist()
    shown = min(state.k, len(ids))
    rows = memory.slots(hits.slots[0][:shown], hits.space).records() if shown else []
    names = label_names(memory, info)
    previews = shown_of_slots(memory, info, rows)
    # Where no sample was said, each slot is its own.
    keys = [_sample(row) or (None, None, slot) for row, slot in zip(rows, ids, strict=False)]
    times = Counter(keys)
    slots = []
    for place, (row, key, preview) in enumerate(zip(rows, keys, previews, strict=True)):
        if state.by_sample and key in keys[:place]:
            continue
        alike = [other for other, own in enumerate(keys) if own == key]
        steps = [rows[other]["step"] for other in alike if rows[other]["step"] is not None]
        slots.append(
            Slot(
                rank=place + 1,
                slot=ids[place],
                score=scores[place],
                step=row["step"],
                dataset=row.get("dataset"),
                label=row.get("label"),
                label_name=names.of(row.get("label"), row.get("dataset")),
                sample=row.get("sample"),
                position=row.get("position"),
                others={name: value for name, value in row.items() if name not in STANDARD and value is not None},
                preview=preview,
                hue=hue_of(info, state.by, [row.get(name) for name in state.by]),
                times=times[key],
                steps=(min(steps), max(steps)) if steps and state.by_sample else None,
                total=float(sum(scores[other] for other in alike)),
            )
        )
    kinds = [own.kind for own in previews if own.kind != "none"]
    return SlotsPanel(
        slots=tuple(slots),
        k=shown,
        samples=len(times),
        gap=scores[state.k - 1] - scores[state.k] if len(ids) > state.k else None,
        largest=max(map(abs, scores[:shown]), default=0.0),
        kind=kinds[0] if kinds else "none",
        missing=previews.missing,
        matching=hits.scan.slots_matching,
        scanned=hits.scan.slots_scanned,
        space=hits.space,
        status=hits.status,
    )


def _sample(row: Mapping[str, Any]) -> tuple[Any, ...] | None:
    return None if row.get("sample") is None else (row.get("dataset"), row["sample"])
