"""The methods of whoever answers questions about one memory, spelled once over `ask`.

The body of each method makes the question; `ask` answers it: the engine in process, a client over gRPC, an asynchronous
client with an awaitable. Shapes: n queries, G groups, d_out outputs of a layer.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeAlias, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupSums, Hits, MemoryInfo, Weights
from dualform.errors import BadInput
from dualform.extras import optional
from dualform.questions import (
    Contribution,
    Distribution,
    ExampleGradients,
    FilterLike,
    GradientSum,
    GradientTopK,
    GroupSum,
    Inventory,
    MaskCancellation,
    NetworkWeights,
    Output,
    Placebo,
    PreviewLookup,
    Queries,
    QueriesLike,
    QuerySetExamples,
    QuerySetLookup,
    Question,
    SlotLookup,
    SqlStatement,
    TargetLike,
    TopK,
    Vectors,
    Verification,
    as_by,
    as_filter,
    as_filters,
    as_ids,
    as_layer_names,
    as_queries,
    as_target,
)
from dualform.questions.gradients import GRADIENT
from dualform.questions.placebo import RANDOM_SETS
from dualform.questions.scores import POINTS

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dualform_notebook.explorer import Explorer

    Loss: TypeAlias = Callable[[Any, Any], Tensor]

P = ParamSpec("P")
A = TypeVar("A")


class _Method(Generic[P, A]):
    """The type of a method that asks a question: it returns the answer, or an awaitable of it."""

    @overload
    def __get__(self, memory: Answers, owner: object = None) -> Callable[P, A]: ...
    @overload
    def __get__(self, memory: AsyncAnswers, owner: object = None) -> Callable[P, Awaitable[A]]: ...
    @overload
    def __get__(self, memory: None, owner: object = None) -> Callable[Concatenate[Any, P], Any]: ...
    def __get__(self, memory: object, owner: object = None) -> Any:
        raise NotImplementedError("a type only: methods are plain functions")


def _asks(question: Callable[Concatenate[Any, P], Question[A]]) -> _Method[P, A]:
    """The method that asks the question which a function makes of its arguments."""

    @wraps(question)
    def method(self: Any, *arguments: P.args, **named: P.kwargs) -> Any:
        if named.get("inputs") is not None or named.get("model") is not None:
            return self._ask_by_inputs(question, arguments, named)
        return self.ask(question(self, *arguments, **named))

    return cast("_Method[P, A]", method)


class _Methods:
    """What can be asked. All raise BadInput, NotFound and what the questions say, naming what is wrong."""

    @_asks
    def info(self) -> Inventory:
        """What the memory holds, as of the snapshot that questions see."""
        return Inventory()

    @_asks
    def topk(
        self,
        layer: str | Sequence[str] | None = None,
        queries: QueriesLike | ExampleGradients | None = None,
        k: int = 10,
        where: FilterLike | None = None,
        by: str | Sequence[str] | None = None,
        score: str = "dot",
        *,
        target: TargetLike | None = None,
        at_step: int | None = None,
        allow_inexact: bool = False,
        distinct: str | Sequence[str] | None = None,
        inputs: Any = None,
        model: nn.Module | None = None,
        allow_partial: bool = False,
    ) -> Question[Hits]:
        """Hits: the k slots that each query attends to most, or the k of each group.

        Scores are summed in float64 in a fixed order; with score="abs" they are absolute values, and rank as such; with
        "cosine" they are divided by the lengths of key and query. With score="contribution" they are what a slot
        brought to the layer's output along a direction u, (x_t . q) a_t (delta_t . u): `target` is an output's number,
        "3-8" for output 3 less output 8, or float32[d_out] or [n, d_out]; `at_step` and `allow_inexact` are as in
        `output`. With score="gradient" they are dot products of gradients, of a slot and of an example's own loss,
        whose gradients are the queries (`gradients`), or those of a query set that was taken with a loss: in one layer,
        several in a list, or "*", all of them together; no `by` then. Where `inputs` of a `model` are given in place of
        queries, those are what the layer takes when the model runs on them (`queries`). With `allow_partial`, a memory
        on several machines is answered without the shards that do not answer: `scan.missing` names them.
        Raises BadMask and EmptyMask for `where`; Inexact where recorded keys are not finite, and for "contribution"
        where the record is too far from the weights or slots have no values of their own; Unavailable where a shard
        does not answer.
        """
        own = as_target(score, target, at_step, allow_inexact)
        if score == GRADIENT:
            _refuse_beside_gradients(by=by, allow_partial=allow_partial)
            return GradientTopK(as_layer_names(layer), _gradients(queries), k, as_filter(where), as_by(distinct))
        columns, one_a = as_by(by), as_by(distinct, "distinct")
        return TopK(_one(layer), _given(queries), k, as_filter(where), columns, score, allow_partial, own, one_a)

    @_asks
    def group_sum(
        self,
        layer: str | Sequence[str] | None = None,
        queries: QueriesLike | ExampleGradients | None = None,
        by: str | Sequence[str] = (),
        where: FilterLike | None = None,
        score: str = "dot",
        *,
        target: TargetLike | None = None,
        at_step: int | None = None,
        allow_inexact: bool = False,
        k: int | None = None,
        inputs: Any = None,
        model: nn.Module | None = None,
        allow_partial: bool = False,
    ) -> Question[GroupSums]:
        """GroupSums: the sum of the scores that each query gives to each group, or, with `k`, to the k groups of the
        largest sums alone, whatever their sign. `score`, `target`, `at_step`, `allow_inexact`, `inputs`, `model` and
        `allow_partial` are as in `topk`.

        Raises as `topk`.
        """
        own = as_target(score, target, at_step, allow_inexact)
        if score == GRADIENT:
            _refuse_beside_gradients(allow_partial=allow_partial)
            return GradientSum(as_layer_names(layer), _gradients(queries), as_by(by), as_filter(where), k)
        return GroupSum(_one(layer), _given(queries), as_by(by), as_filter(where), score, allow_partial, own, k)

    @_asks
    def distribution(
        self,
        layer: str | None = None,
        queries: QueriesLike | None = None,
        where: FilterLike | None = None,
        score: str = "dot",
        *,
        target: TargetLike | None = None,
        at_step: int | None = None,
        allow_inexact: bool = False,
        points: int = POINTS,
        inputs: Any = None,
        model: nn.Module | None = None,
    ) -> Distribution:
        """Distributions: the scores of all slots by rank, at no more than `points` ranks (at least 11) that lie evenly
        on a logarithmic axis; and how many slots share them, in effect.

        Scores are those of `topk`, bit for bit, with `score`, `target`, `at_step`, `allow_inexact`, `inputs` and
        `model` as there; score="gradient" has none. Every slot that the mask leaves is scored canonically, so that a
        query takes as long as reading all keys once. Raises as `topk`.
        """
        own = as_target(score, target, at_step, allow_inexact)
        if score == GRADIENT:
            raise BadInput(
                f'distribution does not support score="{GRADIENT}".',
                hint='Call memory.topk, or memory.group_sum(…, by="step"), with this score.',
                field="score",
            )
        return Distribution(layer, _given(queries), as_filter(where), score, own, points)

    @_asks
    def output(
        self,
        layer: str | None = None,
        queries: QueriesLike | None = None,
        where: FilterLike | None = None,
        at_step: int | None = None,
        allow_inexact: bool = False,
        kernel: str = "linear",
        temperature: float | None = None,
        initial: bool = True,
        *,
        inputs: Any = None,
        model: nn.Module | None = None,
    ) -> Output:
        """Outputs, float32[n, d_out]: what the layer answers, bias included, when only the slots of `where` speak.

        With kernel="softmax" slots are weighed by the softmax of their scores over `temperature`, 1.0 where none is
        given; every slot is read for every query. initial=False leaves W_0 out, and all of the bias, what training
        added to it too.
        Raises as `topk`, and Inexact where the record is too far from the layer's weights, unless `allow_inexact`, and
        for "softmax" where slots have no value of their own.
        """
        return Output(layer, _given(queries), as_filter(where), at_step, allow_inexact, kernel, temperature, initial)

    @_asks
    def contributions(
        self,
        layer: str | None = None,
        queries: QueriesLike | None = None,
        by: str | Sequence[str] = (),
        where: FilterLike | None = None,
        at_step: int | None = None,
        allow_inexact: bool = False,
        *,
        inputs: Any = None,
        model: nn.Module | None = None,
    ) -> Contribution:
        """Contributions: what the slots of each group brought to each output of the layer, float64[n, G, d_out], beside
        what no group has: the initial weights, the bias, what stands outside the record, and the residual.

        All of it adds up to `output` under the same mask and as of the same step. Groups that one mask could name have
        what `output` gives under it without the initial weights. Raises as `output`.
        """
        return Contribution(layer, _given(queries), as_by(by), as_filter(where), at_step, allow_inexact)

    @_asks
    def placebo(
        self,
        layer: str | None = None,
        queries: QueriesLike | None = None,
        where: FilterLike | None = None,
        n: int = RANDOM_SETS,
        at_step: int | None = None,
        allow_inexact: bool = False,
        *,
        inputs: Any = None,
        model: nn.Module | None = None,
    ) -> Placebo:
        """Placebos: how predictions change when only the slots of `where` count, and whether that means anything.

        The same is measured under two nulls: `n` random sets of as many samples as the ablation leaves out, and its
        siblings, which are the other values of the columns that it names or other spans of as many steps. A change is
        unusual where it lies outside the central 95 % of both. Leaving out any tenth of a training changes many
        predictions, so that a changed prediction means little by itself.

        Ask about the output layer. The first question about a layer takes one pass over its training; groups of slots
        are then kept. Raises as `output`, and BadInput where the weights of 65 groups would take more than 1 GiB.
        """
        return Placebo(layer, _given(queries), as_filter(where), n, at_step, allow_inexact)

    @_asks
    def weights(
        self,
        where: FilterLike | Mapping[str, FilterLike] | None = None,
        at_step: int | None = None,
        allow_inexact: bool = False,
    ) -> NetworkWeights:
        """Weights: the network's parameters when only the slots of `where` speak, or as of an earlier step.

        Load them into the model to evaluate the masked network. `where` may name a mask for each of several slot
        spaces; those that it does not name stay whole. Raises as `output`.
        """
        return NetworkWeights(as_filters(where), at_step, allow_inexact)

    @_asks
    def cancellation(
        self,
        where: FilterLike | Mapping[str, FilterLike],
        at_step: int | None = None,
        layer: str | None = None,
        allow_inexact: bool = False,
    ) -> MaskCancellation:
        """Cancellation: by layer (all, or the one named), how much the slots that `where` removes cancel each other.

        Under rules that scale gradients, as Adam's does, slots have no terms that could cancel; `concentrations` of the
        answer tell by layer how far the mask moves its weights, and in how few of their entries.
        Raises as `output`.
        """
        return MaskCancellation(as_filters(where) or "", at_step, layer, allow_inexact)

    @_asks
    def slots(self, ids: Hits | Sequence[int] | NDArray[np.int64], space: str | None = None) -> SlotLookup:
        """The columns of some slots, in their order: of all hits of an answer, or of ids that count in `space`.

        Raises BadInput for ids without a space where the memory has several, NotFound for an id that does not exist.
        """
        return _lookup(ids, space)

    @_asks
    def sql(self, statement: str) -> SqlStatement:
        """The rows of one SELECT over slots, steps, and the other tables of the snapshot.

        Runs in a process of its own that sees nothing else. Raises BadInput with DuckDB's message, TimedOut.
        """
        return SqlStatement(statement)

    @_asks
    def query_set(self, name: str, layer: str | None = None) -> QuerySetLookup:
        """A stored query set, with the queries of a layer where one is named. Raises NotFound."""
        return QuerySetLookup(name, layer)

    @_asks
    def previews(
        self, samples: Sequence[int] | NDArray[np.int64], dataset: str | None = None, *, query_set: str | None = None
    ) -> PreviewLookup:
        """Previews: what some samples of a dataset looked like, or some examples of a query set, from its preview set.

        `dataset` is None for samples that were recorded without one. Samples that the preview set does not have are
        said. Raises NotFound where there is no such preview set, BadInput for more than 1,024 samples, and for more
        than 8 MiB.
        """
        return PreviewLookup(as_ids(samples, "samples"), dataset, query_set)

    @_asks
    def verify(self) -> Verification:
        """Reconstruction errors by layer: how well the record rebuilds the final weights, and the status measured."""
        return Verification()


def _one(layer: str | Sequence[str] | None) -> str | None:
    """Questions that take one layer refuse whatever else is given."""
    return cast("str | None", layer)


def _given(queries: QueriesLike | ExampleGradients | None) -> Queries:
    if queries is None:
        raise BadInput(
            "queries are missing.", hint='Pass queries, for example "test/17", or inputs= and model=.', field="queries"
        )
    return as_queries(cast("QueriesLike", queries))  # which refuses whatever else is given


def _gradients(queries: Any) -> ExampleGradients | QuerySetExamples:
    """A query set's examples may be named by a text; the questions refuse whatever else is given."""
    return cast("ExampleGradients | QuerySetExamples", as_queries(queries) if isinstance(queries, str) else queries)


def _refuse_beside_gradients(**given: object) -> None:
    """Raises BadInput for what questions about gradients do not take."""
    for name, value in given.items():
        if value:
            raise BadInput(f'{name} cannot be used with score="{GRADIENT}".', hint=f"Leave {name} out.", field=name)


def _of_model(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[nn.Module, Any, str | None]:
    """The model, its inputs and the layer of a question that is asked by inputs, which `named` has no more."""
    model, inputs = named.pop("model", None), named.pop("inputs", None)
    if model is None or inputs is None:
        missing, other = ("model", "inputs") if model is None else ("inputs", "model")
        raise BadInput(f"{other}= needs {missing}=.", hint="Pass both model= and inputs=.", field=missing)
    if len(arguments) > 1 or named.get("queries") is not None:
        raise BadInput("queries and inputs= cannot be combined.", hint="Pass only one of them.", field="queries")
    return model, inputs, arguments[0] if arguments else named.get("layer")


def _known(info: MemoryInfo) -> str:
    """The layer that a question without one is about. Raises BadInput where it is not known."""
    if not info.output_layer:
        raise BadInput(
            "layer is missing, and the layer that gives the network's outputs is not known.",
            hint=f"Pass layer=, one of {', '.join(layer.name for layer in info.layers)}.",
            field="layer",
        )
    return info.output_layer


def _lookup(ids: Hits | Sequence[int] | NDArray[np.int64], space: str | None) -> SlotLookup:
    if not isinstance(ids, Hits):
        return SlotLookup(as_ids(ids), space)
    if space is not None and space != ids.space:
        raise BadInput(
            f"space is {space!r}, but these hits are slots of space {ids.space!r}.",
            hint="Leave space out: memory.slots(hits).",
            field="space",
        )
    return SlotLookup(ids.ids, ids.space or None)


class Answers(_Methods, ABC):
    """Whoever answers questions about one memory: the engine in process, the client over gRPC.

    A context manager, which closes it. Every method also takes its question as a value: `ask(TopK(…))`.
    """

    @abstractmethod
    def ask(self, question: Question[A]) -> A:
        """The answer to a question given as a value."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what answering holds."""

    def queries(self, model: nn.Module, inputs: Any, batch_size: int = 256, batch_dim: int = 0) -> dict[str, Vectors]:
        """By layer, what each recorded layer takes when the model runs on the inputs: queries for questions about it.

        See dualform.live.queries.
        """
        from dualform.live.queries import queries

        return queries(model, inputs, self.info(), batch_size, batch_dim)

    def gradients(
        self, model: nn.Module, inputs: Any, labels: Any, loss: Loss, batch_size: int = 256, batch_dim: int = 0
    ) -> ExampleGradients:
        """The gradients of examples' own losses in each recorded layer with values: what score="gradient" is asked
        with. `loss` gives a number for each example of what the model returns and the labels, as
        cross_entropy(…, reduction="none") does.

        Raises BadInput for a model that is not the recorded one, labels that do not fit and a loss that is not one
        finite number an example. More in dualform.live.gradients.
        """
        from dualform.live.gradients import gradients

        return gradients(model, inputs, labels, loss, self.info(), batch_size, batch_dim)

    def explorer(
        self,
        query: str = "",
        *,
        token: int | None = None,
        layer: str = "",
        by: str = "",
        where: str = "",
        score: str = "dot",
        target: str = "",
        k: int = 12,
        allow_inexact: bool = False,
    ) -> Explorer:
        """A widget for notebooks: what one example of a query set, "test/17", attends to in a layer, by groups and by
        slots, under masks that are set by mouse.

        It asks as the page of `dualform explore` does. `token`: the place in the example, of layers that see tokens,
        whose queries are an example's tokens one after another; its last where it is left out. `score`: dot, abs,
        or contribution, `target` an output "3" or a margin "3-8". What is empty is chosen: the first example, the last
        layer that its query set has, labels as groups, with their datasets where there are several. A question that is
        refused is told in the widget. Raises MissingPackage without the extra [notebook].
        """
        optional("anywidget")
        from dualform_notebook.explorer import Explorer

        return Explorer(
            self,
            query=query,
            token=token,
            layer=layer,
            by=by,
            where=where,
            score=score,
            target=target,
            k=k,
            allow_inexact=allow_inexact,
        )

    def _ask_by_inputs(self, question: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        from dualform.live.queries import of_layer

        model, inputs, layer = _of_model(arguments, named)
        layer = _known(self.info()) if layer is None else layer
        found = of_layer(self.queries(model, inputs), layer)
        rest = {name: own for name, own in named.items() if name != "layer"}
        return self.ask(question(self, layer, found, **rest))

    def applied(
        self,
        model: nn.Module,
        where: FilterLike | Mapping[str, FilterLike] | None = None,
        at_step: int | None = None,
        allow_inexact: bool = False,
    ) -> AbstractContextManager[Weights]:
        """A context in which the model computes with what `weights` answers, and after which it has its own weights
        again, bit for bit. What is not recorded stays as the model has it; what the context yields says which.

        Raises as `weights`, and as dualform.live.applied.
        """
        from dualform.live.applied import applied

        with warnings.catch_warnings():
            # Here they stand as the model has them, not as at the end of the training.
            warnings.filterwarnings("ignore", message="not recorded, so they stand as")
            weights = self.weights(where, at_step, allow_inexact)
        return applied(model, weights)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncAnswers(_Methods, ABC):
    """Whoever answers questions about one memory asynchronously: the methods of Answers, each to be awaited."""

    @abstractmethod
    async def ask(self, question: Question[A]) -> A:
        """The answer to a question given as a value."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of what answering holds."""

    async def queries(
        self, model: nn.Module, inputs: Any, batch_size: int = 256, batch_dim: int = 0
    ) -> dict[str, Vectors]:
        """As Answers.queries."""
        from dualform.live.queries import queries

        return queries(model, inputs, await self.info(), batch_size, batch_dim)

    async def gradients(
        self, model: nn.Module, inputs: Any, labels: Any, loss: Loss, batch_size: int = 256, batch_dim: int = 0
    ) -> ExampleGradients:
        """As Answers.gradients."""
        from dualform.live.gradients import gradients

        return gradients(model, inputs, labels, loss, await self.info(), batch_size, batch_dim)

    async def _ask_by_inputs(self, question: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        from dualform.live.queries import of_layer

        model, inputs, layer = _of_model(arguments, named)
        layer = _known(await self.info()) if layer is None else layer
        found = of_layer(await self.queries(model, inputs), layer)
        rest = {name: own for name, own in named.items() if name != "layer"}
        return await self.ask(question(self, layer, found, **rest))

    @asynccontextmanager
    async def applied(
        self,
        model: nn.Module,
        where: FilterLike | Mapping[str, FilterLike] | None = None,
        at_step: int | None = None,
        allow_inexact: bool = False,
    ) -> AsyncIterator[Weights]:
        """As Answers.applied, entered with `async with`."""
        from dualform.live.applied import applied

        with applied(model, await self.weights(where, at_step, allow_inexact)) as weights:
            yield weights

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
