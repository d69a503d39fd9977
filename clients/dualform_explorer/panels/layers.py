"""All layers side by side, the distribution of scores in one layer, and one layer as the paper shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dualform.answers import GroupKey, LayerInfo
from dualform.errors import DualformError
from dualform_explorer.examples import evenly
from dualform_explorer.filter import alike
from dualform_explorer.groups import MOST_GROUPS, Group, GroupRow, groups_of
from dualform_explorer.panels.data import Slot, SumsPanel, slots_panel, sums_panel
from dualform_explorer.previews import NOTHING, previews_of_examples, shown_preview
from dualform_explorer.state import layer_of, layers_of
from dualform_explorer.view import View

_NAMED = (10, 100, 1000, 10_000, 100_000)
"""Ranks whose shares are stated in words."""


class RankPoint(NamedTuple):
    rank: int
    score: float
    share: float
    """The share of all absolute scores up to this rank."""


@dataclass(frozen=True)
class RanksPanel:
    points: tuple[RankPoint, ...]
    """From the best slot to the last, evenly on a logarithmic axis."""
    named: tuple[RankPoint, ...]
    """The points at round ranks, or the next ones after them."""
    count: int
    """The number of ranked slots."""
    effective: float
    """The effective number of slots: (sum of |s|)^2 over the sum of s^2. So many equal scores would be as concentrated.
    """


def ranks_panel(view: View) -> RanksPanel:
    answer = view.memory.distribution(**view.scored())
    columns = (answer.ranks.tolist(), answer.scores[0].tolist(), answer.shares[0].tolist())
    points = tuple(RankPoint(*own) for own in zip(*columns, strict=True))
    named = [next(own for own in points if own.rank >= rank) for rank in _NAMED if rank < answer.count]
    return RanksPanel(
        points=points,
        named=tuple(named),
        count=answer.count,
        effective=float(answer.effective_slots[0]),
    )


_MOST_SUMMED = 64
"""The most layers that are asked. Of more, some spread evenly, and the chosen one."""


@dataclass(frozen=True)
class LayerFlow:
    """A layer, and the shares of groups in its scores."""

    own: LayerInfo
    chosen: bool
    shares: Mapping[GroupKey, tuple[float, float]] = field(default_factory=dict)
    """By group, its sum, and that sum over the sizes of all sums. Empty if there is no answer."""
    why: str = ""
    """Why there is no answer."""


@dataclass(frozen=True)
class LayersPanel:
    layers: tuple[LayerFlow, ...]
    """The layers that were asked, from first to last."""
    count: int
    """The number of layers in the query set."""
    groups: tuple[Group, ...]
    """All groups that occur, in the order in which they are drawn."""
    total: int
    """The number of groups, drawn or not."""
    score: str
    """The score of all layers. A contribution needs an output of one layer, so attention replaces it here."""
    signed: bool
    """Whether any sum is negative."""


def layers_panel(view: View) -> LayersPanel:
    score = "dot" if view.state.score == "contribution" else view.state.score
    own, chosen = layers_of(view.info, view.state.query_set), layer_of(view.info, view.state.layer)
    spread = evenly(len(own), _MOST_SUMMED)
    found, every, total = list[LayerFlow](), dict[GroupKey, Group](), 0
    for layer in (one for place, one in enumerate(own) if place in spread or one is chosen):
        flow = LayerFlow(layer, layer is chosen)
        try:  # the same question as the sums by group of the chosen layer
            there = view.changed(layer=layer.name, score=score)
            sums = view.memory.group_sum(**there.scored(), by=view.state.by, k=MOST_GROUPS)
        except DualformError as error:
            if error.field == "where":
                raise
            found.append(replace(flow, why=error.message))
            continue
        groups = groups_of(view, view.state.by, sums)
        size = sum(abs(group.sum) for group in groups) or 1.0
        found.append(replace(flow, shares={group.values: (group.sum, group.sum / size) for group in groups}))
        every |= {group.values: group for group in groups}
        total = max(total, sums.total or len(groups))
    signed = any(sum < 0 for layer in found for sum, _ in layer.shares.values())
    return LayersPanel(tuple(found), len(own), tuple(every.values()), total, score, signed)


_BEST = 5
_RANKED = 500
"""The number of best scores of each group, as in the paper."""
_FEWER = 200
"""The number if all groups together would exceed _MOST_POINTS."""
_MOST_POINTS = 10_000
"""The most points in a figure."""


@dataclass(frozen=True)
class PaperPanel:
    layer: str
    best: tuple[Slot, ...]
    sums: SumsPanel
    largest: GroupRow | None
    """The group with the largest absolute sum under the filter; None if it keeps no group."""
    curves: tuple[tuple[GroupRow, tuple[float, ...]], ...]
    """For each group its best scores, best first; empty for a group that the filter removes. No curves if there are
    more groups than a figure can show."""
    ranked: int
    """The most scores of each group."""


def paper_panel(view: View, layer: str) -> PaperPanel:
    """Contributions belong to one layer. Other layers show the dot score."""
    score = view.state.score if layer == view.state.layer or view.state.score != "contribution" else "dot"
    own = view.changed(layer=layer, score=score, k=120, by_sample=True)
    sums = sums_panel(own)
    rows = [row for row in sums.rows if not row.gone]
    largest = max(rows, key=lambda row: abs(row.group.sum), default=None)
    ranked = _RANKED if len(rows) * _RANKED <= _MOST_POINTS else _FEWER
    curves: list[tuple[GroupRow, tuple[float, ...]]] = []
    if sums.total <= MOST_GROUPS:
        hits = view.memory.topk(**own.scored(), k=ranked, by=view.state.by)
        groups = [tuple(map(alike, group)) for group in hits.groups or ()]
        scores = dict(zip(groups, hits.scores[0], strict=True))
        curves = [(row, tuple(map(float, scores.get(row.group.values, ())))) for row in sums.rows]
    best = slots_panel(own).slots[:_BEST]
    return PaperPanel(layer, best, sums, largest, tuple(curves), ranked)


_MOST_CELLS = 1600
"""The most cells in a map."""


@dataclass(frozen=True)
class PlacesPanel:
    grid: tuple[int, int]
    """Rows and columns."""
    sums: tuple[float, ...]
    """The sum of the scores of all slots that the filter keeps, row by row."""
    token: int
    """The current place."""
    image: str
    exact: bool
    """Whether the box in the example is the patch itself."""
    score: str


def places_panel(view: View) -> PlacesPanel | None:
    """All places of the example in one question. None if the layer has no places in a picture, or too many."""
    tokens, places = view.tokens(view.state.layer), view.places
    if places is None or places.count != tokens or tokens > _MOST_CELLS:
        return None
    token = view.token(view.state.layer, tokens)
    score = "dot" if view.state.score == "contribution" else view.state.score
    sums = view.attention_by_place(view.state.layer, view.where_before, score)
    previews, _ = previews_of_examples(view, view.state.query_set, [view.state.row])
    shown = shown_preview(previews[0], token, places) if previews else NOTHING
    return PlacesPanel(
        places.grid,
        tuple(sums.tolist()),
        token or 0,
        shown.image,
        shown.box is not None and shown.box.exact,
        score,
    )
