"""The training data behind an answer: sums by group, the best slots, kept adjoints and retrainings, and other packages'
scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualform.answers import Status
from dualform.answers.influence import FEWEST_RETRAININGS, rank_correlation
from dualform.errors import Forbidden
from dualform_explorer.filter import STANDARD, where_of
from dualform_explorer.groups import MOST_GROUPS, Group, GroupRow, groups_of, hue_of, name_of, rows_of
from dualform_explorer.memories import beside_of
from dualform_explorer.previews import ShownPreview, shown_of_slots
from dualform_explorer.view import View


@dataclass(frozen=True)
class SumsPanel:
    rows: tuple[GroupRow, ...]
    largest: float
    """The largest absolute sum, with or without the filter."""
    signed: bool
    """Whether any sum is negative."""
    total: int
    """The number of groups under the filter."""
    matching: int
    scanned: int
    status: Status | None


def sums_panel(view: View) -> SumsPanel:
    sums = view.memory.group_sum(**view.scored(), by=view.state.by, k=MOST_GROUPS)
    groups = groups_of(view, view.state.by, sums)
    whole: tuple[Group, ...] = ()
    if view.state.chips or view.state.where:
        answer = view.memory.group_sum(**view.scored(masked=False), by=view.state.by, k=MOST_GROUPS)
        whole = groups_of(view, view.state.by, answer)
    every = [group.sum for group in (*groups, *whole)]
    return SumsPanel(
        rows=rows_of(groups, whole),
        largest=max(map(abs, every), default=0.0),
        signed=min(every, default=0.0) < 0,
        total=sums.total or len(groups),
        matching=sums.scan.slots_matching,
        scanned=sums.scan.slots_scanned,
        status=sums.status,
    )


@dataclass(frozen=True)
class Sample:
    sample: int
    dataset: str | None
    label: int | None
    label_name: str
    value: float
    """The sum of its scores, another package's score, or the predicted change of the loss without it."""
    count: int
    """The number of its slots; 0 if unknown."""
    preview: ShownPreview
    hue: int


class Samples(list[Sample]):
    """Samples with a value each, in order."""

    def __init__(self, view: View, rows: Sequence[Mapping[str, Any]]) -> None:
        """`rows`: the columns of slots, and a `value`."""
        previews, names = shown_of_slots(view, rows), view.names
        self.kind, self.missing = previews.kind, previews.missing
        super().__init__(
            Sample(
                sample=row["sample"],
                dataset=row["dataset"],
                label=row.get("label"),
                label_name=names.of(row.get("label"), row["dataset"]),
                value=row["value"],
                count=row.get("count", 0),
                preview=preview,
                hue=hue_of(view.info, view.state.by, [row.get(column) for column in view.state.by]),
            )
            for row, preview in zip(rows, previews, strict=True)
        )


@dataclass(frozen=True)
class SamplesPanel:
    group: str
    """The group in words."""
    samples: Samples
    """The samples with the largest sums."""
    others: int
    """The number of other samples."""
    rest: float
    """The sum of the others."""
    total: float
    """The sum of the group."""
    columns: tuple[str, ...]
    """The columns that identify a sample."""


def samples_panel(view: View) -> SamplesPanel | None:
    """The samples of one group under the page's filter, whose sums add up to the group's. None if no group is open."""
    group = view.state.within
    if group is None:
        return None
    kept = where_of([group], view.where_before or "", None, view.complete)
    asked = {**view.scored(), "where": kept}
    by = ("dataset", "sample") if view.info.datasets else ("sample",)
    found, whole = (view.memory.group_sum(**asked, by=own, k=MOST_GROUPS) for own in (by, group.columns))
    ranked = [own for own in found.ranked() if own[0][-1] is not None]
    total, others = float(whole.sums.sum()), (found.total or len(ranked)) - len(ranked)
    said = {"dataset": None, **{own.column: own.value for own in group.conditions}}
    rows = [
        {**said, **dict(zip(by, values, strict=True)), "value": value, "count": count}
        for values, value, count in ranked
    ]
    return SamplesPanel(
        group=group.words,
        samples=Samples(view, rows),
        others=others,
        rest=total - sum(value for _, value, _ in ranked) if others else 0.0,
        total=total,
        columns=by,
    )


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
    """The slot's token in its sample, if it has one."""
    others: Mapping[str, Any]
    """Columns beyond the standard ones."""
    preview: ShownPreview
    hue: int
    times: int
    """How often its sample is among the best; 1 if unknown."""
    steps: tuple[int, int] | None
    """The first and the last step of these, if one slot is shown for each sample."""
    total: float
    """The sum of their scores."""


@dataclass(frozen=True)
class SlotsPanel:
    slots: tuple[Slot, ...]
    k: int
    """The number of ranked slots. With one slot for each sample, fewer are shown."""
    samples: int
    """The number of distinct samples."""
    gap: float | None
    """How far the last slot shown is ahead of the next one; None if there is no next one."""
    kind: str
    """The kind of previews: "image", "text", "table" or "none"."""
    missing: str
    """Why some previews are missing; empty if none is."""
    matching: int
    scanned: int
    space: str
    status: Status | None


def slots_panel(view: View) -> SlotsPanel:
    hits = view.memory.topk(**view.scored(), k=view.state.k + 1)
    ids, scores = hits.slots[0].tolist(), hits.scores[0].tolist()
    shown = min(view.state.k, len(ids))
    rows = view.memory.slots(hits.slots[0][:shown], hits.space).records() if shown else []
    names = view.names
    places = view.places
    previews = shown_of_slots(view, rows, places)
    # Without samples, each slot counts by itself.
    keys = [_sample(row) or (None, None, slot) for row, slot in zip(rows, ids, strict=False)]
    times = Counter(keys)
    slots = []
    for place, (row, key, preview) in enumerate(zip(rows, keys, previews, strict=True)):
        if view.state.by_sample and key in keys[:place]:
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
                hue=hue_of(view.info, view.state.by, [row.get(name) for name in view.state.by]),
                times=times[key],
                steps=(min(steps), max(steps)) if steps and view.state.by_sample else None,
                total=float(sum(scores[other] for other in alike)),
            )
        )
    return SlotsPanel(
        slots=tuple(slots),
        k=shown,
        samples=len(times),
        gap=scores[view.state.k - 1] - scores[view.state.k] if len(ids) > view.state.k else None,
        kind=previews.kind,
        missing=previews.missing,
        matching=hits.scan.slots_matching,
        scanned=hits.scan.slots_scanned,
        space=hits.space,
        status=hits.status,
    )


def _sample(row: Mapping[str, Any]) -> tuple[Any, ...] | None:
    return None if row.get("sample") is None else (row.get("dataset"), row["sample"])


SAMPLES = 12
"""The number of samples shown with either sign."""
_KEPT = """
    SELECT name, example FROM (
        SELECT name, example, 0 AS place FROM adjoints UNION ALL SELECT name, example, 1 FROM retrainings
        UNION ALL SELECT name, NULL, 2 FROM left_out
    ) WHERE example IS NOT NULL GROUP BY ALL ORDER BY min(place), name"""
"""One statement for all tables that the others need, so that only one process is started."""
_OWN = """(
    SELECT * FROM {table} WHERE name = '{name}' AND example = '{example}' QUALIFY query = min(query) OVER ()
)"""
_SAMPLES = "SELECT * FROM {adjoints} WHERE value {sign} 0 ORDER BY abs(value) DESC, dataset, sample LIMIT {most}"
_GROUPS = """
    SELECT {by} AS said, count(*) AS samples, sum(value) AS value FROM {adjoints} a
    GROUP BY ALL ORDER BY abs(sum(value)) DESC, said LIMIT {most}"""
_SETS = """
    SELECT r.set, r.left_out, r.loss, r.change, sum(a.value) AS predicted,
        CASE WHEN count(DISTINCT {by}) = 1 THEN any_value({by}) END AS said
    FROM {retrainings} r
    LEFT JOIN left_out l ON l.name = r.name AND l.set = r.set
    LEFT JOIN {adjoints} a ON a.sample = l.sample AND a.dataset IS NOT DISTINCT FROM l.dataset
    GROUP BY r.set, r.left_out, r.loss, r.change ORDER BY r.change, r.set"""


@dataclass(frozen=True)
class AdjointPanel:
    refused: str = ""
    """Why kept results cannot be read."""
    names: tuple[str, ...] = ()
    """The names of kept results for the page's example."""
    name: str = ""
    by: tuple[str, ...] = ()
    groups: tuple[Mapping[str, Any], ...] = ()
    """The groups with the largest predicted changes: said, called, hue, samples, value (predicted), change (measured
    without exactly this group, or None). None if samples do not have the columns."""
    harmful: Sequence[Sample] = ()
    """The samples without which the loss would be smaller, the most harmful first."""
    helpful: Sequence[Sample] = ()
    sets: tuple[Mapping[str, Any], ...] = ()
    """Retrainings: set, left_out, loss, change, predicted; the smallest change first."""
    correlation: float | None = None
    """The correlation of predicted and real changes, if there are enough sets."""


def adjoint_panel(view: View) -> AdjointPanel | None:
    """None if nothing is kept for the page's example."""
    try:
        kept = [row["name"] for row in view.memory.sql(_KEPT) if row["example"] == view.state.item]
    except Forbidden as error:
        return AdjointPanel(refused=f"{error.message} {error.hint}".strip())
    if not kept:
        return None
    name, by = view.state.kept if view.state.kept in kept else kept[0], view.state.by[:1]
    own = {"name": name, "example": view.state.item.replace("'", "''")}
    own = {table: _OWN.format(table=table, **own) for table in ("adjoints", "retrainings")}
    rows = [[*view.memory.sql(_SAMPLES.format(**own, sign=sign, most=SAMPLES // 2))] for sign in ("<", ">")]
    named = by[0] in next(iter((*rows[0], *rows[1])), ())
    column = 'a."{}"'.format(by[0].replace('"', '""')) if named else "NULL"
    sets = tuple(view.memory.sql(_SETS.format(**own, by=column)))
    groups = [*view.memory.sql(_GROUPS.format(**own, by=column, most=MOST_GROUPS))] if named else []
    pairs = [(one["predicted"], one["change"]) for one in sets if one["predicted"] is not None]
    measured = {(one["said"], one["left_out"]): one["change"] for one in sets if one["said"] is not None}
    return AdjointPanel(
        names=tuple(kept),
        name=name,
        by=by,
        groups=tuple(
            {
                **one,
                "called": name_of(view.names, by, [one["said"]]),
                "hue": hue_of(view.info, by, [one["said"]]),
                "change": measured.get((one["said"], one["samples"])),
            }
            for one in groups
        ),
        harmful=Samples(view, rows[0]),
        helpful=Samples(view, rows[1]),
        sets=sets,
        correlation=rank_correlation(*np.array(pairs).T) if len(pairs) >= FEWEST_RETRAININGS else None,
    )


@dataclass(frozen=True)
class Scored:
    """A file of another package's scores."""

    name: str
    highest: Samples
    lowest: Samples
    """The lowest score first."""
    samples: int
    """The number of samples with a score for the example."""
    agreement: float | None
    """The rank correlation with the sums of the page's score by sample, over the samples in both. None for fewer than
    three."""


def scores_panel(view: View) -> list[Scored] | None:
    """The files about the page's query set; None if there are none."""
    given = [own for own in beside_of(view.memory).scores if own.query_set == view.state.query_set]
    if not given:
        return None
    ours, files = _sums_by_sample(view), list[Scored]()
    for own in given:
        values = own.values[:, view.state.row]
        known = np.flatnonzero(~np.isnan(values))
        order = known[np.argsort(-values[known], kind="stable")]
        highest, lowest = (
            Samples(
                view,
                [
                    {"sample": int(own.samples[place]), "dataset": own.dataset, "value": float(values[place])}
                    for place in ends.tolist()
                ],
            )
            for ends in (order[:SAMPLES], order[::-1][: min(SAMPLES, max(0, len(order) - SAMPLES))])
        )
        pairs = [
            (value, ours[own.dataset, sample])
            for sample, value in zip(own.samples[known].tolist(), values[known].tolist(), strict=True)
            if (own.dataset, sample) in ours
        ]
        agreement = rank_correlation(*np.array(pairs).T) if len(pairs) > 2 else None
        files.append(Scored(own.name, highest, lowest, len(known), agreement))
    return files


def _sums_by_sample(view: View) -> dict[tuple[Any, Any], float]:
    """The sums of the page's score over all slots of its layer, by sample."""
    by = ("dataset", "sample") if view.info.datasets else ("sample",)
    sums = view.memory.group_sum(**view.scored(masked=False), by=by)
    keys = (group if view.info.datasets else (None, *group) for group in sums.groups)
    return dict(zip(keys, sums.sums[0].tolist(), strict=True))
