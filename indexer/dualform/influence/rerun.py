"""A recorded training, run once more as a function of how much each sample counts.

Updates of SGD, Adam and AdamW as functions of tensors, and their adjoints (rules/sgd.py and rules/adam.py give the
equations).

An update takes a weight W, buffers and a gradient g to W' and new buffers. Its adjoint takes what a loss changes by W'
and the buffers behind it to what it changes by W, the buffers before and g. Shapes: n losses, a weight of any shape.

What a rerun of a recorded training is held against: keys and error signals row by row, the size of the loss, and
what happened to gradients on the way to the optimizer.

A recorded training, run once more as a function of how much each sample counts.

    g_u  =  ratio * the sum over an update's steps of  sum_i w_i grad l_i(W) / n
    W', buffers'  =  U(W, buffers, factor * g_u)

l_i is the loss of row i of a step's batch and w_i the weight of its sample, 1 in the training that was recorded; ratio
is what the recorded loss is of the mean of l, factor what happened between backward and the optimizer. Each step is
held against the record, row by row: keys and error signals. What is not shown to be that training is refused.

Shapes: D datapoints, S samples, n rows of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from dualform.answers.influence import marked
from dualform.errors import BadInput, Inexact
from dualform.influence.blocks import SlotWindow
from dualform.query.engine import CACHE_BYTES
from dualform.query.score import backends
from dualform.query.view import Check, View, never
from dualform.query.weights.coefficients import updates
from dualform.query.where import mask
from dualform.record.batches import random_states_as
from dualform.record.discovery.layers import taps_of_recorded
from dualform.record.examples import Loss, SignalTaker, all_trained, at_weights, signal_rows, tapped_with, tensors
from dualform.record.hooks import refuse_recorded
from dualform.record.query_sets import Arguments, Inputs, converted, copied, device_of, evaluating, uncompiled
from dualform.record.ranks import whole_model
from dualform.record.taps import Tap
from dualform.rules import Settings, Update as StoredUpdate
from dualform.store.maintenance import attributions
from dualform.store.reading.runs import opened
from dualform.store.reading.shard_tables import Samples, as_numpy

Buffers = Mapping[str, Tensor]
"""By the optimizer's own names; those that it does not have yet are missing."""


@dataclass(frozen=True, eq=False)
class Moved:
    """A parameter, or what losses change by it ([n, …])."""

    weight: Tensor
    buffers: Buffers


class OptimizerStep(Protocol):
    def advance(self, state: Moved, gradient: Tensor, settings: Settings) -> Moved:
        """By torch's own function, so that a rerun rounds as the training did."""
        ...

    def carry_back(self, state: Moved, gradient: Tensor, settings: Settings, after: Moved) -> tuple[Moved, Tensor]:
        """What n losses change by the state before an update, and by its gradient; `after`: by the state behind it."""
        ...


class SGDStep:
    def advance(self, state: Moved, gradient: Tensor, settings: Settings) -> Moved:
        weight, before = state.weight.clone(), state.buffers.get("momentum_buffer")
        buffers = [None if before is None else before.clone()]
        names = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
        given: dict[str, Any] = {name: settings[name] for name in names}
        sgd([weight], [gradient], buffers, foreach=False, **given)
        return Moved(weight, {} if buffers[0] is None else {"momentum_buffer": buffers[0]})

    def carry_back(self, state: Moved, gradient: Tensor, settings: Settings, after: Moved) -> tuple[Moved, Tensor]:
        momentum, of_step = settings["momentum"], -settings["lr"] * after.weight
        if not momentum:
            of_descent, buffers = of_step, after.buffers
        else:
            of_buffer = of_step * momentum if settings["nesterov"] else of_step
            if (later := after.buffers.get("momentum_buffer")) is not None:
                of_buffer = of_buffer + later
            fresh = "momentum_buffer" not in state.buffers
            of_descent = of_buffer if fresh else (1 - settings["dampening"]) * of_buffer
            of_descent = of_descent + of_step if settings["nesterov"] else of_descent
            buffers = {} if fresh else {"momentum_buffer": momentum * of_buffer}
        weight, of_gradient = _through_descent(after.weight, of_descent, settings, bool(settings["weight_decay"]))
        return Moved(weight, buffers), of_gradient


class AdamStep:
    """Without AMSGrad. The count of updates is a buffer too, and no loss changes by it."""

    def advance(self, state: Moved, gradient: Tensor, settings: Settings) -> Moved:
        weight, zero = state.weight.clone(), torch.zeros_like(gradient)
        average, square = (state.buffers.get(name, zero).clone() for name in ("exp_avg", "exp_avg_sq"))
        count = state.buffers.get("step", torch.zeros(())).clone()
        names = ("lr", "beta1", "beta2", "eps", "weight_decay", "maximize", "decoupled_weight_decay")
        given: dict[str, Any] = {name: settings[name] for name in names}
        adam([weight], [gradient], [average], [square], [], [count], foreach=False, amsgrad=False, **given)
        return Moved(weight, {"exp_avg": average, "exp_avg_sq": square, "step": count})

    def carry_back(self, state: Moved, gradient: Tensor, settings: Settings, after: Moved) -> tuple[Moved, Tensor]:
        coupled = bool(settings["weight_decay"]) and not settings["decoupled_weight_decay"]
        descent = _descent(state, gradient, settings, coupled)
        average, square, count = self._averages(state, descent, settings)
        slope, of_square = self._slopes(average, square, count, settings)
        by_average, by_square = slope * after.weight, of_square * after.weight
        if after.buffers:
            by_average, by_square = by_average + after.buffers["exp_avg"], by_square + after.buffers["exp_avg_sq"]
        of_descent = (1 - settings["beta1"]) * by_average
        of_descent += 2 * (1 - settings["beta2"]) * descent * by_square
        kept = self._kept(settings) * after.weight
        weight, of_gradient = _through_descent(kept, of_descent, settings, coupled)
        return Moved(
            weight, {"exp_avg": settings["beta1"] * by_average, "exp_avg_sq": settings["beta2"] * by_square}
        ), of_gradient

    def _averages(self, state: Moved, descent: Tensor, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
        zero = torch.zeros_like(descent)
        average, square = state.buffers.get("exp_avg", zero), state.buffers.get("exp_avg_sq", zero)
        average = average + (1 - settings["beta1"]) * (descent - average)
        square = settings["beta2"] * square + (1 - settings["beta2"]) * descent * descent
        return average, square, state.buffers.get("step", torch.zeros(())) + 1

    def _slopes(self, average: Tensor, square: Tensor, count: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
        """How the weight changes by both averages. Where the square is 0 it does not change by it: the gradient was
        always 0, and that of the root would be infinite.
        """
        first, second = (1 - settings[name] ** float(count) for name in ("beta1", "beta2"))
        root = (square / second).sqrt()
        divisor = root + settings["eps"]
        of_average = -settings["lr"] / first / divisor
        of_square = -of_average * average / divisor / (2 * second * root)
        return of_average, torch.where(square == 0, 0.0, of_square)

    def _kept(self, settings: Settings) -> float:
        return 1 - settings["lr"] * settings["weight_decay"] * bool(settings["decoupled_weight_decay"])


STEPS: Mapping[str, OptimizerStep] = {"sgd": SGDStep(), "adam": AdamStep(), "adamw": AdamStep()}
"""By the name of an update rule."""


def _descent(state: Moved, gradient: Tensor, settings: Settings, decays: bool = True) -> Tensor:
    descent = -gradient if settings["maximize"] else gradient
    return descent + settings["weight_decay"] * state.weight if decays and settings["weight_decay"] else descent


def _through_descent(weight: Tensor, of_descent: Tensor, settings: Settings, decays: bool) -> tuple[Tensor, Tensor]:
    """What losses change by the weight, directly and by its decay, and by the gradient."""
    if decays:
        weight = weight + settings["weight_decay"] * of_descent
    return weight, -of_descent if settings["maximize"] else of_descent


_KEYS, _ERRORS, _EQUAL = 1e-3, 1e-2, 1e-3
"""How far keys, error signals and ratios that should be equal may be apart, of their size."""
_MEASURED = 3e-5
"""How far the measured factor of a gradient that nothing scaled may be from 1."""
_TOLD = 0.05
"""By how much something must vary over the training to tell what does not vary with it."""
_SAME_INPUTS = "batches must return the rows of each step as the training saw them, in their order. "
_NO_RANDOM = "For a network with dropout, record with keep_random=True."
_RANDOM = (
    "Dropout is drawn from torch's default generators as they were at the beginning of the step, in training mode: "
    "what the step drew before the forward pass, batches must draw, too."
)
_ROUNDS = (
    " Since earlier steps were equal, it may also be that this machine rounds otherwise than the one that trained: "
    "around the kinks of ReLU that grows."
)
_WHOLE = 10
"""Steps at which every layer is held against the record."""


class Ratio:
    """What the recorded loss of a step is of the mean of its rows' losses: one number, or one times the rows."""

    def __init__(self) -> None:
        self._of_mean: float | None = None
        self._of_sum: float | None = None
        self._seen: tuple[float, float, int] | None = None
        """The ratio, the loss and the rows of the first step that told."""
        self._varied = False
        """Whether losses or rows differ between steps, so that a ratio that does not is a constant."""

    def check(self, step: int, rows: int, found: float, loss: float) -> None:
        """Raises Inexact where a step's ratio is another one than the steps' before."""
        if self._seen is None:
            self._of_mean, self._of_sum, self._seen = found, found / rows, (found, loss, rows)
            return
        self._varied |= abs(loss - self._seen[1]) > _TOLD * abs(self._seen[1])
        if self._of_mean is not None and abs(found / self._of_mean - 1) > _EQUAL:
            self._of_mean = None
        if self._of_sum is not None and abs(found / rows / self._of_sum - 1) > _EQUAL:
            self._of_sum = None
        if self._of_mean is None and self._of_sum is None:
            raise Inexact(
                f"The recorded loss of step {step} is {found:.4g} times the mean of train_loss, unlike earlier steps.",
                hint="train_loss must return, for each row, its part of the loss that was trained.",
                field="train_loss",
            )

    def require_told(self) -> None:
        """Raises Inexact where the loss could be any function of the mean: it was always about the same."""
        if self._seen is None or self._varied:
            return
        found, _, rows = self._seen
        plain = [1.0, float(rows), *(1 / own for own in range(2, 65)), *(rows / own for own in range(2, 65))]
        if min(abs(found / own - 1) for own in plain) > _EQUAL:
            raise Inexact(
                f"The recorded loss is {found:.4g} times the mean of train_loss, which hardly changed in training, so "
                "it is not known whether it is a constant times it.",
                hint="train_loss must return, for each row, its part of the loss that was trained.",
                field="train_loss",
            )

    def of(self, rows: int) -> float:
        if self._of_mean is not None:
            return _plain(self._of_mean)
        return 1.0 if self._of_sum is None else _plain(self._of_sum) * rows


def _plain(ratio: float) -> float:
    """A ratio that was measured as 1, or 1 / k, to rounding: a rerun with it has the training's own bits."""
    return next((own for own in (1.0, *(1 / k for k in range(2, 65))) if abs(ratio / own - 1) < _MEASURED), ratio)


class Record:
    """Keys and error signals of the recorded layers, which each step of a rerun is held against."""

    def __init__(
        self,
        view: View,
        taps: Mapping[str, Tap],
        parameters: Mapping[str, nn.Parameter],
        reader: ThreadPoolExecutor,
    ) -> None:
        self._taps, self._taker, self._parameters = taps, SignalTaker(), parameters
        layers = {name: view.snapshot.layer(name) for name in taps}
        self._axes = {name: layer.batch_dim for name, layer in layers.items()}
        self._windows = {
            name: SlotWindow(view, layer, np.zeros(len(view.slot_steps(layer)), np.int64), reader)
            for name, layer in layers.items()
        }
        self._every = max(1, view.snapshot.steps // _WHOLE)
        self._last = view.snapshot.steps - 1
        self._random = "random_states" in view.snapshot.manifest.tables()
        self._smallest = min(layers, key=lambda name: layers[name].d_in + layers[name].d_out)

    @classmethod
    @contextmanager
    def attached(cls, view: View, model: nn.Module) -> Iterator[Record]:
        """Raises Inexact for a memory that has no layer with keys and values, BadInput for another model."""
        whole = {layer.name: layer for layer in view.snapshot.layers.values() if layer.keys and layer.values}
        if not whole:
            raise Inexact(
                "No layer has both keys and values, so a rerun cannot be held against the record.",
                hint="Record the training with keys and values.",
                field="path",
            )
        taps = taps_of_recorded(model, whole.keys(), view.stored_weights("initial"))
        with ThreadPoolExecutor(1, "dualform-adjoint") as reader:
            yield cls(view, taps, dict(model.named_parameters()), reader)

    @contextmanager
    def taking(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Takes keys and error signals of the passes within, at weights."""
        self._taker.begin()
        with tapped_with(self._taps.values(), self._parameters, weights), all_trained(self._parameters.values()):
            try:
                for tap in self._taps.values():
                    tap.attach(self._taker)
                yield
            finally:
                for tap in self._taps.values():
                    tap.detach()

    def ratio(self, step: int) -> float | None:
        """What the recorded error signals of a step are of those that came last; None where all are 0.

        Raises Inexact where rows differ: of every layer at some steps, of the smallest one at each.
        """
        every = step % self._every == 0 or step == self._last
        pairs = dict[str, tuple[NDArray[Any], NDArray[Any]]]()
        for name, tap in self._taps.items():
            if not every and name != self._smallest:
                continue
            recorded = self._windows[name].between(step, step)
            calls = [signal_rows(tap, key, error, self._axes[name]) for key, error in self._taker.of(tap)]
            keys = np.concatenate([own for own, _ in calls] or [recorded.keys[:0]])
            errors = np.concatenate([own for _, own in calls] or [recorded.errors[:0]])
            if keys.shape != recorded.keys.shape or _apart(keys, recorded.keys) > _KEYS:
                raise Inexact(
                    f"The rerun differs from the record at step {step}: layer {name!r} gets other inputs.",
                    hint=_SAME_INPUTS + (_RANDOM if self._random else _NO_RANDOM) + (_ROUNDS if step else ""),
                    field="batches",
                )
            pairs[name] = errors.astype(np.float64), recorded.errors
        size = sum(float((own * own).sum()) for own, _ in pairs.values())
        ratio = sum(float((own * its).sum()) for own, its in pairs.values()) / size if size else 0.0
        for name, (mine, its) in pairs.items():
            if _apart(ratio * mine, its) > _ERRORS:
                raise Inexact(
                    f"The rerun differs from the record at step {step}: layer {name!r} gets other error signals.",
                    hint="train_loss must return, for each row, its part of the loss that was trained, all of it.",
                    field="train_loss",
                )
        return ratio if size else None


def _apart(own: NDArray[Any], recorded: NDArray[Any]) -> float:
    """How far two arrays are apart, of the size of the second one."""
    size = float(np.linalg.norm(recorded))
    return float(np.linalg.norm(own - recorded)) / size if size else float(np.linalg.norm(own) > 0)


def factor_of(update: Update, gradient: Gradient) -> float:
    """What happened to the gradient of an update on the way to the optimizer. Nothing can be told of parts that are 0.
    Raises Inexact where parameters differ.
    """
    told = [factor for name, factor in update.factors.items() if name in gradient.parts and gradient.parts[name].any()]
    if not told:
        return 1.0
    if max(told) - min(told) > _EQUAL * max(map(abs, told)):
        raise otherwise_scaled(
            f"The update after step {update.last_step} scaled the gradients of parameters differently."
        )
    found = float(np.median(told))
    return 1.0 if abs(found - 1) <= _MEASURED else found


def scaling_of(scaled: Sequence[tuple[float, float]]) -> tuple[float | None, float]:
    """The norm that gradients were clipped to, if any, or what all of them were multiplied by; from the factors of
    gradients and their norms. Raises Inexact for any other change, and where it cannot be told which it was.
    """
    factors, norms = np.array(scaled or [(1.0, 1.0)]).T
    if np.abs(factors - 1).max() <= _MEASURED:
        return None, 1.0
    if np.ptp(factors) <= _MEASURED * np.abs(factors).max():
        if np.ptp(norms) <= _TOLD * norms.max():
            raise otherwise_scaled(
                "All gradients were scaled alike, and have about the same norm: by clipping, or a constant."
            )
        return None, float(np.median(factors))
    clipped = factors < 1 - _MEASURED
    limits = factors[clipped] * (norms[clipped] + 1e-6)
    limit = float(np.median(limits)) if len(limits) else math.nan
    fits = len(limits) > 1 and np.abs(limits / limit - 1).max() <= 10 * _EQUAL
    fits = fits and bool((factors[~clipped] <= 1 + _MEASURED).all())
    if not (fits and bool((norms[~clipped] <= limit * (1 + 10 * _EQUAL)).all())):
        raise otherwise_scaled("The training scaled gradients otherwise than clip_grad_norm_ with one max_norm does.")
    return limit, 1.0


def otherwise_scaled(what: str) -> Inexact:
    hint = "An adjoint follows clip_grad_norm_ over all parameters, in two updates or more, and no other change."
    return Inexact(what, hint=hint, field="path")


Batches: TypeAlias = Callable[[int, NDArray[np.int64]], tuple[Inputs, Any]]
"""Of a step's number and its samples, in the order of the batch's rows: inputs, as `Recorder.query_set` takes them, and
targets, for the loss."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Of what is being done, how much of it is done, and how much there is."""

_FURTHEST, _FURTHEST_OF_ONE = 0.01, 0.05
"""How far the rerun may end from the recorded weights, of the distance that training moved them: of all parameters, and
of each that moved by more than a thousandth of that."""
_ALIKE = 1e-3
"""Of the largest output: how far those of one example are from the stored ones."""
_UNCHECKPOINTED = "Pass the network without activation checkpointing, if it has any."
_TRIED = 4
"""Random halves of a batch that are put in the place of the others."""
_CURVED = 0.05
"""How far a Hessian-vector product may be from the difference of two gradients, of its size."""
_UNEXPLAINED = 1e-3
"""Of a gradient, what slots may leave unexplained."""


@dataclass(frozen=True)
class Update:
    first_step: int
    last_step: int
    factors: Mapping[str, float]
    """By the name of a recorded parameter, what its gradient was multiplied by on the way to the optimizer."""
    settings: Mapping[str, Settings]
    """By the name of a parameter that it moved, recorded or not."""


@dataclass(frozen=True, eq=False)
class Position:
    """Where the training stands before an update."""

    parameters: dict[str, Moved]

    @property
    def nbytes(self) -> int:
        """With the buffers that it will have."""
        return sum(3 * own.weight.nbytes for own in self.parameters.values())


@dataclass(frozen=True, eq=False)
class Gradient:
    """That of an update, before what happened to it on the way to the optimizer."""

    parts: dict[str, Tensor]
    """By parameter; those that it does not reach are missing."""

    @cached_property
    def norm(self) -> float:
        """Over all parameters."""
        return float(
            sum(float(torch.linalg.vector_norm(own, dtype=torch.float64)) ** 2 for own in self.parts.values()) ** 0.5
        )

    @classmethod
    def of(cls, steps: Iterable[Mapping[str, Tensor]]) -> Gradient:
        """The sum over steps."""
        total = dict[str, Tensor]()
        for parts in steps:
            for name, part in parts.items():
                total[name] = total[name] + part if name in total else part
        return cls(total)


class RecordedTraining:
    def __init__(self, view: View, model: nn.Module, batches: Batches, loss: Loss, check: Check) -> None:
        """Raises Inexact and BadInput for a training, or a model, that cannot be run once more."""
        self._view, self._batches, self._loss, self._check = view, batches, loss, check
        _require_whole(view)
        self.rule = STEPS[view.snapshot.manifest.optimizers[0].rule]
        self.model, self._device = model, device_of(model)
        self._parameters: Mapping[str, nn.Parameter] = dict(model.named_parameters())
        initial = view.stored_weights("initial")
        self._fixed = tensors(initial, self.model)
        columns = view.snapshot.space(next(iter(view.snapshot.spaces))).samples
        self._steps = np.asarray(columns.column("step"), dtype=np.int64)
        if columns.column("sample").null_count or columns.column("row").null_count:
            raise Inexact(
                "Some slots have no sample.",
                hint="Record with sample= in each step, as recorder.step(sample=index).",
                field="path",
            )
        first, self._codes = columns.numbers()
        self._numbers = np.asarray(columns.column("sample"), dtype=np.int64)
        self.samples, self.seen = self._numbers[first], np.bincount(self._codes)
        """int64[S]: the number of each sample, and how many rows are of it."""
        self.columns = _columns(columns, first, self._codes)
        """[S] each: what is said of samples."""
        self.updates = _updates(view, self._trained(initial))
        self.limit: float | None = None
        """The norm that gradients were clipped to, once `checked` has run; None where they were not."""
        self._constant = 1.0
        """What every gradient was multiplied by, where none was clipped."""
        self.drift = 0.0
        """How far the rerun ended from the recorded weights, of the distance that training moved them."""
        self._ratio = Ratio()

    def marked(self, samples: Any) -> NDArray[np.bool_]:
        """bool[S]: samples by number, as bool[S], or by an SQL condition over their columns.

        Raises BadInput for samples that the training does not have, and BadMask.
        """
        if not isinstance(samples, str):
            return marked(self.columns, samples)
        space = self._view.snapshot.space(next(iter(self._view.snapshot.spaces)))
        expression = mask.checked_expression(space, [space], samples, self._view.datasets)
        if beyond := [name for name in expression.columns if name not in self.columns]:
            raise BadInput(
                f"{beyond[0]!r} is not the same for all rows of a sample.",
                hint=f"Columns of samples: {', '.join(self.columns)}.",
                field="without",
            )
        found = np.bincount(self._codes, mask.select_datapoints(space, expression), len(self.seen)) > 0
        if not found.any():
            raise BadInput(f"No sample matches {samples!r}.", field="without")
        return found

    @property
    def identity(self) -> bytes:
        """What tells this training from others."""
        snapshot = self._view.snapshot
        return repr((snapshot.steps, sorted(snapshot.final_digests.items()), self.samples.tolist())).encode()

    def stored_examples(self, outputs: NDArray[np.float32]) -> list[str | None]:
        """Of each of n queries, whose outputs float32[n, outputs] the trained network gives, the example of a query set
        that it gives the same ones, as SET/EXAMPLE. None where there is none, and of a single output, which others may
        have by chance.
        """
        found: list[str | None] = [None] * len(outputs)
        for name in self._view.snapshot.query_sets:
            query_set = self._view.snapshot.query_set(name)
            stored, width = query_set.outputs, outputs.shape[1]
            if stored is None or not query_set.examples or stored.size != query_set.examples * width or width < 2:
                continue
            stored = stored.reshape(-1, width)
            for place, own in enumerate(outputs):
                apart = np.abs(stored - own).max(axis=1)
                if apart.min() <= _ALIKE * np.abs(stored).max():
                    found[place] = found[place] or f"{name}/{apart.argmin()}"
        return found

    def keep(self, name: str, tables: Mapping[str, pa.Table], examples: Sequence[str | None]) -> None:
        """Keep rows of tables in the memory. Samples without a dataset have "" there, which joins find. `examples`: of
        each query, as `stored_examples` tells them.
        """
        snapshot, kept = self._view.snapshot, dict[str, pa.Table]()
        for table, rows in tables.items():
            own = rows.append_column("steps", pa.array([snapshot.steps] * rows.num_rows))
            if "query" in rows.column_names:
                named = pa.array(examples, pa.string()).take(rows["query"].combine_chunks())
                own = own.append_column("example", named)
            if "dataset" in rows.column_names:
                place, datasets = rows.column_names.index("dataset"), rows["dataset"].cast(pa.string())
                own = own.set_column(place, "dataset", datasets.fill_null(""))
            kept[table] = own
        attributions.keep(snapshot.path, name, kept)

    def require_ended(self, name: str | None) -> None:
        """Raises BadInput where rows are to be kept in a memory that a recorder still writes."""
        if name is not None and any(writer.going_on is not False for writer in self._view.snapshot.writers):
            raise BadInput(
                "Nothing can be kept in a memory that is still recorded.",
                hint="Leave out name=, or ask again when the recording has ended.",
                field="name",
            )

    def begin(self) -> Position:
        """Before the first update."""
        held = self._view.snapshot.buffers()
        names = {name for update in self.updates for name in update.settings}
        buffers = {
            name: {kind: torch.from_numpy(np.array(own)).to(self._device) for kind, own in held.get(name, {}).items()}
            for name in names
        }
        return Position({name: Moved(own, buffers[name]) for name, own in self._fixed.items() if name in names})

    def checked(self) -> Iterator[Position]:
        """Before each update and after the last one, of the training as it was recorded, held against the record.

        Raises Inexact where it is not that training, or its derivatives are not those of its gradients.
        """
        position, scaled, first = self.begin(), list[tuple[float, float]](), None
        with Record.attached(self._view, self.model) as record:
            for update in self.updates:
                yield position
                gradient = self.gradient(position, update, None, record)
                factor = factor_of(update, gradient)
                scaled += [(factor, gradient.norm)] * (gradient.norm > 0)
                if update in (self.updates[0], self.updates[-1]):
                    for step in self.steps_of(update):
                        self._require_apart(position, step)
                        self._require_curvature(position, step)
                first = first or gradient
                position = self.moved(position, update, gradient, factor)
        self._ratio.require_told()
        self.limit, self._constant = scaling_of(scaled)
        self._require_end(position)
        assert first is not None, "a training has an update"
        self._require_stateless(first)
        yield position

    def rerun(self, weights: Tensor | None) -> Position:
        """After the last update, with samples that weigh float[S]; after `checked`."""
        position = self.begin()
        for update in self.updates:
            position = self.next(position, update, weights)
        return position

    def next(self, position: Position, update: Update, weights: Tensor | None = None) -> Position:
        """After an update, with samples that weigh float[S]; after `checked`."""
        gradient = self.gradient(position, update, weights)
        return self.moved(position, update, gradient, self.factor(gradient))

    def factor(self, gradient: Gradient) -> float:
        """What the optimizer was given of a gradient."""
        return self._constant if self.limit is None else min(1.0, self.limit / (gradient.norm + 1e-6))

    def moved(self, position: Position, update: Update, gradient: Gradient, factor: float) -> Position:
        """After an update. A parameter without a gradient stays as it is."""
        after = dict(position.parameters)
        with torch.no_grad():
            for name, part in gradient.parts.items():
                after[name] = self.rule.advance(after[name], factor * part, update.settings[name])
        return Position(after)

    def gradient(
        self, position: Position, update: Update, weights: Tensor | None, record: Record | None = None
    ) -> Gradient:
        """With samples that weigh float[S]; held against a record."""
        return Gradient.of(self._parts(position, update, step, weights, record) for step in self.steps_of(update))

    def _parts(
        self, position: Position, update: Update, step: int, weights: Tensor | None, record: Record | None
    ) -> dict[str, Tensor]:
        self._check()
        given = self.given(position)
        weighed = None if weights is None else weights[self.samples_of(step)]

        def passed() -> tuple[Tensor, Sequence[Tensor | None]]:
            mean = self.loss(given, step, weighed)
            try:
                return mean, torch.autograd.grad(mean, [given[name] for name in update.settings], allow_unused=True)
            except RuntimeError as error:
                raise Inexact(
                    f"The network cannot be differentiated again: {str(error).splitlines()[0]}",
                    hint=_UNCHECKPOINTED,
                    field="model",
                ) from error

        if record is None:
            loss, parts = passed()
        else:
            with record.taking(given):  # the backward pass of some taps reads the model's weights, too
                loss, parts = at_weights(self.model, given, passed)
        if record is not None and (found := record.ratio(step)) is not None:
            self._ratio.check(step, self._rows(step), found, float(loss.detach()))
        return self.parts(update, step, parts)

    def given(self, position: Position) -> dict[str, Tensor]:
        """The parameters, as leaves of a graph."""
        return {name: own.weight.detach().clone().requires_grad_() for name, own in position.parameters.items()}

    def parts(self, update: Update, step: int, parts: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """The gradient of a step's loss from that of its mean, of the update's parameters. One that the optimizer was
        given, as the record tells, is 0 where the loss does not depend on it.
        """
        ratio, found = self.ratio(step), dict[str, Tensor]()
        for name, part in zip(update.settings, parts, strict=True):
            if part is not None:
                found[name] = ratio * part.to_dense()  # that of an embedding may be sparse
            elif name in update.factors:
                found[name] = torch.zeros_like(self._fixed[name])
        return found

    def steps_of(self, update: Update) -> list[int]:
        """Whose gradients an update took; those without rows left out."""
        return [step for step in range(update.first_step, update.last_step + 1) if self._rows(step)]

    def samples_of(self, step: int) -> Tensor:
        """int64[n]: the number of each row's sample."""
        return torch.from_numpy(self._codes[self._datapoints(step)]).to(self._device)

    def _datapoints(self, step: int) -> slice:
        return slice(*np.searchsorted(self._steps, [step, step + 1]).tolist())

    def _rows(self, step: int) -> int:
        """n."""
        own = self._datapoints(step)
        return int(own.stop - own.start)

    def ratio(self, step: int) -> float:
        """What the training's loss of a step is of the mean of its rows' losses."""
        return self._ratio.of(self._rows(step))

    def loss(self, given: Mapping[str, Tensor], step: int, weights: Tensor | None) -> Tensor:
        """The mean of a step's losses at parameters, its rows weighed by float[n]."""
        losses = self._losses(given, step)
        if weights is None:
            return losses.mean()
        return (losses * weights)[weights != 0].sum() / len(losses)  # a sample left out may have no finite loss

    def _losses(
        self,
        given: Mapping[str, Tensor],
        step: int,
        rows: Tensor | None = None,
        kind: torch.dtype | None = None,
    ) -> Tensor:
        """float[n] of a step, or with other rows of it in their places, int64[n]; in another type than the network's.
        Random numbers are drawn as they were then, if that is known.
        """
        numbers = self._numbers[self._datapoints(step)]
        with random_states_as(_random_states(self._view, step), self.model):
            inputs, targets = pair(self._batches(step, numbers.copy()), "batches")
            arguments, labels = (Arguments(own, 0, self._device) for own in (inputs, [targets]))
            if {arguments.examples, labels.examples} != {len(numbers)}:
                raise BadInput(
                    f"batches returned {arguments.examples} rows and {labels.examples} targets for step {step}, which "
                    f"has {len(numbers)} rows.",
                    hint="Return one row for each of `samples`, in their order.",
                    field="batches",
                )
            losses = self.passed(given, arguments, labels, self._loss, rows, training=True, kind=kind)
        if losses.shape != (len(numbers),):
            raise BadInput(
                f"train_loss must return one number for each of {len(numbers)} rows, not {list(losses.shape)}.",
                hint='For example lambda outputs, labels: cross_entropy(outputs, labels, reduction="none").',
                field="train_loss",
            )
        return losses

    def passed(
        self,
        given: Mapping[str, Tensor],
        arguments: Arguments,
        labels: Arguments,
        loss: Loss,
        rows: Tensor | None = None,
        *,
        training: bool,
        kind: torch.dtype | None = None,
    ) -> Tensor:
        """What a loss gives at parameters, with the buffers that the training began with; with other rows in their
        places, int64[n], and all in one type, if they are given. Raises BadInput for what is no tensor, and for what no
        gradient comes back from.
        """
        (places, named), ((targets,), _) = (
            own.part(0, own.examples) if rows is None else own.rows(rows) for own in (arguments, labels)
        )
        # A pass may write to buffers.
        state = {name: own.clone() for name, own in self.model.named_buffers()}
        state |= {name: own if name in self._parameters else own.clone() for name, own in self._fixed.items()}
        state |= given
        if kind is not None:
            places, named, targets, state = converted([places, named, targets, state], kind)
        # Other kernels of attention have no second derivative.
        with (
            random_states_as({}, self.model),
            evaluating(self.model, training),
            uncompiled(),
            sdpa_kernel(SDPBackend.MATH),
        ):
            output = functional_call(self.model, state, tuple(copied(places)), copied(named))
            found = loss(output, copied(targets))
        if not isinstance(found, Tensor):
            raise BadInput(f"A loss must return a tensor, not {type(found).__name__}.", field="loss")
        if torch.is_grad_enabled() and not found.requires_grad:
            raise BadInput(
                "A loss does not depend on any parameter of the model.",
                hint="Pass a loss of the model's output that torch can differentiate.",
                field="loss",
            )
        return found

    def _require_apart(self, position: Position, step: int) -> None:
        """Raises Inexact where a row's loss depends on the other rows of its batch, as with batch statistics."""
        given, rows = self.given(position), self._rows(step)
        generator = torch.Generator().manual_seed(step)
        with torch.no_grad():
            losses = self._losses(given, step)
            least = 1e-5 * min(1.0, float(losses.abs().max()))
            if not torch.allclose(losses, self._losses(given, step), 1e-3, least, equal_nan=True):
                raise Inexact(
                    f"Two passes of step {step} differ: the network or batches carry something from one pass to the "
                    "next, or draw random numbers that are not those of torch's default generators.",
                    hint="Record with keep_random=True, and draw with torch's default generators alone.",
                    field="model",
                )
            for _ in range(_TRIED if rows > 1 else 0):  # rows that stay see random others of them in the others' places
                order, taken = torch.randperm(rows, generator=generator), torch.arange(rows)
                stay, go = order[: rows // 2], order[rows // 2 :]
                taken[go] = stay[torch.randint(len(stay), (len(go),), generator=generator)]
                if not torch.allclose(losses[stay], self._losses(given, step, taken)[stay], 1e-3, least):
                    raise Inexact(
                        f"The losses of step {step} depend on the other rows of the batch, as with batch "
                        "normalization.",
                        hint="Use layer or group normalization: the samples of a batch must not see each other.",
                        field="model",
                    )

    def _require_curvature(self, position: Position, step: int) -> None:
        """Raises Inexact where second derivatives are not those of the gradient, as behind a detached number or a
        backward of one's own. In float64, if the network can, for a difference must not step over the kinks of ReLU.
        """
        own = next(iter(position.parameters.values())).weight.dtype
        for kind in dict.fromkeys((torch.float64, own)):
            try:
                apart = self._curvature_apart(position, step, kind)
                break
            except RuntimeError as error:
                if kind == own:
                    raise Inexact(
                        f"An operation of the network has no second derivative: {str(error).splitlines()[0]}",
                        field="model",
                    ) from error
        if apart > _CURVED:
            raise Inexact(
                f"Second derivatives at step {step} are not those of the gradient.",
                hint="A detached number, a function with a backward of its own, weight normalization and an embedding "
                f"with max_norm have no true second derivative. {_UNCHECKPOINTED}",
                field="model",
            )

    def _curvature_apart(self, position: Position, step: int, kind: torch.dtype) -> float:
        """How far a Hessian-vector product is from the difference of two gradients, of its size, beyond rounding."""
        weights = {name: own.weight.to(kind) for name, own in position.parameters.items()}
        flat = torch.cat([own.flatten() for own in weights.values()])
        way = torch.randn(len(flat), generator=torch.Generator().manual_seed(step)).to(flat)
        along = torch.finfo(kind).eps ** 0.5 * float(flat.norm() / way.norm()) or torch.finfo(kind).eps ** 0.5

        def at(numbers: Tensor) -> dict[str, Tensor]:
            parts = torch.split(numbers, [own.numel() for own in weights.values()])
            named = zip(weights.items(), parts, strict=True)
            return {name: part.reshape(own.shape).clone().requires_grad_() for (name, own), part in named}

        def gradient(places: Mapping[str, Tensor], of: Tensor, graph: bool) -> Tensor:
            found = torch.autograd.grad(of, list(places.values()), create_graph=graph, allow_unused=True)
            pairs = zip(found, places.values(), strict=True)
            return torch.cat(
                [(torch.zeros_like(own) if part is None else part.to_dense()).flatten() for part, own in pairs]
            )

        ends = [at(flat + sign * along * way) for sign in (-1, 1)]
        low, high = (gradient(places, self._losses(places, step, kind=kind).mean(), False) for places in ends)
        given = at(flat)
        here = gradient(given, self._losses(given, step, kind=kind).mean(), True)
        made = gradient(given, here @ way, False) if here.requires_grad else torch.zeros_like(flat)
        expected = (high - low) / (2 * along)
        rounding = 10 * torch.finfo(kind).eps * float(here.detach().norm()) / along
        apart = max(0.0, float((made - expected).norm()) - rounding)
        return apart / float(expected.norm()) if apart else 0.0

    def _require_stateless(self, first: Gradient) -> None:
        """Raises Inexact where a pass leaves something behind that the next one finds."""
        again = self.gradient(self.begin(), self.updates[0], None)
        for name, part in first.parts.items():
            if not torch.allclose(again.parts[name], part, rtol=1e-4, atol=1e-4 * float(part.abs().max())):
                raise Inexact(
                    "The network carries something from one pass to the next, as a state or a count.",
                    hint="Pass a network whose output depends on its weights and its inputs alone.",
                    field="model",
                )

    def _require_end(self, position: Position) -> None:
        """Raises Inexact where the rerun did not end at the recorded weights."""
        snapshot = self._view.snapshot
        if not snapshot.ended:
            return
        final = tensors(self._view.stored_weights("final"), self.model)
        apart = {name: float((own.weight - final[name]).norm()) for name, own in position.parameters.items()}
        moved = {name: float((self._fixed[name] - final[name]).norm()) for name in apart}
        whole = sum(own**2 for own in moved.values()) ** 0.5
        self.drift = sum(own**2 for own in apart.values()) ** 0.5 / whole if whole else 0.0
        far = [
            name for name, own in apart.items() if moved[name] > 1e-3 * whole and own > _FURTHEST_OF_ONE * moved[name]
        ]
        if far or not self.drift <= _FURTHEST:
            raise Inexact(
                f"The rerun ends {self.drift:.1%} of what training moved the weights away from the recorded weights"
                f"{', furthest in ' + far[0] if far else ''}.",
                hint="Something moved them that the record does not have, or another machine rounds otherwise.",
                field="path",
            )

    def _trained(self, initial: Mapping[str, NDArray[Any]]) -> set[str]:
        """Parameters that no slots explain and that training moved. Raises Inexact for buffers that it moved."""
        snapshot = self._view.snapshot
        recorded = {block.name for layer in snapshot.layers.values() for block in layer.parameters}
        recorded |= set(snapshot.aliases)
        final = self._view.stored_weights("final")
        moved = {name for name in final if name not in recorded and final[name].tobytes() != initial[name].tobytes()}
        buffers = sorted(moved - self._parameters.keys())
        if buffers:
            raise Inexact(
                f"Training changed {', '.join(buffers)}, as batch normalization does.",
                hint="Use layer or group normalization: the samples of a batch must not see each other.",
                field="model",
            )
        return moved & self._parameters.keys()


def recorded_training(path: str | PathLike[str], model: nn.Module, batches: Batches, loss: Loss) -> RecordedTraining:
    """That of a memory. Raises as RecordedTraining, the errors of `dualform.open`, and RecordingError where a recorder
    is open on the model.
    """
    if not isinstance(model, nn.Module):
        raise BadInput(f"model must be a torch.nn.Module, not {type(model).__name__}.", field="model")
    refuse_recorded(model.parameters(), "the rerun")
    for name, own in (("batches", batches), ("loss", loss)):
        if not callable(own):
            raise BadInput(f"{name} must be a function, not {type(own).__name__}.", field=name)
    if not isinstance(path, str | PathLike):
        raise BadInput(f"path must name the folder of one memory, not {type(path).__name__}.", field="path")
    view = View(opened(path), backends.choose("numpy"), CACHE_BYTES)
    return RecordedTraining(view, whole_model(model), batches, loss, never)


def pair(given: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise BadInput(f"{what} must be inputs and targets, not {type(given).__name__}.", field=what)
    return given[0], given[1]


def _require_whole(view: View) -> None:
    """Raises Inexact for a record that lacks part of the training, or whose gradients slots do not explain."""
    snapshot = view.snapshot
    optimizer, *others = snapshot.manifest.optimizers
    unexplained = snapshot.table("factors")["residual"].to_numpy()
    groups = snapshot.table("parameter_groups")
    largest = "amsgrad" in groups.column_names and any(groups["amsgrad"].to_pylist())
    reasons = {
        "several optimizers trained it": bool(others),
        f"its optimizer is {optimizer.name}, and not SGD, Adam or AdamW": optimizer.rule not in STEPS,
        "its optimizer is Adam with amsgrad": largest,
        "it was resumed": len(snapshot.runs) > 1,
        "it was recorded by several ranks": len(snapshot.manifest.shards) > 1,
        "samples were deleted": bool(snapshot.deleted),
        "slots were sampled to fit a budget": snapshot.manifest.sampling is not None,
        "it was repaired": bool(snapshot.manifest.repaired),
        "its slots do not explain its gradients": bool((np.nan_to_num(unexplained) > _UNEXPLAINED).any()),
        "it has no steps": not snapshot.steps,
    }
    for reason, holds in reasons.items():
        if holds:
            raise Inexact(f"This training cannot be run once more: {reason}.", field="path")


def _random_states(view: View, step: int) -> dict[str, bytes]:
    """Of the generators at the beginning of a step, by device; empty where they were not stored."""
    if "random_states" not in view.snapshot.manifest.tables():
        return {}
    table = view.snapshot.table("random_states")
    own = table.filter(pc.equal(table["step"], step))
    return dict(zip(own["device"].to_pylist(), own["state"].to_pylist(), strict=True))


def _columns(columns: Samples, first: NDArray[np.int64], codes: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """[S] each, of the columns that are the same for all rows of a sample."""
    found = {}
    for name in columns.types:
        if name in ("datapoint", "step", "row"):
            continue
        values = as_numpy(columns.column(name))
        own = np.ma.filled(values, None) if values.dtype == object else values
        pairs = zip(own[first][codes].tolist(), own.tolist(), strict=True)
        if name in ("dataset", "sample") or all(one == other for one, other in pairs):
            found[name] = own[first]
    return found


def _updates(view: View, others: set[str]) -> list[Update]:
    """Raises Inexact where parameters that no slot explains may have had settings that are not known."""
    snapshot = view.snapshot
    blocks = {block.block_name: block for layer in snapshot.layers.values() for block in layer.parameters}
    found = dict[int, dict[str, StoredUpdate]]()
    for name, block in blocks.items():
        for update in updates(snapshot, name, snapshot.steps):
            found.setdefault(update.last_step, {})[block.name] = update
    groups = snapshot.table("parameter_groups")
    several = groups.num_rows > len(set(groups["step"].to_pylist()))
    if others and several:
        raise Inexact(
            f"{', '.join(sorted(others))} moved outside the recorded layers, and the optimizer has several parameter "
            "groups, so their settings are not known.",
            hint="Record all trained layers, or train with one parameter group.",
            field="path",
        )
    made = []
    for last, own in sorted(found.items()):
        first, *rest = own.values()
        if any(one.first_step != first.first_step for one in rest):
            raise otherwise_scaled(
                f"The update after step {last} took gradients of several steps for some parameters alone."
            )
        settings = {name: one.settings for name, one in own.items()} | dict.fromkeys(others, first.settings)
        made.append(Update(first.first_step, last, {name: one.factor for name, one in own.items()}, settings))
    if not made:
        raise Inexact("This training cannot be run once more: no update was recorded.", field="path")
    return made
