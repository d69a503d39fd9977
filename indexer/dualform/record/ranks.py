"""Several processes that record one training: data-parallel ranks, sharded parameters, and the wrappers around them.

Parameters that `fully_shard` (FSDP2) parted over the ranks: each holds a range of the rows of every one.

What is measured of a parameter is measured row by row, so that a rank brings what its own rows make of it and the ranks
add up. Whole tensors are put together where the memory keeps them, at the start and at the end, one after another, on
the first rank; it goes through the recorder's own exchange, and cannot meet what the training exchanges.

Shapes: [R, ...] a parameter, of which this rank holds [r, ...] from one row on.

Data-parallel training: n processes, the ranks, train one model, each on its own rows of every batch.

The gradients that their optimizers apply are averaged over all ranks, so the slots of one explain a part. Where all of
them are about to make the same update, the projections of their slots are added up: each rank then measures the same
gradient factor, with the 1 / n of the average in it, the same residuals, and the same distances of the same weights.

What the ranks exchange goes through a group of their own, so that it cannot meet what the training exchanges, and no
rank waits for longer than WAIT_SECONDS for one that is not coming: then, or where they are about to make other updates,
they have parted, each goes on alone, and the record says why.

Shapes: P numbers over all parameters.

What a kind of shard says of one process among those that record a training together.

A new kind is a class like `TrainingShard`, such as `Ranks`, whose object is given as Recorder(ranks=…).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from math import prod
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dualform.errors import AlreadyExists, BadInput, RecordingError
from dualform.record.projection import Doubles
from dualform.record.sink import Sink
from dualform.store.batch import Header
from dualform.store.layer import Parameter, Range, as_matrix
from dualform.store.manifest import FILE, shard_folder
from dualform.store.writing.writer import Writer, check_new_folder

Own = TypeVar("Own")
All = TypeVar("All")

UPDATES = ("of the step that runs", "of the step before", "outside of all steps")
"""What kinds of update a process may be about to make."""


@runtime_checkable
class TrainingShard(Protocol):
    """The shard that this process writes, and what it measures together with the others."""

    number: int
    """Of the shard; the first one, 0, creates the memory, and its log speaks for all."""
    parted: str
    """Why the processes do not measure together any more; empty while they do."""

    def agree(self, update: str, step: int, recorded: bool, optimizer: int = 0) -> bool:
        """This optimizer of every process is about to make this update (one of UPDATES), of or after this step;
        `recorded`: this process has slots of it. Whether all have; `recorded` itself where they have parted.
        `optimizer` is left out where it is the training's first one.
        """

    def summed(self, numbers: Doubles, about: Sequence[float]) -> Doubles | None:
        """float64[n]: the sum of what all processes give, the same on each. `about`: which numbers they are.

        None where the processes have parted, or part because they do not give the same numbers.
        """

    def gather(self, own: Any) -> list[Any] | None:
        """What all processes give, in their order: anything that can be pickled. None where they have parted."""

    def check_folder(self, path: Path) -> None:
        """Raises AlreadyExists where anything is in the place of this process's shard."""

    def writer(self, header: Header) -> Sink:
        """What writes this process's shard. Made on the thread that writes; raises RecordingError where it cannot."""

    def close(self) -> None:
        """The training has ended on this process, or is not recorded any more. May be called again."""


def leave(shard: TrainingShard | None) -> None:
    """The training has ended on this process, or is not recorded any more; what fails of that is a warning."""
    try:
        if shard is not None:
            shard.close()
    except Exception as error:  # of any kind, from what joins the processes: what was recorded must still be closed
        warnings.warn(f"Leaving the other processes failed: {error}", RuntimeWarning, stacklevel=2)


WAIT_SECONDS = 60.0
"""How long a rank waits for the others: between one rank's optimizer step and another's, and for the first shard."""


class Exchange:
    """Adds up numbers and gathers objects over the ranks, through torch.distributed, in a group beside the training's.

    All ranks call its methods in the same order. Raises RuntimeError where one of them does not.
    """

    def __init__(self) -> None:
        """To be called on all ranks. Raises RecordingError where one of them does not."""
        try:
            self._group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=WAIT_SECONDS))
        except RuntimeError as error:
            raise RecordingError(
                f"The ranks could not be joined: {str(error).splitlines()[0]}.",
                hint="Make a recorder on every rank.",
            ) from error

    def total(self, numbers: Doubles) -> Doubles:
        """float64[n]: the sum of what all ranks give, the same on each."""
        if not distributed.is_initialized():
            raise RuntimeError("the training has left its process group")
        summed = torch.from_numpy(numbers.copy())
        distributed.all_reduce(summed, group=self._group)
        return summed.numpy()

    def gather(self, own: Any) -> list[Any]:
        """What all ranks give, in their order."""
        if not distributed.is_initialized():
            raise RuntimeError("the training has left its process group")
        found: list[Any] = [None] * distributed.get_world_size(self._group)
        distributed.all_gather_object(found, own, group=self._group)
        return found

    def close(self) -> None:
        """The training has ended on this rank."""
        # The training may have destroyed all groups already, inside the recorder's with.
        if distributed.is_initialized():
            distributed.destroy_process_group(self._group)


class Ranks:
    """One rank among all of them: a TrainingShard."""

    def __init__(self, number: int, count: int, exchange: Exchange) -> None:
        self.number, self.count = number, count
        self.parted = ""
        """Why the ranks do not measure together any more; empty while they do."""
        self._exchange, self._closed = exchange, False

    @classmethod
    def joined(cls, rank: int, ranks: int, alone: bool = True) -> Ranks | None:
        """This process among the ranks of torch.distributed; None where it is the only one and `alone`. All ranks call
        it.

        Raises BadInput for numbers that are not those of torch.distributed, RecordingError where a rank does not come.
        """
        if ranks == 1 and rank == 0 and alone:
            return None
        there = distributed.is_available() and distributed.is_initialized()
        known = (distributed.get_rank(), distributed.get_world_size()) if there else None
        if known != (rank, ranks):
            said = "is not initialised" if known is None else f"says rank {known[0]} of {known[1]}"
            raise BadInput(
                f"rank={rank} and ranks={ranks} do not match torch.distributed, which {said}.",
                hint="After init_process_group, pass torch.distributed.get_rank() and get_world_size().",
                field="ranks",
            )
        return cls(rank, ranks, Exchange())

    def agree(self, update: str, step: int, recorded: bool, optimizer: int = 0) -> bool:
        """This optimizer of every rank is about to make this update, of or after this step; `recorded`: this rank has
        slots of it. Whether all ranks have: a step that one leaves out for NaN is no step of the others.
        """
        ranks = self._gathered(optimizer, UPDATES.index(update), step, recorded)
        if ranks is None:
            return recorded
        if out := [rank for rank, row in enumerate(ranks) if row[0] < 0]:
            self._part(f"rank {out[0]} ran out of batches before the others")
            return recorded
        (*first, _), *others = ranks
        for rank, (*own, _) in enumerate(others, start=1):
            if own != first:
                self._part(f"rank {rank} made an update {_told(*own)} steps, where rank 0 made one {_told(*first)}")
                return recorded
        return all(there for *_, there in ranks)

    def run_out(self) -> None:
        """This rank has no further batch, while others go on: they hear of it at their next update."""
        if not self.parted:
            self._gathered(*[-1.0] * 4)  # in the place of what `agree` says
            self._part(f"rank {self.number} ran out of batches before the others")

    def summed(self, numbers: Doubles, about: Sequence[float]) -> Doubles | None:
        """As TrainingShard says; `about` is compared over the ranks before anything is added up."""
        ranks = self._gathered(len(numbers), *about)
        if ranks is None:
            return None
        if any(other != ranks[0] for other in ranks):
            self._part("the ranks recorded different steps or layers")
            return None
        return self._total(numbers) if len(numbers) else numbers

    def _gathered(self, *numbers: float) -> list[tuple[float, ...]] | None:
        """What each rank says, in their order; None where they have parted."""
        own = np.zeros((self.count, len(numbers)))
        own[self.number] = numbers
        total = self._total(own.reshape(-1))
        return None if total is None else [tuple(row) for row in total.reshape(own.shape).tolist()]

    def gather(self, own: Any) -> list[Any] | None:
        return self._exchanged(self._exchange.gather, own)

    def _total(self, numbers: Doubles) -> Doubles | None:
        return self._exchanged(self._exchange.total, numbers)

    def _exchanged(self, exchange: Callable[[Own], All], own: Own) -> All | None:
        """None where the ranks have parted, or part now."""
        if self.parted:
            return None
        try:
            return exchange(own)
        except RuntimeError as error:
            self._part(f"rank {self.number} lost contact with the others: {str(error).splitlines()[0]}")
            return None

    def _part(self, reason: str) -> None:
        self.parted = f"{reason}; the slots of one rank explain its part of the gradients only"

    def close(self) -> None:
        """The training has ended on this rank, or is not recorded any more."""
        if not self._closed:
            self._closed = True
            self._exchange.close()

    def check_folder(self, path: Path) -> None:
        """Raises AlreadyExists where this rank's shard, or anything in the place of the first one, is there already."""
        if self.number == 0:
            check_new_folder(path)
        elif (path / shard_folder(self.number)).exists():
            raise AlreadyExists(f"{path / shard_folder(self.number)} already exists.", hint="Record into a new folder.")

    def writer(self, header: Header) -> Writer:
        """The writer of this rank's shard; a further one waits until the first has created the memory.

        Raises RecordingError where it waits in vain.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while self.number and not (header.path / FILE).exists():
            if time.monotonic() > deadline:
                raise RecordingError(
                    f"rank {self.number} waited {WAIT_SECONDS:.0f} seconds for rank 0 to create {header.path}.",
                    hint="Record on every rank, into one folder that all of them can read.",
                )
            time.sleep(0.01)
        return Writer(header, shard_number=self.number, shards=self.count)


def _told(optimizer: float, kind: float, steps: float) -> str:
    """An update in words, of the first optimizer unless another one is named."""
    whose = f"of optimizer {int(optimizer)}, " if optimizer else ""
    return f"{whose}{UPDATES[int(kind)]}, after {int(steps)}"


def shard_of(rank: int, ranks: int | TrainingShard, alone: bool = True) -> TrainingShard | None:
    """This process among those that record together; None where it is the only one and `alone`.

    Raises BadInput for `ranks` that are neither a number nor a TrainingShard, and what Ranks.joined raises.
    """
    if isinstance(ranks, TrainingShard):
        return ranks
    if isinstance(ranks, Integral):
        return Ranks.joined(rank, int(ranks), alone)
    said = {name for name in vars(TrainingShard) if not name.startswith("_")} | {*TrainingShard.__annotations__}
    raise BadInput(
        f"ranks must be a number or a TrainingShard; {type(ranks).__name__} lacks "
        f"{', '.join(sorted(said - set(dir(ranks))))}.",
        hint="Pass the number of ranks, for example ranks=torch.distributed.get_world_size().",
        field="ranks",
    )


_AT_ONCE = 1 << 21
"""Numbers that are added up at once, in float64."""


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process holds a part of a tensor."""
    return any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__)


def sharded_names(model: nn.Module) -> set[str]:
    """Names in the state dict of a model of what this process holds a part of."""
    return {name for name, own in model.state_dict().items() if isinstance(own, Tensor) and is_sharded(own)}


def is_sharded_model(model: nn.Module) -> bool:
    """Whether this process holds a part of it."""
    return any(hasattr(module, "_get_fsdp_state") for module in model.modules()) or any(
        map(is_sharded, model.parameters())
    )


def held(tensor: Tensor) -> Tensor:
    """[r, ...]: what this process holds of a tensor; all of an ordinary one."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        own: Tensor = tensor.to_local()  # type: ignore[attr-defined]
        return own


@dataclass(frozen=True)
class RankRows:
    """The rows of a block that this process holds, all of which other processes do not."""

    first: int
    stop: int
    of_parameter: Range
    """Those of the whole parameter."""
    block: Parameter
    """The place of the block's rows in the parameter's rows that are held."""

    @classmethod
    def of(cls, block: Parameter, tensor: Tensor, speaks: bool) -> RankRows:
        """`speaks`: this process is the one that speaks for parameters of which every one holds all."""
        if is_sharded(tensor):
            start = _first_row(tensor)
            stop = start + len(held(tensor))
        else:
            start, stop = 0, tensor.shape[0] if speaks else 0
        each = prod(tensor.shape[1 : block.leading])
        first, last = block.rows or (0, as_matrix(tensor.shape, block.leading)[0])
        low, high = max(first, start * each), min(last, stop * each)
        low, high = (low, high) if low < high else (first, first)
        rows = (low - start * each, high - start * each) if low < high else (0, 0)
        return cls(low - first, high - first, (start, stop), replace(block, rows=rows))

    def of_tensor(self, tensor: Tensor) -> Tensor:
        """[rows, columns] or [rows]: those of a tensor [R, ...], or of the rows [r, ...] alone."""
        own, (start, stop) = held(tensor.detach()), self.of_parameter
        rows: Tensor = self.block.stored_block_of(own if len(own) == stop - start else own[start:stop])
        return rows


def whole(tensor: Tensor, shard: TrainingShard) -> Tensor:
    """[R, ...] in the processor's memory, on the first process; the others get their own rows. All of them call it.

    Raises RecordingError where they have parted.
    """
    own, first = held(tensor.detach()).cpu(), _first_row(tensor)
    found = own if shard.number else torch.empty(tensor.shape, dtype=own.dtype, device="cpu")
    width = prod(tensor.shape[1:])
    rows = max(1, _AT_ONCE // max(1, width))
    for start in range(0, tensor.shape[0], rows):
        stop = min(start + rows, tensor.shape[0])
        numbers = np.full((stop - start, width), -0.0)  # what leaves every number as it is, -0.0 too
        low, high = max(start, first), min(stop, first + len(own))
        if low < high:
            numbers[low - start : high - start] = own[low - first : high - first].reshape(high - low, -1).double()
        total = shard.summed(numbers.reshape(-1), [start, stop])
        if total is None:
            raise RecordingError(
                f"The weights of the ranks could not be gathered: {shard.parted}.",
                hint="Enter and leave the recorder's `with` on every rank, and leave it before destroy_process_group.",
            )
        if not shard.number:
            found[start:stop] = torch.from_numpy(total).view(stop - start, *tensor.shape[1:])
    return found


def check_sharding(model: nn.Module, optimizers: Sequence[Optimizer], ranks: object, resume: bool | int) -> bool:
    """Whether a model is sharded; if so, its parameters stand in their places as they are held. `ranks` and `resume`:
    as Recorder is told.

    Raises RecordingError where it is in a way that cannot be recorded.
    """
    found = {name: own for name, own in (*model.named_parameters(), *model.named_buffers()) if is_sharded(own)}
    managed = [module for module in model.modules() if hasattr(module, "_get_fsdp_state")]
    for module in managed:
        module.reshard()  # type: ignore[operator]
    if not found and not managed:
        return False
    for name, tensor in found.items():
        _check_placement(name, tensor, managed)
    processes = distributed.get_world_size()
    if ranks == 1 and processes > 1:
        raise RecordingError(
            f"The model is sharded over {processes} processes, and this recorder sees only one part.",
            hint="Make a recorder on every rank, with rank= and ranks=.",
        )
    if resume:
        raise RecordingError(
            "The training of a sharded model cannot be resumed in its memory.",
            hint="Record the rest of the training into another folder.",
        )
    if not any(is_sharded(own) for one in optimizers for group in one.param_groups for own in group["params"]):
        raise RecordingError(
            "The optimizer was made before fully_shard, so it does not hold the model's tensors.",
            hint="Call fully_shard first, make the optimizer after it, and the recorder after both.",
        )
    return True


def check_unsharded(model: nn.Module) -> None:
    """Raises RecordingError where a model has been sharded since its recorder was made."""
    if is_sharded_model(model):
        raise RecordingError(
            "the model was sharded after the recorder was made.",
            hint="Call fully_shard first, make the optimizer after it, and the recorder after both.",
        )


def _check_placement(name: str, tensor: Any, managed: Iterable[nn.Module]) -> None:
    mesh, placements = tensor.device_mesh, tensor.placements
    by_rows = len(placements) == 1 and placements[0].is_shard(0) and type(placements[0]).__name__ == "Shard"
    if not by_rows or not any(own is tensor for module in managed for own in module.parameters()):
        raise RecordingError(
            f"{name!r} is a DTensor placed as {', '.join(map(str, placements))} over a mesh of {tuple(mesh.shape)}.",
            hint="Record a model whose parameters are whole, or sharded by fully_shard over one axis of ranks.",
        )
    if mesh.size() != distributed.get_world_size():
        raise RecordingError(
            f"{name!r} is sharded over {mesh.size()} of {distributed.get_world_size()} processes.",
            hint="Shard the model over all processes of the training.",
        )


def _first_row(tensor: Any) -> int:
    """As torch.chunk parts rows."""
    rows, ranks = tensor.shape[0], tensor.device_mesh.size()
    return int(min(rows, -(-rows // ranks) * tensor.device_mesh.get_local_rank()))


def unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer that updates the weights. Raises BadInput where there is none."""
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, Optimizer):
        kind = type(optimizer).__name__
        raise BadInput(
            f"optimizer must be a torch optimizer, not {kind}.",
            hint="Pass the torch.optim.Optimizer inside it.",
            field="optimizer",
        )
    return optimizer


def unwrapped_model(model: nn.Module) -> nn.Module:
    """The model that a data-parallel or compiled one trains: its layers have the names that they have without it."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
            continue
        # Fabric's wrapper is a class of either of Lightning's packages, which need not be loaded.
        name = "_forward_module" if type(model).__name__ == "_FabricModule" else "_orig_mod"
        own = getattr(model, name, None)
        if not isinstance(own, nn.Module):
            return model
        model = own


def whole_model(model: nn.Module) -> nn.Module:
    """As `unwrapped_model`. Raises BadInput for one of which this process holds a part alone."""
    model = unwrapped_model(model)
    if is_sharded_model(model):
        raise BadInput(
            "The model is sharded, and this process holds only a part of its weights.",
            hint="Pass a model that has its whole state dict in one process.",
            field="model",
        )
    return model
