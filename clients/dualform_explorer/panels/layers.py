"""The layers side by side, the distribution of scores in one, and one as the paper shows it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dualform.answers import MemoryInfo
from dualform.errors import DualformError, NotFound
from dualform.methods import Answers
from dualform_explorer.examples import examples_of, layer_of, layers_of, query_set_of, token_of, tokens_of
from dualform_explorer.filter import alike
from dualform_explorer.groups import MOST_GROUPS, GroupRow, scored, where_before
from dualform_explorer.panels.data import Slot, SumsPanel, slots_panel, sums_panel
from dualform_explorer.panels.training import StepsPanel, steps_panel
from dualform_explorer.places import attention_by_place, places_of
from dualform_explorer.previews import NOTHING, previews_of_examples, shown_preview
from dualform_explorer.state import State

_NAMED = (10, 100, 1000, 10_000, 100_000)
"""Ranks whose shares are said in words."""


@dataclass(frozen=True)
class RankPoint:
    rank: int
    score: float
    share: float
    """Of the absolute scores of all slots, that of the ranks up to this one."""


@dataclass(frozen=True)
class RanksPanel:
    points: tuple[RankPoint, ...]
    """From the best slot to the last, evenly on a logarithmic axis."""
    named: tuple[RankPoint, ...]
    """Those at round ranks, or the next one behind them."""
    count: int
    """Slots that have a rank."""
    effective: float
    """How many slots, weighed alike, would be as concentrated: (sum of |s|)^2 over the sum of s^2."""

    @property
    def curve(self) -> list[tuple[int, float, float]]:
        """What is drawn: of each point its rank, score and share."""
        return [(own.rank, own.score, own.share) for own in self.points]


def ranks_panel(memory: Answers, info: MemoryInfo, state: State) -> RanksPanel:
    answer = memory.distribution(**scored(memory, info, state))
    columns = (answer.ranks.tolist(), answer.scores[0].tolist(), answer.shares[0].tolist())
    points = tuple(RankPoint(*own) for own in zip(*columns, strict=True))
    named = [next(own for own in points if own.rank >= rank) for rank in _NAMED if rank < answer.count]
    return RanksPanel(
        points=points,
        named=tuple(named),
        count=answer.count,
        effective=float(answer.effective_slots[0]),
    )


_MOST_SUMMED = 12
"""Layers that are asked; the others are named alone."""
_MOST_SCANNED = 2_000_000_000
"""Numbers in the keys of all these: of more, scores by rank and by step are asked of the chosen layer alone, for each
takes a pass over its keys. What is summed by group is kept beside them.
"""
_MOST_BARS = 40
"""Of the sums by step, in as small a figure."""


@dataclass(frozen=True)
class LayerCard:
    """A layer. What it was not asked, or has no answer to, is None."""

    name: str
    d_in: int
    d_out: int
    chosen: bool
    rows: tuple[GroupRow, ...] | None = None
    ranks: RanksPanel | None = None
    steps: StepsPanel | None = None
    why: str = ""
    """Why there is no answer."""


@dataclass(frozen=True)
class LayersPanel:
    cards: tuple[LayerCard, ...]
    score: str
    """Of all of it: contributions toward an output are those of one layer, so that there it is the signed score."""
    by: tuple[str, ...]
    scanned: bool
    """Whether every layer that was asked has its scores by rank and by step, and not the chosen one alone."""

    @property
    def asked(self) -> bool:
        """Whether there is more to see of any than its name."""
        return any(card.rows is not None for card in self.cards)


def layers_panel(memory: Answers, info: MemoryInfo, state: State) -> LayersPanel:
    query_set = query_set_of(info, state.query_set)
    if query_set is None:
        raise NotFound(f"There is no query set {state.query_set!r}.", field="item")
    score = "dot" if state.score == "contribution" else state.score
    own, chosen = layers_of(info, query_set), layer_of(info, state.layer)
    asked = own if len(own) <= _MOST_SUMMED else [layer for layer in own if layer is chosen]
    scanned = sum(layer.distinct_keys * layer.d_in for layer in asked) <= _MOST_SCANNED
    cards = []
    for layer in own:
        card = LayerCard(layer.name, layer.d_in, layer.d_out, layer is chosen)
        if layer in asked:
            there = replace(state, layer=layer.name, score=score)
            card = _filled(card, memory, info, there, scanned or layer is chosen)
        cards.append(card)
    return LayersPanel(tuple(cards), score, state.by, scanned)


def _filled(card: LayerCard, memory: Answers, info: MemoryInfo, state: State, scanned: bool) -> LayerCard:
    """By the questions that its own panels ask where it is the chosen one, so that each is asked once."""
    try:
        card = replace(card, rows=sums_panel(memory, info, state).rows)
        if not scanned:
            return card
        ranks, steps = ranks_panel(memory, info, state), steps_panel(memory, info, state, _MOST_BARS)
    except DualformError as error:
        if error.field == "where":
            raise
        return replace(card, rows=None, why=error.message)
    return replace(card, ranks=ranks, steps=steps)


_BEST = 5
_RANKED = 500
"""Of each group, as in the paper."""
_FEWER = 200
"""In its place where all groups together would have more than _MOST_POINTS."""
_MOST_POINTS = 10_000
"""Of a figure."""


@dataclass(frozen=True)
class PaperPanel:
    layer: str
    best: tuple[Slot, ...]
    sums: SumsPanel
    largest: GroupRow | None
    """Of the groups that the mask leaves, that whose sum is largest in size; None where it leaves none."""
    curves: tuple[tuple[GroupRow, tuple[float, ...]], ...]
    """Of each group its best scores, best first; none of one that the mask leaves out. Empty where there are more
    groups than a figure can show."""
    ranked: int
    """Scores that each group has at most."""


def paper_panel(memory: Answers, info: MemoryInfo, state: State, layer: str) -> PaperPanel:
    """Contributions are those of one layer: elsewhere the score is the signed one."""
    score = state.score if layer == state.layer or state.score != "contribution" else "dot"
    own = replace(state, layer=layer, score=score, k=120, by_sample=True)
    sums = sums_panel(memory, info, own)
    rows = [row for row in sums.rows if not row.gone]
    largest = max(rows, key=lambda row: abs(row.group.sum), default=None)
    ranked = _RANKED if len(rows) * _RANKED <= _MOST_POINTS else _FEWER
    curves: list[tuple[GroupRow, tuple[float, ...]]] = []
    if sums.total <= MOST_GROUPS:
        hits = memory.topk(**scored(memory, info, own), k=ranked, by=state.by)
        groups = [tuple(map(alike, group)) for group in hits.groups or ()]
        scores = dict(zip(groups, hits.scores[0], strict=True))
        curves = [(row, tuple(map(float, scores.get(row.group.values, ())))) for row in sums.rows]
    best = slots_panel(memory, info, own).slots[:_BEST]
    return PaperPanel(layer, best, sums, largest, tuple(curves), ranked)


_MOST_CELLS = 1600
"""Of a map."""


@dataclass(frozen=True)
class PlacesPanel:
    grid: tuple[int, int]
    """Rows and columns; zeros of a layer without places in a picture, and of one with too many."""
    sums: tuple[float, ...] = ()
    """Row after row: the scores of all slots that stay, added up."""
    largest: float = 0.0
    """The size of the largest sum."""
    token: int = 0
    """The place that is asked about."""
    image: str = ""
    exact: bool = False
    """Whether the box in the example is the patch itself."""
    score: str = "dot"


def places_panel(memory: Answers, info: MemoryInfo, state: State) -> PlacesPanel:
    """All places of the example at once, in one question."""
    examples, layer = examples_of(memory, info, state.query_set), layer_of(info, state.layer)
    tokens = tokens_of(memory, info, examples, state.layer)
    places = places_of(info, state.query_set, layer)
    if places is None or places.count != tokens or tokens > _MOST_CELLS:
        return PlacesPanel((0, 0))
    token = token_of(memory, info, examples, state.layer, tokens, state)
    score = "dot" if state.score == "contribution" else state.score
    sums = attention_by_place(memory, state.layer, state.item, where_before(info, state), score)
    previews, _ = previews_of_examples(memory, info, state.query_set, [state.row])
    shown = shown_preview(previews[0], token, places) if previews else NOTHING
    return PlacesPanel(
        places.grid,
        tuple(sums.tolist()),
        float(np.abs(sums).max(initial=0.0)),
        token or 0,
        shown.image,
        shown.box is not None and shown.box.exact,
        score,
    )
