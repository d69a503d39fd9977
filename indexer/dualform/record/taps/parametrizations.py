"""Weights that a module computes from other parameters before it uses them, as weight and spectral norm do.

No optimizer moves such a weight, so that no sum over slots is it: its layer has keys and scores, and no values.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


def originals_of(module: nn.Module, names: Iterable[str]) -> dict[str, Tensor]:
    """The parameters that a module computes some of its tensors from, by their names in it.

    None of a tensor that is a parameter itself, or of which nothing tells how it is computed.
    """
    found: dict[str, Tensor] = {}
    for name in names:
        if name in module._parameters:
            continue
        if parametrize.is_parametrized(module, name):
            parametrizations = module.get_submodule(f"parametrizations.{name}")
            own = parametrizations.named_parameters()
            found |= {f"parametrizations.{name}.{original}": tensor for original, tensor in own}
        else:  # as torch.nn.utils.weight_norm, spectral_norm and prune leave it: weight_g, weight_v, weight_orig
            own = module.named_parameters(recurse=False)
            found |= {original: tensor for original, tensor in own if original.startswith(f"{name}_")}
    return found


def shape_of(module: nn.Module, name: str) -> torch.Size:
    """The shape of a tensor that a module computes; nothing of the training moves by looking.

    Spectral norm takes a step of its power iteration, and dropout draws, where the module trains.
    """
    if not parametrize.is_parametrized(module, name):
        computed: Tensor = getattr(module, name)
        return computed.shape
    parts = list(module.get_submodule(f"parametrizations.{name}").modules())
    trains = [part.training for part in parts]
    try:
        for part in parts:
            part.training = False
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            computed = getattr(module, name)
            return computed.shape
    finally:
        for part, training in zip(parts, trains, strict=True):
            part.training = training
