"""What a session hands to the thread that writes: slots, logs, and parameters that no slot explains.

Parameters and buffers that no slot explains: norms, free ones, biases of no layer, running statistics.

They are taken as the next step begins, in the training's own bits, so that a network as of any step is whole. What a
training writes to them after its update, as an average of earlier weights, is in them by then.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.errors import RecordingError
from dualform.record.audit.defects import Defects
from dualform.record.audit.updates import AllUpdates
from dualform.record.audit.weights import LiveTensors
from dualform.record.ranks import sharded_names
from dualform.record.setup.budget import Sampler
from dualform.record.setup.plan import InitialState, Plan
from dualform.record.setup.summary import listed, stored_bytes
from dualform.record.sink import SinkThread
from dualform.record.slots.columns import StepColumns
from dualform.record.slots.slots import Slots
from dualform.record.taps import Tap
from dualform.store.batch import Batch, Ending, Mark
from dualform.store.layer import Layer, Parameter, whole
from dualform.store.previews.preview_set import PreviewSet
from dualform.store.query_sets import QuerySetArrays
from dualform.store.rows import STORED, OtherRow, Others, OtherTensor

ALWAYS_BYTES = 1 << 20
"""What a step may always bring of them."""
_SHARE = 100
"""It may also bring one byte in so many of what else it brings."""
_MOST_BYTES = 256 << 20
"""Of one row: what may wait to be written."""


class OtherValues:
    """Used on the training's own thread."""

    def __init__(self, plan: Plan, start: InitialState) -> None:
        """Frozen parameters are left out, and what no optimizer holds: they stay as they were. Of those that several
        processes hold in parts, only what they are at the end is kept.
        """
        explained, sharded = _explained(plan.taps, start.initial), sharded_names(plan.model)
        parameters = plan.model.named_parameters(remove_duplicate=False)
        still = {name for name, own in parameters if not (own.requires_grad and plan.owners.hold(own))}
        names = [name for name in start.initial if name not in explained | still | start.aliases.keys()]
        self._sharded = [name for name in names if name in sharded]
        names = [name for name in names if name not in sharded]
        self._live = LiveTensors(plan.model, names)
        standing = self._live.standing()
        found = (_kept(name, standing.get(name), start.initial[name].shape) for name in names)
        self._tensors = [own for own in found if own is not None]
        self._every = 0
        """0 before the first step is over, and where nothing is kept."""
        self._rows: list[OtherRow] = []

    def begin(self, step_bytes: int) -> Others | None:
        """The first step is over, and brought so many bytes: what is kept from now on, and how often."""
        if self._sharded:
            what = (
                f"only final values are stored of sharded parameters outside recorded layers: {listed(self._sharded)}"
            )
            warnings.warn(f"{what}.", RuntimeWarning, stacklevel=2)
        size, allowed = sum(tensor.nbytes for tensor in self._tensors), max(ALWAYS_BYTES, step_bytes // _SHARE)
        if not size:
            return None
        what = f"{len(self._tensors)} parameters and buffers outside recorded layers take {size / 1e6:.3g} MB"
        if size > _MOST_BYTES:
            warnings.warn(f"{what}: only their final values are stored.", RuntimeWarning, stacklevel=2)
            return None
        self._every = -(-size // allowed)
        if self._every > 1:
            then = f"whole networks can be rebuilt after every {self._every} steps"
            warnings.warn(f"{what} and are not stored at every step: {then}.", RuntimeWarning, stacklevel=2)
        return Others(tuple(self._tensors), self._every)

    @property
    def bytes_a_step(self) -> int:
        """What a step brings of them, on average."""
        return sum(tensor.nbytes for tensor in self._tensors) // self._every if self._every else 0

    def look(self, at_step: int) -> None:
        """So many recorded steps were taken, and no other has begun yet."""
        self._rows = []
        if self._every and at_step % self._every == 0 and (content := self._content()) is not None:
            self._rows = [OtherRow(at_step, content.numpy())]

    def take(self) -> list[OtherRow]:
        """What no batch has taken along yet."""
        taken, self._rows = self._rows, []
        return taken

    def _content(self) -> Tensor | None:
        """uint8[b]; None where one of them is not there any more as it was."""
        standing, parts = self._live.standing(), list[Tensor]()
        for tensor in self._tensors:
            own = standing[tensor.name]
            if own is None or not _is_plain(own) or tuple(own.shape) != tensor.shape or _kind(own) != tensor.dtype:
                return None
            parts.append(own.detach().reshape(-1).view(torch.uint8))
        if len({part.device for part in parts}) > 1:
            parts = [part.cpu() for part in parts]
        return torch.cat(parts).cpu()


def _explained(taps: Sequence[Tap], initial: Mapping[str, NDArray[Any]]) -> set[str]:
    """Names of parameters of which every number is in a block that slots explain."""
    blocks: dict[str, list[Parameter]] = {}
    for tap in taps:
        for block in tap.parameters if tap.values else ():
            blocks.setdefault(block.name, []).append(block)
    return {name for name, own in blocks.items() if name in initial and whole(own, initial[name].shape)}


def _kept(name: str, found: Tensor | None, shape: Sequence[int]) -> OtherTensor | None:
    """None for what the model does not hold under the name that its state dict has."""
    if found is None or not _is_plain(found) or tuple(found.shape) != tuple(shape):
        return None
    kind = _kind(found)
    return OtherTensor(name, kind, tuple(shape)) if kind in STORED else None


def _is_plain(tensor: Tensor) -> bool:
    """Whether it is all here, number after number."""
    return type(tensor.data) is Tensor and tensor.layout == torch.strided and not tensor.is_meta


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def random_states(model: nn.Module) -> dict[str, bytes]:
    """By device, of the CPU and of each GPU that the model is on."""
    return {name: _state(device).numpy().tobytes() for name, device in _devices(model).items()}


@contextmanager
def random_states_as(states: Mapping[str, bytes], model: nn.Module) -> Iterator[None]:
    """Draw random numbers inside as from states of `random_states`; afterwards as if nothing had been drawn. Where
    states are missing, draw inside from those of now.
    """
    devices = _devices(model)
    before = {name: _state(device) for name, device in devices.items()}
    try:
        for name in states.keys() & devices.keys():
            _put(devices[name], torch.frombuffer(bytearray(states[name]), dtype=torch.uint8))
        yield
    finally:
        for name, state in before.items():
            _put(devices[name], state)


def _devices(model: nn.Module) -> dict[str, torch.device]:
    found = (torch.device("cpu"), *(own.device for own in model.parameters() if own.device.type == "cuda"))
    return {str(device): device for device in found}


def _state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


def _put(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)


class StepWriter:
    """Hands the batches of a session to the thread that writes, within the budget if there is one."""

    def __init__(
        self, plan: Plan, start: InitialState, defects: Defects, columns: StepColumns, updates: AllUpdates
    ) -> None:
        self._plan, self._start, self._defects = plan, start, defects
        self._columns, self._updates = columns, updates
        # No weights can be rebuilt of scores alone; and of several ranks the first keeps what no slot explains.
        scores_only = len(start.why_no_rule) == len(plan.owners.optimizers)
        rebuilt = plan.keys and any(tap.values or not tap.parameters for tap in plan.taps)
        self._others = OtherValues(plan, start) if rebuilt and not (scores_only or plan.number) else None
        self._sink: SinkThread | None = None
        self._sampler: Sampler | None = None
        """None where all slots are kept."""
        self.bytes_a_step: int | None = None
        """About what the first recorded step takes on disk; None before it."""

    @property
    def sink(self) -> SinkThread:
        assert self._sink is not None
        return self._sink

    def begin(self, slots: Slots, layers: Sequence[Layer]) -> None:
        """The first step is over, which has these slots of these layers."""
        plan, header = self._plan, self._start.header(layers)
        if self._others is not None:
            header = replace(header, others=self._others.begin(slots.row_bytes(plan.valued)))
        self._sink = SinkThread(partial(plan.sink, header))
        if plan.budget is not None:
            weights = sum(array.nbytes for array in header.initial.values())
            first, share = (0, 1.0) if plan.resumed is None else (plan.resumed.first_step, plan.resumed.share)
            self._sampler = Sampler(plan.budget, self._sink.flush, weights, first, share, self._bytes_of_others)

    @property
    def _bytes_of_others(self) -> int:
        """What a step brings of them, on average."""
        return 0 if self._others is None else self._others.bytes_a_step

    @property
    def used_up(self) -> bool:
        """Whether the budget has no room for another step, even without its slots."""
        return self._sampler is not None and self._sampler.used_up

    def flush(self) -> None:
        """Returns once everything so far is on disk. Raises what went wrong with writing."""
        (self.sink if self._sampler is None else self._sampler).flush()

    def add_query_set(self, query_set: QuerySetArrays) -> None:
        """Store a query set. Raises BadInput for a name that is taken, and where the budget has no room for it."""
        if self._sampler is not None:
            self._sampler.charge_query_set(query_set)
            query_set = replace(query_set, preview_set_bytes=self._sampler.room)
        self.sink.add(lambda sink: sink.add_query_set(query_set))
        if self._sampler is not None and query_set.preview_set is not None:
            self._sampler.flush()

    def add_preview_set(self, dataset: str | None, preview_set: PreviewSet) -> None:
        """Store a preview set. Raises BadInput as the sink does, and where the budget has no room for it."""
        if self._sampler is None:
            self.sink.add(lambda sink: sink.add_preview_set(dataset, preview_set))
            return
        self._sampler.flush()
        room = self._sampler.room
        self.sink.add(lambda sink: sink.add_preview_set(dataset, preview_set, room))
        self._sampler.flush()

    def look(self) -> None:
        """A step is over, and no other has begun yet: take what no slot explains, while weights can be rebuilt."""
        if self._others is not None and (self._sampler is None or self._sampler.keeps_others):
            self._others.look(self._defects.steps)

    def put(
        self,
        step: int,
        slots: Slots,
        layers: Sequence[Layer],
        joined: Sequence[Layer],
        random_states: Mapping[str, bytes],
    ) -> None:
        """The batch of a step; `layers`: all that have slots by now; `joined`: those that the sink does not know of."""
        logs, watch = self._updates.take()
        batch = Batch(
            step,
            slots.samples,
            slots.extents,
            slots.layer_rows(self._plan.valued),
            unknown=slots.unknown,
            joined=joined,
            logs=logs,
            defects=self._defects.take(),
            watch=watch,
            others=self._take_others(),
            random_states=random_states,
        )
        if self.bytes_a_step is None:
            self.bytes_a_step = stored_bytes(batch, layers) + self._bytes_of_others
        self.sink.put(batch if self._sampler is None else self._sampler.sample(batch, layers))

    def put_logs(self, mark: Mark | None = None) -> None:
        """What is known of the optimizer and no batch took along, and how the training stands."""
        (logs, watch), defects, others = self._updates.take(), self._defects.take(), self._take_others()
        logs = [log for log in logs if log.step < self._defects.steps]  # that of an open step has no slots
        if logs or defects or watch or others or mark:
            none, last = self._columns.no_samples(), self._defects.steps - 1
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
        skipped = dict(self._plan.skipped)
        if not midway and (finished or not self._plan.sharded):
            try:
                return Ending(finished, self._start.weights_now(), self._start.buffers_now(), skipped, mark)
            except RecordingError as error:
                warnings.warn(f"the final weights were not stored: {error}", RuntimeWarning, stacklevel=2)
        return Ending(finished, skipped=skipped)

    def _take_others(self) -> list[OtherRow]:
        return [] if self._others is None else self._others.take()
