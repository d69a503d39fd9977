"""The question of a page: one example of a query set, and the filter."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import isnan, log

import numpy as np

from dualform.errors import BadInput, DualformError, Inexact, NotFound
from dualform_explorer.groups import MOST_GROUPS, Group, groups_of
from dualform_explorer.previews import (
    NOTHING,
    ShownPreview,
    Token,
    previews_of_examples,
    shown_preview,
    tokens_of_passage,
)
from dualform_explorer.state import layers_of
from dualform_explorer.view import View


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


def query_panel(view: View) -> QueryPanel:
    state, examples, names, places = view.state, view.examples, view.names, view.places
    tokens = view.tokens(state.layer)
    token, remark = view.token(state.layer, tokens), ""
    if (shared := view.shared_row(state.layer)) is not None:
        tokens = examples.tokens or 1
        token = view.token(state.layer, tokens)
        remark = f"The stored queries of layer {state.layer} are of no example, but of all: number {shared[0]} of "
        remark += f"{shared[1]} is asked."
    elif state.token is not None and token is not None and token != state.token:
        remark = f"Layer {state.layer} has {tokens} places in an example: {token} is asked, not {state.token}."
    rows = examples.among(state.among)
    at = int(np.searchsorted(rows, state.row))
    here = at < len(rows) and rows[at] == state.row
    after = at + 1 if here else at
    label = examples.label_at(state.row, token, tokens)
    read = examples.read_at(state.row, token, tokens)
    previews, missing = previews_of_examples(view, state.query_set, [state.row])
    marked, losses, chance = token, examples.losses(state.row), None
    if token is not None and previews and previews[0].offsets is not None:
        length = previews[0].first + len(previews[0].offsets)
        if view.unmarked and not (tokens == length and _alone(view, length)):
            marked, missing = None, missing or view.unmarked
    if losses is not None and examples.of_tokens is not None:
        chance = log(examples.of_tokens.width)
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


def _alone(view: View, places: int) -> bool:
    """Whether the page's layer is the only kind that has so many positions in an example."""
    own = layers_of(view.info, view.state.query_set)
    others = {other.space: other for other in own if other.space not in ("sample", view.layer.space)}
    return not any(view.tokens(other.name) == places for other in others.values() if not view.of_no_sample(other))


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


def filter_panel(view: View) -> FilterPanel:
    columns = dict(view.info.columns[view.layer.space])
    try:
        return _asked(view, columns)
    except DualformError as error:  # the layer has no answer, but the filter can still be cleared
        return FilterPanel("", 0, error.message, view.layer.slots, columns, (), view.info.steps)


def _asked(view: View, columns: dict[str, str]) -> FilterPanel:
    query = view.query()
    offered = [by for by in ("dataset", "label") if by in columns and (by != "dataset" or len(view.info.datasets) > 1)]
    sums = {by: view.memory.group_sum(view.state.layer, query, by=by, k=MOST_GROUPS) for by in offered}
    whole = view.memory.group_sum(view.state.layer, query, by="dataset", k=MOST_GROUPS)
    condition, matching, trouble = None, whole.scan.slots_matching, ""
    try:
        if (condition := view.where_before) is not None:
            matching = _matching(view, condition)
    except (BadInput, NotFound) as error:
        matching, trouble = 0, error.message
    return FilterPanel(
        sql=condition or "",
        matching=matching,
        trouble=trouble,
        slots=whole.scan.slots_scanned,
        columns=columns,
        groups=tuple(groups_of(view, (by,), sums[by]) for by in offered),
        steps=view.info.steps,
    )


def _matching(view: View, condition: str) -> int:
    """The number of slots that the filter keeps in the page's layer. If the Output panel asks about all steps, its
    question answers this soon.
    """
    name = view.state.layer
    outputs = view.layer.values and name == view.info.output_layer and view.state.at is None
    if outputs and view.info.optimizer == "SGD":
        with suppress(Inexact):
            return view.output(name).scan.slots_matching
    return view.memory.group_sum(name, view.query(), by="dataset", where=condition).scan.slots_matching
