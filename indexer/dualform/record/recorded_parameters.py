"""The parameters that recorded layers stand for, each with the fixed directions it is projected along.

Shapes: d_out and columns of a weight, P numbers over all parameters.

    a weight W: W R, float64[d_out, DIRECTIONS]        a bias: itself, float64[d_out]

A parameter is one tensor, however many layers hold it: the terms of tied weights add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform import kernels
from dualform.record.projection import DIRECTIONS, Directions, Doubles, readable
from dualform.record.taps import Tap
from dualform.store.layer import Parameter


@dataclass(eq=False)
class RecordedParameter:
    """One parameter, and its place in vectors of length P."""

    name: str
    """In the model's state dict; the first where it has several."""
    tensor: Tensor
    """The one that stands in its place now."""
    terms: tuple[tuple[str, Parameter], ...]
    """The layers that hold it, each with the columns of the layer's [W | b] that it brings."""
    directions: Directions | None
    """R [columns, DIRECTIONS]; None for a bias."""
    start: int
    stop: int
    shape: torch.Size
    lost: bool = False
    """Whether nothing of its shape stands in its place any more."""

    @cached_property
    def layers(self) -> tuple[str, ...]:
        return tuple(layer for layer, _ in self.terms)


class RecordedParameters(Sequence[RecordedParameter]):
    """All of them, in the order of the layers."""

    def __init__(self, taps: Sequence[Tap], generator: np.random.Generator) -> None:
        held: dict[int, list[tuple[Tap, Parameter, Tensor]]] = {}
        for tap in taps:
            for place, tensor in tap.parameters.items():
                held.setdefault(id(tensor), []).append((tap, place, tensor))
        self._all: list[RecordedParameter] = []
        stop = 0
        for terms in held.values():
            tap, place, tensor = terms[0]
            directions = None
            if place.start < tap.d_in:
                directions = Directions.drawn(place.stop - place.start, generator)
            start, stop = stop, stop + tap.d_out * (1 if directions is None else DIRECTIONS)
            where = tuple((holder.name, own) for holder, own, _ in terms)
            self._all.append(RecordedParameter(place.name, tensor, where, directions, start, stop, tensor.shape))
        self.size = stop
        """P."""
        self._shapes = [parameter.tensor.shape for parameter in self._all]
        self._matrices = np.array([_matrix_of(parameter) for parameter in self._all], dtype=np.int64).reshape(-1, 5)
        """As kernels.project_all takes them; addresses are filled in."""
        self.scales = [1.0 if p.directions is None else DIRECTIONS**-0.5 for p in self._all]
        """What makes norms of what was projected estimates of Frobenius norms."""

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[RecordedParameter]:
        return iter(self._all)

    def project(self, tensors: Sequence[Tensor | None]) -> Doubles:
        """float64[P]: one tensor for each parameter, of its shape, projected; 0.0 for None."""
        found = np.zeros(self.size)
        if all(map(_at_once, tensors, self._shapes)):
            self._matrices[:, 0] = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
            kernels.project_all(self._matrices.ctypes.data, len(self._all), found.ctypes.data)
            return found
        for parameter, tensor in zip(self._all, tensors, strict=True):
            if tensor is None:
                continue
            own = found[parameter.start : parameter.stop]
            if parameter.directions is None:
                own[:] = tensor.detach().double().cpu().numpy()
            else:
                own[:] = parameter.directions.project(tensor.detach()).reshape(-1)
        return found

    def weights(self, chosen: NDArray[np.bool_] | None = None) -> Doubles:
        """float64[P]: the live parameters, projected; 0.0 where not `chosen`, NaN for those that are lost."""
        there = [True] * len(self._all) if chosen is None else chosen.tolist()
        found = self.project(
            [p.tensor if own and not p.lost else None for p, own in zip(self._all, there, strict=True)]
        )
        for parameter in self._all:
            if parameter.lost:
                found[parameter.start : parameter.stop] = np.nan
        return found

    def project_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> Doubles:
        """float64[P]: of arrays under the parameters' names; 0.0 for those that are missing."""
        return self.project([torch.from_numpy(arrays[p.name]) if p.name in arrays else None for p in self._all])


def _matrix_of(parameter: RecordedParameter) -> tuple[int, ...]:
    rows, columns = (*parameter.tensor.shape, 1)[:2]
    return 0, rows, columns, 0 if parameter.directions is None else parameter.directions.address, parameter.start


def _at_once(tensor: Tensor | None, shape: torch.Size) -> bool:
    """Whether the compiled loops can read a tensor of this shape as it is."""
    return tensor is None or (
        readable(tensor) and tensor.layout == torch.strided and tensor.is_contiguous() and tensor.shape == shape
    )
