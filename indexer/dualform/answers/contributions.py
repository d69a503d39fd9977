"""The contribution of each group of training datapoints to a layer's output. Shapes: n queries, G groups, d_out
outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers.columns import Columns, as_html, column_of
from dualform.answers.hits import GroupKey
from dualform.answers.html import bars, output_names, with_names
from dualform.answers.plots import axes_or_new, check_number, draw_terms, name_of
from dualform.answers.scan import Scan
from dualform.answers.status import Status
from dualform.answers.table import Table, beside, counted, first_places, group_columns


@dataclass(frozen=True, eq=False, repr=False)
class Contributions(Table):
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

    @property
    def nbytes(self) -> int:
        """The size in bytes of the numbers that grow with the queries."""
        return self.sums.nbytes + 4 * self.initial.nbytes

    def part(self, start: int, stop: int) -> Contributions:
        """The result for the queries from start to stop. `scan` stays that of the whole."""
        own = slice(start, stop)
        unexplained = None if self.unexplained is None else self.unexplained[own]
        return replace(
            self,
            sums=self.sums[own],
            initial=self.initial[own],
            unrecorded_change=self.unrecorded_change[own],
            residual=self.residual[own],
            unexplained=unexplained,
        )

    @property
    def output(self) -> NDArray[np.float64]:
        """float64[n, d_out]: the sum of all terms, equal to the result of `output` with the same `where`."""
        total: NDArray[np.float64] = (
            self.sums.sum(axis=1) + self.initial + self.bias + self.unrecorded_change + self.residual
        )
        return total

    def __len__(self) -> int:
        return len(self.sums)

    def __iter__(self) -> Iterator[Contributions]:
        return (self.part(query, query + 1) for query in range(len(self)))

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
        own = slice(_SHOWN_OUTPUTS)
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
        return self._title(f" (the first {_SHOWN_OUTPUTS} are shown)" if width > _SHOWN_OUTPUTS else "")

    def _title(self, shown: str) -> str:
        by = f" by {', '.join(self.by)}" if self.by else ""
        outputs = counted(self.sums.shape[2], "output")
        sizes = (counted(len(self), "query"), counted(len(self.groups), "group"), f"{outputs}{shown}")
        return f"Contributions{by}: {', '.join(sizes)}; the layer's record is {self.status}"


_SHOWN_OUTPUTS = 6
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
