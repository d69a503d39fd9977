"""What is asked about: one example of a query set; and the filter that it is asked under."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dualform.answers import MemoryInfo
from dualform.errors import BadInput, DualformError, NotFound
from dualform.methods import Answers
from dualform_explorer.examples import examples_of, label_names, layer_of, query_of, token_of, tokens_of
from dualform_explorer.groups import MOST_GROUPS, Group, groups_of, where_before
from dualform_explorer.previews import (
    NOTHING,
    ShownPreview,
    Token,
    previews_of_examples,
    shown_preview,
    tokens_of_passage,
    unmarked,
)
from dualform_explorer.state import State


@dataclass(frozen=True)
class QueryPanel:
    query_set: str
    row: int
    count: int
    """Examples of the query set."""
    label: int | None
    label_name: str
    read: int | None
    """The network's largest output when the query set was taken."""
    read_name: str
    misclassified: int
    """Examples of the query set whose largest output is not their label."""
    place: int | None
    """Of this example among those that are gone through, from 1; None where it is not one of them."""
    among: int
    """How many are gone through."""
    before: int | None
    after: int | None
    preview: ShownPreview
    passage: tuple[Token, ...]
    """Of a text that says where its tokens are: those around the one that is asked about, each of which can be picked;
    else none."""
    missing: str
    """Why it is not shown as it looked; empty where there is nothing to say."""
    token: int | None
    """The place in the example that is asked about; None of a layer that sees examples whole."""
    tokens: int

    @property
    def wrong(self) -> bool:
        return self.label is not None and self.read is not None and self.label != self.read


def query_panel(memory: Answers, info: MemoryInfo, state: State) -> QueryPanel:
    examples = examples_of(memory, info, state.query_set)
    tokens = tokens_of(memory, info, examples, state.layer)
    token = token_of(examples, tokens, state)
    names = label_names(memory, info)
    rows = examples.among(state.among)
    at = int(np.searchsorted(rows, state.row))
    here = at < len(rows) and rows[at] == state.row
    after = at + 1 if here else at
    label = examples.label_at(state.row, token, tokens)
    read = None if examples.read is None else int(examples.read[state.row])
    previews, missing = previews_of_examples(memory, info, state.query_set, [state.row])
    marked, why_unmarked = token, unmarked(info)
    if why_unmarked and token is not None and previews and previews[0].offsets is not None:
        marked, missing = None, missing or why_unmarked
    return QueryPanel(
        query_set=state.query_set,
        row=state.row,
        count=examples.count,
        label=label,
        label_name=names.of(label),
        read=read,
        read_name=names.of(read),
        misclassified=len(examples.misclassified),
        place=at + 1 if here else None,
        among=len(rows),
        before=int(rows[at - 1]) if at > 0 else None,
        after=int(rows[after]) if after < len(rows) else None,
        preview=shown_preview(previews[0], marked) if previews else NOTHING,
        passage=tokens_of_passage(previews[0], marked) if previews and marked is not None else (),
        missing=missing,
        token=token,
        tokens=tokens,
    )


@dataclass(frozen=True)
class FilterPanel:
    sql: str
    """One condition; empty without a filter."""
    matching: int
    """Slots of the layer that stay; 0 where there is trouble."""
    trouble: str
    """What is wrong with the filter, which can still be cleared; empty if nothing is."""
    slots: int
    """Of the layer."""
    columns: dict[str, str]
    """Of the layer's slots, with their types."""
    groups: tuple[tuple[Group, ...], ...]
    """What may be left out: datasets, where there are several, and labels."""
    steps: int
    """Recorded ones."""


def filter_panel(memory: Answers, info: MemoryInfo, state: State) -> FilterPanel:
    layer = layer_of(info, state.layer)
    columns = {} if layer is None else dict(info.columns[layer.space])
    try:
        return _asked(memory, info, state, columns)
    except DualformError as error:  # of a layer without an answer: what is set can be cleared all the same
        slots = 0 if layer is None else layer.slots
        return FilterPanel("", 0, error.message, slots, columns, (), info.steps)


def _asked(memory: Answers, info: MemoryInfo, state: State, columns: dict[str, str]) -> FilterPanel:
    query = query_of(memory, info, state)
    offered = [by for by in ("dataset", "label") if by in columns and (by != "dataset" or len(info.datasets) > 1)]
    sums = {by: memory.group_sum(state.layer, query, by=by, k=MOST_GROUPS) for by in offered}
    whole = memory.group_sum(state.layer, query, by="dataset", k=MOST_GROUPS)
    condition, matching, trouble = None, whole.scan.slots_matching, ""
    try:
        if (condition := where_before(info, state)) is not None:
            matching = memory.group_sum(state.layer, query, by="dataset", where=condition).scan.slots_matching
    except (BadInput, NotFound) as error:
        matching, trouble = 0, error.message
    return FilterPanel(
        sql=condition or "",
        matching=matching,
        trouble=trouble,
        slots=whole.scan.slots_scanned,
        columns=columns,
        groups=tuple(groups_of(memory, info, (by,), sums[by]) for by in offered),
        steps=info.steps,
    )
