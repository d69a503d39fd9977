"""The parameter blocks that recorded layers stand for, each with the fixed directions it is projected along.

Shapes: rows and columns of a block, the way round that it is stored; P numbers over all blocks.

    a weight W: W R, float64[rows, DIRECTIONS]        a bias: itself, float64[rows]

A block is one part of one tensor, however many layers hold it: the terms of tied weights add up. What a layer holds
transposed is projected as it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform import kernels
from dualform.kernels.arguments import Matrices
from dualform.record.projection import DIRECTIONS, Directions, Doubles, readable
from dualform.record.sharded_parameters import RankRows, is_sharded
from dualform.record.taps import Tap
from dualform.store.parameter import Parameter


@dataclass(eq=False)
class RecordedParameter:
    """One block of a parameter, and its place in vectors of length P."""

    name: str
    """The block's, as logs have it."""
    tensor: Tensor
    """The one that stands in its parameter's place now."""
    terms: tuple[tuple[str, Parameter], ...]
    """The layers that hold it, each with the columns of the layer's [W | b] that it brings."""
    directions: Directions | None
    """R [columns, DIRECTIONS]; None for a bias."""
    start: int
    stop: int
    shape: torch.Size
    """The parameter's."""
    block_shape: torch.Size
    """[rows, columns] or [rows]."""
    rows: RankRows | None = None
    """Those that this process holds, of a model that is sharded; None where it holds all."""
    lost: bool = False
    """Whether nothing of its shape stands in its place any more."""

    @cached_property
    def layers(self) -> tuple[str, ...]:
        return tuple(layer for layer, _ in self.terms)

    @property
    def parameter(self) -> str:
        """The name of the parameter in the model's state dict; the first where it has several."""
        return self.terms[0][1].name

    @property
    def numbers(self) -> int:
        """How many the block has."""
        return self.block_shape.numel()

    @property
    def held(self) -> slice:
        """Which of the block's rows this process holds."""
        return slice(0, self.block_shape[0]) if self.rows is None else slice(self.rows.first, self.rows.stop)

    @property
    def brought(self) -> slice:
        """Where the numbers of these rows stand in vectors of length P."""
        width = 1 if self.directions is None else DIRECTIONS
        return slice(self.start + width * self.held.start, self.start + width * self.held.stop)

    def block_of(self, tensor: Tensor) -> Tensor:
        """The rows of the block that this process holds, of a tensor of the parameter's shape, as they are stored."""
        if self.rows is not None:
            return self.rows.of_tensor(tensor)
        return self.terms[0][1].stored_block_of(tensor.detach())


class RecordedParameters(Sequence[RecordedParameter]):
    """All of them, in the order of the layers."""

    def __init__(
        self,
        taps: Sequence[Tap],
        generator: np.random.Generator,
        own: Callable[[Tensor], bool] | None = None,
        speaks: bool = True,
    ) -> None:
        """`own`: which of the tensors count; None for all of them. `speaks`: of processes that hold parts of the model,
        this is the one that speaks for parameters of which all hold everything.
        """
        held = _held(taps, own)
        self.sharded = any(is_sharded(terms[0][2]) for terms in held.values())
        """Whether this process holds some rows alone, so that what it sees is to be added up."""
        self.forms = {tap.name: tap.key_form for tap in taps}
        """By layer, how its keys lie."""
        self._all: list[RecordedParameter] = []
        stop = 0
        for (_, name), terms in held.items():
            tap, place, tensor = terms[0]
            shape = place.stored_block_of(torch.empty(tensor.shape, device="meta")).shape
            directions = Directions.drawn(shape[1], generator) if place.start < tap.d_in else None
            start, stop = stop, stop + shape[0] * (1 if directions is None else DIRECTIONS)
            where = tuple((holder.name, own) for holder, own, _ in terms)
            rows = RankRows.of(place, tensor, speaks) if self.sharded else None
            found = RecordedParameter(name, tensor, where, directions, start, stop, tensor.shape, shape, rows)
            self._all.append(found)
        self._of_layer: dict[str, list[tuple[int, RecordedParameter, Parameter]]] = {}
        for index, parameter in enumerate(self._all):
            for layer, place in parameter.terms:
                self._of_layer.setdefault(layer, []).append((index, parameter, place))
        self._parted = self.sharded or any(parameter.shape != parameter.block_shape for parameter in self._all)
        """Whether there is a block that is not its parameter as it lies."""
        self.size = stop
        """P."""
        self._shapes = [torch.Size((p.held.stop - p.held.start, *p.block_shape[1:])) for p in self._all]
        along = [None if p.directions is None else p.directions.parts for p in self._all]
        self._matrices = Matrices(self._shapes, along, [p.brought.start for p in self._all], self.size)
        self.norm_factors = [1.0 if p.directions is None else DIRECTIONS**-0.5 for p in self._all]
        """What makes norms of what was projected estimates of Frobenius norms."""

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[RecordedParameter]:
        return iter(self._all)

    def of_layer(self, layer: str) -> Sequence[tuple[int, RecordedParameter, Parameter]]:
        """A layer's parameters, weights before biases: index, parameter, and its place in the layer."""
        return self._of_layer.get(layer, ())

    @cached_property
    def spans(self) -> Sequence[slice]:
        """Where each parameter's numbers stand among the P."""
        return [slice(parameter.start, parameter.stop) for parameter in self._all]

    def project(self, tensors: Sequence[Tensor | None]) -> Doubles:
        """float64[P]: the blocks of tensors projected, of which each is of its parameter's shape; 0.0 for None, and for
        rows that this process does not hold.
        """
        if self._parted:
            pairs = zip(self._all, tensors, strict=True)
            tensors = [None if tensor is None else parameter.block_of(tensor) for parameter, tensor in pairs]
        found = np.zeros(self.size)
        at_once = list(map(_at_once, tensors, self._shapes))
        readable_ones = [tensor if own else None for tensor, own in zip(tensors, at_once, strict=True)]
        if any(tensor is not None for tensor in readable_ones):
            kernels.project_all(self._matrices, readable_ones, found)
        if False in at_once:
            self._project_others(tensors, at_once, found)
        return found

    def _project_others(self, tensors: Sequence[Tensor | None], at_once: Sequence[bool], found: Doubles) -> None:
        """Of those that the compiled loops cannot read as they lie."""
        for parameter, tensor, read in zip(self._all, tensors, at_once, strict=True):
            if tensor is None or read:
                continue
            own = found[parameter.brought]
            if parameter.directions is None:
                own[:] = tensor.detach().double().cpu().numpy()
            else:
                own[:] = parameter.directions.project(tensor.detach()).reshape(-1)

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
        held = (arrays.get(p.parameter) for p in self._all)
        return self.project([None if array is None else torch.from_numpy(array) for array in held])


def _held(
    taps: Sequence[Tap], own: Callable[[Tensor], bool] | None
) -> dict[tuple[int, str], list[tuple[Tap, Parameter, Tensor]]]:
    """By tensor and block, the layers that hold it."""
    held: dict[tuple[int, str], list[tuple[Tap, Parameter, Tensor]]] = {}
    for tap in taps:
        for place, tensor in tap.parameters.items():
            if own is None or own(tensor):
                held.setdefault((id(tensor), place.block_name), []).append((tap, place, tensor))
    return held


def _at_once(tensor: Tensor | None, shape: torch.Size) -> bool:
    """Whether the compiled loops can read a tensor of this shape as it is."""
    return tensor is None or (
        readable(tensor) and tensor.layout == torch.strided and tensor.is_contiguous() and tensor.shape == shape
    )
