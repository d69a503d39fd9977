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

from dualform.record.projection import DIRECTIONS, Directions, Doubles, Parts
from dualform.record.taps import Tap
from dualform.store.layer import Parameter


@dataclass(frozen=True, eq=False)
class RecordedParameter:
    """One parameter, and its place in vectors of length P."""

    name: str
    """In the model's state dict; the first where it has several."""
    tensor: Tensor
    terms: tuple[tuple[str, Parameter], ...]
    """The layers that hold it, each with the columns of the layer's [W | b] that it brings."""
    directions: Directions | None
    """R [columns, DIRECTIONS]; None for a bias."""
    start: int
    stop: int

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
            self._all.append(RecordedParameter(place.name, tensor, where, directions, start, stop))
        self.size = stop
        """P."""
        self.parts = Parts([parameter.stop - parameter.start for parameter in self._all])
        self.scales = np.array([1.0 if p.directions is None else DIRECTIONS**-0.5 for p in self._all])
        """float64[parameters]: what makes norms of what was projected estimates of Frobenius norms."""

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[RecordedParameter]:
        return iter(self._all)

    def project(self, tensors: Mapping[int, Tensor] | None = None, chosen: NDArray[np.bool_] | None = None) -> Doubles:
        """float64[P]: the live parameters, or other tensors by index, projected; 0.0 where not `chosen`."""
        found = torch.zeros(self.size, dtype=torch.float64, device="cpu")
        for index, parameter in enumerate(self._all):
            if chosen is not None and not chosen[index]:
                continue
            tensor = (parameter.tensor if tensors is None else tensors[index]).detach()
            own = found[parameter.start : parameter.stop]
            if parameter.directions is None:
                own.copy_(tensor)
            else:
                parameter.directions.project(tensor, own)
        return found.numpy()

    def project_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> Doubles:
        """float64[P]: of arrays under the parameters' names; 0.0 for those that are missing."""
        chosen = np.array([parameter.name in arrays for parameter in self._all], dtype=bool)
        named = {i: torch.from_numpy(arrays[p.name]) for i, p in enumerate(self._all) if p.name in arrays}
        return self.project(named, chosen)
