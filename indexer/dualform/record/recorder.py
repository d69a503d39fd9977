"""The recorder: watches a training and writes its memory.

    recorder = dualform.Recorder(model, optimizer, "runs/mnist")
    with recorder:
        for x, y, index in loader:
            with recorder.step(dataset="mnist", label=y, sample=index):
                loss = cross_entropy(model(x), y)
                optimizer.zero_grad(); loss.backward(); optimizer.step()

The training comes out bit for bit as it would without the recorder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.errors import BadInput, DualformError, RecordingError
from dualform.record.metadata import Metadata
from dualform.record.optimizers import UpdateHooks, around_each_update
from dualform.record.probes import ProbeTaker, labels_of
from dualform.record.selection import select
from dualform.record.sinks import Header, Sink, StoreSink
from dualform.record.start import Start, layer_of
from dualform.record.state import state_of
from dualform.record.step_record import Slots, StepRecord
from dualform.record.taps import Tap
from dualform.record.updates import Updates
from dualform.store.batch import Batch, LayerRows
from dualform.store.writer import check_new_folder


class Recorder:
    """Records one training of one model; leave its `with`, and the memory is complete and no hook remains."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        path: str | PathLike[str],
        layers: str | Sequence[str] | None = None,
        values: bool = True,
        label_names: Mapping[str, Sequence[str]] | None = None,
        *,
        keys: bool = True,
        _sink: Callable[[Header], Sink] = StoreSink,
    ) -> None:
        """`layers`: names or patterns of the layers to record, None for all; `values`: keep error signals and measure
        gradient factors, which outputs and weights need; `label_names`: by dataset, names of labels 0, 1, …;
        `keys=False`: keep a digest of each step instead of keys and values, for questions answered by a Replay.

        Raises AlreadyExists where `path` holds anything, NotFound where `layers` matches nothing, RecordingError for a
        model that cannot be recorded.
        """
        if not isinstance(optimizer, Optimizer):
            kind = type(optimizer).__name__
            raise BadInput(f"optimizer is {kind}.", hint="Give the torch optimizer.", field="optimizer")
        self.path = Path(path)
        if _sink is StoreSink:
            check_new_folder(self.path)
        self._model, self._optimizer, self._keys = model, optimizer, keys
        self._label_names = dict(label_names or {})
        self._taps, self.skipped = select(model, optimizer, layers, keys and values)
        self._make_sink = _sink
        self._sink: Sink | None = None
        self._state = "new"
        self._handle: UpdateHooks | None = None
        self.steps = 0
        """Steps recorded so far."""
        self._calls = 0
        self._record: StepRecord | None = None
        self._probe: ProbeTaker | None = None
        self._start: Start | None = None
        self._spaces: dict[str, str] = {}
        self._columns: dict[str, np.dtype[Any]] = {}
        self._updates = Updates(optimizer, [])

    def __enter__(self) -> Recorder:
        if self._state != "new":
            raise RecordingError("a recorder records one training.", hint="Make another, with a folder of its own.")
        self._state = "open"
        for tap in self._taps:
            tap.attach(self)
        self._handle = around_each_update(self._optimizer, self._updating, self._updated)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = "closed"
        for tap in self._taps:
            tap.detach()
        if self._handle is not None:
            self._handle.remove()
        if self._sink is None:
            return
        self._updates.close_step()
        self._updates.finish(self.steps - 1)
        try:
            try:
                self._put_logs()
            finally:
                self._sink.close(state_of(self._model), finished=error is None)
        except DualformError as failure:
            if error is None:
                raise
            if failure is not error:
                error.add_note(f"Closing the memory failed, too: {failure}")

    @contextmanager
    def step(
        self,
        dataset: str | Sequence[str] | None = None,
        label: Any = None,
        sample: Any = None,
        position: Any = None,
        mask: Any = None,
        **columns: Any,
    ) -> Iterator[None]:
        """Record what the training does inside as one step: one batch, forward, backward and, if it is due, update.

        Each argument is a slot column: one value, one per sample [B], or one per token [B, L]. `mask` bool[B, L] is
        true for real tokens; the others become no slots. Without `position`, a token's is its place in the sequence. An
        update after leaving, before the next step, belongs to this step.

        Raises BadInput for a column that does not fit; RecordingError for NaN or infinity in a key or error signal,
        and for a failure of the writer at an earlier step. A step that raises is not recorded.
        """
        self._require_open("step")
        if self._record is not None:
            raise RecordingError(f"step {self.steps} is not over.", hint="Leave one step before the next.")
        metadata = Metadata(dataset=dataset, label=label, sample=sample, position=position, mask=mask, columns=columns)
        if self._sink is not None:
            self._sink.check()
            metadata.check_columns(self._columns, self.steps)
        else:
            self._start = Start(self._model, self._optimizer, self._taps)
        self._updates.look(self.steps - 1)
        record = self._record = StepRecord(self.steps, metadata, self._calls)
        try:
            try:
                yield
            except BaseException:
                if not record.updated:
                    raise
                # The weights have moved: without this step everything after it would be inexact.
                self._finish(record)
                raise
            self._finish(record)
        except BaseException:
            if record.step == self.steps:
                self._updates.forget(record.step)
            raise
        finally:
            self._record = None

    def flush(self) -> None:
        """Returns once every finished step is on disk. Raises what went wrong with writing."""
        self._require_open("flush")
        if self._sink is not None:
            self._put_logs()
            self._sink.flush()

    def probe(self, name: str, inputs: Tensor | Sequence[Tensor], label: Any = None, batch_size: int = 1024) -> None:
        """Store test examples as queries under a name, with the model's answers as it is now.

        `inputs` [n, …], or several such as a tuple, are the model's arguments; it runs in eval mode, without gradients.
        Raises BadInput for a name that is taken, RecordingError before the first recorded step.
        """
        self._require_open("probe")
        if self._sink is None:
            raise RecordingError("there is no memory before the first recorded step.", hint="Take probes after it.")
        labels = labels_of(label)
        self._probe = taker = ProbeTaker()
        try:
            taker.run(self._model, inputs, batch_size)
        finally:
            self._probe = None
        self._sink.add_probe(name, taker.queries(), labels, taker.outputs())

    # What the taps report.

    def forward_mode(self) -> str | None:
        if self._probe is not None:
            return "probe"
        return None if self._record is None else "step"

    def probed(self, tap: Tap, key: Tensor) -> None:
        if self._probe is not None:
            self._probe.probed(tap, key)

    def called(self, tap: Tap, raw: bool) -> int:
        if self._record is not None:
            self._record.called(tap, raw)
        self._calls += 1
        return self._calls - 1

    def called_without_gradient(self, tap: Tap, key: Tensor) -> None:
        if self._record is not None:
            self._record.called_without_gradient(tap, key)

    def received(self, tap: Tap, call: int, key: Tensor, error: Tensor) -> None:
        if self._record is None or call < self._record.first_call:
            if self._state == "closed":
                return
            raise RecordingError(
                f"the gradient of layer {tap.name!r} arrived outside the step that its forward pass ran in.",
                hint="Put forward and backward of a batch into one `with recorder.step(...)`.",
            )
        self._record.received(tap, call, key, error)

    def _updating(self) -> None:
        """The gradients are what they will be, and the weights have not moved yet."""
        record = self._record
        if record is not None and not record.empty:
            self._update_inside(record)
        elif self._updates.awaited:
            self._updates.update_awaited()
        elif self.steps:
            self._updates.stray(self.steps - 1)

    def _updated(self) -> None:
        self._updates.updated()

    def _update_inside(self, record: StepRecord) -> None:
        if record.updated:
            raise RecordingError(
                f"the optimizer stepped twice inside step {record.step}.",
                hint="Open one `with recorder.step(...)` for each update.",
            )
        self._settle(record)
        self._updates.close_step()
        self._updates.update(record.step, record.dtypes)
        record.updated = True

    def _settle(self, record: StepRecord) -> Slots:
        """The step's slots, checked. Raises RecordingError and BadInput."""
        if self._sink is None:
            self._begin(record)
        slots = record.settle(self._taps, self._spaces)
        if not self._updates.add(record.step, [(name, *rows) for name, rows in slots.rows.items()]):
            record.check_finite()
        for layer, reason in slots.defects.items():
            self._updates.defect(record.step, layer, reason.split(" at step")[0], reason)
        return slots

    def _finish(self, record: StepRecord) -> None:
        if record.slots is None and record.overflowed():
            return
        slots = record.slots or self._settle(record)
        if self._sink is None:
            self._open_sink(record)
        assert self._sink is not None
        columns = {space: record.metadata.slot_columns(s, self._columns) for space, s in slots.shapes.items()}
        valued = {tap.name for tap in self._taps if tap.values}
        layers = {
            name: LayerRows(keys.numpy(), errors.numpy() if name in valued and errors is not None else None)
            for name, (keys, errors) in slots.rows.items()
        }
        self.steps += 1
        if not record.updated:
            self._updates.close_step()
            self._updates.await_update(record.step, record.dtypes)
        self._updates.look(record.step)
        logs, defects, watched = self._updates.take()
        self._sink.put(Batch(record.step, columns, layers, logs, defects, watched))

    def _begin(self, record: StepRecord) -> None:
        """The first step tells which layers there are and what their slots stand for."""
        if record.empty:
            raise RecordingError(
                "no gradient reached a recorded layer inside the first step.",
                hint="Run forward and backward inside it, in training mode, through the model the recorder was given.",
            )
        self._spaces = record.spaces()
        assert self._start is not None
        self._updates = Updates(self._optimizer, self._taps, self._start.initial, self._start.buffers)
        self._updates.join([tap for tap in self._taps if tap.name in self._spaces])

    def _open_sink(self, record: StepRecord) -> None:
        for tap in [tap for tap in self._taps if tap.name not in self._spaces]:
            tap.detach()
            self._taps.remove(tap)
            self.skipped[tap.name] = record.why_unknown(tap)
        self._columns = record.metadata.types()
        dtypes = record.dtypes
        layers = [
            layer_of(t, self._spaces[t.name], t.name in record.raw, self._keys, dtypes.get(t.name)) for t in self._taps
        ]
        assert self._start is not None
        self._sink = self._make_sink(self._start.header(self.path, layers, self.skipped, self._label_names))
        self._start = None

    def _put_logs(self) -> None:
        """What is known of the optimizer and no batch took along."""
        logs, defects, watched = self._updates.take()
        if self._sink is not None and (logs or defects or watched):
            self._sink.put(Batch(self.steps - 1, {}, {}, logs, defects, watched))

    def _require_open(self, what: str) -> None:
        if self._state != "open":
            raise RecordingError(f"recorder.{what} was called outside `with recorder`.")
