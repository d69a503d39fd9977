"""The question of a page: one example of a query set, and the filter."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import isnan, log

import numpy as np

from dualform.answers import MemoryInfo
from dualform.errors import BadInput, DualformError, Inexact, NotFound
from dualform.methods import Answers
from dualform_explorer.examples import (
    Examples,
    examples_of,
    label_names,
    layer_of,
    layers_of,
    of_no_sample,
    query_of,
    query_set_of,
    shared_row,
    token_of,
    tokens_of,
)
from dualform_explorer.groups import MOST_GROUPS, Group, groups_of, where_before
from dualform_explorer.places import places_of
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
    """The number of examples in the query set."""
    label: int | None
    label_name: str
    read: int | None
    """The network's largest output when the query set was stored."""
    read_name: str
    misclassified: int
    """The number of examples whose largest output is not their label."""
    place: int | None
    """The place of this example in the current selection, from 1; None if it is not in it."""
    among: int
    """The size of the current selection."""
    before: int | None
    after: int | None
    preview: ShownPreview
    passage: tuple[Token, ...]
    """The tokens around the current one, for the reader to pick from. Empty unless it is a text with offsets."""
    missing: str
    """Why the preview is missing; empty if it is not."""
    token: int | None
    """The current token or place; None if the layer sees examples whole."""
    tokens: int
    loss: float | None = None
    """The loss of the token's label, in nats; None if unknown."""
    chance: float | None = None
    """The loss of a guess among all outputs; None if tokens have no losses."""
    token_errors: tuple[int, int] | None = None
    """The number of tokens in the query set whose label differs from their largest output, and the number with a label.
    """
    unit: str = "token"
    """The word for one of `tokens`: "token", or "place" in a picture."""
    remark: str = ""
    """Why another token than the address names is asked about; empty if none is."""

    @property
    def wrong(self) -> bool:
        return self.label is not None and self.read is not None and self.label != self.read


def query_panel(memory: Answers, info: MemoryInfo, state: State) -> QueryPanel:
    examples = examples_of(memory, info, state.query_set)
    tokens = tokens_of(memory, info, examples, state.layer)
    token, remark = token_of(memory, info, examples, state.layer, tokens, state), ""
    if (shared := shared_row(memory, info, state, state.layer)) is not None:
        (place, rows_of_layer), tokens = shared, examples.tokens or 1
        token = token_of(memory, info, examples, state.layer, tokens, state)
        remark = (
            f"The stored queries of layer {state.layer} are of no example, but of all: number {place} of "
            f"{rows_of_layer} is asked."
        )
    elif state.token is not None and token is not None and token != state.token:
        remark = f"Layer {state.layer} has {tokens} places in an example: {token} is asked, not {state.token}."
    names = label_names(memory, info)
    rows = examples.among(state.among)
    at = int(np.searchsorted(rows, state.row))
    here = at < len(rows) and rows[at] == state.row
    after = at + 1 if here else at
    label = examples.label_at(state.row, token, tokens)
    read = examples.read_at(state.row, token, tokens)
    previews, missing = previews_of_examples(memory, info, state.query_set, [state.row])
    marked, losses, chance = token, examples.losses(state.row), None
    if token is not None and previews and previews[0].offsets is not None:
        length = previews[0].first + len(previews[0].offsets)
        why_unmarked = unmarked(memory, info)
        if why_unmarked and not (tokens == length and _alone(memory, info, examples, state.layer, length)):
            marked, missing = None, missing or why_unmarked
    if losses is not None and examples.of_tokens is not None:
        chance = log(examples.of_tokens.width)
    places = places_of(info, state.query_set, layer_of(info, state.layer))
    loss = None if losses is None or token is None or token >= len(losses) else float(losses[token])
    shown = [] if losses is None or tokens != examples.tokens else losses.tolist()
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
        preview=shown_preview(previews[0], marked, places) if previews else NOTHING,
        passage=tokens_of_passage(previews[0], marked, shown, chance or 1.0) if previews and marked is not None else (),
        missing=missing,
        token=token,
        tokens=tokens,
        loss=None if loss is None or isnan(loss) else loss,
        chance=chance if shown else None,
        token_errors=examples.token_errors,
        unit="token" if places is None else "place",
        remark=remark,
    )


def _alone(memory: Answers, info: MemoryInfo, examples: Examples, layer: str, places: int) -> bool:
    """Whether this layer is the only kind that has so many positions in an example."""
    query_set, found = query_set_of(info, examples.query_set), layer_of(info, layer)
    own = [] if query_set is None else layers_of(info, query_set)
    others = {other.space: other for other in own if found is not None and other.space not in ("sample", found.space)}
    return not any(
        tokens_of(memory, info, examples, other.name) == places
        for other in others.values()
        if not of_no_sample(memory, info, other)
    )


@dataclass(frozen=True)
class FilterPanel:
    sql: str
    """The filter as one condition; empty without a filter."""
    matching: int
    """The number of the layer's slots that the filter keeps; 0 if it has an error."""
    trouble: str
    """The error in the filter, which can still be cleared; empty if there is none."""
    slots: int
    """The number of the layer's slots."""
    columns: dict[str, str]
    """The columns of the layer's slots, with their types."""
    groups: tuple[tuple[Group, ...], ...]
    """The groups that can be left out: datasets, if there are several, and labels."""
    steps: int
    """The number of recorded steps."""


def filter_panel(memory: Answers, info: MemoryInfo, state: State) -> FilterPanel:
    layer = layer_of(info, state.layer)
    columns = {} if layer is None else dict(info.columns[layer.space])
    try:
        return _asked(memory, info, state, columns)
    except DualformError as error:  # the layer has no answer, but the filter can still be cleared
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
            matching = _matching(memory, info, state, condition)
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


def _matching(memory: Answers, info: MemoryInfo, state: State, condition: str) -> int:
    """The number of slots that the filter keeps in the page's layer. If the Output panel asks about all steps, its
    question answers this soon.
    """
    query, layer = query_of(memory, info, state), layer_of(info, state.layer)
    outputs = layer is not None and layer.values and state.layer == info.output_layer and state.at is None
    if outputs and info.optimizer == "SGD":
        with suppress(Inexact):
            output = memory.output(state.layer, query, condition, None, state.inexact, initial=state.initial)
            return output.scan.slots_matching
    return memory.group_sum(state.layer, query, by="dataset", where=condition).scan.slots_matching
