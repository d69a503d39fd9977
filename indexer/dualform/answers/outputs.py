"""Answers that rebuild a layer: outputs, weights, contributions, ablations, reconstruction errors.

The contribution of each group of training datapoints to a layer's output. Shapes: n queries, G groups, d_out
outputs.

Whether what an ablation changes means anything. Shapes: n queries, R random sets of samples, S siblings.

A *set* is what an ablation leaves out of the sum. The first one is the question's own; then come R sets of as many
samples drawn at random, and S siblings of the first: the other values of the columns that it names, or other spans of
as many steps. Arrays by set have 1 + R + S columns, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from math import isnan
from typing import Any, ClassVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from dualform.answers.contents import bars, output_names, query_labels, with_names
from dualform.answers.scores import GroupKey
from dualform.answers.table import (
    SHOWN,
    ByQuery,
    Columns,
    Html,
    Recorded,
    Scan,
    Shown,
    Status,
    Table,
    as_html,
    axes_or_new,
    beside,
    check_number,
    column_of,
    counted,
    draw_terms,
    escaped,
    first_places,
    group_columns,
    name_of,
    slots_told,
)
from dualform.extras import optional


@dataclass(frozen=True, eq=False, repr=False)
class Outputs(ByQuery, Shown, NDArrayOperatorsMixin):
    """The outputs of a layer, float32[n, d_out]. NumPy functions, operators, indexing and len() work on `values`."""

    values: NDArray[np.float32]
    """float32[n, d_out]."""
    space: str
    """The slot space of the layer."""
    status: Status
    """The status of the layer as of the step. It covers the whole sum; an ablation lacks a separate error bound."""
    unrecorded_change: float = 0.0
    """The size of changes that were not recorded or were deleted, relative to how far the weights moved. They stay in
    the output under every ablation. 0.0 without such changes; NaN if the training did not end."""
    scan: Scan = field(default_factory=Scan)
    kernel: str = "linear"
    """ "linear" or "softmax"."""
    temperature: float | None = None
    """The temperature of "softmax"; None for "linear"."""
    initial: bool = True
    """Whether W_0 and the whole bias are included."""
    effective_slots: NDArray[np.float64] | None = None
    """float64[n], 1 / sum_t p_t^2: the effective number of slots of the softmax; 0.0 if the ablation keeps none. None
    for "linear"."""

    _of_queries: ClassVar[tuple[str, ...]] = ("values", "effective_slots")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False and dtype is not None and np.dtype(dtype) != self.values.dtype:
            raise ValueError(f"outputs are {self.values.dtype}, and {np.dtype(dtype)} would take a copy.")
        array: NDArray[Any] = self.values.astype(self.values.dtype if dtype is None else dtype, copy=bool(copy))
        return array

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(out, Outputs) for out in options.get("out", ())):
            return NotImplemented  # an answer is not to be written into
        arrays = [one.values if isinstance(one, Outputs) else one for one in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, d_out)."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """float32."""
        return self.values.dtype

    @property
    def ndim(self) -> int:
        """2: queries and outputs."""
        return self.values.ndim

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        return iter(self.values)

    def shown(self, most: int) -> tuple[Columns, int]:
        """One row for each query: the largest output, and the first outputs."""
        values = self.values[:most]
        found: dict[str, NDArray[Any]] = {"query": np.arange(len(values)), "largest": values.argmax(axis=1)}
        if self.effective_slots is not None:
            found["effective slots"] = self.effective_slots[:most]
        found |= {f"output {own}": values[:, own] for own in range(min(values.shape[1], _SHOWN_OUTPUTS))}
        return Columns(found, self.scan, self.space), len(self)

    def _html(self, memory: Any, question: Any) -> str:
        """With names of labels, the largest output of each query in bold and the second in italics."""
        values = self.values[: SHOWN + 2]
        name, width = output_names(memory, question), values.shape[1]
        order = np.argsort(-values, axis=1, kind="stable")
        found: dict[str, NDArray[Any]] = {"query": np.arange(len(values))}
        if (labels := query_labels(memory, question, self.space)) is not None:
            found["label"] = column_of([name(own) if own >= 0 else None for own in labels[: len(values)].tolist()])
        for place, column in enumerate(("largest", "second")[:width]):
            found[column] = column_of([name(own) for own in order[:, place].tolist()])
        if self.effective_slots is not None:
            found["effective slots"] = self.effective_slots[: len(values)]
        for output in range(width if width <= _MOST_OUTPUTS else _SHOWN_OUTPUTS):
            cells = [Html(escaped(f"{own:.4g}")) for own in values[:, output].tolist()]
            for place, tag in enumerate("bi"[:width]):
                cells = [
                    Html(f"<{tag}>{cell}</{tag}>") if own == output else cell
                    for cell, own in zip(cells, order[:, place].tolist(), strict=True)
                ]
            found[f"output {name(output)}"] = column_of(cells)
        title = self._title("" if width <= _MOST_OUTPUTS else _FIRST)
        return as_html(Columns(found), len(self), f"{title}; bold is the largest, italics the second")

    def title(self) -> str:
        return self._title(_FIRST if self.values.shape[1] > _SHOWN_OUTPUTS else "")

    def _title(self, shown: str) -> str:
        of = slots_told(self.scan, self.space)
        weighed = "" if self.kernel == "linear" else f", weighed by a {self.kernel} at temperature {self.temperature:g}"
        initial = "" if self.initial else ", without W_0 and bias"
        sizes = f"{counted(len(self), 'query')}, {counted(self.values.shape[1], 'output')}{shown}"
        return f"Outputs: {sizes}{f', of {of}' if of else ''}{weighed}{initial}; the layer's record is {self.status}"


_SHOWN_OUTPUTS, _MOST_OUTPUTS = 8, 12
"""The number of outputs that are printed; and the most that a notebook shows."""
_FIRST = f" (the first {_SHOWN_OUTPUTS} are shown)"


@dataclass(frozen=True, eq=False, repr=False)
class Weights(Shown, Mapping[str, Any]):
    """The parameters and buffers of the network by name, as torch tensors. `load_state_dict` takes it directly.

    The tensors share memory with `arrays`, and are made when first read. Without torch, use `arrays`.
    """

    arrays: Mapping[str, NDArray[Any]]
    """Every parameter and buffer as an array: recorded layers first, then the others by name."""
    statuses: Mapping[str, Status]
    """The status of each recorded layer as of the step. It covers the whole sum; an ablation lacks a separate error
    bound."""
    unrecorded_change: Mapping[str, float]
    """By recorded layer, the size of changes that were not recorded or were deleted, relative to how far the weights
    moved. They stay in the weights under every ablation. 0.0 without such changes; NaN if the training did not end."""
    not_recorded: tuple[str, ...] = ()
    """Parameters and buffers outside the recorded layers that were not kept at each step. They have their values at the
    end of the training or, unless it `ended`, before its first step."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """The number of slots that the ablation keeps, by slot space."""
    scan: Scan = field(default_factory=Scan)
    others: tuple[str, ...] = ()
    """Parameters and buffers outside the recorded layers, with their values at the step. No ablation changes them."""
    ended: bool = True
    """Whether the training ended; otherwise it was cut off or is still running."""

    @property
    def remark(self) -> str:
        """A sentence about `not_recorded`, without a full stop; empty if all parameters were recorded."""
        if not self.not_recorded:
            return ""
        moment = "at the end of the training" if self.ended else "before its first step, for there is no end"
        return f"not recorded, so they stand as {moment}: {', '.join(self.not_recorded)}"

    @cached_property
    def _tensors(self) -> dict[str, Any]:
        torch = optional("torch")
        return {name: torch.from_numpy(array) for name, array in self.arrays.items()}

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def shown(self, most: int) -> tuple[Columns, int]:
        """One row for each parameter or buffer: name, shape and type."""
        arrays = [*self.arrays.items()][:most]
        return Columns(
            {
                "name": column_of([name for name, _ in arrays]),
                "shape": column_of([" x ".join(map(str, own.shape)) or "scalar" for _, own in arrays]),
                "type": column_of([str(own.dtype) for _, own in arrays]),
            },
            self.scan,
        ), len(self)

    def title(self) -> str:
        off = {layer: str(status) for layer, status in self.statuses.items() if not status.exact}
        exact = "every layer's record is exact" if not off else f"{counted(len(off), 'layer')} not exact (.statuses)"
        kept = ", ".join(f"{count:,} {space}" for space, count in self.kept.items())
        parts = [f"Weights: {counted(len(self), 'tensor')}", exact, f"slots that speak: {kept}" if kept else ""]
        if self.not_recorded:
            parts.append(f"{counted(len(self.not_recorded), 'tensor')} not recorded (.remark)")
        return "; ".join(part for part in parts if part)


@dataclass(frozen=True, eq=False, repr=False)
class Contributions(ByQuery, Table):
    """The terms of a layer's output, which add up to it (paper equation 13).

        output = initial + bias + unrecorded_change + the sum of `sums` over the groups + residual

    Iterating gives the Contributions of each query.
    """

    groups: tuple[GroupKey, ...]
    """The values of `by` for each group, in order of value, with NULL (None) last."""
    sums: NDArray[np.float64]
    """float64[n, G, d_out]: the sum of (x_t . q) e_t over the slots t of a group, without their part of the bias."""
    counts: NDArray[np.int64]
    """int64[G]: the number of slots in each group."""
    initial: NDArray[np.float64]
    """float64[n, d_out]: the part from before the record, a_0 W_0 q, with the state of the optimizer at that time."""
    bias: NDArray[np.float64]
    """float64[d_out]: the whole bias under the ablation, including the part of the slots; zeros without a bias."""
    unrecorded_change: NDArray[np.float64]
    """float64[n, d_out]: changes of the weight that were not recorded or were deleted. They stay under every ablation.
    """
    residual: NDArray[np.float64]
    """float64[n, d_out]: the output minus all other terms, which is rounding."""
    unexplained: NDArray[np.float64] | None = None
    """float64[n, d_out]: the trained network's output minus the output rebuilt from all slots. It shows how exact the
    record is for these queries. None as of an earlier step, and if the training did not end."""
    by: tuple[str, ...] = ()
    """The columns of the groups."""
    space: str = ""
    """The slot space of the layer."""
    status: Status = field(default_factory=lambda: Status("exact"))
    """The status of the layer as of the step."""
    scan: Scan = field(default_factory=Scan)

    _of_queries: ClassVar[tuple[str, ...]] = ("sums", "initial", "unrecorded_change", "residual", "unexplained")

    @property
    def output(self) -> NDArray[np.float64]:
        """float64[n, d_out]: the sum of all terms, equal to the result of `output` with the same `where`."""
        total: NDArray[np.float64] = (
            self.sums.sum(axis=1) + self.initial + self.bias + self.unrecorded_change + self.residual
        )
        return total

    @property
    def rows(self) -> int:
        n, groups, d_out = self.sums.shape
        return int(n * (groups + len(_TERMS)) * d_out)

    def table(self, most: int | None = None) -> Columns:
        """One row for each query, term and output: query, term ("group" or another), the columns of `by`, output,
        contribution, count.
        """
        n, groups, d_out = self.sums.shape
        query, place, output = first_places((n, groups + len(_TERMS), d_out), most)
        others = np.stack(
            [self.initial, np.broadcast_to(self.bias, (n, d_out)), self.unrecorded_change, self.residual], axis=1
        )
        of_group, other = place < groups, np.maximum(place - groups, 0)
        value = others[query, other, output]
        value[of_group] = self.sums[query[of_group], place[of_group], output[of_group]]
        found = {
            "query": query,
            "term": column_of(["group" if place < groups else _TERMS[place - groups] for place in place.tolist()]),
            "output": output,
            "contribution": value,
            "count": column_of([int(self.counts[place]) if place < groups else None for place in place.tolist()]),
        }
        keys = [*self.groups, *[(None,) * len(self.by)] * len(_TERMS)]
        return Columns(beside(found, group_columns(self.by, keys, place), 2), self.scan, self.space)

    def shown(self, most: int) -> tuple[Columns, int]:
        """One row for each query and term, with its contribution to the first outputs. Terms without a group come
        first.
        """
        own = slice(_SHOWN_CONTRIBUTIONS)
        n, groups = self.sums.shape[:2]
        bias = np.broadcast_to(self.bias, self.initial.shape)
        others = np.stack(
            [part[:, own] for part in (self.initial, bias, self.unrecorded_change, self.residual)], axis=1
        )
        brought = np.concatenate([others, self.sums[:, :, own]], axis=1)
        query, place = first_places((n, len(_TERMS) + groups), most)
        terms = [*_TERMS, *["group"] * groups]
        counts = [*[None] * len(_TERMS), *self.counts.tolist()]
        found = {
            "query": query,
            "term": column_of([terms[one] for one in place.tolist()]),
            "count": column_of([counts[one] for one in place.tolist()]),
            **{f"output {one}": brought[query, place, one] for one in range(brought.shape[2])},
        }
        keys = [*[(None,) * len(self.by)] * len(_TERMS), *self.groups]
        table = Columns(beside(found, group_columns(self.by, keys, place), 2), self.scan, self.space)
        return table, n * (groups + len(_TERMS))

    def plot(self, query: int = 0, most: int = 20, axes: Any = None) -> Any:
        """Plot the terms and outputs of one query as a colour map: the `most` largest groups, then the other terms.

        Returns matplotlib's axes.
        """
        own = self.sums[check_number(query, len(self), "query")]
        order = np.argsort(-np.abs(own).max(axis=1, initial=0.0), kind="stable")[:most]
        others = [self.initial[query], self.bias, self.unrecorded_change[query]]
        axes = axes_or_new(axes)
        names = [name_of(self.by, self.groups[group]) for group in order.tolist()]
        draw_terms(axes, [*names, *_TERMS[:3]], np.stack([*own[order], *others]))
        axes.set_ylabel(", ".join(self.by))
        return axes

    def _html(self, memory: Any, question: Any) -> str:
        """The largest output of the first queries, term by term, each bar from where the one above ends."""
        name = output_names(memory, question)
        found: list[dict[str, Any]] = []
        for query, own in enumerate(self.part(0, _SHOWN_QUERIES)):
            found += own._waterfall(query, name)
        title = f"{self._title('')}; each query's largest output"
        title += f", of the first {_SHOWN_QUERIES} queries" if len(self) > _SHOWN_QUERIES else ""
        names = ("query", "output", "term", "count", "contribution", "bar")
        columns = {name: column_of([row[name] for row in found]) for name in names}
        keys = [row["group"] for row in found]
        groups = with_names(group_columns(self.by, keys, np.arange(len(keys))), memory)
        return as_html(Columns(beside(columns, groups, 3)), len(found), title, len(found))

    def _waterfall(self, query: int, name: Callable[[int], Any]) -> list[dict[str, Any]]:
        """The rows of the only query. All but the largest groups share one row."""
        output = self.output[0]
        number = int(output.argmax())
        sums, none = self.sums[0, :, number], (None,) * len(next(iter(self.groups), ()))
        kept = np.sort(np.argsort(-np.abs(sums), kind="stable")[:_SHOWN_GROUPS])
        left = np.delete(np.arange(len(sums)), kept)
        rows: list[tuple[str, GroupKey, int | None, float]] = [
            ("initial", none, None, self.initial[0, number]),
            ("bias", none, None, self.bias[number]),
            *(("group", self.groups[own], int(self.counts[own]), sums[own]) for own in kept.tolist()),
            *((f"{len(left):,} other groups", none, int(self.counts[left].sum()), sums[left].sum()) for _ in left[:1]),
            ("unrecorded_change", none, None, self.unrecorded_change[0, number]),
            ("residual", none, None, self.residual[0, number]),
        ]
        ends = np.cumsum([0.0, *(row[3] for row in rows)]).tolist()
        drawn = bars([*pairwise(ends), (0.0, float(output[number]))], [len(rows)])
        rows.append(("output", none, None, output[number]))
        keys = ("term", "group", "count", "contribution")
        shown = [dict(zip(keys, (*row[:3], float(row[3])), strict=True)) for row in rows]
        return [
            {**row, "query": query, "output": name(number), "bar": bar} for row, bar in zip(shown, drawn, strict=True)
        ]

    def title(self) -> str:
        width = self.sums.shape[2]
        return self._title(f" (the first {_SHOWN_CONTRIBUTIONS} are shown)" if width > _SHOWN_CONTRIBUTIONS else "")

    def _title(self, shown: str) -> str:
        by = f" by {', '.join(self.by)}" if self.by else ""
        outputs = counted(self.sums.shape[2], "output")
        sizes = (counted(len(self), "query"), counted(len(self.groups), "group"), f"{outputs}{shown}")
        return f"Contributions{by}: {', '.join(sizes)}; the layer's record is {self.status}"


_SHOWN_CONTRIBUTIONS = 6
"""Outputs that it shows of itself."""
_SHOWN_QUERIES, _SHOWN_GROUPS = 3, 12
"""That a notebook shows, and the groups of each."""
_TERMS = ("initial", "bias", "unrecorded_change", "residual")
"""The terms that belong to no group, in the order of the rows."""


def estimated_seconds(slots: int, steps: int, d_in: int, d_out: int, outputs: int = 2) -> float:
    """The approximate time for one query's first contributions to some outputs of a layer, for any groups. Measured on
    one core of a cloud machine, with keys and values in the page cache. Later questions about the same outputs take
    less.
    """
    each_slot, each_number, each_update, each_entry = 0.8e-6, 5e-9, 5e-4, 6e-8
    of_slots = slots * (each_slot + each_number * (d_in + d_out))
    return of_slots + steps * (each_update + each_entry * outputs * d_in)


WHOSE_STATUS = "The status is that of the whole sum."
WHAT_AN_ABLATION_MEANS = (
    "An ablation removes terms from this training's sum by arithmetic. It is not retraining without them: what remains "
    f"was learned together with what is removed. {WHOSE_STATUS}"
)
"""Shown with every ablation."""


@dataclass(frozen=True)
class Concentration:
    """How an ablation moves a layer's weights under an optimizer that scales gradients, such as Adam; bias included.

    The part of a slot in such an update is its part of the gradient, times the scale of the whole gradient. If the
    whole gradient of an entry nearly cancels, such a part is unbounded, and a few entries can dominate the result.
    """

    share: float
    """The share of the squared distance in the 1 % of entries that moved furthest, at least one entry. 0.01 if all move
    by the same amount; NaN if nothing moves."""
    greatest: float
    """The largest move of one entry, relative to ||W_T - W_0|| of the whole layer; 0.0 if nothing moves."""


@dataclass(frozen=True, eq=False, repr=False)
class Cancellation(Shown, Mapping[str, float]):
    """By layer, the sum of the norms of the removed terms over the norm of their sum.

    1 means that all terms push one way; tens or hundreds mean that they mostly cancel; NaN means that nothing moves.
    Under optimizers that give slots no separate terms, layers are in `concentrations` instead.
    """

    figures: Mapping[str, float]
    scan: Scan = field(default_factory=Scan)
    concentrations: Mapping[str, Concentration] = field(default_factory=dict)
    """By layer, under optimizers that scale gradients."""

    def __getitem__(self, layer: str) -> float:
        return self.figures[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)

    def record(self) -> dict[str, Any]:
        """The figures for JSON. `unmoved` lists layers that do not move, whose figures are null."""
        shares = {**self.figures, **{layer: one.share for layer, one in self.concentrations.items()}}
        return {
            "cancellation": dict(self.figures),
            "concentration": {layer: asdict(one) for layer, one in self.concentrations.items()},
            "unmoved": [layer for layer, share in shares.items() if isnan(share)],
        }

    def shown(self, most: int) -> tuple[Columns, int]:
        """One row for each layer: its figure, or how concentrated the moves are."""
        layers = [*self.figures, *self.concentrations]
        named, others = layers[:most], self.concentrations
        found = {"layer": column_of(named)}
        if self.figures:
            found["cancellation"] = column_of([self.figures.get(layer) for layer in named])
        for name in ("share", "greatest") if others else ():
            found[name] = column_of([getattr(others[layer], name) if layer in others else None for layer in named])
        return Columns(found, self.scan), len(layers)

    def title(self) -> str:
        said = []
        if self.figures:
            said.append("1 where the masked terms push one way, tens or hundreds where they cancel")
        if self.concentrations:
            said.append("share of the squared distance in 1 % of the entries, and the furthest move of one")
        return f"Cancellation: {'; '.join(said) or 'nothing was measured'}"


CENTRAL = (0.025, 0.975)
"""Quantiles of a null that hold 95 % of it."""
FEWEST_RANDOM = 20
"""Random sets that tell whether a change is unusual; with fewer, none is."""
FEWEST_SIBLINGS = 5
"""That tell whether a change is unusual among them; fewer are shown, and decide nothing."""


@dataclass(frozen=True, eq=False, repr=False)
class Placebos(ByQuery, Table):
    """The change of each query's margin under an ablation, under random ablations of its size, and under its siblings.

    The margin is the predicted output minus the largest other one. The prediction is the layer's with all of its
    training, so a negative margin under an ablation means another prediction. If a layer has one output, this output is
    its margin. A change is the margin under an ablation minus the margin without one.
    Sets are numbered: 0 the ablation, then R random sets, then S siblings.
    """

    labels: NDArray[np.int64]
    """int64[n], -1 if unknown."""
    predicted: NDArray[np.int64]
    """int64[n]: the largest output."""
    second: NDArray[np.int64]
    """int64[n]: the second largest output; -1 if the layer has one output."""
    margin: NDArray[np.float64]
    """float64[n]."""
    changes: NDArray[np.float64]
    """float64[n, 1 + R + S]: the change of the margin, by set."""
    outcomes: NDArray[np.int64]
    """int64[n, 1 + R + S]: the largest output, by set."""
    random: int
    """R."""
    siblings: tuple[str, ...]
    """The names of the S siblings, such as "label = 7"."""
    without_siblings: str
    """Why siblings are missing; otherwise empty."""
    removed: int
    """The number of samples that the ablation removes."""
    total: int
    """The number of all samples."""
    unit: str
    """The unit of random sets: "samples", or "rows" or "slots" if samples were not recorded."""
    cancellation: float | None = None
    """The cancellation of the layer; None under optimizers that scale gradients, which give slots no separate terms."""
    status: Status = field(default_factory=lambda: Status("exact"))
    """The status of the layer."""
    space: str = ""
    """The slot space of the layer."""
    scan: Scan = field(default_factory=Scan)

    _of_queries: ClassVar[tuple[str, ...]] = ("margin", "labels", "predicted", "second", "changes", "outcomes")

    @property
    def change(self) -> NDArray[np.float64]:
        """float64[n]: the change of the margin under the ablation."""
        return self.changes[:, 0]

    @property
    def random_changes(self) -> NDArray[np.float64]:
        """float64[n, R]."""
        return self.changes[:, self._random]

    @property
    def sibling_changes(self) -> NDArray[np.float64]:
        """float64[n, S]."""
        return self.changes[:, self._siblings]

    @property
    def random_flips(self) -> NDArray[np.float64]:
        """float64[n]: the share of the random sets that change the prediction."""
        return self._flipped(self._random)

    @property
    def sibling_flips(self) -> NDArray[np.float64]:
        """float64[n]: the share of the siblings that change it."""
        return self._flipped(self._siblings)

    def _flipped(self, sets: slice) -> NDArray[np.float64]:
        return np.asarray((self.outcomes[:, sets] != self.predicted[:, None]).mean(axis=1))

    @property
    def _random(self) -> slice:
        """The columns of the random sets, in arrays by set."""
        return slice(1, 1 + self.random)

    @property
    def _siblings(self) -> slice:
        return slice(1 + self.random, None)

    @property
    def flips(self) -> NDArray[np.bool_]:
        """bool[n]: whether the ablation changes the prediction."""
        return np.asarray(self.outcomes[:, 0] != self.predicted)

    @property
    def unusual(self) -> NDArray[np.bool_]:
        """bool[n]: whether the change is outside the central 95 % of the random sets and, if there are at least
        FEWEST_SIBLINGS, of the siblings.
        """
        return self._unusual(self.changes)

    def _unusual(self, by_set: NDArray[np.floating | np.integer]) -> NDArray[np.bool_]:
        """bool[n] of [n, 1 + R + S]: whether the first of each row is outside the central 95 % of both nulls."""
        if self.random < FEWEST_RANDOM:
            return np.zeros(len(by_set), dtype=bool)
        found = outside(by_set[:, 0], by_set[:, self._random])
        if len(self.siblings) >= FEWEST_SIBLINGS:
            found &= outside(by_set[:, 0], by_set[:, self._siblings])
        return found

    @property
    def corrected(self) -> NDArray[np.int64]:
        """int64[1 + R + S]: by set, the queries that are misclassified with all of the training, and correct without
        the set.
        """
        return self._counted(self.predicted != self.labels, self.outcomes == self.labels[:, None])

    @property
    def broken(self) -> NDArray[np.int64]:
        """int64[1 + R + S]: by set, the queries that are correct with all of the training, and misclassified without
        the set.
        """
        return self._counted(self.predicted == self.labels, self.outcomes != self.labels[:, None])

    @property
    def misclassified(self) -> int:
        """The number of queries that are misclassified with all of the training: at most so many become correct."""
        return int((self._labelled & (self.predicted != self.labels)).sum())

    @property
    def correct(self) -> int:
        """The number of queries that are correct with all of the training: at most so many become misclassified."""
        return int((self._labelled & (self.predicted == self.labels)).sum())

    @property
    def _labelled(self) -> NDArray[np.bool_]:
        return np.asarray((self.labels >= 0) & (self.second >= 0))  # one output predicts no class

    def _counted(self, before: NDArray[np.bool_], after: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.asarray(((self._labelled & before)[:, None] & after).sum(axis=0), dtype=np.int64)

    @property
    def rows(self) -> int:
        return len(self)

    def table(self, most: int | None = None) -> Columns:
        """One row for each query: label, predicted and second output, margin, its change, the central 95 % of both
        comparisons, the share of each that changes the prediction, and whether the change is unusual.
        """
        own = self.part(0, len(self) if most is None else most)
        found: dict[str, NDArray[Any]] = {
            "query": np.arange(len(own)),
            "label": column_of([None if label < 0 else label for label in own.labels.tolist()]),
            "predicted": own.predicted,
            "second": own.second,
            "margin": own.margin,
            "change": own.change,
            "becomes": own.outcomes[:, 0],
        }
        for name, sets in (("random", self._random), ("sibling", self._siblings)):
            if (changes := own.changes[:, sets]).shape[1]:
                low, high = central(changes)
                found |= {f"{name}_low": low, f"{name}_high": high, f"{name}_flips": own._flipped(sets)}
        return Columns({**found, "unusual": own.unusual}, self.scan, self.space)

    def summary(self) -> dict[str, Any]:
        """A summary for JSON: how much was removed, how many changes are unusual, and how many predictions become
        correct or wrong, out of how many. It has the median and range of these counts for both comparisons. A count is
        unusual if it is outside the central 95 % of both.
        """
        counts = {"corrected": (self.corrected, self.misclassified), "broken": (self.broken, self.correct)}
        return {
            "removed": self.removed,
            "of": self.total,
            "unit": self.unit,
            "queries": len(self),
            "flips": int(self.flips.sum()),
            "unusual": int(self.unusual.sum()),
            **{
                name: {
                    "of": before,
                    "ablation": int(own[0]),
                    "random": _spread(own[self._random]),
                    "siblings": _spread(own[self._siblings]),
                    "unusual": bool(self._unusual(own[None])[0]),
                }
                for name, (own, before) in counts.items()
                if self._labelled.any()
            },
            "cancellation": self.cancellation,
            "siblings": list(self.siblings),
            "without_siblings": self.without_siblings,
        }

    def title(self) -> str:
        left_out = f"without {self.removed:,} of {self.total:,} {self.unit}"
        nulls = f"{counted(self.random, 'random set')}, {counted(len(self.siblings), 'sibling')}"
        unusual = f"{counted(len(self), 'query')} {left_out}, {int(self.unusual.sum()):,} unusual"
        return f"Placebos: {unusual}; {nulls}; the layer's record is {self.status}"


def central(null: NDArray[Any]) -> NDArray[np.float64]:
    """float64[2, n]: the ends of the central 95 % of each row of float64[n, m]."""
    return np.asarray(np.quantile(null, CENTRAL, axis=1))


def outside(value: NDArray[Any], null: NDArray[Any]) -> NDArray[np.bool_]:
    """bool[n]: whether each value is outside the central 95 % of its row of float64[n, m]; False without any."""
    if not null.shape[1]:
        return np.zeros(len(value), dtype=bool)
    low, high = central(null)
    return np.asarray((value < low) | (value > high))


def _spread(counts: NDArray[np.int64]) -> dict[str, float] | None:
    if not len(counts):
        return None
    return {"median": float(np.median(counts)), "least": int(counts.min()), "most": int(counts.max())}


@dataclass(frozen=True, repr=False)
class Reconstruction(Recorded, Table):
    """The reconstruction error of one layer at the end of the training, and its status."""

    reconstruction_error: float | None
    """||W_T - rebuilt|| / ||W_T - W_0|| in Frobenius norms, bias included. 0.0 is exact; 1.0 is as wrong as W_0.

    None if the layer cannot be rebuilt, or if half-precision weights moved less than their rounding.
    """
    status: Status
    rounding_share: float = 0.0
    """The share of ||W_T - W_0|| in biases whose gradient was only rounding, such as the key biases of attention. It
    belongs to no slot, and an ablation does not move it. 0.0 for optimizers that do not scale gradients."""

    @property
    def rows(self) -> int:
        return 1

    def table(self, most: int | None = None) -> Columns:
        """One row: status, reconstruction error and reason."""
        return Columns(_rows([self][:most]))

    def title(self) -> str:
        return f"Reconstruction error; {_MEANING}"


@dataclass(frozen=True, eq=False, repr=False)
class Reconstructions(Table, Mapping[str, Reconstruction]):
    """The reconstruction error of each recorded layer, by name. `verify` returns it."""

    reconstructions: Mapping[str, Reconstruction]
    scan: Scan = field(default_factory=Scan)

    def __getitem__(self, layer: str) -> Reconstruction:
        return self.reconstructions[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.reconstructions)

    def __len__(self) -> int:
        return len(self.reconstructions)

    @property
    def rows(self) -> int:
        return len(self)

    def table(self, most: int | None = None) -> Columns:
        """One row for each layer: layer, status, reconstruction error and reason."""
        shown = [*self.reconstructions.items()][:most]
        layers = column_of([name for name, _ in shown])
        return Columns({"layer": layers, **_rows([own for _, own in shown])}, self.scan)

    def title(self) -> str:
        exact = sum(own.exact for own in self.reconstructions.values())
        count = "all exact" if exact == len(self) else f"{exact:,} of them exact"
        return f"Reconstruction errors: {counted(len(self), 'layer')}, {count}; {_MEANING}"


_MEANING = "reconstruction_error is ||W_T - rebuilt|| / ||W_T - W_0||"


def _rows(reconstructions: Sequence[Reconstruction]) -> dict[str, NDArray[Any]]:
    return {
        "status": column_of([str(own.status) for own in reconstructions]),
        "reconstruction_error": column_of([own.reconstruction_error for own in reconstructions]),
        "reason": column_of([own.reason for own in reconstructions]),
    }
