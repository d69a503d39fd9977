"""What the layers of a network were fed, by plain PyTorch hooks: an oracle that shares no code with the recorder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Capture:
    """Every call of some layers whose output got a gradient: inputs and error signals, in the order of the calls."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self.step = 0
        self.calls: dict[str, list[_Call]] = {name: [] for name in modules}
        for name, module in modules.items():
            module.register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if not (module.training and output.requires_grad and torch.is_grad_enabled()):
                return
            call = _Call(self.step, args[0].detach().to(output.dtype).float().clone())
            self.calls[name].append(call)

            def received(gradient: Tensor) -> None:
                call.error = gradient.detach().float().clone() + (0 if call.error is None else call.error)

            output.register_hook(received)

        return hook

    def rows(self, name: str, time_first: bool) -> tuple[Tensor, Tensor]:
        """Keys [n, d_in] and error signals [n, d_out] of the calls that got a gradient, row after row."""
        keys, errors = [], []
        for call in self.calls[name]:
            if call.error is None:
                continue
            for parts, rows in ((keys, call.key), (errors, call.error)):
                parts.append((rows.transpose(0, 1) if time_first else rows).reshape(-1, rows.shape[-1]))
        return torch.cat(keys), torch.cat(errors)


class _Call:
    def __init__(self, step: int, key: Tensor) -> None:
        self.step, self.key = step, key
        self.error: Tensor | None = None
