"""Private entries of torch that have no public form, each with a test of what it is used for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling


def innermost_function_mode() -> object | None:
    """The `TorchFunctionMode` that sees the next function of torch; None without one."""
    count = torch._C._len_torch_function_stack()
    return torch._C._get_function_stack_at(count - 1) if count else None


def packing_hooks() -> Any:
    """What packs and unpacks the tensors that autograd saves now, as checkpoints do; None for torch itself, and in
    compiled code.
    """
    return None if is_compiling() else torch._C._autograd._top_saved_tensors_default_hooks(False)


def set_version_counters(tensors: Sequence[Tensor], versions: Sequence[int]) -> None:
    """How often each tensor was written, as a graph compares it that has saved one."""
    put: Any = torch._C._autograd._unsafe_set_version_counter
    try:
        put(tuple(tensors), tuple(versions))
    except TypeError:  # of an older torch, which sets them one by one
        for tensor, version in zip(tensors, versions, strict=True):
            put(tensor, version)
