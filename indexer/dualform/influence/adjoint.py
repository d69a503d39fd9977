"""Adjoints and retrainings, and checkpoints of them.

What the losses of some queries change by each sample of a recorded training, through all updates that followed.

The training is run once more (rerun.py), and the derivative of each query's loss with respect to the
weights is carried back through it, from the last update to the first. At an update u it meets the gradient

    g_u(W, w)  =  ratio / batch * sum_i w_i grad l_i(W)

by the derivatives of <a, g_u> with respect to W and w, where a is what the loss changes by g_u: a product with the
Hessian, and the products of a with each row's own gradient. Maclaurin, Duvenaud and Adams, 2015; Engstrom et al., 2025.

Shapes: n queries, S samples, m rows of a batch.

A recorded training run again without some of its samples, as the judge of what an adjoint predicts.

Shapes: k sets of samples, n queries, S samples.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.answers.influence import Adjoint, Retrainings
from dualform.errors import BadInput, Inexact
from dualform.influence.rerun import (
    Batches,
    Gradient,
    Moved,
    Position,
    Progress,
    RecordedTraining,
    Update,
    pair,
    recorded_training,
)
from dualform.record.batches import random_states_as
from dualform.record.examples import Loss
from dualform.record.query_sets import Arguments, Inputs, device_of, output_in
from dualform.store.files.durable_files import checksum, remove, rename, write_new
from dualform.store.files.ram_budget import bytes_of, memory_bytes, readable
from dualform.store.maintenance.attributions import check_name

_SECONDS = 60.0
_SHARE = 20
"""Writing takes at most one part in so many of the time."""
_EQUAL = 1e-3
"""How far losses of the same computation may be apart, of their size: other threads round otherwise."""


class Checkpoint:
    def __init__(self, path: str | PathLike[str] | None, *question: bytes) -> None:
        """`path`: of the file, there or not; None keeps nothing. `question`: what the computation depends on.

        Raises BadInput where no file can be there, or it is of another question.
        """
        self.found: dict[str, Any] | None = None
        """What was saved last; None at the beginning."""
        self._question = checksum(b"".join(checksum(own).encode() for own in question)).encode()
        self._due = monotonic() + _SECONDS
        self._path = _checked(path)
        if self._path is None or not self._path.exists():
            return
        content = self._path.read_bytes()
        body = content[2 * len(self._question) :]
        if content[: 2 * len(self._question)] != self._head(body):
            raise self._other()
        self.found = torch.load(io.BytesIO(body), weights_only=True)

    def require_losses(self, losses: NDArray[np.float64]) -> None:
        """Raises BadInput where the file is of a computation that had other losses."""
        if self.found is not None and not np.allclose(self.found["losses"], losses, _EQUAL, 1e-9, equal_nan=True):
            raise self._other()

    @property
    def due(self) -> bool:
        """Whether it is time to save."""
        return self._path is not None and monotonic() >= self._due

    def save(self, losses: NDArray[np.float64], **found: Any) -> None:
        """Plain values and tensors, and the losses to compare later. Warns where it cannot be written."""
        if self._path is None:
            return
        began, file = monotonic(), io.BytesIO()
        torch.save({"losses": torch.from_numpy(losses), **found}, file)
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            write_new(part, [memoryview(self._head(file.getvalue())), file.getbuffer()], durable=True)
            rename(part, self._path)
        except OSError as error:
            warnings.warn(f"the checkpoint was not saved: {error}", RuntimeWarning, stacklevel=3)
            remove(part)
        self._due = monotonic() + max(_SECONDS, _SHARE * (monotonic() - began))

    def remove(self) -> None:
        """The computation is done."""
        if self._path is not None:
            remove(self._path)

    def _head(self, body: bytes) -> bytes:
        return self._question + checksum(body).encode()

    def _other(self) -> BadInput:
        return BadInput(
            f"{str(self._path)!r} is no checkpoint of this computation.",
            hint="Pass the same arguments as before, or another file.",
            field="checkpoint",
        )


def _checked(path: str | PathLike[str] | None) -> Path | None:
    """Raises BadInput where no file can be written."""
    if path is None:
        return None
    if not isinstance(path, str | PathLike) or not os.fspath(path):
        raise BadInput(f"checkpoint must name a file, not {path!r}.", field="checkpoint")
    found = Path(path).absolute()
    if found.is_dir() or not os.access(found.parent, os.W_OK):
        raise BadInput(
            f"The checkpoint {str(found)!r} cannot be written.",
            hint="Name a file in a folder that is there.",
            field="checkpoint",
        )
    return found


HELD = 6
"""Arrays of each parameter's size that a query takes on the way back."""


@torch.inference_mode(False)
def adjoint(
    path: str | PathLike[str],
    model: nn.Module,
    queries: tuple[Inputs, Any],
    loss: Loss,
    batches: Batches,
    train_loss: Loss | None = None,
    *,
    name: str | None = None,
    ram: int | str | None = None,
    checkpoint: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Adjoint:
    """How the loss of each query would change if each training sample were left out: float32[n, S].

    - `path`: a memory with keys, values and samples.
    - `model`: the recorded network, or one of the same architecture. It is left unchanged.
    - `queries`: inputs and targets of n examples.
    - `loss`: of outputs and targets, one number for each query; or one number for all of them, which makes them one
      query. A margin or a single output will do.
    - `batches`: called with a step and its samples, int64[m]; returns inputs and targets of the step, row by row.
    - `train_loss`: of outputs and targets, one number for each row. The loss that was trained is their mean, or any
      constant times it. By default `loss`.
    - `name`: keep the values in the memory, as rows of the table `adjoints` with this name, in place of those before.
    - `ram`: bytes for weights and derivatives, such as "2 GB"; None for a quarter of the machine's. With less, parts of
      the training run twice, and queries are carried back in several passes.
    - `checkpoint`: a file to save to every minute. If the process ends, the same call goes on from there. At the end
      the file is removed.
    - `progress`: called with what is being done, the updates done and their number.

    It is a derivative, taken at the training as it was: it tells the effect of a few samples better than that of many,
    and that of smooth networks better than that of others. The batch keeps its size in the mean.

    Raises the errors of `dualform.open`; Inexact for a training that cannot be run once more, or that the rerun does
    not reproduce, step by step; BadInput for arguments that do not fit.
    """
    check_name(name)
    training = recorded_training(path, model, batches, train_loss or loss)
    training.require_ended(name)
    asked, half = Queries(queries, loss, training), half_of(ram)
    saved = Checkpoint(checkpoint, b"adjoint", training.identity, asked.identity)
    positions = Positions(training, half, progress)
    losses = asked.losses_at(positions.last)
    values = torch.zeros(len(losses), len(training.seen), dtype=torch.float32, device=device_of(training.model))
    updates, done, state = len(training.updates), 0, dict[str, Moved]()
    size = queries_at_once(training, half)
    if saved.found is not None:
        saved.require_losses(losses)
        done, state = saved.found["done"], {key: Moved(*own) for key, own in saved.found["state"].items()}
        values.copy_(saved.found["values"])
        size = saved.found["size"]
    groups = [slice(start, start + size) for start in range(0, len(losses), size)]
    while done < updates * len(groups):
        group = groups[done // updates]
        if done % updates == 0:
            state = asked.slopes(positions.last, group)
        for number, position in positions.backwards(updates - done % updates):
            state = carried_back(training, position, training.updates[number], state, values[group])
            done += 1
            if progress is not None:
                progress("carrying back", done, updates * len(groups))
            if saved.due:
                plain = {key: (own.weight, dict(own.buffers)) for key, own in state.items()}
                saved.save(losses, done=done, values=values, state=plain, size=size)
    answer = Adjoint(values.cpu().numpy(), training.columns, training.seen, losses, training.drift)
    if name is not None:
        saved.save(losses, done=done, values=values, state={}, size=size)
        training.keep(name, {"adjoints": answer.to_arrow()}, asked.examples_at(positions.last))
    saved.remove()
    return answer


def half_of(ram: int | str | None) -> int:
    """Bytes, of which positions take as many as queries. Raises BadInput."""
    return (memory_bytes() // 4 if ram is None else bytes_of(ram, "ram")) // 2


def queries_at_once(training: RecordedTraining, most_bytes: int) -> int:
    """How many queries are carried back in one pass."""
    return max(1, most_bytes // (HELD * training.begin().nbytes))


def stride_within(training: RecordedTraining, most_bytes: int) -> int:
    """Before every which update the weights are kept: each, or one in the root of their number. Raises BadInput where
    RAM is too small for these.
    """
    count, bytes_of_one = len(training.updates), training.begin().nbytes
    if count * bytes_of_one <= most_bytes:
        return 1
    stride = math.isqrt(count) + 1
    if (needed := 2 * stride * bytes_of_one) > most_bytes:
        raise BadInput(
            f"The weights of {2 * stride} updates take {readable(needed)}; the limit is {readable(most_bytes)}.",
            hint=f"Pass ram={2 * needed} or more.",
            field="ram",
        )
    return stride


class Positions:
    """Where a training stood before each update; those that RAM has no room for are computed again."""

    def __init__(self, training: RecordedTraining, most_bytes: int, progress: Progress | None = None) -> None:
        """Raises BadInput where RAM is too small."""
        self._training, self._stride, count = training, stride_within(training, most_bytes), len(training.updates)
        self._kept = dict[int, Position]()
        for number, position in enumerate(training.checked()):
            self.last = position
            if number % self._stride == 0:
                self._kept[number] = position
            if progress is not None:
                progress("running the training again", number, count)

    def backwards(self, count: int) -> Iterator[tuple[int, Position]]:
        """Those before the first updates, so many of them; the last one first, with its number."""
        for start in reversed(range(0, count, self._stride)):
            found = [self._kept[start]]
            for update in self._training.updates[start : min(start + self._stride, count) - 1]:
                found.append(self._training.next(found[-1], update))
            yield from reversed(list(enumerate(found, start)))


class Queries:
    """Losses of n examples, or one of all of them."""

    def __init__(self, queries: tuple[Inputs, Any], loss: Loss, training: RecordedTraining) -> None:
        """Raises BadInput for queries that hold no examples."""
        self._training, self._loss, device = training, loss, device_of(training.model)
        inputs, targets = pair(queries, "queries")
        self._arguments, self._labels = (Arguments(own, 0, device) for own in (inputs, [targets]))
        self._count = self._arguments.examples
        if self._labels.examples != self._count:
            raise BadInput(
                f"queries has {self._count} inputs and {self._labels.examples} targets.",
                hint="Pass one target for each input.",
                field="queries",
            )

    @property
    def identity(self) -> bytes:
        """What tells these inputs and targets from others."""
        return self._arguments.identity + self._labels.identity

    def losses_at(self, position: Position) -> NDArray[np.float64]:
        """float64[n]."""
        with torch.no_grad():
            given = {name: own.weight for name, own in position.parameters.items()}
            found = self._losses(given)
            with random_states_as({}, self._training.model):
                torch.manual_seed(0)
                again = self._losses(given)
        if not torch.allclose(found, again, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise Inexact(
                "The queries' losses differ from pass to pass: the network draws random numbers in eval mode, too.",
                hint="Let dropout depend on self.training, as nn.Dropout does.",
                field="model",
            )
        return np.asarray(found.double().cpu().numpy())

    def examples_at(self, position: Position) -> list[str | None]:
        """Of each query the stored example that it is, as SET/EXAMPLE; None where it is none, or of all together."""
        returned = list[Tensor | None]()

        def taken(outputs: Any, _: Any) -> Tensor:
            returned.append(output_in(outputs))
            return torch.zeros(())

        given = {name: own.weight for name, own in position.parameters.items()}
        with torch.no_grad():
            self._training.passed(given, self._arguments, self._labels, taken, training=False)
            (outputs,), queries = returned, len(self._losses(given))
        if outputs is None or len(outputs) != queries:
            return [None] * queries
        return self._training.stored_examples(outputs.flatten(1).float().cpu().numpy())

    def slopes(self, position: Position, queries: slice) -> dict[str, Moved]:
        """What the losses of some queries change by each parameter: [n, …]."""
        given = self._training.given(position)
        losses = self._losses(given)[queries]
        ones = torch.eye(len(losses), dtype=losses.dtype, device=losses.device)
        found = products([losses], list(given.values()), [ones])
        none = {name: own.new_zeros(len(losses), *own.shape) for name, own in given.items()}
        return {name: Moved(none[name] if own is None else own, {}) for name, own in zip(given, found, strict=True)}

    def _losses(self, given: Mapping[str, Tensor]) -> Tensor:
        found = self._training.passed(given, self._arguments, self._labels, self._loss, training=False)
        if found.shape not in ((), (self._count,)):
            raise BadInput(
                f"loss must return one number for each of {self._count} queries, or one for all, not "
                f"{list(found.shape)}.",
                hint='For example lambda outputs, labels: cross_entropy(outputs, labels, reduction="none").',
                field="loss",
            )
        return found.reshape(-1)


def carried_back(
    training: RecordedTraining, position: Position, update: Update, state: dict[str, Moved], found: Tensor
) -> dict[str, Moved]:
    """What losses change by the parameters before an update, of what they change by those after it. Adds what they
    change by its samples to float32[n, S].
    """
    given = training.given(position)
    steps = [_Step(training, given, update, step) for step in training.steps_of(update)]
    gradient = Gradient.of({name: own.detach() for name, own in step.parts.items()} for step in steps)
    factor, before, by_gradient = training.factor(gradient), dict(state), dict[str, Tensor]()
    for name, part in gradient.parts.items():
        before[name], by_gradient[name] = training.rule.carry_back(
            position.parameters[name], factor * part, update.settings[name], state[name]
        )
    _through_clipping(training, gradient, factor, by_gradient)
    for step in steps:
        step.carry_back(by_gradient, before, found)
    return before


class _Step:
    """The gradient of a step's loss, as a function of the weights and of its samples' weights."""

    def __init__(self, training: RecordedTraining, given: Mapping[str, Tensor], update: Update, step: int) -> None:
        self._samples, self._given = training.samples_of(step), given
        kind = next(iter(given.values()))
        self._weights = torch.ones(len(self._samples), dtype=kind.dtype, device=kind.device, requires_grad=True)
        loss = training.loss(given, step, self._weights)
        chosen = [given[name] for name in update.settings]
        parts = torch.autograd.grad(loss, chosen, create_graph=True, allow_unused=True)
        self.parts = training.parts(update, step, parts)

    def carry_back(self, by_gradient: Mapping[str, Tensor], state: dict[str, Moved], found: Tensor) -> None:
        """Adds what the losses change by the gradient to what they change by the weights, and by the samples."""
        moving = {name: own for name, own in self.parts.items() if own.requires_grad}
        if not moving:
            return
        inputs = [*self._given.values(), self._weights]
        *by_weights, by_samples = products(list(moving.values()), inputs, [by_gradient[name] for name in moving])
        for name, own in zip(self._given, by_weights, strict=True):
            if own is not None:
                state[name] = Moved(state[name].weight + own, state[name].buffers)
        if by_samples is not None:
            found.index_add_(1, self._samples, -by_samples.to(found.dtype))


def _through_clipping(
    training: RecordedTraining, gradient: Gradient, factor: float, by_gradient: dict[str, Tensor]
) -> None:
    """From what the optimizer was given to the gradient itself: g factor, factor = limit / (||g|| + 1e-6)."""
    for name in by_gradient:
        by_gradient[name] = factor * by_gradient[name]
    if training.limit is None or factor == 1.0:
        return
    along = torch.stack([own.flatten(1) @ gradient.parts[name].flatten() for name, own in by_gradient.items()]).sum(0)
    along = along / (gradient.norm * (gradient.norm + 1e-6))
    for name, own in by_gradient.items():
        by_gradient[name] = own - along.reshape(-1, *[1] * (own.dim() - 1)) * gradient.parts[name]


def products(outputs: list[Tensor], inputs: list[Tensor], along: list[Tensor]) -> list[Tensor | None]:
    """For each of n cotangents `along` [n, …] of outputs, those of the inputs, [n, …]; None where there are none."""
    try:
        return list(torch.autograd.grad(outputs, inputs, along, True, allow_unused=True, is_grads_batched=True))
    except RuntimeError:  # some operations have no batched derivative, as group normalization
        each = [
            torch.autograd.grad(outputs, inputs, [own[query] for own in along], True, allow_unused=True)
            for query in range(len(along[0]))
        ]
        return [None if parts[0] is None else torch.stack(parts) for parts in zip(*each, strict=True)]


@torch.inference_mode(False)
def retrain(
    path: str | PathLike[str],
    model: nn.Module,
    queries: tuple[Inputs, Any],
    loss: Loss,
    batches: Batches,
    train_loss: Loss | None = None,
    *,
    without: Iterable[Any] | None = None,
    random: int = 25,
    share: float = 0.01,
    seed: int = 0,
    name: str | None = None,
    checkpoint: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Retrainings:
    """The losses of queries after the recorded training is run again without sets of samples.

    - `path`, `model`, `queries`, `loss`, `batches`, `train_loss`: as for `adjoint`.
    - `without`: sets of samples, by number, as bool[S] or by an SQL condition, each of which is left out of one
      training; None for `random` sets of a `share` of the samples, drawn with `seed`.
    - `name`: keep the losses in the memory, as rows of the table `retrainings` with this name, and the samples of each
      set as rows of `left_out`.
    - `checkpoint`, `progress`: as for `adjoint`; trainings in place of updates.

    A sample that is left out has weight 0 in the loss, and its batch keeps its size. Everything else is as it was
    recorded: first weights, batches, optimizer. One training a set, after one that is held against the record.

    Raises as `adjoint`, and BadInput for samples that the training does not have.
    """
    check_name(name)
    training = recorded_training(path, model, batches, train_loss or loss)
    training.require_ended(name)
    samples = training.samples
    if without is None:
        for said, number, fits in (
            ("share", share, isinstance(share, float) and 0 < share < 1 and round(share * len(samples))),
            ("random", random, isinstance(random, int) and random > 0),
            ("seed", seed, isinstance(seed, int) and seed >= 0),
        ):
            if not fits:
                hint = "For example random=25, share=0.01, seed=0: 25 sets of one sample in a hundred, one at least."
                raise BadInput(f"{said} cannot be {number!r}.", hint=hint, field=said)
        generator = np.random.default_rng(seed)
        size = round(share * len(samples))
        sets = np.zeros((random, len(samples)), dtype=bool)
        for own in sets:
            own[generator.choice(len(samples), size, replace=False)] = True
    else:
        if isinstance(without, str) or not isinstance(without, Iterable):
            raise BadInput("without must be a list of sets.", hint="For example without=[[3, 17]].", field="without")
        sets = np.array([training.marked(own) for own in without])
        if not len(sets):
            raise BadInput("without contains no set.", hint="For example without=[[3, 17]].", field="without")
    asked = Queries(queries, loss, training)
    saved = Checkpoint(checkpoint, b"retrain", training.identity, asked.identity, sets.tobytes())
    *_, last = training.checked()
    complete = asked.losses_at(last)
    saved.require_losses(complete)
    losses = [] if saved.found is None else list(saved.found["after"].numpy())
    for own in sets[len(losses) :]:
        weights = torch.from_numpy(~own).to(device_of(training.model), torch.get_default_dtype())
        losses.append(asked.losses_at(training.rerun(weights)))
        if progress is not None:
            progress("training again", len(losses), len(sets))
        if saved.due or (name is not None and len(losses) == len(sets)):
            saved.save(complete, after=torch.from_numpy(np.array(losses)))
    answer = Retrainings(sets, np.array(losses), complete, samples)
    if name is not None:
        numbers, places = np.nonzero(sets)
        members = {key: pa.array(training.columns[key][places]) for key in ("dataset", "sample")}
        left_out = pa.table({"set": pa.array(numbers), **members})
        training.keep(name, {"retrainings": answer.to_arrow(), "left_out": left_out}, asked.examples_at(last))
    saved.remove()
    return answer
