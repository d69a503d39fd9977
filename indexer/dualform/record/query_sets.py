"""Query sets: what test examples ask of the recorded layers, and what the model answers.

Shapes: n examples of L tokens; the queries of a layer that sees tokens are one for each token, [n * L, d_in], an
example's tokens after one another whichever axis of the layer's input is the batch. So are the outputs of a model that
has some for each token, [n * L, outputs].

What a model returns for a query set, as it is kept.

    [n, outputs]                          as it is
    [n, L, outputs], or [L, n, outputs]   a row for each token, [n * L, outputs], example after example; where that
                                          takes much, a summary of each row, and the first rows

Shapes: n examples of L tokens. Which axis is the batch is told by how long axes are. Where examples and tokens are as
many, the model runs once more without an example: the axis of the batch is shorter then, and that of tokens is not.

How many examples a query set has: as many as its inputs hold along their axis, where nothing speaks against it.

Inputs whose batch is another axis than was said hold another number of examples along it. What layers took of them,
outputs, labels and a preview set tell; where they do not, the number is unknown.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.answers.contents import OutputSummary
from dualform.errors import BadInput
from dualform.record.column_values import column_of
from dualform.record.lineage import Known, Lineage, place_of
from dualform.record.taps import Tap
from dualform.store.files.durable_files import checksum
from dualform.store.previews.preview_set import PreviewSet


class ExampleCount:
    def __init__(self) -> None:
        self.given = 0
        """Examples along the axis of inputs that was said."""
        self.batch = 0
        """Of those, the ones that the model runs on now."""
        self.axis = 0
        """Of inputs, the one that was said."""
        self._agrees: dict[str, bool] = {}
        """By layer, whether it took as many rows as there were examples, in all batches."""
        self._square: dict[str, bool] = {}
        """By layer whose batch is another axis than that of the inputs, whether it took square parts of them alone, in
        which tokens are as many as examples."""
        self._contradicted = False

    def layer_took(self, name: str, rows: int, tokens: int | None, axis: int) -> None:
        """What a layer had along the axis of its batch; `tokens`: along its other axes, None where it has none."""
        agrees = rows == self.batch
        self._agrees[name] = self._agrees.get(name, True) and agrees
        if axis != self.axis:
            self._square[name] = self._square.get(name, True) and rows == tokens and self.batch < self.given
        # Rows without an axis for tokens may be tokens, and one row for all is a look-up that the examples share.
        if not agrees and (axis or (tokens is not None and rows > 1)):
            self._contradicted = True

    def known(self, outputs: int | None, labels: int | None, shown: bool) -> int | None:
        """The number of examples; None where it cannot be told. `outputs`, `labels`: how many there are of them, None
        where there are none; `shown`: whether a preview set has as many samples.
        """
        others = [own for own in (outputs, labels) if own is not None]
        if self._contradicted or any(self._square.values()) or any(own % self.given for own in others):
            return None
        told = shown or self.given in others or any(self._agrees.values())
        return self.given if told else None


MOST_BYTES = 32 << 20
"""That the outputs of tokens may take: half of what one answer of a server may."""
FIRST_ROWS = 8
"""Rows that are kept whole beside summaries: the output layer is known by them."""
_AT_ONCE_BYTES = 64 << 20
"""Of outputs that are summarized."""


@dataclass(frozen=True)
class Outcome:
    """What a model made of a query set."""

    outputs: NDArray[np.float32] | None
    """float32[n, outputs], or float32[n * L, outputs]; with `summary` only those of the first rows. None where the
    model returns anything else."""
    summary: OutputSummary | None
    """Of outputs of tokens that would take more than MOST_BYTES."""
    tokens: int | None
    """L of outputs for each token; None of others."""
    examples: int | None
    """n; None where it cannot be told."""
    why_none: str
    """Why outputs of three dimensions are not kept."""


class KeptOutputs:
    """Filled batch by batch: `add` what the model returned, `tell` what it returns for an example less where `square`,
    and `settle`.
    """

    def __init__(self, examples: ExampleCount, labels: NDArray[np.int64] | None) -> None:
        """`labels`: of the examples, or of their tokens."""
        self._examples, self._labels = examples, labels
        self._returned: Tensor | None = None
        """Of the batch that ran."""
        self._like: tuple[int, int] | None = None
        """Dimensions and outputs of the first batch."""
        self._axes = {0, 1}
        """Of outputs of tokens, axes that were as long as the batch each time."""
        self._parts: list[Tensor] = []
        self._summaries: list[OutputSummary] = []
        self.tokens: int | None = None
        """L of outputs for each token; None of others."""
        self.rows: int | None = None
        """Rows so far; None where nothing is kept."""
        self.why_none = ""
        self._other = False

    def add(self, returned: Any) -> None:
        output = output_in(returned)
        if output is None or self._like not in (None, (output.dim(), output.shape[-1])):
            self._drop()
            self._other = True
        if output is None or self._other or self.why_none:
            return
        self._like, self._returned = (output.dim(), output.shape[-1]), output.detach()
        if output.dim() == 3:
            batch = self._examples.batch
            self._axes &= {axis for axis in (0, 1) if output.shape[axis] == batch}
            if not self._axes:
                self.refuse(f"they are {list(output.shape)} for {batch} examples, which are along none of their axes")

    @property
    def square(self) -> bool:
        """Whether nothing tells examples from tokens so far."""
        own = self._returned
        return own is not None and own.dim() == 3 and len(self._axes) == 2 and self._examples.batch > 1

    def tell(self, returned: Any) -> None:
        """What the model returns for the batch that ran, without its last example."""
        output, batch = output_in(returned), self._examples.batch
        if output is not None and output.dim() == 3:
            shape = output.shape
            self._axes = {axis for axis in (0, 1) if (shape[axis], shape[1 - axis]) == (batch - 1, batch)}
        if len(self._axes) != 1:
            self.refuse(
                "examples and tokens are as many, and cannot be told apart. Pass another batch_size= to query_set"
            )

    def settle(self, start: int) -> None:
        """Keep what was returned for the batch that began with this example."""
        output, self._returned = self._returned, None
        if output is None:
            return
        if output.dim() == 2:
            self._parts.append(_owned(output))
            self.rows = (self.rows or 0) + len(output)
            return
        output = output.movedim(min(self._axes), 0)
        batch, length, width = output.shape
        if self.tokens not in (None, length):
            self.refuse("examples of different batches have different numbers of tokens")
            return
        self.tokens, self.rows = length, (self.rows or 0) + batch * length
        if 4 * self._examples.given * length * width <= MOST_BYTES:
            self._parts.append(_owned(output.flatten(0, 1)))
            return
        if lacking := FIRST_ROWS - sum(map(len, self._parts)):
            self._parts.append(_owned(output.flatten(0, 1)[:lacking]))
        labels = self._labels
        if labels is not None and len(labels) == self._examples.given * length:
            labels = labels[start * length : (start + batch) * length]
        else:
            labels = None
        self._summaries += _summaries(output, labels)

    def refuse(self, why: str) -> None:
        self._drop()
        self.why_none = why

    def _drop(self) -> None:
        self._parts, self._summaries, self._returned, self.rows, self.tokens = [], [], None, None, None

    def outcome(self, seen: Callable[[], set[int]], labels: int | None, shown: bool) -> Outcome:
        """`seen`: how many rows each layer took; `labels`: how many there are of them, None for none; `shown`: whether
        a preview set has as many samples as there are examples.
        """
        rows = self.rows if self.tokens is None else self._examples.given
        known = self._examples.known(rows, labels, shown)
        if self.tokens is not None and known is None:
            self.refuse("which axis of its inputs is the batch cannot be told. Pass batch_dim= to query_set")
        elif self.tokens not in (None, 1) and self.rows not in {*seen(), labels}:
            self.refuse(f"no layer takes {self.tokens} tokens of an example, and no label belongs to each of them")
        outputs = torch.cat(self._parts).numpy() if self._parts else None
        summary = OutputSummary.joined(self._summaries) if self._summaries else None
        return Outcome(outputs, summary, self.tokens, known, self.why_none)


def _owned(output: Tensor) -> Tensor:
    return output.to("cpu", torch.float32, copy=True)


def _summaries(output: Tensor, labels: NDArray[np.int64] | None) -> list[OutputSummary]:
    """`output`: [batch, L, outputs]; `labels`: int64[batch * L]."""
    rows = output.flatten(0, 1)
    size = max(1, _AT_ONCE_BYTES // (4 * rows.shape[1]))
    return [
        OutputSummary.of(
            _owned(rows[start : start + size]).numpy(), None if labels is None else labels[start : start + size]
        )
        for start in range(0, len(rows), size)
    ]


def output_in(returned: Any) -> Tensor | None:
    """The outputs of two or three dimensions in what a model returned: a tensor, a Hugging Face output with logits, or
    a tuple with one such tensor alone, such as (logits, loss).
    """
    found = getattr(returned, "logits", returned)
    of_several = found if isinstance(found, tuple | list) else (found,)
    fitting = [own for own in of_several if isinstance(own, Tensor) and own.dim() in (2, 3)]
    return fitting[0] if len(fitting) == 1 else None


Inputs: TypeAlias = Any
"""A model's arguments: one; several, as a tuple or list; by name, as a mapping such as a tokenizer makes. Each is a
tensor, an array or numbers with an axis of examples, such things in tuples, lists and mappings, or what is the same for
all examples: None, a text, a truth value, a number."""


class Arguments:
    """The arguments of a model, by place and by name."""

    def __init__(self, inputs: Inputs, batch_dim: int, device: torch.device | None = None) -> None:
        """`batch_dim`: the axis of examples in each of them; `device`: where they are taken to.

        Raises BadInput where they hold no examples, or not the same number of them, or what no model takes.
        """
        places, named = _by_place_and_name(inputs)
        self._places = [_plain(part, device) for part in places]
        self._named = {name: _plain(part, device) for name, part in named.items()}
        self._axis = batch_dim
        lengths = [part.shape[batch_dim] for part in _tensors([self._places, self._named]) if part.dim() > batch_dim]
        if len(set(lengths)) != 1 or 0 in lengths:
            raise BadInput(
                f"inputs contains {' and '.join(map(str, lengths)) or 'no'} examples.",
                hint="Pass a tensor of at least one example, or several tensors of one length.",
                field="inputs",
            )
        self.examples: int = lengths[0]

    @property
    def identity(self) -> bytes:
        """Of what all tensors hold, and of what else is given."""
        parts = [self._places, self._named]
        tensors = (own if own.layout == torch.strided else own.to_dense() for own in _tensors(parts))
        held = [own.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for own in tensors]
        plain = _each(parts, lambda tensor: torch.empty(tensor.shape, device="meta"))
        return b"".join(checksum(own).encode() for own in [repr(plain).encode(), *held])

    def rows(self, rows: Tensor) -> tuple[list[Any], dict[str, Any]]:
        """What the model is called with for the examples of these numbers, int64[n]."""
        return self._of(rows, lambda own: own.index_select(self._axis, rows.to(own.device)))

    def part(self, start: int, stop: int) -> tuple[list[Any], dict[str, Any]]:
        """What the model is called with for the examples from start to stop."""
        stop = min(stop, self.examples)
        rows = torch.arange(start, stop, device="cpu")
        return self._of(rows, lambda own: own.narrow(self._axis, start, stop - start))

    def _of(self, rows: Tensor, take: Callable[[Tensor], Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """`take`: how the rows of a strided tensor are had."""

        def taken(own: Tensor) -> Tensor:
            if own.dim() <= self._axis:
                return own
            if own.layout == torch.strided:
                return take(own)
            return own.to_sparse().index_select(self._axis, rows.to(own.device)).to_sparse(layout=own.layout)

        return _each(self._places, taken), _each(self._named, taken)


def device_of(model: nn.Module) -> torch.device | None:
    """Where the model's first parameter is; None for a model without any."""
    return next((parameter.device for parameter in model.parameters()), None)


def _by_place_and_name(inputs: Inputs) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(inputs, Mapping):
        return [], inputs
    return (inputs, {}) if isinstance(inputs, tuple | list) else ([inputs], {})


def _plain(part: Any, device: torch.device | None) -> Any:
    """A part of the arguments with tensors of its own in place of arrays and lists of numbers."""
    if part is None or isinstance(part, str | bool | int | float):
        return part
    if isinstance(part, Tensor) and part.is_nested:
        raise BadInput(
            "inputs contain a nested tensor, which cannot be split into batches.",
            hint="Pass a padded tensor, or the examples of one length at a time.",
            field="inputs",
        )
    if isinstance(part, Mapping):
        return {name: _plain(own, device) for name, own in part.items()}
    if isinstance(part, tuple) or (isinstance(part, list) and any(_held(own) for own in part)):
        return type(part)(_plain(own, device) for own in part)
    try:
        tensor = part if isinstance(part, Tensor) else torch.as_tensor(part, device=device)
        return tensor if device is None else tensor.to(device)
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(
            f"inputs must be tensors or arrays, not {type(part).__name__}.",
            hint="Pass tensors, arrays or lists of numbers of one length, or mappings or tuples of these.",
            field="inputs",
        ) from None


def _held(part: Any) -> bool:
    """Whether what a list holds is an argument by itself, no row of numbers."""
    return isinstance(part, Tensor | np.ndarray | Mapping | tuple)


def _each(part: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(part, Tensor):
        return change(part)
    if isinstance(part, dict):
        return {name: _each(own, change) for name, own in part.items()}
    return type(part)(_each(own, change) for own in part) if isinstance(part, tuple | list) else part


def converted(arguments: Any, kind: torch.dtype) -> Any:
    """With numbers of floating point in another type."""
    return _each(arguments, lambda tensor: tensor.to(kind) if tensor.is_floating_point() else tensor)


def copied(part: Any) -> Any:
    """Arguments with tensors of their own."""
    return _each(part, Tensor.clone)


def _tensors(part: Any) -> Iterator[Tensor]:
    if isinstance(part, Tensor):
        yield part
    for own in part.values() if isinstance(part, dict) else part if isinstance(part, tuple | list) else ():
        yield from _tensors(own)


class QuerySetTaker:
    """Collects layer inputs while a model runs on test examples."""

    def __init__(self, axis_of: Callable[[Tap], int], labels: NDArray[np.int64] | None = None) -> None:
        """`axis_of`: which axis of a layer's keys is the batch; `labels`: of the examples, or of their tokens."""
        self.examples, self._labels = ExampleCount(), labels
        self._axis_of = axis_of
        self._batch: dict[str, Tensor] = {}
        self._parts: dict[str, list[Tensor]] = {}
        self._outputs = KeptOutputs(self.examples, labels)
        self._looking = False
        """Whether the model runs for its outputs' shape alone."""

    def probed(self, tap: Tap, key: Tensor, known: Known | None = None) -> None:
        """A layer's input; where a layer is called more than once, that of the first call. `known`: of its rows."""
        if tap.name in self._batch or self._looking:
            return
        form, axis, leading = tap.key_form, self._axis_of(tap), tap.key_form.leading(key)
        tokens = math.prod(leading) // max(leading[axis], 1) if len(leading) > 1 else None
        count, length, order = self._order(tap, leading, axis, known)
        if order is None:
            rows = key.movedim(0 if tokens is None else axis, 0)
            self.examples.layer_took(tap.name, len(rows), tokens, axis)
            keys = form.owned(rows)
        else:
            self.examples.layer_took(tap.name, count, length, self.examples.axis)
            keys = form.owned(key)
        made = torch.cat([rows for _, rows in form.blocks(keys)])
        self._batch[tap.name] = made if order is None else made[order]

    def _order(
        self, tap: Tap, leading: tuple[int, ...], axis: int, known: Known | None
    ) -> tuple[int, int | None, Tensor | None]:
        """How many examples a layer took and how many tokens of each, and which of its rows are those of the first
        example, the second, and so on; None where they are told by the axis of the batch.
        """
        count, n = self.examples.batch, math.prod(leading)
        if isinstance(known, Lineage):
            second = self.examples.axis == 1
            place = place_of(known, leading, tap.key_form.batch_axis is not None, count, 1, lambda _: second)
            length = n // count
            if place is not None and n == count * length and (order := place.order(count, length)) is not None:
                return count, length if length > 1 or len(leading) > 1 else None, torch.from_numpy(order)
        elif axis and len(leading) == 1 and n > count and n % count == 0 and known is None:
            # Tokens in one list, and the training said that the first ones of all examples come first.
            return count, n // count, torch.arange(n, device="cpu").view(-1, count).T.reshape(-1)
        return count, None, None

    def run(self, model: nn.Module, inputs: Inputs, batch_size: int, batch_dim: int = 0) -> None:
        """Run the model in eval mode, without gradients, batch by batch; its modes are restored."""
        given = Arguments(inputs, batch_dim, device_of(model))
        self.examples.given, self.examples.axis = given.examples, batch_dim
        with evaluating(model), torch.no_grad(), uncompiled():
            for start in range(0, given.examples, batch_size):
                self.examples.batch = min(batch_size, given.examples - start)
                places, named = given.part(start, start + batch_size)
                # A model may write to what it is given, and a query set with a loss runs it again.
                self._outputs.add(model(*copied(places), **copied(named)))
                self._next_batch()
                if self._outputs.square:
                    places, named = given.part(start, start + self.examples.batch - 1)
                    self._outputs.tell(self._without_keys(model, places, named))
                self._outputs.settle(start)

    def _without_keys(self, model: nn.Module, places: Any, named: Any) -> Any:
        """What the model returns for a smaller batch; None where it takes none, as one that holds a state for each
        example.
        """
        self._looking = True
        try:
            return model(*copied(places), **copied(named))
        except Exception:
            return None
        finally:
            self._looking = False

    def _next_batch(self) -> None:
        for name, keys in self._batch.items():
            self._parts.setdefault(name, []).append(keys)
        self._batch = {}

    def queries(self) -> dict[str, NDArray[np.float32]]:
        """float32[n, d_in] by layer, of the layers that ran; n counts tokens where a layer sees tokens."""
        return {name: torch.cat(parts).numpy() for name, parts in self._parts.items()}

    def check_labels(self) -> None:
        """Raises BadInput where labels are as many as neither the examples, the model's outputs nor a layer's rows."""
        labels = self._labels
        if labels is not None and len(labels) not in {self.examples.given, self._outputs.rows, *self._rows()}:
            raise BadInput(
                f"label has {len(labels)} numbers, but the query set has {self.examples.given} examples along axis "
                f"{self.examples.axis} of its inputs.",
                hint="Pass one label for each example, or for each token.",
                field="label",
            )

    def _rows(self) -> set[int]:
        """That layers took."""
        return {sum(map(len, parts)) for parts in self._parts.values()}

    def outcome(self, shown: bool) -> Outcome:
        """`shown`: whether a preview set has as many samples as there are examples."""
        return self._outputs.outcome(self._rows, None if self._labels is None else len(self._labels), shown)


def labels_of(label: Any, others: bool = False, axis: int = 0, examples: int = 0) -> NDArray[np.int64] | None:
    """int64[n], or of tokens int64[n * L], example after example. Raises BadInput for labels that are no integers, and
    for missing ones; with `others` they are None.

    `axis`: that of the `examples` in the inputs. Labels of tokens have it too, where it is as long.
    """
    if label is None:
        return None
    try:
        given = column_of("label", label)
    except BadInput as error:
        if others:
            return None
        raise BadInput(error.message, hint="Pass integers as labels.", field="label") from None
    if others and given.ndim != 1:
        return None
    if np.ma.is_masked(given):
        raise BadInput(
            "label must not contain missing entries.",
            hint="Pass a label for each example, or leave label out.",
            field="label",
        )
    if axis == 1 and given.ndim == 2 and given.shape[1] == examples:
        given = given.T
    return given.reshape(-1)


def check_examples(preview_set: PreviewSet, examples: int) -> None:
    """Raises BadInput for a preview set that does not have each of a query set's examples, by their numbers."""
    if not isinstance(preview_set, PreviewSet):
        raise BadInput(
            f"previews must be a dualform.PreviewSet, not {type(preview_set).__name__}.",
            hint="Make one with dualform.PreviewSet.images(…), .texts(…) or .table(…).",
            field="preview_set",
        )
    if not np.array_equal(np.sort(preview_set.samples), np.arange(examples)):
        raise BadInput(
            f"the preview set has {len(preview_set)} samples for {examples} examples of the query set.",
            hint="Pass one preview for each example, in their order.",
            field="preview_set",
        )


@contextmanager
def evaluating(model: nn.Module, training: bool = False) -> Iterator[None]:
    """In eval mode; in train mode where `training`."""
    modes = [(module, module.training) for module in model.modules()]
    fused = torch.backends.mha.get_fastpath_enabled()
    model.train(training)
    torch.backends.mha.set_fastpath_enabled(False)  # it shows no inputs of layers, and packs tokens otherwise
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, before in modes:
            module.training = before


@contextmanager
def uncompiled() -> Iterator[None]:
    """Compiled code hands no keys over: it runs as it was written."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled, and loading it takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
