"""The parameter blocks of recorded layers, and the sketch that each is compared along.

Fixed random entries of the recorded blocks: the image for rules that treat each number on its own.

Shapes: d_out and columns of a weight, n slots, P numbers over all parameters.

    a weight W: ENTRIES of its numbers, spread over its rows and columns evenly; all of a small one      a bias: itself

The parameter blocks that recorded layers stand for, each with the fixed directions it is projected along.

Shapes: rows and columns of a block, the way round that it is stored; P numbers over all blocks.

    a weight W: W R, float64[rows, DIRECTIONS]        a bias: itself, float64[rows]

A block is one part of one tensor, however many layers hold it: the terms of tied weights add up. What a layer holds
transposed is projected as it is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform import kernels
from dualform.kernels.arguments import Matrices
from dualform.record.layout import SLOTS_AT_ONCE, KeyForm
from dualform.record.projection import DIRECTIONS, Directions, Doubles, Image, full_precision, readable
from dualform.record.ranks import RankRows, is_sharded
from dualform.record.taps import Tap
from dualform.rules import UpdateRule
from dualform.rules.half_precision import HalfType
from dualform.rules.half_precision_rule import HalfPrecisionRule
from dualform.store.layer import Parameter, of_shape


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
        self._widths = {tap.name: tap.d_in for tap in taps}
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

    def dense(self, layer: str) -> tuple[int, int | None] | None:
        """The indices of a layer's one weight and its bias, if keys are rows of the numbers that the weight takes:
        [W | b] as it lies. None for every other layer.
        """
        own = self.of_layer(layer)
        biases = [index for index, parameter, _ in own if parameter.directions is None]
        if type(self.forms[layer]) is not KeyForm or len(own) - len(biases) != 1 or len(biases) > 1:
            return None
        index, weight, place = next(part for part in own if part[1].directions is not None)
        if place.transposed or weight.block_shape[1] != self._widths[layer]:
            return None
        return index, biases[0] if biases else None

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


ENTRIES = 1024
"""Of a weight: norms come out to a few percent, and no row or column of a layer that has no more is overlooked."""
RUN = 16
"""As in entries.c of the loops: entries that are summed together."""
WHOLE = 4096
"""A weight of no more numbers is taken whole: one product of errors and keys makes all of its gradient."""
_FEW, _MANY = 256, 1 << 16
"""Of each weight, and whole if it has no more, where the entries would be more than `_MANY` in all."""


@dataclass(frozen=True, eq=False)
class _Chosen:
    """Entries of one block, as it is stored: int32; one column of zeros for a bias."""

    rows: Tensor
    columns: Tensor
    norm_factor: float
    """The root of how many numbers each stands for; 1 of a block that is taken whole, in the order that it lies."""
    places: NDArray[np.int64]
    """int64[entries]: where each lies in a contiguous block."""


class RecordedEntries:
    """As Image says; and the gradients of the same entries, from slots."""

    def __init__(self, parameters: RecordedParameters, generator: np.random.Generator) -> None:
        self._parameters = parameters
        sizes = [parameter.numbers for parameter in parameters if parameter.directions is not None]
        many = sum(size if size <= WHOLE else ENTRIES for size in sizes) > _MANY
        count, whole = (_FEW, _FEW) if many else (ENTRIES, WHOLE)
        self._chosen = [_choose(parameter.block_shape, generator, count, whole) for parameter in parameters]
        stops = np.cumsum([0, *(len(chosen.rows) for chosen in self._chosen)]).tolist()
        self.size: int = stops[-1]
        """P."""
        self.spans = [slice(start, stop) for start, stop in pairwise(stops)]
        self.norm_factors = [chosen.norm_factor for chosen in self._chosen]
        pairs = zip(self.norm_factors, parameters, strict=True)
        self._as_it_lies = [factor == 1 and own.shape == own.block_shape and own.rows is None for factor, own in pairs]
        """Which parameters are taken whole, as they lie."""
        shapes = [(span.stop - span.start,) for span in self.spans]
        self._vectors = Matrices(shapes, [None] * len(shapes), [span.start for span in self.spans], self.size)

    def weights(self, chosen: NDArray[np.bool_] | None = None) -> Doubles:
        found, at_once = np.zeros(self.size), list[Tensor | None]()
        for index, parameter in enumerate(self._parameters):
            at_once.append(None)
            if chosen is not None and not chosen[index]:
                continue
            if parameter.lost:
                found[self.spans[index]] = np.nan
            elif self._as_it_lies[index] and _at_once(parameter.tensor, parameter.shape):
                at_once[-1] = parameter.tensor.detach().view(-1)
            else:
                found[self.spans[index]] = self.of(index, parameter.tensor)
        if any(own is not None for own in at_once):
            kernels.project_all(self._vectors, at_once, found)
        return found

    def project_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> Doubles:
        """A number that the optimizer keeps for a whole parameter, as a count of updates, stands at each entry."""
        found = np.zeros(self.size)
        for index, parameter in enumerate(self._parameters):
            if (array := arrays.get(parameter.parameter)) is not None:
                kept = array if parameter.rows and array.ndim else of_shape(array, parameter.shape)
                if kept.ndim:
                    found[self.spans[index]] = self.of(index, torch.from_numpy(np.ascontiguousarray(kept)))
                else:
                    found[self.spans[index]] = np.where(self._held(index), kept, 0.0)
        return found

    def chosen(self, index: int) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
        """Columns and rows of the entries of a weight; None where it is taken whole."""
        own = self._chosen[index]
        return None if own.norm_factor == 1 else (own.columns.numpy(), own.rows.numpy())

    def add_outer(self, layer: str, keys: Tensor, errors: Tensor, sums: Doubles, magnitudes: Doubles) -> None:
        """Add the gradient that slots of a layer make, and the sum of its terms' magnitudes; both float64[P].

        Keys as their form has them, and errors [n, d_out].
        """
        for index, parameter, place in self._parameters.of_layer(layer):
            span = self.spans[index]
            with full_precision():
                form = self._parameters.forms[layer]
                if self._chosen[index].norm_factor == 1 and parameter.directions is not None:
                    self._add_whole(place, keys, errors, form, sums[span], magnitudes[span])
                    continue
                self._add_chosen(index, parameter, place, keys, errors, form, sums[span], magnitudes[span])

    def _add_whole(
        self, place: Parameter, keys: Tensor, errors: Tensor, form: KeyForm, sums: Doubles, magnitudes: Doubles
    ) -> None:
        """Of a block that is taken whole."""
        stop = place.start + form.groups * (place.stop - place.start)
        for slots, own, places in form.columns(keys, torch.arange(place.start, stop, device=keys.device)):
            left, right = errors[slots].double(), own.index_select(1, places).to(errors.device).double()
            if place.transposed:
                left, right = right, left
            sums += _summed(left, right, form.groups).cpu().numpy()
            magnitudes += _summed(left.abs(), right.abs(), form.groups).cpu().numpy()

    def of(self, index: int, tensor: Tensor) -> Doubles:
        """float64[entries]: those of one parameter, of a tensor of its shape; 0.0 where others hold it."""
        chosen, parameter = self._chosen[index], self._parameters[index]
        block, found = parameter.block_of(tensor), np.zeros(len(chosen.rows))
        if not block.numel():
            return found
        if parameter.rows is None and chosen.norm_factor == 1:
            found[:] = block.reshape(-1).cpu().double().numpy()
            return found
        if parameter.rows is None and readable(block) and block.is_contiguous():
            found[:] = block.numpy().reshape(-1)[chosen.places]
            return found
        matrix = block.reshape(len(block) if block.ndim else 1, -1)
        if parameter.rows is None:
            found[:] = matrix[chosen.rows.to(block.device), chosen.columns.to(block.device)].double().cpu().numpy()
            return found
        own = self._held(index)
        rows, columns = (part[own].to(block.device) for part in (chosen.rows - parameter.held.start, chosen.columns))
        found[own] = matrix[rows, columns].double().cpu().numpy()
        return found

    def _held(self, index: int) -> NDArray[np.bool_]:
        """bool[entries]: which of them this process holds."""
        rows, held = self._chosen[index].rows.numpy(), self._parameters[index].held
        own: NDArray[np.bool_] = (rows >= held.start) & (rows < held.stop)
        return own

    def _add_chosen(
        self,
        index: int,
        parameter: RecordedParameter,
        place: Parameter,
        keys: Tensor,
        errors: Tensor,
        form: KeyForm,
        sums: Doubles,
        magnitudes: Doubles,
    ) -> None:
        """Of a block of which some entries are chosen, or of a bias."""
        rows, columns = self._chosen[index].rows, self._chosen[index].columns
        if parameter.directions is None:  # a bias, whose keys are all 1
            ones = torch.ones((1, errors.shape[1]), dtype=torch.float32, device=errors.device).expand(len(errors), -1)
            add_terms(ones, rows, errors, rows, sums, magnitudes)  # as columns, they lie in runs
            return
        if place.transposed:
            rows, columns = columns, rows
        if form.groups > 1:  # the columns of the group that makes the row
            columns = columns + rows // (parameter.block_shape[0] // form.groups) * (place.stop - place.start)
        for slots, own, places in form.columns(keys, (columns + place.start).to(keys.device)):
            add_terms(own, places, errors[slots], rows, sums, magnitudes)


def add_terms(keys: Tensor, columns: Tensor, errors: Tensor, rows: Tensor, sums: Doubles, magnitudes: Doubles) -> None:
    """Add sums and magnitudes over n slots of error[rows] key[columns], by entry: int32; keys [n, c], errors [n, d]."""
    if readable(keys) and readable(errors) and keys.stride(1) == errors.stride(1) == 1:
        chosen = [np.ascontiguousarray(part.numpy(), dtype=np.int32) for part in (columns, rows)]
        kernels.entries(keys, chosen[0], errors, chosen[1], sums, magnitudes)
        return
    rows, columns = rows.to(errors.device), columns.to(errors.device)
    for start in range(0, len(errors), SLOTS_AT_ONCE):
        part = slice(start, start + SLOTS_AT_ONCE)
        terms = errors[part].index_select(1, rows).double()
        terms *= keys[part].to(errors.device).index_select(1, columns)
        sums += terms.sum(0).cpu().numpy()
        magnitudes += terms.abs_().sum(0).cpu().numpy()


def _summed(left: Tensor, right: Tensor, groups: int) -> Tensor:
    """[rows * columns] of left^T right; of several groups of both, one below the other."""
    if groups == 1:
        return (left.T @ right).reshape(-1)
    parts = (part.view(len(part), groups, -1) for part in (left, right))
    return torch.einsum("tgo,tgi->goi", *parts).reshape(-1)


def _choose(shape: Sequence[int], generator: np.random.Generator, count: int = ENTRIES, most: int = WHOLE) -> _Chosen:
    """All of a parameter of at most `most` numbers; else `count` of them, rows and columns in turn, each in an order of
    its own, no entry twice.

    Both go on by one for RUN entries on end where they can, which compiled loops then sum side by side.
    """
    rows = shape[0] if len(shape) else 1
    columns = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    if rows * columns <= most or columns == 1:
        every = torch.arange(rows * columns, device="cpu")
        return _Chosen((every // columns).int(), (every % columns).int(), 1.0, every.numpy())
    turn = np.arange(count)
    lap, paths = turn // math.lcm(rows, columns), math.gcd(rows, columns)
    # Rows and columns that go on side by side meet again after a lap: each begins elsewhere, whole runs away if it can.
    begin = lap * RUN % paths + lap * RUN // paths if paths % RUN == 0 else lap
    row = _order(rows, count, generator)[turn % rows]
    column = _order(columns, count, generator)[(turn + begin) % columns]
    factor = (rows * columns / count) ** 0.5
    return _Chosen(torch.from_numpy(row).int(), torch.from_numpy(column).int(), factor, row * columns + column)


def _order(count: int, watched: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """A permutation of runs of neighbours; those that are left over come last. Of more than are watched, where the
    numbers that a training moves may all be neighbours, as the rows of frequent tokens are, one of single numbers.
    """
    whole = 0 if count > watched else count // RUN
    runs = generator.permutation(whole)[:, None] * RUN + np.arange(RUN)
    return np.concatenate([runs.reshape(-1), whole * RUN + generator.permutation(count - whole * RUN)])


@dataclass(frozen=True)
class WatchedImage:
    """Nothing, where no rule can be run on less than whole parameters."""

    seen: UpdateRule | None = None
    """The rule as the weights are looked at."""
    image: Image | None = None
    entries: RecordedEntries | None = None
    """The image, where the rule is watched through entries."""
    rules: Sequence[UpdateRule] = ()
    """One a parameter, which rounds its updates where it is of half precision."""
    halves: Mapping[int, HalfType] = field(default_factory=dict)
    """By index of such a parameter."""

    @classmethod
    def of(
        cls,
        parameters: RecordedParameters,
        rule: UpdateRule | None,
        halved: Mapping[str, str],
        generator: np.random.Generator,
    ) -> WatchedImage:
        """`halved`: as Header says; `generator`: chooses the entries."""
        if rule is None or not rule.commutes_with:
            return cls(rule)
        dtypes = [halved.get(parameter.parameter) for parameter in parameters]
        rules = [HalfPrecisionRule(rule, dtype) if dtype else rule for dtype in dtypes]
        halves = {index: own.half for index, own in enumerate(rules) if isinstance(own, HalfPrecisionRule)}
        seen = rules[next(iter(halves))] if halves else rule
        if seen.commutes_with != "entries":
            return cls(seen, parameters, None, rules, halves)
        entries = RecordedEntries(parameters, generator)
        return cls(seen, entries, entries, rules, halves)
