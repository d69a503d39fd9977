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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.errors import BadInput
from dualform.record.column_values import column_of
from dualform.record.example_count import ExampleCount
from dualform.record.kept_outputs import KeptOutputs, Outcome
from dualform.record.lineage import Known, Lineage, place_of
from dualform.record.model_arguments import Arguments, Inputs, copied, device_of
from dualform.record.taps import Tap
from dualform.store.previews.preview_set import PreviewSet


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
