"""A model's state as arrays of our own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.store.mark import Mark, digest_of, named_buffers
from dualform.store.weights import Buffers


def state_of(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Every tensor of the state dict, copied."""
    return arrays({name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)})


def arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """The tensors' values, copied; bfloat16, which NumPy lacks, as float32."""
    return {name: np.array(_plain(tensor.detach().cpu())) for name, tensor in tensors.items()}


def mark_of(model: nn.Module, buffers: Buffers, step: int, updates: tuple[int, ...]) -> Mark:
    """How a training stands once so many steps were taken; one tensor at a time is copied."""
    held = ((name, value) for name, value in model.state_dict().items() if isinstance(value, Tensor))
    weights = digest_of((name, arrays({name: value})[name]) for name, value in held)
    return Mark(step, weights, digest_of(named_buffers(buffers)), updates)


def _plain(tensor: Tensor) -> NDArray[Any]:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
