"""Ranks of which one has fewer batches than another: torch.distributed.algorithms.Join lets it answer the others.

    with recorder, Join([model, recorder]):
        for x, y in loader: ...

Once a rank has none left, gradients go on being averaged with its zeros; but its weights stand still until the end, and
what is logged on it ends. So the ranks part then, at once, and the record says why.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.distributed.algorithms.join import JoinHook


class Joinable(ABC):
    """The interface that torch's `Join` needs."""

    @abstractmethod
    def _run_out(self) -> None:
        """This rank has no further batch, while others go on."""

    def join_hook(self, **_: Any) -> JoinHook:
        """For torch's Join: replaces the missing batches of this rank."""
        return _Hook(self._run_out)

    @property
    def join_device(self) -> torch.device:
        """For torch's Join: the device of its tensors."""
        return torch.device("cpu")

    @property
    def join_process_group(self) -> Any:
        """For torch's Join: the process group of the training."""
        return distributed.group.WORLD


class _Hook(JoinHook):
    def __init__(self, run_out: Callable[[], None]) -> None:
        self._run_out, self._told = run_out, False

    def main_hook(self) -> None:
        """In the place of each batch that this rank has not."""
        if not self._told:
            self._told = True
            self._run_out()
