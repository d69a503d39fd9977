"""What was kept in the memory of leaving samples out: the predicted changes of a loss, and those of retrainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualform.answers import MemoryInfo
from dualform.answers.adjoint import FEWEST_RETRAININGS
from dualform.answers.rank_correlation import rank_correlation
from dualform.errors import Forbidden, NotFound
from dualform.methods import Answers
from dualform_explorer.groups import hue_of
from dualform_explorer.labels import label_names
from dualform_explorer.previews import ShownPreview, ShownPreviews, shown_of_slots
from dualform_explorer.state import State

SAMPLES = 12
"""Shown of either sign."""
SETS = 30
"""Shown, of which half have the smallest changes and half the largest."""
_NAMES = """
    SELECT name, max(query) + 1 AS queries FROM (
        SELECT name, query, 0 AS place FROM adjoints UNION ALL SELECT name, query, 1 FROM retrainings
        UNION ALL SELECT name, 0, 2 FROM left_out
    ) GROUP BY name ORDER BY min(place), name"""
"""All tables that the others name, so that a process with them starts once."""
_SAMPLES = """
    SELECT * FROM adjoints
    WHERE name = '{name}' AND query = {query} AND value {sign} 0
    ORDER BY abs(value) DESC, dataset, sample LIMIT {most}"""
_SETS = """
    SELECT r.set, r.left_out, r.loss, r.change, sum(a.value) AS predicted
    FROM retrainings r
    LEFT JOIN left_out l ON l.name = r.name AND l.set = r.set
    LEFT JOIN adjoints a ON a.name = r.name AND a.query = r.query AND a.sample = l.sample
        AND a.dataset IS NOT DISTINCT FROM l.dataset
    WHERE r.name = '{name}' AND r.query = {query} GROUP BY ALL ORDER BY r.change, r.set"""


@dataclass(frozen=True)
class Sample:
    sample: int
    dataset: str | None
    label: int | None
    label_name: str
    value: float
    """The predicted change of the loss without it."""
    preview: ShownPreview
    hue: int


@dataclass(frozen=True)
class AdjointPanel:
    refused: str = ""
    """Why nothing is known of what was kept."""
    names: tuple[str, ...] = ()
    """None where nothing was kept, and there is nothing to show."""
    name: str = ""
    query: int = 0
    queries: int = 0
    harmful: tuple[Sample, ...] = ()
    """Without which the loss would be smaller, the most harmful first."""
    helpful: tuple[Sample, ...] = ()
    largest: float = 0.0
    """The size of the largest value that is shown."""
    kind: str = "none"
    missing: str = ""
    sets: tuple[Mapping[str, Any], ...] = ()
    """Of retrainings: set, left_out, loss, change, predicted; the smallest change first."""
    retrained: int = 0
    """How many sets there are, shown or not."""
    loss: float | None = None
    """With all samples, where there are retrainings."""
    correlation: float | None = None
    """Of predicted and real changes, where there are enough sets."""


def adjoint_panel(memory: Answers, info: MemoryInfo, state: State) -> AdjointPanel:
    try:
        kept = {row["name"]: row["queries"] for row in memory.sql(_NAMES)}
    except Forbidden as error:
        return AdjointPanel(refused=f"{error.message} {error.hint}".strip())
    if not kept:
        return AdjointPanel()
    name, query = state.kept or next(iter(kept)), state.kept_query
    if name not in kept:
        raise NotFound(f"Nothing is kept under the name {name!r}.", hint=f"Names: {', '.join(kept)}.")
    if query >= kept[name]:
        raise NotFound(f"There is no query {query}.", hint=f"{name} has 0 to {kept[name] - 1}.")
    rows = [[*memory.sql(_SAMPLES.format(name=name, query=query, sign=sign, most=SAMPLES))] for sign in ("<", ">")]
    previews = shown_of_slots(memory, info, [*rows[0], *rows[1]])
    samples = _samples(memory, info, state, [*rows[0], *rows[1]], previews)
    sets = tuple(memory.sql(_SETS.format(name=name, query=query)))
    return AdjointPanel(
        names=tuple(kept),
        name=name,
        query=query,
        queries=kept[name],
        harmful=samples[: len(rows[0])],
        helpful=samples[len(rows[0]) :],
        largest=max((abs(own.value) for own in samples), default=0.0),
        kind=next((own.kind for own in previews if own.kind != "none"), "none"),
        missing=previews.missing,
        sets=sets if len(sets) <= SETS else sets[: SETS // 2] + sets[-SETS // 2 :],
        retrained=len(sets),
        loss=sets[0]["loss"] - sets[0]["change"] if sets else None,
        correlation=_correlation(sets),
    )


def _samples(
    memory: Answers, info: MemoryInfo, state: State, rows: Sequence[Mapping[str, Any]], previews: ShownPreviews
) -> tuple[Sample, ...]:
    names = label_names(memory, info)
    return tuple(
        Sample(
            sample=row["sample"],
            dataset=row["dataset"],
            label=row.get("label"),
            label_name=names.of(row.get("label"), row["dataset"]),
            value=row["value"],
            preview=preview,
            hue=hue_of(info, state.by, [row.get(column) for column in state.by]),
        )
        for row, preview in zip(rows, previews, strict=True)
    )


def _correlation(sets: Sequence[Mapping[str, Any]]) -> float | None:
    pairs = [(own["predicted"], own["change"]) for own in sets if own["predicted"] is not None]
    return rank_correlation(*np.array(pairs).T) if len(pairs) >= FEWEST_RETRAININGS else None
