"""What a recording hands to its sink: a batch a step, and what comes to be known between steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from dualform.errors import RecordingError
from dualform.record.all_updates import AllUpdates
from dualform.record.metadata import StepColumns
from dualform.record.other_values import OtherValues
from dualform.record.plan import Plan
from dualform.record.progress import Progress
from dualform.record.sampler import Sampler
from dualform.record.sharded_parameters import sharded_names
from dualform.record.sink import SinkThread
from dualform.record.slots import Slots
from dualform.record.start import Start
from dualform.record.state import state_of
from dualform.record.summary import stored_bytes
from dualform.store.batch import Batch
from dualform.store.header import Ending
from dualform.store.layer import Layer
from dualform.store.mark import Mark
from dualform.store.others import OtherRow
from dualform.store.previews.preview_set import PreviewSet
from dualform.store.query_sets import QuerySetArrays


class Batches:
    """Those of one recording, and the thread that writes them."""

    def __init__(
        self, plan: Plan, start: Start, progress: Progress, columns: StepColumns, updates: AllUpdates, valued: set[str]
    ) -> None:
        """`valued`: the layers that have values."""
        self._plan, self._start, self._progress = plan, start, progress
        self._columns, self._updates, self._valued = columns, updates, valued
        self._others = self._other_values()
        self._sink: SinkThread | None = None
        self._sampler: Sampler | None = None
        """None where all slots are kept."""
        self.bytes_a_step: int | None = None
        """About what the first recorded step takes on disk; None before it."""

    def _other_values(self) -> OtherValues | None:
        """None where no weights can be rebuilt, and where another process keeps them."""
        plan, start = self._plan, self._start
        scores_only = len(start.why_no_rule) == len(plan.owners.optimizers)
        rebuilt = any(tap.values or not tap.parameters for tap in plan.taps)
        if not (plan.keys and rebuilt) or scores_only or (plan.ranks and plan.ranks.number):
            return None
        return OtherValues(plan.model, plan.owners, plan.taps, start.initial, start.aliases, sharded_names(plan.model))

    @property
    def sink(self) -> SinkThread:
        assert self._sink is not None
        return self._sink

    def begin(self, slots: Slots, layers: Sequence[Layer]) -> None:
        """The first step is over, which has these slots of these layers."""
        header = self._start.header(self._plan.path, layers, dict(self._plan.skipped), self._plan.label_names)
        if self._others is not None:
            header = replace(header, others=self._others.begin(slots.row_bytes(self._valued)))
        budget, resumed = self._plan.budget, self._plan.resumed
        if budget is not None:
            header = replace(header, sampling=budget.rule)
        self._sink = SinkThread(partial(self._plan.sink, header))
        if budget is not None:
            weights = sum(array.nbytes for array in header.initial.values())
            first, share = (0, 1.0) if resumed is None else (resumed.first_step, resumed.share)
            others = 0 if self._others is None else self._others.bytes_a_step
            self._sampler = Sampler(budget, self._sink.flush, weights, first, share, others)

    @property
    def used_up(self) -> bool:
        """Whether the budget has no room for another step, even without its slots."""
        return self._sampler is not None and self._sampler.used_up

    def flush(self) -> None:
        """Returns once everything so far is on disk. Raises what went wrong with writing."""
        if self._sampler is None:
            self.sink.flush()
        else:
            self._sampler.flush()

    def add_query_set(self, query_set: QuerySetArrays) -> None:
        """Store a query set. Raises BadInput for a name that is taken, and where the budget has no room for it."""
        if self._sampler is not None:
            self._sampler.charge_query_set(query_set)
            query_set = replace(query_set, preview_set_bytes=self._sampler.room)
        self.sink.add_query_set(query_set)
        if self._sampler is not None and query_set.preview_set is not None:
            self._sampler.flush()

    def add_preview_set(self, dataset: str | None, preview_set: PreviewSet) -> None:
        """Store a preview set. Raises BadInput as the sink does, and where the budget has no room for it."""
        if self._sampler is None:
            self.sink.add_preview_set(dataset, preview_set)
        else:
            self._sampler.flush()
            self.sink.add_preview_set(dataset, preview_set, self._sampler.room)
            self._sampler.flush()

    def look(self) -> None:
        """A step is over, and no other has begun yet: take what no slot explains, while weights can be rebuilt."""
        if self._others is not None and (self._sampler is None or self._sampler.keeps_others):
            self._others.look(self._progress.steps)

    def put(
        self,
        step: int,
        slots: Slots,
        layers: Sequence[Layer],
        joined: Sequence[Layer],
        random_states: Mapping[str, bytes],
    ) -> None:
        """The batch of a step; `layers`: all that have slots by now; `joined`: those that the sink does not know of."""
        logs, defects, watch = self._updates.take()
        batch = Batch(
            step,
            slots.samples,
            slots.extents,
            slots.layer_rows(self._valued),
            unknown=slots.unknown,
            joined=joined,
            logs=logs,
            defects=defects,
            watch=watch,
            others=self._take_others(),
            random_states=random_states,
        )
        if self.bytes_a_step is None:
            beside = 0 if self._others is None else self._others.bytes_a_step
            self.bytes_a_step = stored_bytes(batch, layers) + beside
        self.sink.put(batch if self._sampler is None else self._sampler.sample(batch, layers))

    def put_logs(self, mark: Mark | None = None) -> None:
        """What is known of the optimizer and no batch took along, and how the training stands."""
        (logs, defects, watch), others = self._updates.take(), self._take_others()
        logs = [log for log in logs if log.step < self._progress.steps]  # that of an open step has no slots
        if logs or defects or watch or others or mark:
            none, last = self._columns.no_samples(), self._progress.steps - 1
            batch = Batch(last, none, [], {}, logs=logs, defects=defects, watch=watch, others=others, mark=mark)
            self.sink.put(batch if self._sampler is None else self._sampler.logs(batch))

    def close(self, finished: bool, mark: Mark | None, midway: bool = False) -> None:
        """The memory ends here; `midway`: the weights are those of a step that is no part of it. Raises what went wrong
        with writing.
        """
        ending = Ending(finished)
        try:
            self.put_logs()
            ending = self._ending(finished, mark, midway)
        finally:
            self.sink.close(ending)

    def _ending(self, finished: bool, mark: Mark | None, midway: bool) -> Ending:
        """Sharded weights are not put together where the training failed, for then other ranks do not come to it."""
        plan, skipped = self._plan, dict(self._plan.skipped)
        if midway or (plan.sharded and not finished):
            return Ending(finished, skipped=skipped)
        try:
            final = state_of(plan.model, plan.ranks if plan.sharded else None)
            return Ending(finished, final, self._start.buffers_now(), skipped, mark)
        except RecordingError as error:
            warnings.warn(f"the final weights were not stored: {error}", RuntimeWarning, stacklevel=2)
            return Ending(finished, skipped=skipped)

    def _take_others(self) -> list[OtherRow]:
        return [] if self._others is None else self._others.take()
