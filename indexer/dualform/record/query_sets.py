"""Query sets: what the recorded layers are asked by test examples, and what the model answers.

Shapes: n examples of L tokens; the queries of a layer that sees tokens are one for each token, [n * L, d_in], an
example's tokens after one another whichever axis of the layer's input is the batch. So are the outputs of a model that
has some for each token, [n * L, outputs].
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.errors import BadInput
from dualform.record.column_values import column_of
from dualform.record.example_count import ExampleCount
from dualform.record.lineage import Known, Lineage, place_of
from dualform.record.model_arguments import Arguments, Inputs, copied, device_of
from dualform.record.taps import Tap
from dualform.store.byte_counts import readable
from dualform.store.previews.preview_set import PreviewSet

MOST_OUTPUT_BYTES = 256 << 20
"""That the outputs of a model for each token may take; of more, none are kept."""


class QuerySetTaker:
    """Collects layer inputs while a model runs on test examples."""

    def __init__(self, axis_of: Callable[[Tap], int]) -> None:
        """`axis_of`: which axis of a layer's keys is the batch."""
        self.examples = ExampleCount()
        self._axis_of = axis_of
        self._batch: dict[str, Tensor] = {}
        self._parts: dict[str, list[Tensor]] = {}
        self._outputs = _Outputs(self.examples)
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
                # Of an example less, the axis of the batch is shorter, and that of the tokens is not.
                self._looking = True
                places, named = given.part(0, self.examples.batch - 1)
                self._outputs.tell(model(*copied(places), **copied(named)))

    def _next_batch(self) -> None:
        for name, keys in self._batch.items():
            self._parts.setdefault(name, []).append(keys)
        self._batch = {}

    def queries(self) -> dict[str, NDArray[np.float32]]:
        """float32[n, d_in] by layer, of the layers that ran; n counts tokens where a layer sees tokens."""
        return {name: torch.cat(parts).numpy() for name, parts in self._parts.items()}

    def check_labels(self, labels: NDArray[np.int64]) -> None:
        """Raises BadInput where labels are as many as neither the examples, the model's outputs nor a layer's rows."""
        rows = {sum(map(len, parts)) for parts in self._parts.values()}
        if len(labels) not in {self.examples.given, self._outputs.rows, *rows}:
            raise BadInput(
                f"label has {len(labels)} numbers, but the query set has {self.examples.given} examples along axis "
                f"{self.examples.axis} of its inputs.",
                hint="Pass one label for each example, or for each token.",
                field="label",
            )

    def outcome(self, labels: int | None, shown: bool) -> Outcome:
        """`labels`: how many there are of them, None for none; `shown`: whether a preview set has as many samples as
        there are examples.
        """
        made = self._outputs
        rows = None if made.rows is None else self.examples.given if made.tokens else made.rows
        known = self.examples.known(rows, labels, shown)
        if made.tokens and not made.why_none:
            seen = {sum(map(len, parts)) for parts in self._parts.values()}
            if known is None:
                made.refuse("which axis of its inputs is the batch cannot be told. Pass batch_dim= to query_set")
            elif made.tokens > 1 and made.rows not in {*seen, labels}:
                made.refuse(f"no layer takes {made.tokens} tokens of an example, and no label belongs to each of them")
        return Outcome(made.rows_of_all(), made.tokens, known, made.why_none)


@dataclass(frozen=True)
class Outcome:
    """What a model made of a query set."""

    outputs: NDArray[np.float32] | None
    """float32[n, outputs], or float32[n * L, outputs] of a model that has some for each token; None of any other."""
    tokens: int | None
    """L of outputs for each token; None of others."""
    examples: int | None
    """n; None where it cannot be told."""
    why_no_outputs: str
    """Why those of three dimensions are not kept."""


class _Outputs:
    """What the model returned, batch by batch: [n, outputs], or for each token [n, L, outputs] or [L, n, outputs]."""

    def __init__(self, examples: ExampleCount) -> None:
        self._examples = examples
        self._parts: list[Tensor] = []
        self._axes = {0, 1}
        """Of outputs for each token, axes that were as long as the batch each time."""
        self._other = False
        """Whether it returned anything else."""
        self.why_none = ""

    def add(self, returned: Any) -> None:
        """Of the batch that ran."""
        output = _output_in(returned)
        if output is None or (self._parts and (output.dim(), output.shape[-1]) != self._like(self._parts[0])):
            self._other, self._parts = True, []
        elif not self._other and not self.why_none:
            self._parts.append(output.detach().to("cpu", torch.float32, copy=True))
            if output.dim() == 3:
                self._check(self._parts[-1])

    @staticmethod
    def _like(part: Tensor) -> tuple[int, int]:
        return part.dim(), part.shape[-1]

    def _check(self, part: Tensor) -> None:
        batch, given = self._examples.batch, self._examples.given
        self._axes &= {axis for axis in (0, 1) if part.shape[axis] == batch}
        size = part.nbytes * given // batch
        if size > MOST_OUTPUT_BYTES:
            limit = readable(MOST_OUTPUT_BYTES)
            self.refuse(f"with one row for each token they take {readable(size)}; at most {limit} are kept")
        elif not self._axes:
            self.refuse(f"they are {list(part.shape)} for {batch} examples, which are along none of their axes")
        elif len({self._tokens_of(own) for own in self._parts}) > 1:
            self.refuse("examples of different batches have different numbers of tokens")

    def refuse(self, why: str) -> None:
        self.why_none, self._parts = why, []

    @property
    def square(self) -> bool:
        """Whether each batch had as many examples as tokens, and more than one, so that nothing tells them apart."""
        return bool(self.tokens) and len(self._axes) == 2 and any(len(part) > 1 for part in self._parts)

    def tell(self, returned: Any) -> None:
        """What the model returns for the batch that ran last without its last example."""
        output, last = _output_in(returned), self._parts[-1]
        batch = self._examples.batch
        shorter = last.shape[:2] if output is None or output.dim() != 3 else output.shape[:2]
        self._axes = {axis for axis in (0, 1) if (shorter[axis], shorter[1 - axis]) == (batch - 1, batch)}
        if not self._axes:
            self.refuse(
                "examples and tokens are as many, and cannot be told apart. Pass another batch_size= to query_set"
            )

    def _tokens_of(self, part: Tensor) -> int:
        return part.shape[1 - min(self._axes)]

    @property
    def tokens(self) -> int | None:
        """L of outputs for each token; None of others."""
        return self._tokens_of(self._parts[0]) if self._parts and self._parts[0].dim() == 3 else None

    @property
    def rows(self) -> int | None:
        return sum(math.prod(part.shape[:-1]) for part in self._parts) if self._parts else None

    def rows_of_all(self) -> NDArray[np.float32] | None:
        """float32[rows, outputs]."""
        if not self._parts:
            return None
        parts = (
            self._parts
            if self.tokens is None
            else [part.movedim(min(self._axes), 0).flatten(0, 1) for part in self._parts]
        )
        return torch.cat(parts).numpy()


def _output_in(returned: Any) -> Tensor | None:
    """The outputs of two or three dimensions in what a model returned: a tensor, a Hugging Face output with logits, or
    a tuple with one such tensor alone, such as (logits, loss).
    """
    found = getattr(returned, "logits", returned)
    of_several = found if isinstance(found, tuple | list) else (found,)
    fitting = [own for own in of_several if isinstance(own, Tensor) and own.dim() in (2, 3)]
    return fitting[0] if len(fitting) == 1 else None


def labels_of(label: Any, others: bool = False) -> NDArray[np.int64] | None:
    """int64[n]. Raises BadInput for labels that are no integers, and for missing ones; with `others` they are None."""
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
