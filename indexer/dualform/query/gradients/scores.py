"""The dot product of every slot's gradient with that of each example.

    g_t(example)  =  sum over layers, shared blocks and the example's rows j of (left_t . left_j) (right_t . right_j)

which for a layer of its own is the sum of (x_t . q_j + number of biases) (delta_t . e_j). delta_t is what was
recorded: the slot's share of the gradient of its batch's loss, whatever the optimizer made of it. Every dot product of
two rows is canonical (query/score/canonical.py), and they are added in one order, so that an example has the same bits
however many are asked with it.

Shapes: n examples, T slots of a space, b slots of a block.

Whose gradients a question about gradients is asked with: given in it, or a query set's. Shapes: n examples.

Which products the gradients of slots and of examples have with each other, and what they come to.

The gradient that a row brings to a block of parameters is an outer product: of its error signal and a part of its key
for a weight, the other way round for one that is stored transposed, and its error signal alone for a bias. The dot
product of two of them is that of their left sides times that of their right ones, summed over the blocks along the
diagonal where a weight has several.

Shapes: b slots of a block, r rows of an example, d_in and d_out of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput, Inexact, NotFound
from dualform.query.score.canonical import score_rows
from dualform.query.slots import within
from dualform.query.view import Check, View
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.questions import QuerySetExamples
from dualform.questions.filters import Filter
from dualform.questions.gradients import ExampleGradients
from dualform.questions.question import ALL_TOKENS
from dualform.store.batch import UNEXPLAINED
from dualform.store.layer import Layer, Parameter


class Side(NamedTuple):
    """One side of outer products: columns of the rows' keys or error signals."""

    of_errors: bool
    start: int
    stop: int


class Sides(NamedTuple):
    left: Side
    right: Side | None
    """None of a bias."""


def sides(layer: Layer, place: Parameter) -> list[Sides]:
    """Of each block along the diagonal of a layer's block of parameters in its place there."""
    if place in layer.biases:
        return [Sides(Side(True, 0, layer.d_out), None)]
    if layer.groups > 1:
        width, height = layer.weight_width, layer.d_out // layer.groups
        return [
            Sides(
                Side(True, group * height, (group + 1) * height),
                Side(False, group * width + place.start, group * width + place.stop),
            )
            for group in range(layer.groups)
        ]
    errors, keys = Side(True, 0, layer.d_out), Side(False, place.start, place.stop)
    return [Sides(keys, errors) if place.transposed else Sides(errors, keys)]


@dataclass(frozen=True, eq=False)
class Pairing:
    """Slots of one layer and rows of one, the same or another, that share a block of parameters."""

    rows_of: str
    """The layer of the rows."""
    slots: Sequence[Sides]
    rows: Sequence[Sides]


def pairings(layers: Mapping[str, Layer]) -> dict[str, list[Pairing]]:
    """By the slots' layer, in the order of the layers and their parameters."""
    holders: dict[str, list[tuple[str, list[Sides]]]] = {}
    own: dict[str, list[tuple[str, list[Sides]]]] = {name: [] for name in layers}
    for name, layer in layers.items():
        for place in layer.parameters:
            found = sides(layer, place)
            holders.setdefault(place.block_name, []).append((name, found))
            own[name].append((place.block_name, found))
    return {
        name: [Pairing(other, slots, rows) for block, slots in found for other, rows in holders[block]]
        for name, found in own.items()
    }


class Rows(NamedTuple):
    """Keys and error signals of some rows."""

    keys: NDArray[np.float32]
    """float32[r, d_in]."""
    errors: NDArray[np.float32]
    """float32[r, d_out]."""

    def of(self, side: Side) -> NDArray[np.float32]:
        return np.ascontiguousarray((self.errors if side.of_errors else self.keys)[:, side.start : side.stop])


class Products:
    """Of a block of slots with the rows of one example, each made once."""

    def __init__(self, slots: Rows) -> None:
        self._slots = slots
        self._wide: dict[Side, NDArray[np.float64]] = {}

    def with_rows(self, pairs: Sequence[Pairing], rows: Mapping[str, Rows]) -> NDArray[np.float64]:
        """float64[b]: what all pairings come to, pairing after pairing and row after row; `rows` by layer."""
        found = np.zeros(len(self._slots.keys))
        made: dict[tuple[Side, str, Side], NDArray[np.float64]] = {}
        for pair in pairs:
            own = rows.get(pair.rows_of)
            if own is None or not len(own.keys):
                continue
            total = np.zeros((len(own.keys), len(found)))
            for slots, others in zip(pair.slots, pair.rows, strict=True):
                term = self._product(made, slots.left, pair.rows_of, others.left, own)
                if slots.right is not None and others.right is not None:
                    term = term * self._product(made, slots.right, pair.rows_of, others.right, own)
                total += term
            for one in total:
                found += one
        return found

    def _product(
        self,
        made: dict[tuple[Side, str, Side], NDArray[np.float64]],
        slots: Side,
        layer: str,
        others: Side,
        rows: Rows,
    ) -> NDArray[np.float64]:
        """float64[r, b]: canonical."""
        key = slots, layer, others
        if key not in made:
            if slots not in self._wide:
                self._wide[slots] = self._slots.of(slots).astype(np.float64)
            made[key] = score_rows(self._wide[slots], rows.of(others))
        return made[key]


def examples_of(view: View, given: ExampleGradients | QuerySetExamples) -> ExampleGradients:
    """Raises NotFound for a query set or example that there is not, BadInput for a query set that was taken without a
    loss.
    """
    if isinstance(given, ExampleGradients):
        return given
    stored = view.snapshot.query_set(given.query_set)
    if stored.examples is None or not stored.traced:  # with a loss the number is known
        raise BadInput(
            f"Query set {given.query_set!r} was recorded without a loss, so it has no gradients.",
            hint="Record it with a loss, or pass memory.gradients(model, inputs, labels, loss).",
            field="queries",
        )
    count = stored.examples
    whole: ExampleGradients = view.cache.get(
        ("query set's gradients", given.query_set),
        lambda: ExampleGradients(count, {layer: stored.gradients(layer) for layer in stored.traced}),
    )
    if given.examples is None:
        return whole
    if any(token != ALL_TOKENS for token in given.tokens):
        raise BadInput(
            'score="gradient" needs whole examples, not tokens.',
            hint='Name an example without its token, for example "test/17".',
            field="queries",
        )
    numbers = within(given.examples, count, f"example of query set {given.query_set!r}", "queries").tolist()
    width = sum(own.keys.shape[1] + own.errors.shape[1] for own in whole.layers.values())
    view.bounds.require_queries(len(numbers), width)
    chosen = {name: own.chosen(numbers) for name, own in whole.layers.items()}
    return ExampleGradients(len(numbers), {name: own for name, own in chosen.items() if own is not None})


_BLOCK_BYTES = 8 << 20
"""Of the keys and values of some slots in float64: the cache of the processor holds a part of it."""


@dataclass(frozen=True, eq=False)
class GradientScores:
    """Of the slots that a mask leaves of some layers."""

    view: View
    layers: Mapping[str, Layer]
    """Those that are summed over, in their order; of one slot space or several."""
    selections: Mapping[str, Selection]
    """By layer: its entries that stay."""
    examples: ExampleGradients

    @property
    def spaces(self) -> list[str]:
        """In the order of the layers."""
        return list(dict.fromkeys(layer.space for layer in self.layers.values()))

    def stays(self, space: str) -> NDArray[np.bool_]:
        """bool[T]: the slots that some layer has and the mask leaves."""
        found = np.zeros(self.view.snapshot.space(space).count, dtype=bool)
        for name, layer in self.layers.items():
            if layer.space == space:
                found[self._slots(name)] = True
        return found

    def of(self, space: str, examples: Sequence[int], slots: NDArray[np.int64], check: Check) -> NDArray[np.float64]:
        """float64[examples, c]: of some slots that stay, int64[c] ascending. Raises Inexact where one is not finite."""
        found, paired = np.zeros((len(examples), len(slots))), pairings(self.layers)
        rows = [self._rows_of(example) for example in examples]
        for name, layer in self.layers.items():
            if layer.space != space:
                continue
            keys, values = self.view.snapshot.keys(name), self.view.snapshot.values(name)
            there, entries = self._entries_of(name, slots)
            size = int(np.clip(_BLOCK_BYTES // (8 * (layer.d_in + layer.d_out)), 64, 8192))
            for start in range(0, len(entries), size):
                check()
                chosen, own = entries[start : start + size], there[start : start + size]
                products = Products(Rows(keys.of_entries(chosen), values.take(chosen)))
                for scores, given in zip(found, rows, strict=True):
                    check()
                    scores[own] += products.with_rows(paired[name], given)
        found += 0.0  # -0.0 becomes 0.0
        if not np.isfinite(found).all():
            self._refuse(space, int(slots[~np.isfinite(found).all(axis=0)][0]))
        return found

    def _entries_of(self, layer: str, slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """int64 twice: where those of some slots stand that a layer has and the mask leaves; and their entries."""
        entries = self.view.snapshot.entries(layer).of(slots)
        there = np.flatnonzero(entries >= 0)
        there = there[self.selections[layer].stays[entries[there]]]
        return there, entries[there]

    def _refuse(self, space: str, slot: int) -> None:
        raise Inexact(
            f"Slot {slot} of space {space!r} has keys or values with NaN or infinity.",
            hint=f'The training diverged there. Leave those slots out: where="slot < {slot}".',
            field="where",
        )

    def _slots(self, layer: str) -> NDArray[np.int64]:
        return self.view.snapshot.entries(layer).slots_of(self.selections[layer].entries)

    def _rows_of(self, example: int) -> dict[str, Rows]:
        found = {}
        for name in self.layers:
            if (own := self.examples.layers.get(name)) is not None:
                rows = own.of(example)
                found[name] = Rows(own.keys[rows], own.errors[rows])
        return found


def gradient_scores(
    view: View, names: Sequence[str], where: str | Filter | None, examples: ExampleGradients, check: Check
) -> GradientScores:
    """Raises NotFound for a layer that there is not, Inexact for one without keys or values, BadInput where the
    examples' gradients do not fit the layers, and for slots that are named by number in several spaces, EmptyMask
    where the mask leaves no slot of any.
    """
    every = {layer.name: layer for layer in view.snapshot.layers.values()}
    asked = [_whole_layer(view, name) for name in names]
    layers = {
        name: layer
        for name, layer in every.items()
        if (name in asked if asked else layer.parameters and layer.keys and layer.values)
    }
    without = [name for name, layer in layers.items() if not (layer.parameters and layer.keys and layer.values)]
    if without or not layers:
        which = f"these layers lack them: {', '.join(without)}" if without else "no layer has both"
        raise Inexact(
            f'score="gradient" needs keys and values, and {which}.',
            hint="Record the training with keys=True and values=True, or pass other layers.",
            field="layer",
        )
    _check_fit(layers, examples, named=bool(names))
    _check_explained(view, layers)
    if where is not None:
        spaces = {layer.space for layer in layers.values()}
        mask.require_one_space(view, spaces, where, "Pass layers of one space.")
    selections = {name: mask.selection(view, layer, where, check) for name, layer in layers.items()}
    if not any(selection.count for selection in selections.values()):
        first = next(iter(selections.values()))
        mask.require_entries(first, where, view.datasets)
    return GradientScores(view, layers, selections, examples)


def _whole_layer(view: View, name: str) -> str:
    """Raises NotFound for what is no layer, BadInput for a part of one."""
    layer = view.snapshot.layer(name)
    if layer.stored.name != name:
        raise BadInput(
            f"{name!r} is a part of layer {layer.stored.name!r}, whose gradients are stored only as a whole.",
            hint=f"Pass layer={layer.stored.name!r}.",
            field="layer",
        )
    return name


def _check_explained(view: View, layers: Mapping[str, Layer]) -> None:
    """Raises Inexact where a part of the gradient of a layer's weights came from elsewhere than its slots."""
    table = view.snapshot.table("defects")
    for layer, step, reason in zip(*(table[name].to_pylist() for name in ("layer", "step", "reason")), strict=True):
        if layer in layers and UNEXPLAINED in reason:
            raise Inexact(
                f"The slots of layer {layer!r} do not hold its whole gradient from step {step} on: "
                f"{reason.rstrip('.')}.",
                hint="Record every layer that uses this weight, or pass other layers.",
                field="layer",
            )


def _check_fit(layers: Mapping[str, Layer], examples: ExampleGradients, named: bool) -> None:
    """Raises NotFound where no layer has a gradient of the examples, or one that was named has none; BadInput for other
    widths.
    """
    known = [name for name in layers if name in examples.layers]
    lacking = [name for name in layers if name not in examples.layers] if named else []
    if not known or lacking:
        raise NotFound(
            f"The examples lack gradients in {', '.join(map(repr, lacking or layers))}.",
            hint=f"They have gradients in {', '.join(map(repr, examples.layers)) or 'no layer'}.",
            field="queries",
        )
    for name in known:
        own, layer = examples.layers[name], layers[name]
        widths = own.keys.shape[1], own.errors.shape[1]
        if widths != (layer.d_in, layer.d_out):
            raise BadInput(
                f"Layer {name!r} maps {layer.d_in} inputs to {layer.d_out} outputs, but the examples' gradients are of "
                f"{widths[0]} to {widths[1]}.",
                hint="Take the gradients from the model that was recorded.",
                field="queries",
            )
