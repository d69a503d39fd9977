"""What the value of each slot is worth along a direction: the second factor of its contribution.

    c_t(q, u)  =  (x_t . q) v_t(u)        v_t(u)  =  a_t (delta_t . u)        u: the direction

Shapes: m entries whose gradient an update used, n queries, d_out outputs of the layer.

Both factors are canonical: (delta_t . u) is summed in the order of canonical.py, and rounded before the coefficient
a_t of the slot's step multiplies it. A direction that is one output, or one less another, has the bits of the vector
that names it, but reads a column of the values in place of all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Status
from dualform.errors import BadInput, EmptyMask, Inexact
from dualform.query.score.rescoring import score_block, score_pairs
from dualform.query.view import Check, View
from dualform.query.weights.requirement import require
from dualform.query.weights.slot_products import block_size, blocks, places
from dualform.query.weights.slot_values import Remedy, refuse_without_values, slot_values
from dualform.query.where.mask import Selection
from dualform.questions import Target
from dualform.questions.arguments import check_step
from dualform.store.layer import Layer
from dualform.store.rows import Rows

_REMEDY = Remedy(hint='Sum over groups of slots instead: group_sum(…, by="label").', field="score")


@dataclass(frozen=True, eq=False)
class DirectedValues:
    """Of the entries that a mask leaves and whose gradient an update before `at_step` used."""

    view: View
    layer: Layer
    selection: Selection
    """Those entries, at least one. No other process makes them, as `source` says."""
    target: Target
    status: Status
    coefficients: NDArray[np.float64]
    """float64[m]."""

    def of(self, query: int, check: Check) -> NDArray[np.float64]:
        """float64[m]: for the direction of one query, in the order of the entries.

        Raises Inexact where a value is not finite: such a contribution has no place in any order.
        """
        target, vectors = self.target, self.target.vectors
        if vectors is not None:
            return self._made(vectors.rows[query if vectors.count > 1 else 0], check)
        asked = target.at_step, target.allow_inexact, target.output, target.minus
        key = ("directed", self.layer.name, self.selection.identity, *asked)
        return self.view.cache.get(key, lambda: self._made(None, check), check)

    def of_entries(self, queries: NDArray[np.int64], entries: NDArray[np.int64], check: Check) -> NDArray[np.float64]:
        """float64[c]: the same of some of the m entries, int64[c], each for the direction of its query."""
        own = np.searchsorted(self.selection.entries, entries)
        if self.target.vectors is None:
            return self.of(0, check)[own]
        vectors, values = self.target.vectors.rows, self.view.snapshot.values(self.layer.name)
        rows = entries if values.order is None else values.order[entries]
        number = queries if len(vectors) > 1 else np.zeros(len(queries), dtype=np.int64)
        found = score_pairs(Rows(values.sources, values.width), rows, number, vectors, check)
        found *= self.coefficients[own]
        if not np.isfinite(found).all():
            self._refuse(found, entries)
        return found + 0.0  # -0.0 becomes 0.0

    @property
    def shared(self) -> bool:
        """Whether all queries have the same."""
        return self.target.vectors is None

    def _made(self, direction: NDArray[np.float32] | None, check: Check) -> NDArray[np.float64]:
        values, entries = self.view.snapshot.values(self.layer.name), self.selection.entries
        found = np.empty(len(entries))
        for start, stop, part in blocks(entries, values.rows, block_size(values.width)):
            check()
            own = values.block(start, stop)[places(entries[part], start, stop)]
            found[part] = self._output(own) if direction is None else score_block(own, direction)
        with np.errstate(over="ignore", invalid="ignore"):
            found *= self.coefficients
        found += 0.0  # -0.0 becomes 0.0
        if not np.isfinite(found).all():
            self._refuse(found, entries)
        return found

    def _output(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        output, minus = self.target.output, self.target.minus
        assert output is not None, "a direction without vectors names an output"
        found = values[:, output].astype(np.float64)
        return found if minus is None else found - values[:, minus]

    def _refuse(self, found: NDArray[np.float64], entries: NDArray[np.int64]) -> None:
        first = entries[~np.isfinite(found)].min(keepdims=True)
        slot = int(self.view.snapshot.entries(self.layer.name).slots_of(first)[0])
        raise Inexact(
            f"Layer {self.layer.name!r} has values with NaN or infinity, first at slot {slot}.",
            hint=f'The training diverged there. Leave those slots out: where="slot < {slot}".',
            field="where",
        )


def directed_values(
    view: View, layer: Layer, selection: Selection, target: Target, queries: int, check: Check
) -> DirectedValues:
    """Raises BadInput where the layer has no such output, vectors are not as wide as it or not as many as the queries;
    Inexact as `require` says; WithoutValues where slots have no values of their own; EmptyMask where no update before
    `at_step` used a slot's gradient.
    """
    _check_width(layer, target, queries)
    check_step(target.at_step, view.snapshot.steps)
    status = require(view, layer.stored, target.at_step, target.allow_inexact, check)
    refuse_without_values(view, layer.stored, _REMEDY)

    def made() -> _UsedEntries:
        slots = slot_values(view, layer, selection, target.at_step, status, check, _REMEDY)
        used = replace(selection, source=None)
        if len(slots.entries) < selection.count:
            stays = np.zeros_like(selection.stays)
            stays[slots.entries] = True
            # No SQL reads like this, so no mask has this identity. Layers are updated when their optimizers are.
            identity = f"used of {layer.name!r} before step {target.at_step}: {selection.identity}"
            used = Selection(identity, stays, stored=False)
        return _UsedEntries(used, slots.coefficients)

    key = ("used entries", layer.name, selection.identity, target.at_step, target.allow_inexact)
    used_entries = view.cache.get(key, made, check)
    if not used_entries.selection.count:
        raise EmptyMask(
            f"No update before step {target.at_step} used the gradient of a slot that where keeps.",
            hint="Pass a larger at_step, or leave it out for the end of the training.",
            field="at_step",
        )
    return DirectedValues(view, layer, used_entries.selection, target, status, used_entries.coefficients)


@dataclass(frozen=True, eq=False)
class _UsedEntries:
    """Entries with their coefficients, float64[m]."""

    selection: Selection
    coefficients: NDArray[np.float64]

    @property
    def nbytes(self) -> int:
        return self.selection.nbytes + self.coefficients.nbytes


def _check_width(layer: Layer, target: Target, queries: int) -> None:
    """Raises BadInput where a direction does not fit a layer's outputs or the number of queries."""
    for number in (target.output, target.minus):
        if number is not None and number >= layer.d_out:
            raise BadInput(
                f"target must name an output from 0 to {layer.d_out - 1} of layer {layer.name!r}, not {number}.",
                field="target",
            )
    if target.vectors is None:
        return
    count, width = target.vectors.rows.shape
    if width != layer.d_out:
        raise BadInput(
            f"target must have {layer.d_out} columns, one for each output of layer {layer.name!r}, not {width}.",
            field="target",
        )
    if count not in (1, queries):
        raise BadInput(
            f"target must have 1 row, or {queries}, one for each query, not {count}.",
            field="target",
        )
