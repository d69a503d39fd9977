"""Questions about dot products of gradients: training datapoints with the gradient of an example's own loss.

Shapes: n examples, r rows of a layer, which has one row for each example, or one for each token; d_in and d_out of the
layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupSums, Hits
from dualform.errors import BadInput
from dualform.questions.arguments import By, GroupCount, SlotCount, SomeColumns, check_fields, shown
from dualform.questions.filters import Where
from dualform.questions.question import QuerySetExamples, Question, finite_rows

GRADIENT = "gradient"
"""The name of the score."""
EVERY_LAYER = "*"


def _rows(given: Any, name: str) -> NDArray[np.float32]:
    return finite_rows(given, name, "row")


@dataclass(frozen=True, eq=False)
class LayerGradients:
    """The gradients of examples in one layer: e_j x_j^T for each row j, and e_j for the bias.

    Shapes: r rows, one for each example or token; d_in inputs and d_out outputs. Raises BadInput for arrays that do not
    fit each other, and for NaN or infinity.
    """

    keys: Annotated[NDArray[np.float32], _rows]
    """float32[r, d_in]: the inputs of the layer."""
    errors: Annotated[NDArray[np.float32], _rows]
    """float32[r, d_out]: the gradient of each example's loss by the layer's output."""
    examples: NDArray[np.int64]
    """int64[r]: the example of each row."""

    def __post_init__(self) -> None:
        check_fields(self)
        examples = np.asarray(self.examples)
        if examples.dtype.kind not in "iu" or examples.shape != (len(self.keys),):
            raise BadInput(
                f"examples must be int64[{len(self.keys)}], one number for each key, not "
                f"{examples.dtype}{list(examples.shape)}.",
                hint="Pass the number of the example that each row belongs to, from 0.",
                field="examples",
            )
        if len(self.errors) != len(self.keys):
            raise BadInput(
                f"errors must have one row for each of the {len(self.keys)} keys, not {len(self.errors)}.",
                field="errors",
            )
        object.__setattr__(self, "examples", examples.astype(np.int64))

    def of(self, example: int) -> NDArray[np.int64]:
        """int64: the rows of an example, in order."""
        return np.flatnonzero(self.examples == example)

    def chosen(self, examples: Sequence[int]) -> LayerGradients | None:
        """The rows of some examples, numbered in the order given; None if they lack rows."""
        rows = [self.of(example) for example in examples]
        every = np.concatenate(rows)
        if not len(every):
            return None
        numbers = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
        return LayerGradients(self.keys[every], self.errors[every], numbers)


@dataclass(frozen=True, eq=False)
class ExampleGradients:
    """The gradients of the losses of n examples in the recorded layers. `Answers.gradients` makes one.

    Raises BadInput unless every example has a row in some layer.
    """

    count: int
    """n."""
    layers: Mapping[str, LayerGradients]

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int | np.integer) or self.count < 1:
            raise BadInput(
                f"count must be a whole number of at least 1, not {shown(self.count)}.",
                hint="Pass the number of examples.",
                field="queries",
            )
        if not (
            isinstance(self.layers, Mapping) and all(isinstance(own, LayerGradients) for own in self.layers.values())
        ):
            raise BadInput(
                f"layers must map layer names to LayerGradients, not {shown(self.layers)}.",
                hint='For example {"head": dualform.LayerGradients(keys, errors, examples)}.',
                field="queries",
            )
        for name, layer in self.layers.items():
            if ((layer.examples < 0) | (layer.examples >= self.count)).any():
                raise BadInput(
                    f"Layer {name!r} has rows of examples outside 0 to {self.count - 1}.",
                    hint="Number the examples from 0.",
                    field="queries",
                )
        there = [np.unique(layer.examples) for layer in self.layers.values()]
        known = len(np.unique(np.concatenate(there))) if there else 0
        if known != self.count:
            raise BadInput(
                f"{self.count - known} of {self.count} examples lack a row in every layer.",
                hint="Number the examples from 0, and give each at least one row.",
                field="queries",
            )
        object.__setattr__(self, "count", int(self.count))
        object.__setattr__(self, "layers", dict(self.layers))


def as_layer_names(layer: str | Sequence[str] | None) -> tuple[str, ...]:
    """The layers named by a method's argument: empty for all, which is "*" or None; otherwise one or several names."""
    return () if layer is None or layer == EVERY_LAYER else _as_layers((layer,) if isinstance(layer, str) else layer)


def _as_layers(layers: Any, name: str = "layer") -> tuple[str, ...]:
    names = tuple(layers) if isinstance(layers, Sequence) and not isinstance(layers, str) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise BadInput(
            f"layer must be names of layers, not {shown(layers)}.", hint='Pass layer="*" for all layers.', field="layer"
        )
    if len(set(names)) < len(names):
        raise BadInput(f"layer names a layer twice: {', '.join(names)}.", field="layer")
    return names


def _as_examples(examples: Any, name: str) -> ExampleGradients | QuerySetExamples:
    if not isinstance(examples, ExampleGradients | QuerySetExamples):
        raise BadInput(
            f'score="gradient" needs the gradients of examples as its queries, not {type(examples).__name__}.',
            hint="Pass a query set recorded with a loss, or memory.gradients(model, inputs, labels, loss).",
            field="queries",
        )
    if isinstance(examples, QuerySetExamples) and examples.examples == ():
        raise BadInput("queries must name at least one example.", field="queries")
    return examples


_Layers: TypeAlias = Annotated[tuple[str, ...], _as_layers]
_Examples: TypeAlias = Annotated[ExampleGradients | QuerySetExamples, _as_examples]


@dataclass(frozen=True)
class GradientTopK(Question[Hits]):
    """The k slots whose gradients have the largest dot product with the gradient of an example's loss.

    A training step on such a slot would have lowered the loss most. `Answers.topk` with score="gradient" makes one.
    Raises BadInput for invalid arguments.
    """

    layers: _Layers
    """Names of layers, over which dot products are summed; empty for all with keys and values."""
    examples: _Examples
    """Gradients, or examples of a query set recorded with loss=."""
    k: SlotCount = 10
    where: Where = None
    distinct: By = ()
    """As in `TopK`."""


@dataclass(frozen=True)
class GradientSum(Question[GroupSums]):
    """The sum over each group of slots of the dot products with the gradient of an example's loss.

    `Answers.group_sum` with score="gradient" makes one. Raises BadInput for invalid arguments.
    """

    layers: _Layers
    """As in `GradientTopK`."""
    examples: _Examples
    """As in `GradientTopK`."""
    by: SomeColumns
    where: Where = None
    k: GroupCount = None
    """As in `GroupSum`."""
