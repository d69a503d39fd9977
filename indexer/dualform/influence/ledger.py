"""What each group of training data did to losses, update by update: the ledger.

A training is walked through from its record: what each update did to the losses of some examples, and which slots
brought it.

At each update the examples go forward and backward at the weights as they were (record/examples.py); the dot
products of their gradients with what each slot brought to the update are summed by group:

    L(w_after) - L(w_before)  =  the integral over r from 0 to 1 of grad L(w_before + r D) . D        D: the update

Shapes: n examples, G groups, T recorded steps, d_in and d_out of a layer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.answers import GroupKey, Ledger
from dualform.errors import BadInput, Inexact
from dualform.influence.blocks import BlockUpdate, FollowedBlock, SlotWindow, along, by_example, sides
from dualform.influence.scores import AdjointScores, BlockScores, Row
from dualform.query.engine import CACHE_BYTES
from dualform.query.groups import check_spaces, group_entries, joined_keys
from dualform.query.network import other_parameters_as_of
from dualform.query.score import backends
from dualform.query.view import Check, View, never
from dualform.query.weights.reconstruction import require
from dualform.query.where import mask
from dualform.questions.arguments import as_by
from dualform.record.discovery.layers import taps_of_recorded
from dualform.record.examples import Examples, LayerSignals, Loss, SignalPasses, Signals, named_tensors, tensors
from dualform.record.hooks import refuse_recorded
from dualform.record.query_sets import Inputs
from dualform.record.ranks import whole_model
from dualform.rules.update_rule import Doubles
from dualform.store.files.ram_budget import memory_bytes, readable
from dualform.store.layer import Layer, Parameter, whole
from dualform.store.reading.runs import opened

Method: TypeAlias = Literal["first-order", "path"]
METHODS = ("first-order", "path")


@dataclass(frozen=True, eq=False)
class Influence:
    """Examples whose loss `ledger` follows through every update of a training.

    Raises BadInput for an unknown method, and for points or a tail out of range.
    """

    name: str
    """The name of the ledger."""
    inputs: Inputs
    """The inputs of n examples, as in `Recorder.query_set`."""
    labels: Any
    """Passed to `loss` with the model's outputs: a tensor or array whose first axis is the examples."""
    loss: Loss
    by: Sequence[str] | str = ("sample",)
    """Columns of the slots; contributions are summed by their values."""
    method: Method = "first-order"
    """ "first-order" multiplies each update by the gradient of the loss before it. This is TracIn with every step as a
    checkpoint (Pruthi et al., 2020) and first-order In-Run Data Shapley (Wang et al., 2024). "path" averages the
    gradient along each update, so that contributions add up to the change of the loss."""
    points: int = 2
    """The number of Gauss-Legendre points for the average of "path", 1 to 16."""
    tail: float = 1e-3
    """Under momentum, a slot moves the weights again and again, by less each time. It is followed until an update is
    this fraction of the largest one; 0 follows it to the end. The rest is the line `truncated` of the ledger."""
    batch_dim: int = 0
    """The axis of examples in `inputs`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", as_by(self.by))
        if not self.by:
            raise BadInput("by must name at least one column.", hint='For example by=("sample",).', field="by")
        if self.method not in METHODS:
            known = ", ".join(METHODS)
            raise BadInput(f"Unknown method {self.method!r}.", hint=f"Choose one of {known}.", field="method")
        if not isinstance(self.points, int) or isinstance(self.points, bool) or not 1 <= self.points <= 16:
            raise BadInput(f"points must be a whole number from 1 to 16, not {self.points!r}.", field="points")
        if not 0 <= self.tail < 1:
            hint = "Pass tail=0 to follow each slot to the end, or a share of its largest part in an update."
            raise BadInput(f"tail must be at least 0 and less than 1, not {self.tail!r}.", hint=hint, field="tail")

    @property
    def examples(self) -> Examples:
        """The examples and their loss, as the ledger reads them."""
        return Examples(f"influence {self.name!r}", self.inputs, self.labels, self.loss, self.batch_dim)

    @property
    def places(self) -> list[tuple[float, float]]:
        """The points along an update, from 0 to 1, at which the gradient is taken, and their weights."""
        if self.method == "first-order":
            return [(0.0, 1.0)]
        nodes, weights = np.polynomial.legendre.leggauss(self.points)
        return [((1 + node) / 2, weight / 2) for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True)]


_SUM_BYTES = 8
"""Of a ledger's float64, one for each group and example."""


def count_examples(model: nn.Module, influence: Influence) -> int:
    """How many examples an influence has, once their losses were computed at the model's own weights.

    Raises BadInput for inputs, labels and a loss that do not fit one another or the model, and for a loss that is not
    finite.
    """
    passes = SignalPasses(model, [], {}, influence.examples)
    passes.losses(named_tensors(model))
    return passes.count


def check_room(groups: int, examples: int, influence: Influence) -> None:
    """Raises BadInput where the sums alone would take more than half of the machine's memory."""
    needed, there = _SUM_BYTES * groups * examples, memory_bytes()
    if 2 * needed > there:
        raise BadInput(
            f"influence {influence.name!r} has {examples:,} examples and {groups:,} groups of {', '.join(influence.by)}"
            f": {readable(needed)} of sums; the machine has {readable(there)} of RAM.",
            hint="Follow fewer examples at a time, or group by a column of fewer values.",
            field="influence",
        )


def groups_of_layers(
    view: View, layers: Mapping[str, Layer], by: tuple[str, ...], check: Check
) -> tuple[tuple[GroupKey, ...], NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """The groups of all layers' slots, how many slots each has in all of their spaces, and by layer the group of each
    entry. Raises NotFound for a column that there is not, BadInput where one says different things in several spaces.
    """
    every = {name: mask.selection(view, layer, None, check) for name, layer in layers.items()}
    own = {name: group_entries(view, layer, every[name], by, check) for name, layer in layers.items()}
    check_spaces(view, {layer.space for layer in layers.values()}, by)
    keys, places = joined_keys({name: groups.keys for name, groups in own.items()})
    numbers = {name: places[name][groups.numbers] for name, groups in own.items()}
    counts = np.zeros(len(keys), dtype=np.int64)
    for space in {layer.space for layer in layers.values()}:
        # A slot that several layers have counts once.
        of_slots = np.full(view.snapshot.space(space).count, -1, dtype=np.int64)
        for name, layer in layers.items():
            if layer.space == space:
                slots = view.snapshot.entries(name).slots
                of_slots[slice(None) if slots is None else slots] = numbers[name]
        counts += np.bincount(of_slots[of_slots >= 0], minlength=len(keys))
    return keys, counts, numbers


LINES = ("decay", "rounding", "other parameters", "buffers", "truncated")


@torch.inference_mode(False)
def ledger(path: str | PathLike[str], model: nn.Module, influence: Influence, *, allow_inexact: bool = False) -> Ledger:
    """Sum what each group of training data did to the loss of examples, update by update.

    - `path`: a memory with keys and values.
    - `model`: the recorded network, or one of the same architecture. It runs in eval mode and is left unchanged.
    - `allow_inexact`: include layers that the record does not reproduce well enough.

    The training is not run again: its weights are rebuilt step by step. Effects of a sample through later updates are
    not counted.

    Raises the errors of `dualform.open`; Inexact for layers that cannot be rebuilt, unsupported optimizers,
    half-precision weights, missing keys or values, and deleted samples; BadInput for another model, for examples or a
    loss that do not fit, and for sums larger than RAM; RecordingError if a recorder is open on the model.
    """
    return walk(path, model, influence, allow_inexact=allow_inexact).ledger()


def walk(path: str | PathLike[str], model: nn.Module, influence: Influence, *, allow_inexact: bool = False) -> Walk:
    """The walk of a memory's training, before its first step. Raises as `ledger`."""
    refuse_recorded(model.parameters(), "the passes of the examples")
    view = View(opened(path), backends.choose("numpy"), CACHE_BYTES)
    return Walk(view, whole_model(model), influence, allow_inexact, never)


class Walk:
    """Goes through a training once, step by step."""

    def __init__(self, view: View, model: nn.Module, influence: Influence, allow_inexact: bool, check: Check) -> None:
        self._view, self._model, self._influence, self._check = view, model, influence, check
        self._layers = _followed_layers(view)
        self._statuses = {
            name: require(view, layer, None, allow_inexact, check) for name, layer in self._layers.items()
        }
        taps = taps_of_recorded(model, self._layers.keys(), view.stored_weights("initial"))
        batch_dims = {name: layer.batch_dim for name, layer in self._layers.items()}
        self._passes = SignalPasses(model, list(taps.values()), batch_dims, influence.examples)
        self._groups, self._counts, numbers = groups_of_layers(view, self._layers, tuple(influence.by), check)
        reader = ThreadPoolExecutor(1, "dualform-ledger")
        windows = {name: SlotWindow(view, layer, numbers[name], reader) for name, layer in self._layers.items()}
        self._blocks = [FollowedBlock(view, holders, windows) for holders in _holders(view, self._layers)]
        count = self._passes.count
        check_room(len(self._groups), count, influence)
        self._sums = np.zeros((len(self._groups), count))
        self._scores = [
            (BlockScores if block.linear else AdjointScores)(block.holders, windows, self._sums, influence.tail)
            for block in self._blocks
        ]
        self._lines = {line: np.zeros(count) for line in LINES}
        self._parameters = {name for name, _ in model.named_parameters()}
        self._explained = _explained(view, self._blocks)
        self._others = self._others_at(0)
        """What is of no block, as of the step that was reached."""
        self._weights = self._tensors(self._others)
        """The state dict as of that step, as the model holds it."""
        self.steps = view.snapshot.steps
        """To be taken."""

    @property
    def sums(self) -> Doubles:
        """float64[G, n]: so far."""
        return self._sums

    @property
    def held_bytes(self) -> int:
        """Of updates that slots are still followed through."""
        return sum(scores.nbytes for scores in self._scores)

    def attached(self) -> AbstractContextManager[None]:
        """Steps are taken within it."""
        return self._passes.attached()

    def losses(self) -> Doubles:
        """float64[n], as of the step that was reached."""
        return self._passes.losses(_copied(self._weights))

    def advance(self, step: int) -> None:
        """Take a step; called for each of them, in order."""
        self._check()
        moved = {id(b): update for b in self._blocks if (update := b.advance(step, self._check)) is not None}
        others, self._others = self._others, self._others_at(step + 1)
        apart = {
            name
            for name, own in self._others.items()
            if name not in self._explained and own is not others[name] and own.tobytes() != others[name].tobytes()
        }
        of_blocks = {block.block.name for block in self._blocks if id(block) in moved}
        before, self._weights = self._weights, {**self._weights, **self._tensors(apart | of_blocks)}
        self._update(moved, before, self._weights, apart & self._parameters & before.keys())

    def ledger(self) -> Ledger:
        """Of all steps, of which none was taken before."""
        with self.attached():
            initial = self.losses()
            for step in range(self.steps):
                self.advance(step)
            loss = self.losses()
            ended = self._view.snapshot.ended
            final = tensors(self._view.stored_weights("final"), self._model)
            unexplained = self._passes.losses(final) - loss if ended else None
        for block, scores in zip(self._blocks, self._scores, strict=True):
            entered = scores.finish()
            if not block.at_once:
                self._lines["truncated"] -= entered
        found = Ledger(
            name=self._influence.name,
            groups=self._groups,
            sums=self._sums.T,
            counts=self._counts,
            initial=initial,
            final=loss,
            lines=self._lines,
            residual=loss - initial - self._sums.sum(axis=0) - sum(self._lines.values()),
            by=tuple(self._influence.by),
            method=self._influence.method,
            unexplained=unexplained,
            statuses=self._statuses,
        )
        if found.remark:
            warnings.warn(f"{found.remark}.", RuntimeWarning, stacklevel=4)  # of `ledger`, which torch wraps
        return found

    def _update(
        self,
        moved: Mapping[int, BlockUpdate],
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        others: Set[str],
    ) -> None:
        """Enter one update, of which nothing may have moved; `others`: parameters of no block that did."""
        changed = {name for name, own in after.items() if own is not before[name]}
        trained = changed & self._parameters
        if trained:
            passes = list[tuple[float, Signals]]()
            ways = {name: after[name] - before[name] for name in others}
            for place, weight in self._influence.places:
                given = _between(before, after, trained, place)
                if ways:
                    self._lines["other parameters"] += weight * self._passes.along(_copied(given), ways)
                passes.append((weight, self._passes.signals(given)))
            self._enter(moved, passes)
        if changed != trained:
            of_buffers = {**before, **{name: after[name] for name in trained}}
            self._lines["buffers"] += self._passes.losses(_copied(after)) - self._passes.losses(_copied(of_buffers))

    def _enter(self, moved: Mapping[int, BlockUpdate], passes: Sequence[tuple[float, Signals]]) -> None:
        """Enter what recorded blocks did to the losses in one update; `passes`: at each place of its segment, with what
        the place weighs.
        """
        for block, scores in zip(self._blocks, self._scores, strict=True):
            if (update := moved.get(id(block))) is None:
                continue
            rows = [
                Row(layer, place, *_in_type(block.dtype, own, weight), own.examples)
                for weight, signals in passes
                for layer, place in block.holders
                if (own := signals.layers.get(layer.name)) is not None
            ]
            entered = scores.add(update, rows)
            if update.way is not None and update.of_slots is not None:
                brought = self._along(update.of_slots, rows)
                if update.way is not update.of_slots:
                    of_rounding = 0.0 if update.of_rounding is None else self._along(update.of_rounding, rows)
                    self._lines["rounding"] += of_rounding
                    self._lines["decay"] += self._along(update.way, rows) - brought - of_rounding
                if not block.at_once:
                    self._lines["truncated"] += brought - entered

    def _along(self, matrix: Doubles, rows: Sequence[Row]) -> Doubles:
        """float64[n]: the dot products of a matrix with the examples' gradients."""
        found = np.zeros(self._passes.count)
        for row in rows:
            own = sides(row.layer, row.place, row.keys, row.errors)
            found += by_example(along(matrix, own), row.examples, len(found))
        return found

    def _others_at(self, at_step: int) -> dict[str, NDArray[Any]]:
        """The state dict as of a step, in which recorded blocks are still to be put. Raises Inexact where some of it is
        known of the end of the training alone.
        """
        found = other_parameters_as_of(self._view, at_step)
        if lacking := sorted(found.as_at_the_end - self._explained):
            raise Inexact(
                f"{', '.join(lacking)} changed, but are outside the recorded layers and were not kept at each step.",
                hint="Record their layers, or fewer of the other layers.",
                field="influence",
            )
        return dict(found.arrays)

    def _tensors(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Of the state dict as of the step that was reached, as the model holds it."""
        arrays = {name: self._array(name) for name in names}
        aliases = {name: arrays[known] for name, known in self._view.snapshot.aliases.items() if known in arrays}
        return tensors({**arrays, **aliases}, self._model)

    def _array(self, name: str) -> NDArray[Any]:
        found = self._others[name]
        for block in self._blocks:
            if block.block.name != name:
                continue
            if block.weight.size == found.size:
                return block.weight.reshape(found.shape)
            found = found.astype(np.float64, copy=found is self._others[name])
            block.block.stored_block_of(found)[...] = block.weight
        return found


def _in_type(dtype: type[np.floating[Any]], signals: LayerSignals, weight: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Keys and weighted error signals."""
    errors = signals.errors.astype(dtype, copy=False)
    return signals.keys.astype(dtype, copy=False), errors if weight == 1.0 else weight * errors


def _between(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], moved: Set[str], place: float
) -> Mapping[str, Tensor]:
    """A state dict in which what moved is at a place of an update's segment: 0.0 for its begin, 1.0 for its end.

    A model may write to it: what moved is not needed as it was any more, and the rest is copied.
    """
    return {
        name: own.clone() if name not in moved else torch.lerp(own, after[name], place) if place else own
        for name, own in before.items()
    }


def _copied(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """A model may write to what it is given."""
    return {name: own.clone() for name, own in weights.items()}


def _explained(view: View, blocks: Sequence[FollowedBlock]) -> set[str]:
    """Names of what the blocks are all of, further names of it among them."""
    held: dict[str, list[Parameter]] = {}
    for one in blocks:
        held.setdefault(one.block.name, []).append(one.block)
    initial = view.stored_weights("initial")
    found = {name for name, own in held.items() if whole(own, initial[name].shape)}
    return found | {name for name, known in view.snapshot.aliases.items() if known in found}


def _followed_layers(view: View) -> dict[str, Layer]:
    """By name; what layers without values train is among the other parameters. Raises Inexact where there are none, or
    without their keys, and where samples were deleted.
    """
    layers = {layer.name: layer for layer in view.snapshot.layers.values() if layer.parameters and layer.values}
    without = [name for name, layer in layers.items() if not layer.keys]
    if without or not layers:
        which = f"{', '.join(map(repr, without))} have no keys on disk" if without else "no layer has values"
        raise Inexact(
            f"{which}: what slots did to a loss takes both.", hint="Record the training with both.", field="influence"
        )
    if view.snapshot.deleted:
        raise Inexact(
            "Samples were deleted, so their effect is known only for the end of the training.",
            hint="Record the training again without these samples.",
            field="influence",
        )
    return layers


def _holders(view: View, layers: Mapping[str, Layer]) -> list[list[tuple[Layer, Parameter, mask.Selection]]]:
    """By block, the layers that hold it."""
    found: dict[str, list[tuple[Layer, Parameter, mask.Selection]]] = {}
    for layer in layers.values():
        every = mask.selection(view, layer, None)
        for place in layer.parameters:
            found.setdefault(place.block_name, []).append((layer, place, every))
    return list(found.values())
