"""Keeps a recording within its budget: of each batch, what the sink gets of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.record.budget import Budget, Bytes
from dualform.record.budget_plan import BudgetPlan
from dualform.record.byte_counts import readable
from dualform.record.sampled_batch import sampled, with_share
from dualform.store.batch import Batch
from dualform.store.layer import Layer
from dualform.store.probes import ProbeArrays

_ROW = 160
"""About the bytes that a row of a table takes, beside its texts and lists."""


class Sampler:
    """Used on the training's own thread."""

    def __init__(
        self, plan: BudgetPlan, flush: Callable[[], None], weights: int, first_step: int = 0, share: float = 1.0
    ) -> None:
        """The sink is there. `flush`: makes everything durable that it got; `weights`: bytes of the network's; the
        run's `first_step` among those of the training, and the `share` that it begins with.
        """
        self._plan, self._first_step = plan, first_step

        def measure() -> int:
            flush()
            return plan.taken()

        ending = weights * (plan.rank == 0)
        steps = None if plan.steps is None else plan.steps - first_step
        self.budget = Budget(plan.rule.budget, measure, ending, steps, share)

    def kept(self, batch: Batch, layers: Iterable[Layer]) -> Batch:
        """What the sink gets of a batch; it is charged. Raises BadInput as `sampled` and `with_share` do, and where not
        even the first step's logs fit.
        """
        others = Bytes(sum(row.content.nbytes for row in batch.others), _logs(batch))
        share = self.budget.share_of(_slots(batch), others)
        found = self._sampled(batch, layers, share)
        if not self.budget.fits(_slots(found) + others):
            found = self._sampled(batch, layers, 0.0)
        self.budget.charge(_slots(found) + others)
        return found

    def _sampled(self, batch: Batch, layers: Iterable[Layer], share: float) -> Batch:
        if share < 1:
            spaces = {layer.name: layer.space for layer in layers}
            step = self._first_step + batch.step
            batch = sampled(batch, spaces, self._plan.rule, share, step, self._plan.rank)
        return with_share(batch, share)

    def logs(self, batch: Batch) -> Batch:
        """As `kept`, of a batch that has no slots."""
        self.budget.charge(Bytes(sum(row.content.nbytes for row in batch.others), _logs(batch)))
        return with_share(batch, self.budget.share)

    def check_probe(self, probe: ProbeArrays) -> None:
        """Charge a probe. Raises BadInput where it does not fit."""
        arrays = (*probe.queries.values(), probe.labels, probe.outputs)
        size = sum(array.nbytes for array in arrays if array is not None)
        self.budget.measure()
        if not self.budget.fits(Bytes(size)):
            raise BadInput(
                f"probe {probe.name!r} takes {readable(size)}, and {readable(max(0, self.budget.left))} of the budget "
                "are left.",
                hint="Take fewer examples, or record with a larger budget.",
                field="name",
            )
        self.budget.charge(Bytes(size))


def _slots(batch: Batch) -> Bytes:
    """Of the slots and what is said of them."""
    parts = [part for parts in batch.layers.values() for part in parts]
    rows = sum(part.keys.nbytes + (0 if part.values is None else part.values.nbytes) for part in parts)
    lists = [array for extent in batch.extents for array in (extent.row, extent.position, *extent.columns.values())]
    said = sum(_bytes(array) for array in (*batch.samples.values(), *lists) if array is not None)
    entries = sum(len(part.keys) for part in parts)  # where inputs repeat, which row each of them is
    samples = len(next(iter(batch.samples.values()), ()))
    return Bytes(rows, said + 8 * entries + 16 * samples)


def _logs(batch: Batch) -> int:
    """Of all else that becomes rows of tables."""
    factors = [factor for log in batch.logs for factor in log.factors]
    groups = sum(1 + len(log.groups) for log in batch.logs)
    alone = sum(factor.alone.rows.nbytes + factor.alone.gradient.nbytes for factor in factors if factor.alone)
    rows = len(factors) + groups + len(batch.defects) + len(batch.watch) + len(batch.extents) + len(batch.layers)
    return alone + _ROW * (rows + 2 * len({extent.space for extent in batch.extents}))


def _bytes(array: NDArray[Any]) -> int:
    """Of a column, with its texts."""
    texts = sum(len(str(text).encode()) for text in np.ma.getdata(array)) if array.dtype.kind == "O" else 0
    return array.nbytes + texts
