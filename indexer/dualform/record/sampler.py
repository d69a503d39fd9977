"""Keeps a recording within its budget: of each batch, what the sink gets of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from dualform.errors import BadInput
from dualform.record.batch_bytes import bytes_of_batch, bytes_of_logs, bytes_of_others, bytes_of_slots
from dualform.record.budget import Budget, Bytes
from dualform.record.budget_plan import BudgetPlan
from dualform.record.sampled_batch import check_keys, sampled, with_share
from dualform.store.batch import Batch
from dualform.store.byte_counts import readable
from dualform.store.layer import Layer
from dualform.store.query_sets import QuerySetArrays

_FILE = 8192
"""What a file takes beside its numbers at most: its header, the rest of its last block, and what the manifest says."""


class Sampler:
    """Used on the training's own thread."""

    def __init__(
        self,
        plan: BudgetPlan,
        flush: Callable[[], None],
        weights: int,
        first_step: int = 0,
        share: float = 1.0,
        others: int = 0,
    ) -> None:
        """The sink is there. `flush`: makes everything durable that it got; `weights`: bytes of the network's; the
        run's `first_step` among those of the training, and the `share` that it begins with; `others`: bytes that
        parameters of no layer take a step, on average.
        """
        self._plan, self._first_step = plan, first_step

        def measure() -> int:
            flush()
            return plan.taken()

        ending = weights * (plan.rank == 0)
        steps = None if plan.steps is None else plan.steps - first_step
        self._budget = Budget(plan.rule.budget, measure, ending, steps, share, others)
        self._begun = False

    @property
    def used_up(self) -> bool:
        """Whether there is no room for another step, even without its slots. Raises what went wrong with writing."""
        return self._budget.used_up

    @property
    def keeps_others(self) -> bool:
        """Whether parameters of no layer are kept step by step."""
        return self._budget.keeps_others

    def flush(self) -> None:
        """Everything so far becomes durable, and what it takes is measured."""
        self._budget.measure()

    def sample(self, batch: Batch, layers: Iterable[Layer]) -> Batch:
        """What the sink gets of a batch; it is charged. Raises BadInput as `sampled` and `with_share` do."""
        layers = list(layers)
        spaces = {layer.name: layer.space for layer in layers}
        if self._plan.rule.keep == "samples":
            check_keys(batch, spaces)
        share = self._budget.share_of(bytes_of_slots(batch), bytes_of_logs(batch))
        if not self._begun and (end := self._budget.ends_at) is not None:
            warnings.warn(
                f"a budget of {readable(self._plan.rule.budget)} is too small for the logs of "
                f"{self._plan.steps:,} steps: recording ends after about {self._first_step + end:,} of them.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._begun = True
        found, has_room = self._admitted(self._sampled(batch, spaces, share))
        if not has_room:
            found = self._sampled(replace(batch, others=[]), spaces, 0.0)
        return self._charged(found)

    def _sampled(self, batch: Batch, spaces: Mapping[str, str], share: float) -> Batch:
        if share < 1:
            step = self._first_step + batch.step
            batch = sampled(batch, spaces, self._plan.rule, share, step, self._plan.rank)
        return with_share(batch, share)

    def logs(self, batch: Batch) -> Batch:
        """As `sample`, of a batch that has no slots."""
        found, _ = self._admitted(batch)
        return self._charged(with_share(found, self._budget.share))

    def _admitted(self, batch: Batch) -> tuple[Batch, bool]:
        """The batch with its parameters of no layer, or without them; and whether there is room for the rest of it."""
        slots, others = self._budget.admits(bytes_of_slots(batch) + bytes_of_logs(batch), bytes_of_others(batch))
        return (batch if others else replace(batch, others=[])), slots

    def _charged(self, batch: Batch) -> Batch:
        self._budget.charge(bytes_of_batch(batch), bytes_of_others(batch).rows)
        return batch

    @property
    def room(self) -> int:
        """Bytes that are left beside what is logged of another step."""
        return max(0, int(self._budget.spare))

    def charge_query_set(self, query_set: QuerySetArrays) -> None:
        """Raises BadInput, and charges nothing, where a query set does not fit, or would leave no room for another
        step.
        """
        layers = dict.fromkeys(
            [*query_set.queries, *(() if query_set.gradients is None else query_set.gradients.layers)]
        )
        arrays = [*query_set.arrays.values(), *(own for layer in layers for own in query_set.arrays_of(layer).values())]
        size = sum(own.nbytes for own in arrays) + _FILE * len(arrays)
        self._budget.measure()
        if size > self._budget.spare:
            room = readable(max(0, self._budget.spare))
            raise BadInput(
                f"query set {query_set.name!r} takes {readable(size)}, but only {room} of the budget is left.",
                hint="Pass fewer examples, or record with a larger budget=.",
                field="name",
            )
        self._budget.charge(Bytes(files=size))
