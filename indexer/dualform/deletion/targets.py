"""Which samples a mask picks to be deleted, and what that means for the memory.

Shapes: D datapoints of the memory, shard after shard and run after run; H entries of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.errors import BadInput, EmptyMask
from dualform.query.view import View
from dualform.query.weights.block_rules import BlockRules
from dualform.query.weights.scores_only import why_scores_only
from dualform.query.where import mask
from dualform.query.where.expression import Expression
from dualform.questions.filters import Filter
from dualform.store.entries import Integers
from dualform.store.layer import Layer
from dualform.store.space import Space
from dualform.store.tables import quoted


@dataclass(frozen=True, eq=False)
class Targets:
    """What is to go."""

    datapoints: NDArray[np.bool_]
    """bool[D]."""
    entries: Mapping[str, Integers]
    """By layer, ascending; layers that have none of them are missing."""
    slots: Mapping[str, int]
    """By slot space, how many."""
    steps: int
    """How many steps have any of them."""
    alone: int
    """How many of those had nothing else."""
    first_step: int
    """The first of them."""
    labels: frozenset[tuple[str | None, int | None]]
    """(dataset, label) that no other sample has."""
    datasets: frozenset[str | None]
    """Datasets of which no other sample is: the names of all of their labels go."""
    shown: Mapping[str, NDArray[np.int64]]
    """By dataset, "" for none, numbers of samples that nothing else in the memory has: they go from preview sets."""
    unnumbered: frozenset[str]
    """Datasets, likewise, of which some have no number: which of a preview set they are cannot be told."""

    @property
    def samples(self) -> int:
        return int(self.datapoints.sum())


def targets_of(view: View, where: str | Filter) -> Targets:
    """The samples that `where` picks.

    Raises BadInput for a mask that names more than columns of the sample, for one that picks every sample, or some only
    by NaN, and where slots are of rows that are not known; EmptyMask where it picks none; as `mask.checked_expression`
    for what cannot be evaluated.
    """
    with view.snapshot.reading():
        return _targets_of(view, where)


def _targets_of(view: View, where: str | Filter) -> Targets:
    datapoints = _datapoints(view, where)
    if not datapoints.any():
        raise EmptyMask(f"where matches no sample: {where}", hint="Nothing was deleted.", field="where")
    if datapoints.all():
        raise BadInput("where matches every sample.", hint="Remove the folder of the memory instead.", field="where")
    snapshot = view.snapshot
    stays_of_space = {name: snapshot.space(name).spread(datapoints) for name in snapshot.spaces}
    entries = {}
    for layer in snapshot.layers.values():
        slots, own = stays_of_space[layer.space], snapshot.entries(layer.name).slots
        found = np.flatnonzero(slots if own is None else slots[own])
        if len(found):
            entries[layer.name] = found
    steps = np.asarray(snapshot.space(snapshot.spaces[0]).samples.column("step"), dtype=np.int64)
    sampled = [own.steps for own in snapshot.dropped.values()]  # which had others, that are not here
    having, others = np.unique(steps[datapoints]), np.unique(np.concatenate([steps[~datapoints], *sampled]))
    return Targets(
        datapoints,
        entries,
        {name: int(own.sum()) for name, own in stays_of_space.items()},
        len(having),
        len(np.setdiff1d(having, others)),
        int(having[0]),
        *_labels(view, datapoints),
        *_shown(view, datapoints),
    )


def _datapoints(view: View, where: str | Filter) -> NDArray[np.bool_]:
    spaces = [view.snapshot.space(name) for name in view.snapshot.spaces]
    for space in spaces:
        if space.extents.unknown_datapoints or len(space.samples.unknown()[0]):
            raise BadInput(
                f"samples cannot be deleted: the rows of slots in space {space.name!r} are unknown.",
                hint="Record the training again, without the samples.",
                field="where",
            )
    expression = mask.checked_expression(spaces[0], spaces, where, view.datasets)
    for space in spaces:
        if beyond := [name for name in expression.columns if name not in space.sample_columns]:
            raise BadInput(
                f"{beyond[0]!r} is a column of single slots in space {space.name!r}, but delete removes whole samples.",
                hint=f"Use columns of the sample: {', '.join(sorted(space.sample_columns))}.",
                field="where",
            )
    mask.require_one_dataset(spaces[0], expression)
    found = mask.select_datapoints(spaces[0], expression)
    _require_meant(spaces[0], expression, found, where)
    return found


def _require_meant(space: Space, expression: Expression, found: NDArray[np.bool_], where: str | Filter) -> None:
    """Raises BadInput for samples that a mask picks only because NaN is above every number, and not by isnan(…)."""
    unsaid = [
        name
        for name in expression.columns
        if pa.types.is_floating(space.samples.column(name).type) and f'"isnan"({quoted(name)})' not in expression.sql
    ]
    count = int((found & ~mask.select_datapoints(space, expression, unsaid)).sum()) if unsaid else 0
    if not count:
        return
    nan = " OR ".join(f"isnan({quoted(name)})" for name in unsaid)
    raise BadInput(
        f"where matches {count} of {int(found.sum())} samples only because {', '.join(unsaid)} is NaN, which SQL "
        "ranks above every number.",
        hint=f"To keep them, write ({where}) AND NOT ({nan}). To delete them, write ({where}) OR ({nan}).",
        field="where",
    )


def _labels(
    view: View, datapoints: NDArray[np.bool_]
) -> tuple[frozenset[tuple[str | None, int | None]], frozenset[str | None]]:
    """`labels` and `datasets` of Targets."""
    samples = view.snapshot.space(view.snapshot.spaces[0]).samples
    columns = [samples.column(name) for name in ("dataset", "label")]

    def pairs(which: NDArray[np.bool_]) -> set[tuple[str | None, int | None]]:
        return set(zip(*(column.filter(pa.array(which)).to_pylist() for column in columns), strict=True))

    theirs, others = pairs(datapoints), pairs(~datapoints)
    return frozenset(theirs - others), frozenset({own for own, _ in theirs} - {own for own, _ in others})


def _shown(view: View, datapoints: NDArray[np.bool_]) -> tuple[Mapping[str, NDArray[np.int64]], frozenset[str]]:
    """`shown` and `unnumbered` of Targets."""
    samples = view.snapshot.space(view.snapshot.spaces[0]).samples
    datasets, numbers = (samples.column(name) for name in ("dataset", "sample"))
    named = np.array([name or "" for name in datasets.to_pylist()], dtype=object)
    number = np.asarray(numbers.fill_null(0)).astype(np.int64)
    numbered = ~np.asarray(numbers.is_null())
    found, unnumbered = dict[str, NDArray[np.int64]](), set[str]()
    for dataset in set(named[datapoints].tolist()):
        own = named == dataset
        found[dataset] = np.setdiff1d(number[own & datapoints & numbered], number[own & ~datapoints & numbered])
        if (own & datapoints & ~numbered).any():
            unnumbered.add(dataset)
    return found, frozenset(unnumbered)


def touched_blocks(view: View, layers: Mapping[str, Integers]) -> set[str]:
    """The names of the parameter blocks that some layers hold."""
    return {block.block_name for name in layers for block in view.snapshot.layer(name).parameters}


def kept_sums(view: View, layers: Mapping[str, Integers]) -> Mapping[str, bool]:
    """By name of the layers that hold a block of those that lose slots: whether a sum is kept of what they brought,
    so that weights still add up; of others, which could be rebuilt, scores are left.
    """
    blocks, found = touched_blocks(view, layers), dict[str, bool]()
    for layer in view.snapshot.layers.values():
        own = {block.block_name for block in layer.parameters}
        if not own.isdisjoint(blocks) and not why_scores_only(view, layer):
            found[layer.name] = is_linear(view, layer)
    return found


def is_linear(view: View, layer: Layer) -> bool:
    """Whether every block of a layer is moved by a rule that gives slots coefficients."""
    return all(BlockRules(view.snapshot, block).linear for block in layer.parameters)
