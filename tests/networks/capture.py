"""What the layers of a network were fed, by plain PyTorch hooks: an oracle that shares no code with the recorder."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import one_hot

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


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
            call = _Call(self.step, keys_of(module, args[0].detach(), output.dtype).float().clone())
            self.calls[name].append(call)

            def received(gradient: Tensor) -> None:
                own = errors_of(module, args[0], gradient.detach()).float().clone()
                call.error = own + (0 if call.error is None else call.error)

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


def keys_of(module: nn.Module, argument: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., d_in]: one-hot rows of an embedding, [B, P, d_in] patches of a convolution."""
    if isinstance(module, nn.Embedding):
        return one_hot(argument, module.num_embeddings)
    if isinstance(module, nn.EmbeddingBag):
        there = (argument != -1 if module.padding_idx is None else argument != module.padding_idx).float()
        weights = there / (there.sum(1, keepdim=True).clamp(min=1) if module.mode == "mean" else 1)
        return (one_hot(argument, module.num_embeddings) * weights[..., None]).sum(1)
    if isinstance(module, CONVOLUTIONS):
        return patches_of(module, argument)
    if isinstance(module, TRANSPOSED):
        return argument.flatten(2).transpose(1, 2)
    return argument.to(dtype)


def errors_of(module: nn.Module, argument: Tensor, gradient: Tensor) -> Tensor:
    """[..., d_out] of the gradient of a module's output; nothing of it reaches an embedding's row for padding."""
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        return gradient * (argument != module.padding_idx).unsqueeze(-1)
    if isinstance(module, TRANSPOSED):
        return reached_by(module, argument, gradient)
    return gradient.flatten(2).transpose(1, 2) if isinstance(module, CONVOLUTIONS) else gradient


def reached_by(module: nn.Module, argument: Tensor, gradient: Tensor) -> Tensor:
    """[B, P, O prod(kernel)]: the numbers of an output's gradient that each place of the input reaches, by the gradient
    that a weight would get which has an input channel a place.
    """
    places = math.prod(argument.shape[2:])
    one = torch.eye(places, dtype=gradient.dtype).reshape(1, places, *argument.shape[2:])
    weight = torch.zeros(places, module.out_channels, *module.kernel_size, dtype=gradient.dtype, requires_grad=True)
    convolve = getattr(functional, f"conv_transpose{argument.dim() - 2}d")
    with torch.enable_grad():
        output = convolve(one, weight, None, module.stride, module.padding, module.output_padding, 1, module.dilation)
    gradients = (torch.autograd.grad(output, weight, own[None], retain_graph=True)[0] for own in gradient)
    return torch.stack([own.flatten(1) for own in gradients])


def patches_of(module: nn.Module, maps: Tensor) -> Tensor:
    """[B, P, d_in]: each number of each patch by itself, by a convolution of a weight that is 1 at its place alone."""
    width = module.in_channels * math.prod(module.kernel_size)
    one = torch.eye(width, dtype=maps.dtype).reshape(width, module.in_channels, *module.kernel_size)
    convolve, padding = getattr(functional, f"conv{len(module.kernel_size)}d"), module.padding
    if module.padding_mode != "zeros":
        maps, padding = functional.pad(maps, module._reversed_padding_repeated_twice, module.padding_mode), 0
    return convolve(maps, one, None, module.stride, padding, module.dilation).flatten(2).transpose(1, 2)


class _Call:
    def __init__(self, step: int, key: Tensor) -> None:
        self.step, self.key = step, key
        self.error: Tensor | None = None
