"""A model's state as arrays of our own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.record.sharded_parameters import is_sharded, whole
from dualform.record.training_shard import TrainingShard
from dualform.store.mark import Mark, digest_of, named_buffers
from dualform.store.weights import Buffers


def state_of(model: nn.Module, shard: TrainingShard | None = None) -> dict[str, NDArray[Any]]:
    """Every tensor of the state dict, copied; `shard` and what it raises: as `arrays` says."""
    held = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    return arrays(held, shard)


def arrays(tensors: Mapping[str, Tensor], shard: TrainingShard | None = None) -> dict[str, NDArray[Any]]:
    """The tensors' values, copied; bfloat16, which NumPy lacks, as float32.

    Those that are sharded over processes are put together on the first one, the others get their own rows. All of them
    call it then, with the same names; raises RecordingError where they do not.
    """
    parted = {name: whole(tensor, shard) for name, tensor in tensors.items() if shard and is_sharded(tensor)}
    return {name: np.array(_plain(parted.get(name, tensor).detach().cpu())) for name, tensor in tensors.items()}


def mark_of(model: nn.Module, buffers: Buffers, step: int, updates: tuple[int, ...]) -> Mark:
    """How a training stands once so many steps were taken; one tensor at a time is copied."""
    held = ((name, value) for name, value in model.state_dict().items() if isinstance(value, Tensor))
    weights = digest_of((name, arrays({name: value})[name]) for name, value in held)
    return Mark(step, weights, digest_of(named_buffers(buffers)), updates)


def _plain(tensor: Tensor) -> NDArray[Any]:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
