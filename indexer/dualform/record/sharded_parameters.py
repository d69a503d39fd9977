"""Parameters that `fully_shard` (FSDP2) parted over the ranks: each holds a range of the rows of every one.

What is measured of a parameter is measured row by row, so that a rank brings what its own rows make of it and the ranks
add up. Whole tensors are put together where the memory keeps them, at the start and at the end, one after another, on
the first rank; it goes through the recorder's own exchange, and cannot meet what the training exchanges.

Shapes: [R, ...] a parameter, of which this rank holds [r, ...] from one row on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from dualform.errors import RecordingError
from dualform.record.training_shard import TrainingShard
from dualform.store.parameter import Parameter, Range, as_matrix

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
