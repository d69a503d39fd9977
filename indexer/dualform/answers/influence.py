"""The effect of training data on losses: adjoints, retrainings and ledgers.

What leaving samples out of a training does to the losses of queries: a derivative, and trainings run again.

Shapes: n queries, S samples, k sets of samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers.scores import GroupKey, GroupSums
from dualform.answers.table import (
    Columns,
    Status,
    Table,
    axes_or_new,
    beside,
    check_number,
    column_of,
    counted,
    draw_bars,
    first_places,
    group_columns,
    name_of,
)
from dualform.errors import BadInput, NotFound


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Spearman's: the correlation of ranks, equal values having their mean rank; None where either does not vary."""
    ranks = [mean_ranks(values) for values in (one, other)]
    deviations = [rank - rank.mean() for rank in ranks]
    scale = float(np.sqrt((deviations[0] ** 2).sum() * (deviations[1] ** 2).sum()))
    return float((deviations[0] * deviations[1]).sum()) / scale if scale else None


def mean_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[n]: the rank of each value in ascending order, from 1. Equal values share their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[places]
    return ranks


@dataclass(frozen=True, eq=False, repr=False)
class Adjoint(Table):
    """How the loss of each query would change if each sample were left out of the training.

    It is a derivative, not a retraining. A positive value means that the sample helped: without it the loss would be
    larger.
    """

    values: NDArray[np.float32]
    """float32[n, S]."""
    columns: Mapping[str, NDArray[Any]]
    """[S] each: "dataset" and "sample", and every column that is the same for all rows of a sample."""
    seen: NDArray[np.int64]
    """int64[S]: how many times training saw each sample."""
    losses: NDArray[np.float64]
    """float64[n]: the loss of each query after the training."""
    drift: float
    """How far the rerun ended from the recorded weights, of the distance that training moved them."""

    @property
    def samples(self) -> NDArray[np.int64]:
        """int64[S]: the number of each sample."""
        return self.columns["sample"]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def rows(self) -> int:
        return int(self.values.size)

    def sums(self, by: str | Sequence[str]) -> GroupSums:
        """The predicted change of each loss without the samples of each group, by columns such as "label"; `counts` are
        samples. Leaving out so much is far from the training as it was: the larger the group, the less to be trusted.

        Raises NotFound for a column that is not among `columns`.
        """
        names = (by,) if isinstance(by, str) or not isinstance(by, Sequence) else tuple(by)
        if not names:
            raise BadInput("by must name at least one column.", hint='For example by="label".', field="by")
        for name in names:
            if name not in self.columns:
                raise NotFound(
                    f"There is no column {name!r} that is the same for all rows of a sample.",
                    hint=f"Columns: {', '.join(self.columns)}.",
                    field="by",
                )
        keys = list(zip(*(self.columns[name].tolist() for name in names), strict=True))
        groups = tuple(sorted(set(keys), key=lambda key: [(own is None, "" if own is None else own) for own in key]))
        places = {key: place for place, key in enumerate(groups)}
        numbers = np.array([places[key] for key in keys], dtype=np.int64)
        sums = np.zeros((len(self), len(groups)))
        np.add.at(sums.T, numbers, self.values.T.astype(np.float64))
        return GroupSums(groups, sums, np.bincount(numbers, minlength=len(groups)), names)

    def best(self, query: int, k: int = 10) -> list[tuple[int, float]]:
        """The k samples with the largest values for a query, positive or negative."""
        order = np.argsort(-np.abs(self.values[check_number(query, len(self), "query")]), kind="stable")[:k]
        return [(int(self.samples[own]), float(self.values[query, own])) for own in order]

    def without(self, samples: Any) -> NDArray[np.float64]:
        """float64[n]: the predicted change of each loss without some samples, given by number or as bool[S].

        Raises BadInput for numbers that no sample has, or samples of several datasets.
        """
        return np.asarray(self.values[:, marked(self.columns, samples)].sum(axis=1, dtype=np.float64))

    def table(self, most: int | None = None) -> Columns:
        """One row for each query and sample: query, the columns of the sample but those of such names, value."""
        query, sample = first_places(self.values.shape, most)
        return Columns(
            {
                "query": query,
                **{name: own[sample] for name, own in self.columns.items() if name not in _OWN},
                "value": self.values[query, sample],
            }
        )

    def title(self) -> str:
        return (
            f"Adjoint: {counted(len(self), 'query')}, {counted(len(self.samples), 'sample')}; a derivative, not a "
            f"retraining; the rerun ends within {self.drift:.2g} of the recorded weights"
        )

    def agreement(self, retrained: Retrainings, seed: int = 0) -> Agreement:
        """How well the predicted changes rank those of retrainings of the same queries: the mean over queries of
        Spearman's correlation over sets (LDS), and the central 95 % of 1,000 draws of sets with replacement.

        Raises BadInput for retrainings of other samples or queries, or fewer than 10.
        """
        if not isinstance(retrained, Retrainings):
            raise BadInput(
                f"retrained must be what dualform.retrain returns, not {type(retrained).__name__}.", field="retrained"
            )
        if retrained.samples.tolist() != self.samples.tolist() or retrained.losses.shape[1] != len(self):
            raise BadInput(
                "The retrainings are of other samples or queries.",
                hint="Pass what dualform.retrain returns for the same memory and queries.",
                field="retrained",
            )
        if len(retrained) < FEWEST_RETRAININGS:
            raise BadInput(
                f"{len(retrained)} retrainings tell no correlation.", hint="Retrain without 25 sets or more.",
                field="retrained",
            )  # fmt: skip
        predicted = retrained.sets.astype(np.float64) @ self.values.T
        actual = retrained.changes
        generator = np.random.default_rng(seed)
        draws = [
            _mean_correlation(predicted[own], actual[own])
            for own in generator.integers(0, len(actual), (1000, len(actual)))
        ]
        low, high = np.nanquantile(draws, (0.025, 0.975))
        return Agreement(_mean_correlation(predicted, actual), float(low), float(high), len(actual))


_OWN = ("name", "query", "example", "value", "steps")
"""Columns of adjoints as they are kept."""


def marked(columns: Mapping[str, NDArray[Any]], samples: Any) -> NDArray[np.bool_]:
    """bool[S]: samples that are given by number, or as bool[S]. Raises as `Adjoint.without`."""
    numbers, given = columns["sample"], np.asarray(samples)
    if given.dtype == bool and given.shape == numbers.shape:
        return given
    if given.ndim != 1 or not given.size or given.dtype.kind not in "iu":
        raise BadInput(
            f"samples must be numbers of samples or bool[{len(numbers)}], not {given.dtype}{list(given.shape)}.",
            hint="For example [3, 17].",
            field="samples",
        )
    found = np.isin(numbers, given)
    if missing := sorted(set(given.tolist()) - set(numbers[found].tolist())):
        raise BadInput(f"The training has no sample {missing[0]}.", field="samples")
    if len(set(numbers[found].tolist())) < found.sum():
        raise BadInput(
            "Several datasets have a sample of such a number.",
            hint=f"Pass bool[{len(numbers)}], in the order of `columns`.",
            field="samples",
        )
    return found


FEWEST_RETRAININGS = 10
"""That tell a rank correlation."""


def _mean_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Spearman's, of the columns of [k, n] each; the mean of those that vary, NaN if none does."""
    found = [rank_correlation(*columns) for columns in zip(one.T, other.T, strict=True)]
    told = [own for own in found if own is not None]
    return float(np.mean(told)) if told else float("nan")


@dataclass(frozen=True)
class Agreement:
    """How well an adjoint ranks what retrainings change."""

    correlation: float
    low: float
    """The ends of the central 95 %."""
    high: float
    retrainings: int

    def __str__(self) -> str:
        of = f"({self.low:.2f} to {self.high:.2f}, {self.retrainings} retrainings)"
        if self.low > 0.5:
            return f"Predicts retraining: rank correlation {self.correlation:.2f} {of}."
        if self.high < 0.5:
            return (
                f"Does not predict retraining well: rank correlation {self.correlation:.2f} {of}. Smooth activations "
                "such as tanh or GELU, larger batches and a larger eps of Adam help."
            )
        return f"Rank correlation with retraining {self.correlation:.2f} {of}: retrain without more sets to tell."


@dataclass(frozen=True, eq=False, repr=False)
class Retrainings(Table):
    """The losses of queries after trainings without sets of samples."""

    sets: NDArray[np.bool_]
    """bool[k, S]: the samples that each training left out."""
    losses: NDArray[np.float64]
    """float64[k, n]."""
    complete: NDArray[np.float64]
    """float64[n]: the losses with all samples."""
    samples: NDArray[np.int64]
    """int64[S]: the number of each sample, in the order of an adjoint's."""

    @property
    def changes(self) -> NDArray[np.float64]:
        """float64[k, n]: how each loss changed."""
        return self.losses - self.complete

    def __len__(self) -> int:
        return len(self.losses)

    @property
    def rows(self) -> int:
        return int(self.losses.size)

    def table(self, most: int | None = None) -> Columns:
        """One row for each set and query: set, samples left out, query, loss, change."""
        number, query = first_places(self.losses.shape, most)
        return Columns(
            {
                "set": number,
                "left_out": self.sets.sum(axis=1)[number],
                "query": query,
                "loss": self.losses[number, query],
                "change": self.changes[number, query],
            }
        )

    def title(self) -> str:
        return f"{counted(len(self), 'retraining')} of {counted(len(self.complete), 'query')}"


_PLAUSIBLE = 50
"""A group that moved a loss by so many times more than the loss changed is worth a warning."""


@dataclass(frozen=True, eq=False, repr=False)
class Ledger(Table):
    """The contribution of each group to the change of each example's loss over the training.

        final - initial = the sum of `sums` over the groups + the sum of `lines` + residual

    A negative contribution lowered the loss. With method="path" the residual is a small integration error; with
    "first-order" it also contains the curvature of all updates. Iterating gives the groups of each example, as `best`
    does.
    """

    name: str
    """The name of the influence."""
    groups: tuple[GroupKey, ...]
    """The values of `by` for each group, in order of value, with NULL (None) last."""
    sums: NDArray[np.float64]
    """float64[n, G]: the contribution of each group, summed over all recorded layers."""
    counts: NDArray[np.int64]
    """int64[G]: the number of slots in each group, over the spaces of all recorded layers."""
    initial: NDArray[np.float64]
    """float64[n]: the loss of each example before the first step."""
    final: NDArray[np.float64]
    """float64[n]: the loss of each example after the last step."""
    lines: Mapping[str, NDArray[np.float64]]
    """float64[n] for each line, a contribution that belongs to no slot. "decay": weight decay, and optimizer state from
    before the record. "rounding": biases whose gradient is only rounding. "other parameters": those outside the
    recorded layers. "buffers": such as running means. "truncated": the rest of slots that the ledger stopped
    following, and rounding in half precision."""
    residual: NDArray[np.float64]
    """float64[n]: the change of each loss minus all other terms."""
    by: tuple[str, ...] = ()
    """The columns of the groups."""
    method: str = "first-order"
    unexplained: NDArray[np.float64] | None = None
    """float64[n]: the loss of the trained network minus `final`, the loss of the rebuilt one. None if the training did
    not end."""
    statuses: Mapping[str, Status] = field(default_factory=dict)
    """The status of each layer."""

    @property
    def largest(self) -> NDArray[np.float64]:
        """float64[n]: the size of the largest contribution of one group. Compare it with the change of the loss."""
        found: NDArray[np.float64] = np.abs(self.sums).max(axis=1, initial=0.0)
        return found

    @property
    def remark(self) -> str:
        """A warning if the largest group is more than 50 times the largest change of a loss; otherwise empty."""
        largest, change = self._extremes()
        if largest <= _PLAUSIBLE * change:
            return ""
        return (
            f"the largest group of ledger {self.name!r} moved a loss by {largest:.3g}, and the losses changed by at "
            f"most {change:.3g}. The groups cancel each other out: do not rank them"
        )

    def _extremes(self) -> tuple[float, float]:
        """The largest contribution of one group, and the largest change of a loss."""
        return float(self.largest.max(initial=0.0)), float(np.abs(self.final - self.initial).max(initial=0.0))

    def best(self, example: int, k: int) -> list[tuple[GroupKey, float]]:
        """The k groups with the largest contributions to an example's loss, positive or negative."""
        found = self.sums[example]
        order = np.argsort(-np.abs(found), kind="stable")[:k]
        return [(self.groups[group], float(found[group])) for group in order]

    def __len__(self) -> int:
        return len(self.sums)

    def __iter__(self) -> Iterator[list[tuple[GroupKey, float]]]:
        return (self.best(example, len(self.groups)) for example in range(len(self)))

    @property
    def rows(self) -> int:
        return int(self.sums.shape[0] * (self.sums.shape[1] + len(self.lines) + 1))

    def table(self, most: int | None = None) -> Columns:
        """One row for each example and term: example, term ("group", a line or "residual"), the columns of `by`,
        contribution.
        """
        n, groups = self.sums.shape
        terms = [*["group"] * groups, *self.lines, "residual"]
        example, place = first_places((n, len(terms)), most)
        others = np.stack([*self.lines.values(), self.residual], axis=1)
        of_group = place < groups
        value = others[example, np.maximum(place - groups, 0)]
        value[of_group] = self.sums[example[of_group], place[of_group]]
        found = {"example": example, "term": column_of([terms[own] for own in place.tolist()]), "contribution": value}
        keys = [*self.groups, *[(None,) * len(self.by)] * (len(self.lines) + 1)]
        return Columns(beside(found, group_columns(self.by, keys, place), 2))

    def plot(self, example: int = 0, most: int = 20, axes: Any = None) -> Any:
        """Plot the change of one example's loss as bars that add up: the `most` largest groups, all others, lines,
        residual.

        Returns matplotlib's axes.
        """
        shown = self.best(check_number(example, len(self), "example"), most)
        names = [name_of(self.by, group) for group, _ in shown]
        rest = float(self.sums[example].sum()) - sum(own for _, own in shown)
        others = {name: float(own[example]) for name, own in self.lines.items()}
        drawn = {**others, "residual": float(self.residual[example])}
        if len(shown) < len(self.groups):
            drawn = {f"{len(self.groups) - len(shown):,} others": rest, **drawn}
        axes = axes_or_new(axes)
        draw_bars(axes, [*names, *drawn], [*(own for _, own in shown), *drawn.values()], "change of the loss")
        axes.set_ylabel(", ".join(self.by))
        return axes

    def title(self) -> str:
        by = f" by {', '.join(self.by)}" if self.by else ""
        sizes = f"{counted(len(self), 'example')}, {counted(len(self.groups), 'group')}"
        largest, change = self._extremes()
        moved = f"the largest group moved a loss by {largest:.3g}, losses changed by up to {change:.3g}"
        return f"Ledger {self.name!r}{by}, {self.method}: {sizes}; {moved}"
