"""What the slots of recorded steps say the gradients are, held until an update uses them.

Shapes: P numbers over all parameters along all directions (parameters.py); E recorded entries, none unless the
rule is watched through entries (parameters.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from dualform import kernels
from dualform.kernels.arguments import SlotPlaces
from dualform.record.audit.parameters import RecordedEntries, RecordedParameter, RecordedParameters
from dualform.record.layout import HALVED, KeyForm
from dualform.record.projection import DIRECTIONS, Doubles, OuterSum, full_precision, readable
from dualform.record.ranks import TrainingShard
from dualform.rules.half_precision import HalfType, with_product
from dualform.store.batch import Product

ValuedRow: TypeAlias = tuple[str, Tensor, Tensor, Product | None]
"""Of one call of a layer: its name, keys, error signals, and how the training rounded the product of both."""
MOST = 256
"""How many steps may wait for an update one by one."""


@dataclass(frozen=True, eq=False)
class StepGradient:
    """What the slots of one step say the gradient is."""

    step: int
    fresh: bool
    """Whether gradients of earlier steps were gone when the first of this step's arrived."""
    sums: Doubles
    """float64[P]."""
    bounds: Doubles
    """float64[parameters]: bound on the magnitudes that were summed, for the rounding error."""
    entries: Doubles
    """float64[E]: of the recorded entries."""
    magnitudes: Doubles
    """float64[E]: the sum of the magnitudes of each entry's terms."""
    halved: Doubles
    """float64[parameters]: how many products with it were rounded to half precision. Only entries are rounded alike."""
    terms: Doubles
    """float64[parameters]: how many terms were added up one by one: a product each, or of a table the slots of the row
    that comes most often.
    """

    @property
    def _vectors(self) -> Sequence[Doubles]:
        return self.sums, self.bounds, self.entries, self.magnitudes, self.halved, self.terms

    @property
    def numbers(self) -> Doubles:
        """All of it, as processes add it up: the step is fresh where the last number of the sum is 0."""
        return np.concatenate([*self._vectors, [not self.fresh]])

    def with_numbers(self, numbers: Doubles) -> StepGradient:
        """The same step with other numbers."""
        lengths = [len(own) for own in self._vectors]
        *parts, stale = np.split(numbers, np.cumsum(lengths))
        return StepGradient(self.step, not stale[0], *parts)


class PendingGradients:
    """Collects them step by step. Used on the training's own thread."""

    def __init__(
        self, parameters: RecordedParameters, entries: RecordedEntries | None, halves: Mapping[int, HalfType]
    ) -> None:
        """`halves`: by index, the type of the parameters whose gradients are of half precision themselves."""
        self._parameters, self._entries, self._halves = parameters, entries, halves
        self._dense = {layer: own for layer in parameters.forms if (own := parameters.dense(layer)) is not None}
        self._places = _places(self._dense, parameters, entries)
        self.steps: list[StepGradient] = []

    def add(self, step: int, rows: Sequence[ValuedRow], fresh: bool) -> bool:
        """Take one step's slots: keys, as their form has them, and error signals float32[n, d_out] of layers, which may
        come several times; and how the training rounded their product.

        False where the outcome is not finite: there is NaN or infinity in them, or a number that overflows.
        """
        count = 0 if self._entries is None else self._entries.size
        sums, bounds = np.zeros(self._parameters.size), np.zeros(len(self._parameters))
        entries, magnitudes = np.zeros((2, count))
        halved, terms = np.zeros((2, len(self._parameters)))
        of_copies: dict[tuple[int, int], Doubles] = {}
        at_once, others = list[ValuedRow](), list[ValuedRow]()
        for row in rows:
            (at_once if self._read_at_once(row) else others).append(row)
            for index, parameter, _ in self._parameters.of_layer(row[0]):
                terms[index] += _terms(self._parameters.forms[row[0]], parameter, row[1])
        if at_once:
            self._add_at_once(at_once, sums, bounds, entries, magnitudes)
        for layer, keys, errors, product in sorted(others, key=_place):
            self._add_rows(layer, keys, errors, sums, bounds)
            if self._entries is None:
                continue
            own = entries if product is None else np.zeros(count)
            self._entries.add_outer(layer, keys, errors, own, magnitudes)
            if product is not None:
                for index, _, _ in self._parameters.of_layer(layer):
                    key, found = (product.copy, index), own[self._entries.spans[index]]
                    of_copies[key] = with_product(of_copies.get(key), found, product.dtype)
                    halved[index] += 1
        for (_, index), total in of_copies.items():
            assert self._entries is not None
            entries[self._entries.spans[index]] += total
            self._round(entries, index)
        self.steps.append(StepGradient(step, fresh, sums, bounds, entries, magnitudes, halved, terms))
        # NaN and infinity stay in sums of squares, and those of float32 numbers do not overflow.
        return all(map(isfinite, bounds.tolist()))

    def _read_at_once(self, row: ValuedRow) -> bool:
        """Whether the compiled loops can read a call as it lies."""
        layer, keys, errors, product = row
        dense = layer in self._dense and product is None and readable(keys) and readable(errors)
        return dense and keys.stride(1) == 1 and errors.is_contiguous()

    def _add_at_once(
        self, rows: Sequence[ValuedRow], sums: Doubles, bounds: Doubles, entries: Doubles, magnitudes: Doubles
    ) -> None:
        """Of calls of dense layers, in one go of the compiled loops."""
        calls = [self._places.call(layer, keys, errors) for layer, keys, errors, _ in rows]
        squares = kernels.add_slots(self._places, calls, sums, entries, magnitudes).tolist()
        for (layer, keys, _, _), (of_errors, of_keys) in zip(rows, squares, strict=True):
            weight, bias = self._dense[layer]
            bounds[weight] += _bound(of_errors, of_keys / DIRECTIONS)
            if bias is not None:
                bounds[bias] += _bound(of_errors, len(keys))

    def _add_rows(self, layer: str, keys: Tensor, errors: Tensor, sums: Doubles, bounds: Doubles) -> None:
        outer: OuterSum | None = None
        form = self._parameters.forms[layer]
        for index, parameter, place in self._parameters.of_layer(layer):
            own_sums = sums[parameter.start : parameter.stop]
            if parameter.directions is None:
                summed, square = _summed(errors) if outer is None else (outer.summed, outer.errors_square)
                own_sums += summed
                bounds[index] += _bound(square, len(errors))
                continue
            found = form.add_outer(parameter.directions, keys, errors, place, own_sums)
            bounds[index] += _bound(found.errors_square, found.keys_square / DIRECTIONS)
            outer = outer if place.transposed else found

    def forget(self, step: int) -> None:
        """Take a step back."""
        self.steps = [own for own in self.steps if own.step != step]

    def join_oldest(self) -> None:
        """Where very many steps wait, as for an optimizer that does not update for long, make one of the older half.

        It begins with the last of them before which gradients were gone; an update uses all of it, or nothing.
        """
        if len(self.steps) <= MOST or self._halves:  # what rounds with each product is not added up at once
            return
        old, newer = self.steps[: MOST // 2], self.steps[MOST // 2 :]
        begin = max((index for index, own in enumerate(old) if own.fresh), default=0)
        numbers = sum((own.numbers for own in old[begin + 1 :]), old[begin].numbers)
        self.steps = [replace(old[begin].with_numbers(numbers), fresh=old[begin].fresh), *newer]

    def clear(self) -> None:
        """An update has used them."""
        self.steps = []

    def sum_over(self, shard: TrainingShard, more: Doubles) -> Doubles | None:
        """Make them those of the slots of all processes; they stay as they are where the processes have parted.

        `more` float64[n] is added up with them; returns its sum, None where the processes have parted.
        """
        parts = [own.numbers for own in self.steps]
        steps = [len(parts), sum(own.step for own in self.steps)]
        total = shard.summed(np.concatenate([*parts, more]), steps)
        if total is None:
            return None
        sums, rest = np.split(total, [len(total) - len(more)])
        if parts:
            each = np.split(sums, len(parts))
            self.steps = [own.with_numbers(numbers) for own, numbers in zip(self.steps, each, strict=True)]
        return rest

    def entries_since(self, first_step: int | None) -> tuple[Doubles, Doubles]:
        """float64[E] each: gradients and magnitudes of the entries, of the steps from there on; None for no steps."""
        used = self.since(first_step)
        total, zeros = np.zeros((2, 0 if self._entries is None else self._entries.size))
        for own in used:
            total += own.entries
            for index in self._halves:
                self._round(total, index)
        return total, sum((own.magnitudes for own in used), zeros)

    def _round(self, entries: Doubles, index: int) -> None:
        """As the gradient of a parameter of half precision is rounded with each product that is added."""
        if index in self._halves and self._entries is not None:
            span = self._entries.spans[index]
            entries[span] = self._halves[index](entries[span])

    def halved_since(self, first_step: int | None) -> Doubles:
        """float64[parameters]: rounded products with each, of the steps from there on."""
        return sum((own.halved for own in self.since(first_step)), np.zeros(len(self._parameters)))

    def since(self, first_step: int | None) -> Sequence[StepGradient]:
        """The steps from there on; None for none."""
        return [own for own in self.steps if first_step is not None and own.step >= first_step]


def _terms(form: KeyForm, parameter: RecordedParameter, keys: Tensor) -> int:
    if form.looks_up and parameter.directions is not None and parameter.tensor.dtype in HALVED:
        return int(torch.unique(keys, return_counts=True)[1].max()) if len(keys) else 0
    return 1


def _bound(errors_square: float, keys_square: float) -> float:
    """On the magnitudes of a sum over slots, from the sums of squares of its factors."""
    bound: float = errors_square**0.5 * keys_square**0.5
    return bound


def _places(
    dense: Mapping[str, tuple[int, int | None]], parameters: RecordedParameters, entries: RecordedEntries | None
) -> SlotPlaces:
    """Where the loops add up what the slots of dense layers bring."""
    places = SlotPlaces(parameters.size, 0 if entries is None else entries.size)
    for layer, (index, bias) in dense.items():
        weight: RecordedParameter = parameters[index]
        assert weight.directions is not None
        start = None if bias is None else parameters[bias].start
        own = layer, weight.directions.parts, weight.block_shape[0], weight.start, start
        if entries is None:
            places.add(*own)
        else:
            of_bias = -1 if bias is None else entries.spans[bias].start
            places.add(*own, entries.chosen(index), entries.spans[index].start, of_bias)
    return places


def _place(row: ValuedRow) -> int:
    """Where the product of a call comes among those of the same copy of the weights; 0 for a call that rounded none."""
    return 0 if row[3] is None else row[3].place


def _summed(errors: Tensor) -> tuple[Doubles, float]:
    """float64[d_out]: the sum of errors [n, d_out]; and that of their squares."""
    with full_precision():
        wide = errors.double()
        return wide.sum(0).cpu().numpy(), float(wide.square().sum())
