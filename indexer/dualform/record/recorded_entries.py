"""Fixed random entries of the recorded blocks: the image for rules that treat each number on its own.

Shapes: d_out and columns of a weight, n slots, P numbers over all parameters.

    a weight W: ENTRIES of its numbers, spread over its rows and columns evenly; all of a small one      a bias: itself
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform import kernels
from dualform.record.key_form import SLOTS_AT_ONCE, KeyForm
from dualform.record.projection import Doubles, full_precision, readable
from dualform.record.recorded_parameters import RecordedParameter, RecordedParameters
from dualform.store.parameter import Parameter, of_shape

ENTRIES = 1024
"""Of a weight: norms come out to a few percent, and no row or column of a layer that has no more is overlooked."""
RUN = 16
"""As in entries.c of the loops: entries that are summed together."""
_WHOLE = 4096
"""A weight of no more numbers is taken whole: one product of errors and keys makes all of its gradient."""


@dataclass(frozen=True, eq=False)
class _Chosen:
    """Entries of one block, as it is stored: int32; one column of zeros for a bias."""

    rows: Tensor
    columns: Tensor
    norm_factor: float
    """The root of how many numbers each stands for; 1 of a block that is taken whole, in the order that it lies."""


class RecordedEntries:
    """As Image says; and the gradients of the same entries, from slots."""

    def __init__(self, parameters: RecordedParameters, generator: np.random.Generator) -> None:
        self._parameters = parameters
        self._chosen = [_choose(parameter.block_shape, generator) for parameter in parameters]
        stops = np.cumsum([0, *(len(chosen.rows) for chosen in self._chosen)]).tolist()
        self.size: int = stops[-1]
        """P."""
        self.spans = [slice(start, stop) for start, stop in pairwise(stops)]
        self.norm_factors = [chosen.norm_factor for chosen in self._chosen]

    def weights(self, chosen: NDArray[np.bool_] | None = None) -> Doubles:
        found = np.zeros(self.size)
        for index, parameter in enumerate(self._parameters):
            if chosen is None or chosen[index]:
                found[self.spans[index]] = np.nan if parameter.lost else self.of(index, parameter.tensor)
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


def _choose(shape: Sequence[int], generator: np.random.Generator) -> _Chosen:
    """All of a small parameter; else rows and columns in turn, each in an order of its own, no entry twice.

    Both go on by one for RUN entries on end where they can, which compiled loops then sum side by side.
    """
    rows = shape[0] if len(shape) else 1
    columns = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    if rows * columns <= _WHOLE or columns == 1:
        every = torch.arange(rows * columns, device="cpu")
        return _Chosen((every // columns).int(), (every % columns).int(), 1.0)
    turn = np.arange(ENTRIES)
    lap, paths = turn // math.lcm(rows, columns), math.gcd(rows, columns)
    # Rows and columns that go on side by side meet again after a lap: each begins elsewhere, whole runs away if it can.
    begin = lap * RUN % paths + lap * RUN // paths if paths % RUN == 0 else lap
    row, column = _order(rows, generator)[turn % rows], _order(columns, generator)[(turn + begin) % columns]
    return _Chosen(torch.from_numpy(row).int(), torch.from_numpy(column).int(), (rows * columns / ENTRIES) ** 0.5)


def _order(count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """A permutation of runs of neighbours; those that are left over come last. Of more than are watched, where the
    numbers that a training moves may all be neighbours, as the rows of frequent tokens are, one of single numbers.
    """
    whole = 0 if count > ENTRIES else count // RUN
    runs = generator.permutation(whole)[:, None] * RUN + np.arange(RUN)
    return np.concatenate([runs.reshape(-1), whole * RUN + generator.permutation(count - whole * RUN)])
