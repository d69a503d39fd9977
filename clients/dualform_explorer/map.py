"""The map: the slots of a layer as points on two axes, around the example of the page.

The axes are the two directions in which the queries of a query set differ most. The coordinate of a slot's key on an
axis is its attention score toward that direction, so folders and servers give the same map. With the package umap
(umap-learn) there is another map: a UMAP of the coordinates on up to 50 such directions.

Shapes: n queries, d numbers of the layer's input, m slots that are drawn.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import MemoryInfo
from dualform.errors import BadInput, Inexact, NotFound
from dualform.methods import Answers
from dualform_explorer.examples import evenly
from dualform_explorer.filter import narrowed
from dualform_explorer.groups import hue_of
from dualform_explorer.previews import shown_of_slots
from dualform_explorer.state import SINGLE, Params
from dualform_explorer.view import Snapshot, View

PARAMETERS = (*SINGLE, "colour", "axes")
"""Of its address."""
COLOURS = ("label", "dataset", "step", "score")
"""What the colour of a point can show."""
MOST, BEST = 50_000, 10
"""The most slots to draw, and the number of slots to which the query is joined."""
MOST_UMAP, UMAP_DIRECTIONS, _UMAP_LEAST = 20_000, 50, 20
"""The most slots of a UMAP, the most directions it is made of, and the fewest slots."""
_SPARE = 100
"""The margin below MOST, because the selection is only nearly even."""
_QUERIES = 500
"""The most queries that make the axes, evenly spread over the query set."""
_PRIME, _FACTOR = 2**31 - 1, 1_327_217_885
"""A slot is drawn if its number times the factor, modulo the prime, is small. The factor is the prime divided by the
golden ratio, so that the slots that are drawn are evenly spread, whatever the size of a batch."""
_LEAST_COSINE = 1e-3
"""The smallest cosine that gives the length of a key."""
_DIGITS = 5
"""Significant digits of the largest coordinate."""


@dataclass(frozen=True)
class Axes:
    mean: NDArray[np.float64]
    """float64[d]: the mean of the queries, which is the origin of the map."""
    directions: NDArray[np.float64]
    """float64[c, d], orthonormal. The second is zero if the queries differ in only one direction."""
    shares: tuple[float, ...]
    """The parts of the queries' variance along the directions."""
    count: int
    """The number of queries that made them."""

    @property
    def lines(self) -> NDArray[np.float32]:
        """float32[c + 1, d]: the directions and that of the mean, as questions take them."""
        length = float(np.linalg.norm(self.mean))
        return np.vstack([self.directions, self.mean / length if length else self.mean]).astype(np.float32)


def axes_known() -> tuple[str, ...]:
    """The kinds of axes that there are here."""
    return ("pca", "umap") if find_spec("umap") else ("pca",)


@cache
def _umap(points: bytes, directions: int) -> Any:
    """The UMAP of float64[m, directions], which takes long and so is kept as long as the process lives."""
    from umap import UMAP

    return UMAP(random_state=0).fit(np.frombuffer(points).reshape(-1, directions))


def axes_of(queries: NDArray[np.float32], count: int = 2) -> Axes:
    """The first principal axes of float32[n, d]. Raises BadInput where all queries are equal."""
    rows = queries[evenly(len(queries), _QUERIES)].astype(np.float64)
    mean = rows.mean(axis=0)
    _, sizes, directions = np.linalg.svd(rows - mean, full_matrices=False)
    variance = float((sizes**2).sum())
    if not variance:
        raise BadInput("All queries of this query set are equal in this layer, so that they span no map.")
    found = np.zeros((count, queries.shape[1]))
    shares = [0.0] * count
    for place in range(min(count, len(sizes))):
        shares[place] = float(sizes[place] ** 2) / variance
        if shares[place] > 1e-12:
            own = directions[place]
            found[place] = own if own[np.abs(own).argmax()] > 0 else -own  # the same side each time
    return Axes(mean, found, tuple(shares), len(rows))


def map_points(view: View, kind: str = "pca") -> str:
    """What the script of the page draws, as JSON: of each slot its coordinates, columns and score, and the query.
    `kind`: of axes.
    """
    queries = view.memory.query_set(view.state.query_set, view.state.layer).queries
    if queries is None:
        raise NotFound(
            f"The query set {view.state.query_set} has no queries of layer {view.state.layer!r}.", field="item"
        )
    axes = axes_of(queries) if kind == "pca" else axes_of(queries, min(UMAP_DIRECTIONS, *queries.shape))
    query = _query(view, queries)
    best, why = _best(view)
    matching, chosen = _chosen(view, best, MOST if kind == "pca" else MOST_UMAP)
    lines = axes.lines
    slots, along, space = _scores(view.memory, view.state.layer, lines, chosen, "dot")
    coordinates = along[:, :-1] - lines[:-1].astype(np.float64) @ axes.mean
    scores: Sequence[float] = []
    if not why:
        own = view.memory.topk(**{**view.scored(), "where": chosen}, k=MOST)
        each = np.zeros(len(slots))  # a slot whose gradient no update used brought nothing, and has no contribution
        each[np.searchsorted(slots, own.slots[0])] = own.scores[0]
        scores = [float(f"{score:.6g}") for score in each.tolist()]
    star = (query.astype(np.float64) - axes.mean) @ axes.directions.T
    share = _share(view.memory, view.state.layer, axes, chosen, coordinates, along)
    if kind == "umap":
        if len(slots) < _UMAP_LEAST:
            raise BadInput(f"A UMAP needs at least {_UMAP_LEAST} slots.", hint="Widen the filter.", field="axes")
        made = _umap(coordinates.tobytes(), len(axes.shares))
        coordinates, star = made.embedding_.astype(np.float64), made.transform(star[None])[0].astype(np.float64)
    scale = float(max(np.abs(coordinates).max(initial=0.0), np.abs(star).max()))
    digits = _DIGITS - 1 - int(np.floor(np.log10(scale))) if scale else 0
    x, y = np.round(coordinates, digits).T.tolist()
    return json.dumps(
        {
            "about": " ".join(filter(None, _about(view.info, axes, kind, queries, matching, len(x), share, why))),
            "shares": axes.shares,
            "share": share,
            "matching": matching,
            "x": x,
            "y": y,
            "slot": slots.tolist(),
            "score": scores,
            "why": why,
            "query": np.round(star, digits).tolist(),
            "best": np.searchsorted(slots, best).tolist(),
            **_columns(view, slots, space),
        },
        allow_nan=False,
        separators=(",", ":"),
    )


def _query(view: View, queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[d]: the stored query of the page's example, of float32[n, d]."""
    asked = view.query()
    if not isinstance(asked, str):  # of a table that is looked up once for all examples
        return asked.reshape(-1)
    tokens = view.tokens(view.state.layer)
    _, _, token = asked.rpartition("/")[2].partition(":")
    own: NDArray[np.float32] = queries[view.state.row * tokens + int(token or 0)]
    return own


def _about(
    info: MemoryInfo,
    axes: Axes,
    kind: str,
    queries: NDArray[np.float32],
    matching: int,
    drawn: int,
    share: float | None,
    why: str,
) -> Iterator[str]:
    """Sentences that a reader needs to judge the map."""
    if drawn == matching:
        yield f"All {matching:,} slots are drawn."
    else:
        part = _percent(drawn / matching)
        yield f"{drawn:,} of {matching:,} slots are drawn ({part}), evenly spread over their numbers."
    yield info.sampling
    used = f"all {axes.count:,}" if axes.count == len(queries) else f"{axes.count:,} of {len(queries):,}"
    if kind == "umap":
        yield f"A UMAP of the coordinates on the {len(axes.shares)} directions in which {used} queries differ most."
        if share is not None:
            yield f"These show {_percent(share)} of the slots' squared distances from their middle."
        yield "Similar slots are close; distances between clusters mean little."
    else:
        first, second = axes.shares
        yield f"The axes were made from {used} queries,"
        yield f"and have {_percent(first)} and {_percent(second)} of their variance."
        yield "Both have the same scale."
    if share is not None and kind == "pca":
        yield f"The map shows {_percent(share)} of the slots' squared distances from its middle."
        yield f"Points that are close here can be far apart in the rest of the {queries.shape[1]:,} dimensions."
    if why:
        yield f"There are no lines and no scores: {why}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\N{NARROW NO-BREAK SPACE}%"


def _scores(
    memory: Answers, layer: str, lines: NDArray[np.float32], where: str | None, score: str
) -> tuple[NDArray[np.int64], NDArray[np.float64], str]:
    """int64[m], float64[m, l]: the slots of a condition, by number, and the score of each toward float32[l, d]; and
    their space.
    """
    hits = memory.topk(layer, lines, k=MOST, where=where, score=score)
    orders = [np.argsort(own) for own in hits.slots]
    found = np.stack([own[order] for own, order in zip(hits.scores, orders, strict=True)], axis=1)
    return hits.slots[0][orders[0]], found.astype(np.float64), hits.space


def _share(
    memory: Answers,
    layer: str,
    axes: Axes,
    where: str | None,
    coordinates: NDArray[np.float64],
    along: NDArray[np.float64],
) -> float | None:
    """The part of the slots' squared distances from the origin that the map shows; None if no key has a known length.
    The length of a key is its score toward a line, divided by its cosine.
    """
    _, cosines, _ = _scores(memory, layer, axes.lines, where, "cosine")
    best = np.abs(np.nan_to_num(cosines)).argmax(axis=1)
    rows = np.arange(len(best))
    cosine, score = cosines[rows, best], along[rows, best]
    known = np.abs(cosine) > _LEAST_COSINE
    if not known.any():
        return None
    lengths = score[known] / cosine[known]
    middle = float(np.linalg.norm(axes.mean))
    whole = float((lengths**2 - 2 * middle * along[known, -1] + middle**2).sum())
    return min(1.0, float((coordinates[known] ** 2).sum()) / whole) if whole > 0 else None


def _best(view: View) -> tuple[list[int], str]:
    """The best slots of the query, best first; or none, and the reason, if single slots lack this score."""
    try:
        return view.memory.topk(**view.scored(), k=BEST).slots[0].tolist(), ""
    except (BadInput, Inexact) as error:
        if error.field == "where":
            raise
        return [], error.message


def _chosen(view: View, best: Sequence[int], most: int) -> tuple[int, str | None]:
    """The number of slots that the page's filter keeps, and the condition for those to draw: all of them, or at most
    `most` that are evenly spread and include the best.
    """
    own, query = view.where_before, view.query()
    matching = view.memory.group_sum(view.state.layer, query, by="dataset", where=own).scan.slots_matching
    if matching <= most:
        return matching, own
    share = (most - _SPARE) / matching
    while True:
        spread = f"(slot * {_FACTOR}) % {_PRIME} < {int(share * _PRIME)}"
        either = f"{spread} OR slot IN ({', '.join(map(str, best))})" if best else spread
        condition = narrowed(own or "", either)
        drawn = view.memory.group_sum(view.state.layer, query, by="dataset", where=condition).scan.slots_matching
        if drawn <= most:
            return matching, condition
        share *= 0.99 * most / drawn  # the filter itself selects by slot number


def _columns(snapshot: Snapshot, slots: NDArray[np.int64], space: str) -> dict[str, Any]:
    """Of each slot its step, sample and position; and its label and dataset, by their place in the list of all."""
    columns = snapshot.memory.slots(slots, space)
    found: dict[str, Any] = {}
    for name in ("step", "sample", "position"):  # one that no slot has is left empty
        values = columns[name].tolist() if name in columns else []
        found[name] = values if any(value is not None for value in values) else []
    names = snapshot.names
    for name in ("label", "dataset"):
        values = columns[name].tolist() if name in columns else [None] * len(slots)
        counts = Counter(values).most_common()
        hues: dict[int, Any] = {}
        for value, _ in counts:  # of those with one hue the most frequent has it, and the others are grey
            if value is not None:
                hues.setdefault(hue_of(snapshot.info, (name,), (value,)), value)
        coloured = {value: hue for hue, value in hues.items()}
        place = {value: number for number, (value, _) in enumerate(counts)}
        found[name] = [place[value] for value in values]
        found[f"{name}s"] = [
            {
                "value": value,
                "name": names.of(value) if name == "label" else "",
                "hue": coloured.get(value, -1),
                "count": count,
            }
            for value, count in counts
        ]
    return found


def preview_of(snapshot: Snapshot, params: Params) -> str:
    """What one training sample looks like, as the map shows it under the pointer: JSON."""
    said = dict(params)
    number, position = said.get("sample", ""), said.get("position", "")
    if not all(own.isascii() and own.isdecimal() and len(own) < 19 for own in (number, position or "0")):
        raise BadInput("sample and position are whole numbers.", field="sample")
    slot = {"dataset": said.get("dataset"), "sample": int(number), "position": int(position) if position else None}
    shown = shown_of_slots(snapshot, [slot])
    own = shown[0]
    row = {name: str(value) for name, value in [*(own.row or {}).items()][:6]}
    return json.dumps({"image": own.image, "passage": own.passage, "row": row, "missing": shown.missing})
