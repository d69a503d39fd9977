"""A recorded training, run once more as a function of how much each sample counts.

    g_u  =  ratio * the sum over an update's steps of  sum_i w_i grad l_i(W) / n
    W', buffers'  =  U(W, buffers, factor * g_u)

l_i is the loss of row i of a step's batch and w_i the weight of its sample, 1 in the training that was recorded; ratio
is what the recorded loss is of the mean of l, factor what happened between backward and the optimizer. Each step is
held against the record, row by row: keys and error signals. What is not shown to be that training is refused.

Shapes: D datapoints, S samples, n rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import nan
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from dualform.answers.adjoint import marked
from dualform.answers.table import Table
from dualform.errors import BadInput, Inexact, RecordingError
from dualform.influence.optimizer_steps import STEPS, Moved
from dualform.influence.slot_window import SlotWindow
from dualform.query.engine import CACHE_BYTES
from dualform.query.score import backends
from dualform.query.view import Check, View, never
from dualform.query.weights.coefficients import updates
from dualform.query.where import mask
from dualform.record.example_signals import Loss, signal_rows, tensors
from dualform.record.model_arguments import Arguments, Inputs, copied, device_of
from dualform.record.module_taps import taps_named
from dualform.record.open_models import recorded_parameters
from dualform.record.query_sets import evaluating, uncompiled
from dualform.record.signal_taker import SignalTaker
from dualform.record.taps import Tap
from dualform.record.wrappers import whole_model
from dualform.rules import Settings, Update as StoredUpdate
from dualform.store import attributions
from dualform.store.runs import opened
from dualform.store.samples import Samples, as_numpy

Batches: TypeAlias = Callable[[int, NDArray[np.int64]], tuple[Inputs, Any]]
"""Of a step's number and its samples, in the order of the batch's rows: inputs, as `Recorder.query_set` takes them, and
targets, for the loss."""

_KEYS, _ERRORS, _EQUAL = 1e-3, 1e-2, 1e-3
"""How far keys, error signals and factors that should be equal may be apart, of their size."""
_FURTHEST = 0.05
"""Of the distance that training moved the weights: how far the rerun may end from the recorded weights."""
_WHOLE = 10
"""Steps at which every layer is held against the record."""
_UNEXPLAINED = 1e-3
"""Of a gradient, what slots may leave unexplained."""


@dataclass(frozen=True)
class Update:
    first_step: int
    last_step: int
    factor: float
    settings: Mapping[str, Settings]
    """By the name of a parameter that it moved."""


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
    norm: float

    @classmethod
    def of(cls, steps: Iterable[Mapping[str, Tensor]]) -> Gradient:
        """The sum over steps."""
        total = dict[str, Tensor]()
        for parts in steps:
            for name, part in parts.items():
                total[name] = total[name] + part if name in total else part
        squares = sum(float(part.double().square().sum()) for part in total.values())
        return cls(total, squares**0.5)


class RecordedTraining:
    def __init__(self, view: View, model: nn.Module, batches: Batches, loss: Loss, check: Check) -> None:
        """Raises Inexact and BadInput for a training, or a model, that cannot be run once more."""
        self._view, self._batches, self._loss, self._check = view, batches, loss, check
        _require_whole(view)
        self.rule = STEPS[view.snapshot.manifest.optimizers[0].rule]
        self._model = model
        initial = view.stored_weights("initial")
        self._fixed = tensors(initial, self._model)
        columns = view.snapshot.space(next(iter(view.snapshot.spaces))).samples
        self._steps = np.asarray(columns.column("step"), dtype=np.int64)
        first, self._codes = _samples(columns)
        self._numbers = np.asarray(columns.column("sample"), dtype=np.int64)
        self.samples, self.seen = self._numbers[first], np.bincount(self._codes)
        """int64[S]: the number of each sample, and how many rows are of it."""
        self.columns = _columns(columns, first, self._codes)
        """[S] each: what is said of samples."""
        self.updates = _updates(view, self._trained(initial))
        self.limit = _clipping(self.updates)
        """The norm that gradients were clipped to; NaN until the first run tells, None where none was clipped."""
        self.drift = 0.0
        """How far the rerun ended from the recorded weights, of the distance that training moved them."""
        self._ratio = _Ratio()

    @property
    def weights(self) -> dict[str, Tensor]:
        """Of the state dict, before the first step."""
        return dict(self._fixed)

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

    def keep(self, table: str, name: str, rows: Table) -> None:
        """Keep rows of what was found in the memory. Raises BadInput for a name that is no plain word."""
        snapshot, found = self._view.snapshot, rows.to_arrow()
        attributions.keep(
            snapshot.path, table, name, found.append_column("steps", pa.array([snapshot.steps] * found.num_rows))
        )

    def begin(self) -> Position:
        """Before the first update."""
        held = self._view.snapshot.buffers()
        names = {name for update in self.updates for name in update.settings}
        buffers = {
            name: {kind: torch.from_numpy(np.array(own)) for kind, own in held.get(name, {}).items()} for name in names
        }
        return Position({name: Moved(own, buffers[name]) for name, own in self._fixed.items() if name in names})

    def checked(self) -> Iterator[Position]:
        """Before each update and after the last one, of the training as it was recorded, held against the record."""
        position, clipped = self.begin(), list[tuple[float, float]]()
        with _Record.attached(self._view, self._model) as record:
            for update in self.updates:
                yield position
                gradient = self.gradient(position, update, None, record)
                if update in (self.updates[0], self.updates[-1]):
                    self._require_apart(update.last_step)
                clipped.append((update.factor, gradient.norm))
                position = self.moved(position, update, gradient, update.factor)
        if self.limit is not None:
            self.limit = _limit(clipped)
        self._require_end(position)
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
        return self.moved(position, update, gradient, self.factor(update, gradient))

    def factor(self, update: Update, gradient: Gradient) -> float:
        """What the optimizer was given of a gradient."""
        if self.limit is None:
            return update.factor
        return min(1.0, self.limit / (gradient.norm + 1e-6))

    def moved(self, position: Position, update: Update, gradient: Gradient, factor: float) -> Position:
        """After an update. A parameter without a gradient stays as it is."""
        after = dict(position.parameters)
        with torch.no_grad():
            for name, part in gradient.parts.items():
                after[name] = self.rule.advance(after[name], factor * part, update.settings[name])
        return Position(after)

    def gradient(
        self, position: Position, update: Update, weights: Tensor | None, record: _Record | None = None
    ) -> Gradient:
        """With samples that weigh float[S]; held against a record."""
        return Gradient.of(self._parts(position, update, step, weights, record) for step in self.steps_of(update))

    def _parts(
        self, position: Position, update: Update, step: int, weights: Tensor | None, record: _Record | None
    ) -> dict[str, Tensor]:
        self._check()
        given = {name: own.weight.detach().requires_grad_() for name, own in position.parameters.items()}
        loss = self.loss(given, step, None if weights is None else weights[self.samples_of(step)])
        parts = torch.autograd.grad(loss, [given[name] for name in update.settings], allow_unused=True)
        if record is not None:
            self._ratio.check(step, len(self.samples_of(step)), record.ratio(step))
        ratio = self.ratio(step)
        return {name: ratio * own for name, own in zip(update.settings, parts, strict=True) if own is not None}

    def steps_of(self, update: Update) -> list[int]:
        """Whose gradients an update took; those without rows left out."""
        return [step for step in range(update.first_step, update.last_step + 1) if len(self.samples_of(step))]

    def samples_of(self, step: int) -> Tensor:
        """int64[n]: the number of each row's sample."""
        start, stop = np.searchsorted(self._steps, [step, step + 1])
        return torch.from_numpy(self._codes[start:stop])

    def ratio(self, step: int) -> float:
        """What the training's loss of a step is of the mean of its rows' losses."""
        return self._ratio.of(len(self.samples_of(step)))

    def loss(self, given: Mapping[str, Tensor], step: int, weights: Tensor | None) -> Tensor:
        """The mean of a step's losses at parameters, its rows weighed by float[n]."""
        losses = self._losses(given, step)
        if weights is None:
            return losses.mean()
        return (losses * weights)[weights != 0].sum() / len(losses)  # a sample left out may have no finite loss

    def _losses(self, given: Mapping[str, Tensor], step: int, most: int | None = None) -> Tensor:
        """float[n] of a step, or of its first rows alone."""
        numbers = self._numbers[slice(*np.searchsorted(self._steps, [step, step + 1]))]
        inputs, targets = self._batches(step, numbers.copy())
        arguments = Arguments(inputs, 0, device_of(self._model))
        if arguments.examples != len(numbers):
            raise BadInput(
                f"batches returned {arguments.examples} rows for step {step}, which has {len(numbers)}.",
                hint="Return one row for each of `samples`, in their order.",
                field="batches",
            )
        stop = arguments.examples if most is None else most
        places, named = arguments.part(0, stop)
        state = {**self._fixed, **given}
        # Other kernels of attention have no second derivative.
        with evaluating(self._model, training=True), uncompiled(), sdpa_kernel(SDPBackend.MATH):
            output = functional_call(self._model, state, tuple(copied(places)), copied(named))
            losses = self._loss(output, targets[:stop] if most is not None else targets)
        if not isinstance(losses, Tensor) or losses.shape != (stop,):
            said = f"{list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise BadInput(
                f"train_loss must return one number for each of {stop} rows, not {said}.",
                hint='For example lambda outputs, labels: cross_entropy(outputs, labels, reduction="none").',
                field="train_loss",
            )
        return losses

    def _require_apart(self, step: int) -> None:
        """Raises Inexact where a row's loss depends on the other rows of its batch, as with batch statistics."""
        rows = len(self.samples_of(step))
        if rows < 2:
            return
        with torch.no_grad():
            together, apart = (self._losses({}, step, most) for most in (None, rows // 2))
        together = together[: rows // 2]
        if not torch.allclose(together, apart, rtol=1e-3, atol=1e-5):
            raise Inexact(
                f"The losses of step {step} depend on the other rows of the batch, as with batch normalization.",
                hint="Use layer or group normalization: the samples of a batch must not see each other.",
                field="model",
            )

    def _require_end(self, position: Position) -> None:
        """Raises Inexact where the rerun did not end at the recorded weights."""
        snapshot = self._view.snapshot
        if not snapshot.ended:
            return
        final = tensors(self._view.stored_weights("final"), self._model)
        apart = moved = 0.0
        for name, own in position.parameters.items():
            apart += float((own.weight - final[name]).double().square().sum())
            moved += float((self._fixed[name] - final[name]).double().square().sum())
        self.drift = (apart / moved) ** 0.5 if moved else 0.0
        if not self.drift <= _FURTHEST:
            raise Inexact(
                f"The rerun ends {self.drift:.1%} of what training moved the weights away from the recorded weights.",
                hint="Record on the machine and with the number of threads that run it again.",
                field="path",
            )

    def _trained(self, initial: Mapping[str, NDArray[Any]]) -> set[str]:
        """Parameters that no slots explain and that training moved. Raises Inexact for buffers that it moved."""
        snapshot = self._view.snapshot
        recorded = {block.name for layer in snapshot.layers.values() for block in layer.parameters}
        recorded |= set(snapshot.aliases)
        final = self._view.stored_weights("final")
        moved = {name for name in final if name not in recorded and final[name].tobytes() != initial[name].tobytes()}
        parameters = {name for name, _ in self._model.named_parameters()}
        buffers = sorted(name for name in moved - parameters if final[name].dtype.kind == "f")
        if buffers:
            raise Inexact(
                f"Training changed {', '.join(buffers)}, as batch normalization does.",
                hint="Use layer or group normalization: the samples of a batch must not see each other.",
                field="model",
            )
        return moved & parameters


def recorded_training(path: str | PathLike[str], model: nn.Module, batches: Batches, loss: Loss) -> RecordedTraining:
    """That of a memory. Raises as RecordedTraining, the errors of `dualform.open`, and RecordingError where a recorder
    is open on the model.
    """
    if any(id(own) in recorded_parameters() for own in model.parameters()):
        raise RecordingError(
            "A recorder is open on this model, and would record the rerun.",
            hint="Leave `with recorder` first, or pass a copy of the model.",
        )
    view = View(opened(path), backends.choose("numpy"), CACHE_BYTES)
    return RecordedTraining(view, whole_model(model), batches, loss, never)


class _Ratio:
    """What the recorded loss of a step is of the mean of its rows' losses: one number, or one times the rows."""

    def __init__(self) -> None:
        self._of_mean: float | None = None
        self._of_sum: float | None = None

    def check(self, step: int, rows: int, found: float) -> None:
        """Raises Inexact where a step's ratio is another one than the steps' before."""
        if self._of_mean is None and self._of_sum is None:
            self._of_mean, self._of_sum = found, found / rows
            return
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

    def of(self, rows: int) -> float:
        if self._of_mean is not None:
            return self._of_mean
        return 1.0 if self._of_sum is None else self._of_sum * rows


class _Record:
    """Keys and error signals of the recorded layers, which each step of a rerun is held against."""

    def __init__(self, view: View, taps: Mapping[str, Tap], reader: ThreadPoolExecutor, taker: SignalTaker) -> None:
        self._taps, self._taker = taps, taker
        layers = {name: view.snapshot.layer(name) for name in taps}
        self._axes = {name: layer.batch_dim for name, layer in layers.items()}
        self._windows = {
            name: SlotWindow(view, layer, np.zeros(len(view.slot_steps(layer)), np.int64), reader)
            for name, layer in layers.items()
        }
        self._every = max(1, view.snapshot.steps // _WHOLE)
        self._last = view.snapshot.steps - 1
        self._smallest = min(layers, key=lambda name: layers[name].d_in + layers[name].d_out)

    @classmethod
    @contextmanager
    def attached(cls, view: View, model: nn.Module) -> Iterator[_Record]:
        """Raises Inexact for a memory that has no layer with keys and values, BadInput for another model."""
        whole = {layer.name for layer in view.snapshot.layers.values() if layer.keys and layer.values}
        if not whole:
            raise Inexact(
                "No layer has both keys and values, so a rerun cannot be held against the record.",
                hint="Record the training with keys and values.",
                field="path",
            )
        taps, taker = taps_named(model, whole), SignalTaker()
        if missing := sorted(whole - taps.keys()):
            raise BadInput(
                f"The model lacks {', '.join(missing)}, which the memory was recorded with.",
                hint="Pass the model that was recorded, with the same names of layers.",
                field="model",
            )
        with ThreadPoolExecutor(1, "dualform-adjoint") as reader:
            try:
                for tap in taps.values():
                    tap.attach(taker)
                yield cls(view, taps, reader, taker)
            finally:
                for tap in taps.values():
                    tap.detach()

    def ratio(self, step: int) -> float:
        """What the recorded error signals of a step are of those that came last. Raises Inexact where rows differ: of
        every layer at some steps, of the smallest one at each.
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
                    hint="batches must return the rows of each step as the training saw them, in their order, and the "
                    "network must not draw random numbers, as dropout does.",
                    field="batches",
                )
            pairs[name] = errors.astype(np.float64), recorded.errors
        self._taker.begin()
        size = sum(float((own * own).sum()) for own, _ in pairs.values())
        ratio = sum(float((own * its).sum()) for own, its in pairs.values()) / size if size else 1.0
        for name, (mine, its) in pairs.items():
            if _apart(ratio * mine, its) > _ERRORS:
                raise Inexact(
                    f"The rerun differs from the record at step {step}: layer {name!r} gets other error signals.",
                    hint="train_loss must return, for each row, its part of the loss that was trained, all of it.",
                    field="train_loss",
                )
        return ratio


def _apart(own: NDArray[Any], recorded: NDArray[Any]) -> float:
    """How far two arrays are apart, of the size of the second one."""
    size = float(np.linalg.norm(recorded))
    return float(np.linalg.norm(own - recorded)) / size if size else float(np.linalg.norm(own) > 0)


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
        "it was recorded by several ranks": len(snapshot.manifest.shards) > 1,
        "it was resumed": len(snapshot.runs) > 1,
        "samples were deleted": bool(snapshot.deleted),
        "slots were sampled to fit a budget": snapshot.manifest.sampling is not None,
        "it was repaired": bool(snapshot.manifest.repaired),
        "its slots do not explain its gradients": bool((np.nan_to_num(unexplained) > _UNEXPLAINED).any()),
        "it has no steps": not snapshot.steps,
    }
    for reason, holds in reasons.items():
        if holds:
            raise Inexact(f"This training cannot be run once more: {reason}.", field="path")


def _samples(columns: Samples) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """int64[S]: a datapoint of each sample, by dataset and number; and int64[D]: which sample each datapoint is of."""
    if columns.column("sample").null_count or columns.column("row").null_count:
        raise Inexact(
            "Some slots have no sample.",
            hint="Record with sample= in each step, as recorder.step(sample=index).",
            field="path",
        )
    encoded = columns.column("dataset").combine_chunks().dictionary_encode()
    order = np.argsort(np.argsort(encoded.dictionary.to_pylist()))
    datasets = np.append(order, -1)[np.asarray(encoded.indices.fill_null(-1), dtype=np.int64)]
    pairs = np.stack([datasets, np.asarray(columns.column("sample"), dtype=np.int64)])
    _, first, codes = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
    return first, codes.reshape(-1)


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
        if any(one.first_step != first.first_step or abs(one.factor / first.factor - 1) > _EQUAL for one in rest):
            raise Inexact(
                f"The update after step {last} scaled the gradients of parameters differently.",
                hint="An adjoint follows clip_grad_norm_ over all parameters, and no other change of gradients.",
                field="path",
            )
        settings = {name: one.settings for name, one in own.items()} | dict.fromkeys(others, first.settings)
        made.append(Update(first.first_step, last, first.factor, settings))
    return made


def _clipping(made: Sequence[Update]) -> float | None:
    """NaN where gradients were clipped by their norm, None where they were not."""
    factors = np.array([update.factor for update in made])
    return None if np.ptp(factors) <= _EQUAL * np.abs(factors).max() else nan


def _limit(clipped: Sequence[tuple[float, float]]) -> float:
    """The norm that gradients were clipped to, of factors and norms before it. Raises Inexact for any other change."""
    limits = [factor * (norm + 1e-6) for factor, norm in clipped if factor < 1 - _EQUAL]
    limit = float(np.median(limits)) if limits else nan
    fits = all(abs(own / limit - 1) <= 10 * _EQUAL for own in limits)
    whole = [(factor, norm) for factor, norm in clipped if factor >= 1 - _EQUAL]
    fits &= all(factor <= 1 + _EQUAL and norm <= limit * (1 + 10 * _EQUAL) for factor, norm in whole)
    if not fits:
        raise Inexact(
            "The training scaled gradients before updates otherwise than clip_grad_norm_ with one max_norm does.",
            hint="An adjoint follows clip_grad_norm_ over all parameters, and no other change of gradients.",
            field="path",
        )
    return limit
