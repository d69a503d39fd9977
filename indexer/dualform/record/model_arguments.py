"""Arguments of a model for many examples, cut into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from dualform.errors import BadInput

Inputs: TypeAlias = Any
"""A model's arguments: one; several, as a tuple or list; by name, as a mapping such as a tokenizer makes. Each is a
tensor, an array or numbers with an axis of examples, such things in tuples, lists and mappings, or what is the same for
all examples: None, a text, a truth value, a number."""


class Arguments:
    """The arguments of a model, by place and by name."""

    def __init__(self, inputs: Inputs, batch_dim: int, device: torch.device | None = None) -> None:
        """`batch_dim`: the axis of examples in each of them; `device`: where they are taken to.

        Raises BadInput where they hold no examples, or not the same number of them, or what no model takes.
        """
        places, named = _by_place_and_name(inputs)
        self._places = [_plain(part, device) for part in places]
        self._named = {name: _plain(part, device) for name, part in named.items()}
        self._axis = batch_dim
        lengths = [part.shape[batch_dim] for part in _tensors([self._places, self._named]) if part.dim() > batch_dim]
        if len(set(lengths)) != 1 or 0 in lengths:
            raise BadInput(
                f"inputs contains {' and '.join(map(str, lengths)) or 'no'} examples.",
                hint="Pass a tensor of at least one example, or several tensors of one length.",
                field="inputs",
            )
        self.examples: int = lengths[0]

    def rows(self, rows: Tensor) -> tuple[list[Any], dict[str, Any]]:
        """What the model is called with for the examples of these numbers, int64[n]."""

        def picked(tensor: Tensor) -> Tensor:
            if tensor.dim() <= self._axis:
                return tensor
            taken = tensor if tensor.layout == torch.strided else tensor.to_sparse()
            return taken.index_select(self._axis, rows.to(tensor.device))

        return _each(self._places, picked), _each(self._named, picked)

    def part(self, start: int, stop: int) -> tuple[list[Any], dict[str, Any]]:
        """What the model is called with for the examples from start to stop."""

        def cut(tensor: Tensor) -> Tensor:
            if tensor.dim() <= self._axis:
                return tensor
            if tensor.layout == torch.strided:
                return tensor.movedim(self._axis, 0)[start:stop].movedim(0, self._axis)
            rows = torch.arange(start, min(stop, tensor.shape[self._axis]), device=tensor.device)
            return tensor.to_sparse().index_select(self._axis, rows).to_sparse(layout=tensor.layout)

        return _each(self._places, cut), _each(self._named, cut)


def device_of(model: nn.Module) -> torch.device | None:
    """Where the model's first parameter is; None for a model without any."""
    return next((parameter.device for parameter in model.parameters()), None)


def _by_place_and_name(inputs: Inputs) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(inputs, Mapping):
        return [], inputs
    return (inputs, {}) if isinstance(inputs, tuple | list) else ([inputs], {})


def _plain(part: Any, device: torch.device | None) -> Any:
    """A part of the arguments with tensors of its own in place of arrays and lists of numbers."""
    if part is None or isinstance(part, str | bool | int | float):
        return part
    if isinstance(part, Tensor) and part.is_nested:
        raise BadInput(
            "inputs contain a nested tensor, which cannot be split into batches.",
            hint="Pass a padded tensor, or the examples of one length at a time.",
            field="inputs",
        )
    if isinstance(part, Mapping):
        return {name: _plain(own, device) for name, own in part.items()}
    if isinstance(part, tuple) or (isinstance(part, list) and any(_held(own) for own in part)):
        return type(part)(_plain(own, device) for own in part)
    try:
        tensor = part if isinstance(part, Tensor) else torch.as_tensor(part, device=device)
        return tensor if device is None else tensor.to(device)
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(
            f"inputs must be tensors or arrays, not {type(part).__name__}.",
            hint="Pass tensors, arrays or lists of numbers of one length, or mappings or tuples of these.",
            field="inputs",
        ) from None


def _held(part: Any) -> bool:
    """Whether what a list holds is an argument by itself, no row of numbers."""
    return isinstance(part, Tensor | np.ndarray | Mapping | tuple)


def _each(part: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(part, Tensor):
        return change(part)
    if isinstance(part, dict):
        return {name: _each(own, change) for name, own in part.items()}
    return type(part)(_each(own, change) for own in part) if isinstance(part, tuple | list) else part


def converted(arguments: Any, kind: torch.dtype) -> Any:
    """With numbers of floating point in another type."""
    return _each(arguments, lambda tensor: tensor.to(kind) if tensor.is_floating_point() else tensor)


def copied(part: Any) -> Any:
    """Arguments with tensors of their own."""
    return _each(part, Tensor.clone)


def _tensors(part: Any) -> Iterator[Tensor]:
    if isinstance(part, Tensor):
        yield part
    for own in part.values() if isinstance(part, dict) else part if isinstance(part, tuple | list) else ():
        yield from _tensors(own)
