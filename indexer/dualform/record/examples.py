"""Error signals and gradients of single examples.

The error signals of single examples at weights that are given: one forward and backward pass of a network.

Nothing of the network changes: its weights stand in for the length of the pass, no gradient is accumulated, and random
states are as before.

Shapes: n examples, r rows of a layer's calls, d_in and d_out of the layer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, jvp

from dualform.errors import BadInput, RecordingError
from dualform.questions.gradients import ExampleGradients, LayerGradients
from dualform.record.lineage import Known, KnownRows
from dualform.record.query_sets import Arguments, Inputs, copied, device_of, evaluating, uncompiled
from dualform.record.taps import Tap
from dualform.record.taps.tap import is_transformed
from dualform.rules.update_rule import Doubles


class SignalTaker:
    """Whom taps report to while a pass runs (record/taps/tap.py, Listener)."""

    followed: KnownRows | None = None

    def __init__(self) -> None:
        self.began = torch.zeros((), dtype=torch.int64, device="cpu")
        self._calls = 0
        self._found: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}

    def begin(self) -> None:
        self._found = {}

    def of(self, tap: Tap) -> list[tuple[Tensor, Tensor]]:
        """Keys and error signals, call by call."""
        return [own for _, own in sorted(self._found.get(tap.name, {}).items())]

    def forward_mode(self) -> str | None:
        return "step" if torch.is_grad_enabled() and not is_transformed() else None

    def called(self, tap: Tap, raw: bool, rows: Known | None = None) -> int:
        self._calls += 1
        return self._calls - 1

    def arrived(self, tap: Tap, raw: bool, began: int) -> int:
        raise RecordingError(
            f"layer {tap.name!r} ran in compiled code, where its calls cannot be told apart.",
            hint="Pass a model that was not compiled.",
        )

    def called_without_gradient(self, tap: Tap, why: str) -> None:
        """No error signal, and nothing that its slots brought."""

    def unseen(self, tap: Tap) -> None:
        raise RecordingError(
            f"layer {tap.name!r} ran under a transform of torch.func, which hides single examples.",
            hint="Call the model outside of torch.func.",
        )

    def refused(self, tap: Tap, error: RecordingError) -> None:
        raise error

    def failed(self, error: Exception, layer: str = "") -> None:
        raise error

    def probed(self, tap: Tap, key: Tensor, rows: Known | None = None) -> None:
        """No query set is taken."""

    def received(self, tap: Tap, call: int, key: Tensor, error: Tensor, cast: int | None) -> None:
        self._found.setdefault(tap.name, {})[call] = (key, error)


Loss: TypeAlias = Callable[[Any, Any], Tensor]
"""Of what the model returns and the labels: a loss for each example, as `cross_entropy(…, reduction="none")`."""


Found = TypeVar("Found")


class SharedRows(BadInput):
    """Rows of a layer that are of several examples together."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Whose losses are differentiated."""

    what: str
    """As refusals call them: "influence 'test'"."""
    inputs: Inputs
    """Of n examples, as `Recorder.query_set` takes them."""
    labels: Any
    """What `loss` is given beside the model's output: a tensor or array whose first axis is the examples."""
    loss: Loss
    batch_dim: int = 0
    """The axis of examples in `inputs`."""


@dataclass(frozen=True, eq=False)
class LayerSignals:
    """What a layer took and what came back to it, of all of its calls."""

    keys: NDArray[Any]
    """[r, d_in], in the type that the network computes in."""
    errors: NDArray[Any]
    """[r, d_out]: the gradient of each example's own loss with respect to the layer's output."""
    examples: NDArray[np.int64]
    """int64[r]."""


@dataclass(frozen=True, eq=False)
class Signals:
    losses: Doubles
    """float64[n]."""
    layers: Mapping[str, LayerSignals]


class SignalPasses:
    """Passes of some examples through a network, whose layers are tapped from `attached` on."""

    def __init__(
        self,
        model: nn.Module,
        taps: Sequence[Tap],
        batch_dims: Mapping[str, int],
        examples: Examples,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        """`batch_dims`: by layer, which axis of its keys is the batch. Of the examples those from start to stop.

        Raises BadInput for inputs that hold no examples, or another number of them than labels.
        """
        self._model, self._taps, self._batch_dims, self._examples = model, taps, batch_dims, examples
        device = device_of(model)
        given = Arguments(examples.inputs, examples.batch_dim, device)
        self.available = given.examples
        """How many there are."""
        stop = given.examples if stop is None else min(stop, given.examples)
        self.count = stop - start
        """n."""
        self._places, self._named = given.part(start, stop)
        self._labels = self._checked_labels(device)[start:stop]
        self._parameters = dict(model.named_parameters())
        self._spared = _spared(self._parameters, taps)
        self._taker: SignalTaker | None = None
        self._passes = 0
        """Forward and backward ones so far."""

    def _checked_labels(self, device: torch.device | None) -> Tensor:
        given, what = self._examples.labels, self._examples.what
        try:
            labels = given if isinstance(given, Tensor) else torch.as_tensor(given, device=device)
        except (TypeError, ValueError, RuntimeError):
            raise BadInput(
                f"The labels of {what} cannot be made a tensor: {type(given).__name__}.",
                hint="Pass a tensor or an array whose first axis is the examples.",
                field="labels",
            ) from None
        found = len(labels) if labels.dim() else 0
        if found != self.available:
            raise BadInput(
                f"{what} has {self.available} examples but {found} labels.",
                hint="Pass one label for each example.",
                field="labels",
            )
        # What was made in inference mode takes no part in a backward pass.
        labels = labels.clone() if labels.is_inference() else labels
        return labels if device is None else labels.to(device)

    @contextmanager
    def attached(self) -> Iterator[None]:
        self._taker = SignalTaker()
        try:
            for tap in self._taps:
                tap.attach(self._taker)
            yield
        finally:
            for tap in self._taps:
                tap.detach()
            self._taker = None

    def signals(self, weights: Mapping[str, Tensor] | None = None) -> Signals:
        """At `weights`, by their names in the state dict, which the model may write to; at its own where there are
        none. Raises BadInput for a loss that is not one finite number an example.
        """
        taker = self._taker
        assert taker is not None
        parameters, given = self._parameters, None
        if weights is not None:
            given = {name: tensor.detach() for name, tensor in weights.items()}
            for name in parameters.keys() & given.keys() - self._spared:
                given[name].requires_grad_(given[name].is_floating_point())

        def send_back(losses: Tensor, factors: Tensor, again: bool) -> None:
            """`again`: whether it is done once more."""
            if given is not None:  # checkpointing of the older kind does without grad()
                torch.autograd.backward(losses, factors, retain_graph=again)
            else:  # nothing is added to gradients that the model has
                wanted = [own for own in parameters.values() if own.requires_grad]
                torch.autograd.grad(losses, wanted, factors, again, allow_unused=True)

        def passed() -> Signals:
            taker.begin()
            losses = self._losses()
            if not losses.requires_grad:
                raise BadInput(
                    f"The loss of {self._examples.what} does not depend on any parameter of the model.",
                    hint="Pass a loss of the model's output that torch can differentiate.",
                    field="loss",
                )
            # What is zero at first tells nothing: it is looked at again in passes 2, 4, 8, and so on.
            self._passes += 1
            told = self._passes & (self._passes - 1) != 0
            send_back(losses, torch.ones_like(losses), not told)
            found = self._collected(taker)
            if not told:
                taker.begin()
                exponents = np.random.default_rng(self._passes).integers(-8, 9, self.count)
                factors = torch.from_numpy(2.0**exponents).to(losses)
                send_back(losses, factors, False)
                _check_apart(found, self._collected(taker), factors.double().cpu().numpy())
            return Signals(losses.detach().double().cpu().numpy(), found)

        # A model that is frozen by now has gradients all the same.
        with (
            self._undisturbed(),
            tapped_with(self._taps, parameters, given),
            all_trained(parameters.values()),
            torch.enable_grad(),
        ):
            return self._at(given, passed)

    def losses(self, weights: Mapping[str, Tensor]) -> Doubles:
        """float64[n] at `weights`, which the model may write to."""
        with self._undisturbed(), torch.no_grad():
            return self._at(weights, self._losses).double().cpu().numpy()

    def along(self, weights: Mapping[str, Tensor], direction: Mapping[str, Tensor]) -> Doubles:
        """float64[n]: how each loss changes along a direction of some weights, by forward differentiation.

        Raises BadInput where an operation of the network has none.
        """
        fixed = {name: tensor.detach() for name, tensor in weights.items()}
        moved = {name: fixed[name] for name in direction}

        def run(chosen: Mapping[str, Tensor]) -> Tensor:
            return self._at({**fixed, **chosen}, self._losses)

        try:
            with self._undisturbed(), warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of how it writes derivatives
                slope = jvp(run, (moved,), (dict(direction),))[1]
        except (RuntimeError, NotImplementedError) as error:
            raise BadInput(
                f"the effect of {', '.join(sorted(direction))} cannot be computed: {str(error).splitlines()[0]}",
                hint="Use only operations with a forward-mode derivative in the model.",
                field="model",
            ) from None
        found: Doubles = slope.detach().double().cpu().numpy()
        return found

    def _at(self, weights: Mapping[str, Tensor] | None, run: Callable[[], Found]) -> Found:
        """What `run` finds while some weights stand in for the model's: all of it, for a backward pass may run parts of
        the model again, as checkpointing does, and a loss may read weights of it.
        """
        return run() if weights is None else at_weights(self._model, weights, run)

    def _losses(self) -> Tensor:
        # A model may write to what it is given.
        places, named = copied(self._places), copied(self._named)
        output = self._model(*places, **named)
        losses, what = self._examples.loss(output, self._labels), self._examples.what
        if not isinstance(losses, Tensor) or losses.shape != (self.count,):
            said = f"{list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise BadInput(
                f"The loss of {what} must return one number for each of {self.count} examples, not {said}.",
                hint='For example lambda outputs, labels: cross_entropy(outputs, labels, reduction="none").',
                field="loss",
            )
        if not is_transformed() and not bool(losses.isfinite().all()):
            where = int(torch.nonzero(~losses.isfinite())[0])
            raise BadInput(
                f"The loss of {what} is {losses[where].item()} for example {where}.",
                hint="Pass examples whose loss is finite.",
                field="loss",
            )
        return losses

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        devices = {own.device for own in self._model.parameters()}
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng([own.index or 0 for own in devices if own.type == "cuda"]))
            stack.enter_context(evaluating(self._model))
            stack.enter_context(uncompiled())
            for kind in {"cpu", *(own.type for own in devices)}:
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield

    def _collected(self, taker: SignalTaker) -> dict[str, LayerSignals]:
        found = {}
        for tap in self._taps:
            parts = [self._rows(tap, key, error) for key, error in taker.of(tap)]
            if parts:
                keys, errors, examples = zip(*parts, strict=True)
                found[tap.name] = LayerSignals(*map(_joined, (keys, errors, examples)))
        return found

    def _rows(self, tap: Tap, key: Tensor, error: Tensor) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
        """Of one call: keys, errors and the example of each row."""
        keys, errors = signal_rows(tap, key, error, self._batch_dims[tap.name])
        axis = _axis_of(tap, key, self._batch_dims[tap.name])
        if self.count > 1 and tap.key_form.leading(key)[axis] != self.count:
            raise _shared(tap.name)
        return keys, errors, np.repeat(np.arange(self.count), len(keys) // self.count)


def _axis_of(tap: Tap, key: Tensor, batch_dim: int) -> int:
    """That of the batch in a key: a key of one leading axis has no other."""
    return batch_dim if len(tap.key_form.leading(key)) > 1 else 0


def signal_rows(tap: Tap, key: Tensor, error: Tensor, batch_dim: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of one call of a layer, keys [r, d_in] and error signals [r, d_out], those of an example behind one another."""
    axis = _axis_of(tap, key, batch_dim)
    owned = tap.key_form.owned(key.detach().movedim(axis, 0))
    blocks = [rows for _, rows in tap.key_form.blocks(owned)]
    keys = _numbers(blocks[0] if len(blocks) == 1 else torch.cat(blocks))
    return keys, _numbers(error.detach().movedim(axis, 0).reshape(len(keys), -1))


def _spared(parameters: Mapping[str, Tensor], taps: Iterable[Tap]) -> set[str]:
    """Parameters whose gradients need not be computed: every layer that holds them has another, smaller one, its bias,
    for whose sake error signals come back to it.
    """
    names = {id(own): name for name, own in parameters.items()}
    asked, held = set[str](), set[str]()
    for tap in taps:
        own = {names[id(tensor)]: tensor.dim() for tensor in tap.parameters.values() if id(tensor) in names}
        vectors = {name for name, axes in own.items() if axes == 1}
        held |= own.keys()
        asked |= vectors or own.keys()
    return held - asked


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _numbers(rows: Tensor) -> NDArray[Any]:
    """In float32, or float64 where they are."""
    found: NDArray[Any] = rows.to(torch.promote_types(rows.dtype, torch.float32)).cpu().numpy()
    return found


class _Standing(nn.Module):
    """A model whose weights others stand in for, as long as something runs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, run: Callable[[], Found]) -> Found:
        return run()


def at_weights(model: nn.Module, weights: Mapping[str, Tensor], run: Callable[[], Found]) -> Found:
    """What `run` finds while weights, by their names in the state dict, stand in for a model's."""
    given = {f"model.{name}": tensor for name, tensor in weights.items()}
    found: Found = functional_call(_Standing(model), given, (run,))
    return found


@contextmanager
def tapped_with(
    taps: Iterable[Tap], parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor] | None
) -> Iterator[None]:
    """Some taps compute error signals from weights, as those of recurrent layers do: they take these, by their names
    among the model's `parameters`, and the model's own where there are none.
    """
    if weights is None:
        yield
        return
    names = {id(own): name for name, own in parameters.items()}
    held = [(tap, tap.parameters) for tap in taps]
    try:
        for tap, own in held:
            tap.parameters = {place: weights.get(names[id(one)], one) for place, one in own.items()}
        yield
    finally:
        for tap, own in held:
            tap.parameters = own


@contextmanager
def all_trained(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """All parameters of floating point require gradients until it is left."""
    frozen = [own for own in parameters if own.is_floating_point() and not own.requires_grad]
    try:
        for own in frozen:
            own.requires_grad_()
        yield
    finally:
        for own in frozen:
            own.requires_grad_(False)


def _check_apart(
    once: Mapping[str, LayerSignals], again: Mapping[str, LayerSignals], factors: NDArray[np.float64]
) -> None:
    """Raises BadInput where error signals are not multiplied by what their examples' losses were multiplied by."""
    for name, own in once.items():
        expected = own.errors * factors[own.examples, None]
        # Products by powers of two are exact, but for sums that a device takes in another order.
        allowed = 1e-5 * np.abs(expected).max(axis=1, keepdims=True, initial=0.0)
        if not (np.abs(again[name].errors - expected) <= allowed).all():
            raise _shared(name)


def _shared(layer: str) -> SharedRows:
    return SharedRows(
        f"rows of layer {layer!r} do not belong to single examples: several share one, or the model chooses them.",
        hint="Pass one example at a time.",
        field="inputs",
    )


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, a tied one under its first name alone."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def tensors(arrays: Mapping[str, NDArray[Any]], model: nn.Module) -> dict[str, Tensor]:
    """Weights as the model holds them: in its types and on its devices, a tied one under its first name alone."""
    own = named_tensors(model)
    return {name: _tensor(array, own[name]) for name, array in arrays.items() if name in own}


def _tensor(array: NDArray[Any], like: Tensor) -> Tensor:
    """A copy."""
    given = array if array.flags.writeable and array.flags.c_contiguous else np.array(array)
    return torch.from_numpy(given).to(device=like.device, dtype=like.dtype, copy=given is array)


@torch.inference_mode(False)
def example_gradients(
    model: nn.Module, taps: Sequence[Tap], batch_dims: Mapping[str, int], examples: Examples, batch_size: int
) -> ExampleGradients:
    """What the examples' losses send back to tapped layers, at the model's own weights, batch by batch.

    Where rows of a layer are of several examples together, the examples run one by one. Warns of layers, those of
    `batch_dims`, that nothing comes back to. Raises as SignalPasses.
    """

    check_values(batch_dims, examples.what)
    # Tables of a greatest norm write to their weights whenever they are read.
    own_copy = any(getattr(module, "max_norm", None) is not None for module in model.modules())
    weights = {name: own.detach().clone() for name, own in named_tensors(model).items()} if own_copy else None

    def passes(size: int) -> Iterator[tuple[int, Mapping[str, LayerSignals]]]:
        start, stop = 0, 1
        while start < stop:
            own = SignalPasses(model, taps, batch_dims, examples, start, start + size)
            with own.attached():
                yield start, own.signals(weights).layers
            start, stop = start + own.count, own.available

    try:
        found = list(passes(batch_size))
    except SharedRows:
        found = list(passes(1))
    count, parts = 0, dict[str, list[LayerGradients]]()
    for start, layers in found:
        for name, own in layers.items():
            count = max(count, start + int(own.examples.max(initial=-1)) + 1)
            keys, errors = own.keys.astype(np.float32), own.errors.astype(np.float32)
            parts.setdefault(name, []).append(LayerGradients(keys, errors, own.examples + start))
    if not parts:
        raise BadInput(
            f"The loss of {examples.what} does not reach any layer recorded with values.",
            hint="Pass a loss of the model's output, and the model that was recorded.",
            field="loss",
        )
    if missing := [name for name in batch_dims if name not in parts]:
        warnings.warn(
            f"{examples.what} has no gradients in {', '.join(map(repr, missing))}: its loss does not depend on "
            "a call of these modules. Sums over layers leave them out.",
            RuntimeWarning,
            stacklevel=2,
        )
    arrays = ("keys", "errors", "examples")
    joined = {
        name: LayerGradients(*(np.concatenate([getattr(part, array) for part in own]) for array in arrays))
        for name, own in parts.items()
    }
    return ExampleGradients(count, joined)


def check_values(layers: Collection[str], what: str) -> None:
    """Raises BadInput where no layer has values; `what` is asked of them."""
    if not layers:
        raise BadInput(
            f"The memory was recorded without values, which {what} need.",
            hint="Record with keys=True and values=True, or leave out the loss and use dualform.Influence.",
            field="loss",
        )
