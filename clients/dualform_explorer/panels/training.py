"""The record of a training: when the prediction was learned, how exact the answers are, and what an ablation means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from time import monotonic

import numpy as np

from dualform.answers import Concentration, LayerInfo, Scan
from dualform.errors import Inexact
from dualform_explorer.groups import HUES, hue_of
from dualform_explorer.view import View

MOST_BARS = 200
POINTS = 41
"""The number of steps at which outputs are asked, evenly spread from start to end."""
SECONDS = 5.0
"""The time limit for all of them. If it is reached, fewer are shown."""
_LINES = 6
"""The number of outputs that are drawn."""


@dataclass(frozen=True)
class StepBar:
    first: int
    last: int
    """Includes both ends."""
    sum: float
    count: int
    """The number of slots."""
    parts: tuple[tuple[str | None, int, float], ...]
    """By dataset: its name, its hue and its share of the sum."""


@dataclass(frozen=True)
class StepsPanel:
    bars: tuple[StepBar, ...]
    steps: int
    """The number of recorded steps."""
    each: int
    """The number of steps of a bar."""
    total: float
    datasets: tuple[tuple[str | None, int], ...]
    """The datasets that occur, each with its hue."""

    @property
    def drawn(self) -> list[tuple[int, int, list[tuple[int, float]], float]]:
        """For each bar its first and last step, the hue and size of its parts, and its sum."""
        return [(own.first, own.last, [(hue, size) for _, hue, size in own.parts], own.sum) for own in self.bars]


def bars_of(steps: int) -> tuple[int, int]:
    """The number of steps of a bar, and the number of bars."""
    each = max(1, -(-steps // MOST_BARS))
    return each, -(-steps // each)


def steps_panel(view: View) -> StepsPanel:
    by = ("dataset", "step") if view.info.datasets else ("step",)
    sums = view.memory.group_sum(**view.scored(), by=by)
    steps = np.array([group[-1] for group in sums.groups], dtype=np.int64)
    datasets = [group[0] if len(by) == 2 else None for group in sums.groups]
    each, bars = bars_of(view.info.steps)
    names = sorted(set(datasets), key=lambda own: (own is None, own or ""))
    parts = np.zeros((len(names), bars))
    counts = np.zeros(bars, dtype=np.int64)
    place = {name: number for number, name in enumerate(names)}
    np.add.at(parts, (np.array([place[name] for name in datasets], dtype=np.int64), steps // each), sums.sums[0])
    np.add.at(counts, steps // each, sums.counts)
    hues = {name: hue_of(view.info, ("dataset",), (name,)) for name in names}
    return StepsPanel(
        bars=tuple(
            StepBar(
                first=bar * each,
                last=min((bar + 1) * each, view.info.steps) - 1,
                sum=float(parts[:, bar].sum()),
                count=int(counts[bar]),
                parts=tuple(
                    (name, hues[name], float(parts[place[name], bar])) for name in names if parts[place[name], bar]
                ),
            )
            for bar in range(bars)
        ),
        steps=view.info.steps,
        each=each,
        total=float(sums.sums[0].sum()),
        datasets=tuple((name, hues[name]) for name in names),
    )


@dataclass(frozen=True)
class Line:
    name: str
    """The number of an output."""
    hue: int
    values: tuple[float, ...]
    """One value for each step."""
    what: str = ""
    """The name of the output."""


@dataclass(frozen=True)
class TimelinePanel:
    layer: str
    """The layer that gives the network's outputs; empty if there is none."""
    at: int = 0
    """The page's step."""
    steps: tuple[int, ...] = ()
    """The steps that were asked, ascending."""
    asked: int = 0
    """The number of steps that were planned."""
    margins: tuple[Line, ...] = ()
    """Margins of outputs: each output minus the largest other one. The prediction is the one above zero."""


def timeline_panel(view: View) -> TimelinePanel:
    """Ignores the page's filter. Only the output layer goes back in time, with the inputs stored at the end."""
    found, names = view.outputs, view.names
    if found is None:
        return TimelinePanel("")
    query = view.query(found.name)
    steps = np.unique(np.linspace(0, view.info.steps, POINTS).round().astype(int))
    outputs: dict[int, np.ndarray] = {}
    end = monotonic() + SECONDS
    for step in _from_coarse_to_fine(steps.tolist()):
        if outputs and monotonic() > end:
            break
        at = None if step == view.info.steps else step
        answer = view.memory.output(found.name, query, None, at, view.state.inexact)
        outputs[step] = np.asarray(answer, dtype=np.float64)[0]
    shown = sorted(outputs)
    every = np.array([outputs[step] for step in shown])
    drawn = _worth_drawing(every, view.label(found.name))
    hues = _apart(drawn)
    return TimelinePanel(
        layer=found.name,
        at=view.info.steps if view.state.at is None else view.state.at,
        steps=tuple(shown),
        asked=len(steps),
        margins=tuple(
            Line(str(number), hue, tuple(_margins(every, number).tolist()), names.of(number))
            for number, hue in zip(drawn, hues, strict=True)
        ),
    )


def _from_coarse_to_fine(steps: list[int]) -> Iterator[int]:
    """Both ends, then the middles of the gaps, so that any number of first steps is spread evenly."""
    yield from dict.fromkeys((steps[-1], steps[0]))
    spans = [(0, len(steps) - 1)]
    for first, last in spans:
        if last - first > 1:
            middle = (first + last) // 2
            yield steps[middle]
            spans += [(first, middle), (middle, last)]


def _margins(outputs: np.ndarray, number: int) -> np.ndarray:
    """float64[steps]: one output minus the largest other one. `outputs`: float64[steps, outputs]."""
    if outputs.shape[1] == 1:
        return outputs[:, 0]
    others = np.delete(outputs, number, axis=1)
    found: np.ndarray = outputs[:, number] - others.max(axis=1)
    return found


def _apart(numbers: list[int]) -> list[int]:
    """A hue for each output: its usual one, or the next free one."""
    found: list[int] = []
    for number in numbers:
        found.append(next((hue for hue in range(number, number + HUES) if hue % HUES not in found), number) % HUES)
    return found


def _worth_drawing(outputs: np.ndarray, label: int | None) -> list[int]:
    """The label, and every output that was the prediction at some step, most frequent first."""
    counts = np.bincount(outputs.argmax(axis=1), minlength=outputs.shape[1])
    leading = [number for number in np.argsort(-counts, kind="stable").tolist() if counts[number]]
    own = [label] if label is not None and label < outputs.shape[1] else []
    return sorted(dict.fromkeys((*own, *leading)).keys() if len(leading) < _LINES else {*own, *leading[: _LINES - 1]})


@dataclass(frozen=True)
class RecordPanel:
    layer: LayerInfo
    reconstruction: float | None
    """||W_T - rebuilt|| / ||W_T - W_0||; None if it was not asked for, or cannot be computed."""
    scan: Scan
    """The scan for the best slots."""


def record_panel(view: View) -> RecordPanel:
    layer = view.layer
    reconstruction = view.memory.verify()[layer.name].reconstruction_error if view.state.verify else None
    scan = view.memory.topk(**view.scored(), k=view.state.k + 1).scan
    return RecordPanel(layer, reconstruction, scan)


@dataclass(frozen=True)
class RemovalPanel:
    layer: str
    masked: bool
    cancellation: float | None
    """The sum of the norms of the removed terms over the norm of their sum. None without a filter, if they move
    nothing, and if slots have no separate terms."""
    concentration: Concentration | None
    """The alternative under rules that scale gradients."""
    unmeasured: str
    """Why there is neither; empty without a filter."""


def removal_panel(view: View) -> RemovalPanel:
    mask, layer = view.where, view.layer
    if mask is None:
        return RemovalPanel(view.state.layer, view.state.masked, None, None, "")
    try:
        removed = view.memory.cancellation(mask, view.state.at, layer.name, view.state.inexact)
    except Inexact as error:
        return RemovalPanel(layer.name, True, None, None, error.message)
    concentration = removed.concentrations.get(layer.name)
    figure = removed.get(layer.name)
    if concentration is None and (figure is None or isnan(figure)):
        return RemovalPanel(layer.name, True, None, None, "What is left out moves nothing.")
    return RemovalPanel(layer.name, True, None if concentration else figure, concentration, "")
