"""The query methods of a memory, for the engine, the client and the asynchronous client.

The body of each method makes the query as a value; `ask` answers it. Shapes: n queries, G groups, d_out outputs of a
layer.
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

from dualform.answers import GroupSums, Hits, Weights
from dualform.answers.table import asked_of
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
from dualform.questions.outputs import RANDOM_SETS
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
        return self._answered(question(self, *arguments, **named))

    return cast("_Method[P, A]", method)


class _Methods:
    """The query methods. All raise BadInput and NotFound, with the argument at fault in `field`."""

    @_asks
    def info(self) -> Inventory:
        """The layers, slots, columns, datasets and query sets of the memory, as of the snapshot that queries see."""
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
        """Find the k slots that each query attends to most, or the k best of each group.

        - `layer`: its name; None for the layer that gives the network's outputs.
        - `queries`: examples of a query set ("test", "test/17", "test/17:4", "test/3,17", "test/10-19"), `Vectors` or
          an array float32[n, d_in], or `SlotKeys`.
        - `k`: the number of slots for each query, and for each group with `by`.
        - `where`: a filter. It keeps the slots for which this SQL condition over columns is true.
        - `by`: columns to group by; each group has separate hits.
        - `score`: "dot" is the attention score x_t . q; "abs" its absolute value; "cosine" divides it by the lengths of
          key and query. "contribution" is the part of the layer's output that a slot added along a direction u, (x_t .
          q) a_t (delta_t . u). "gradient" is the dot product of the gradients of a slot and of an example's loss.
        - `target`: the direction of "contribution": an output's number, "3-8" for output 3 minus output 8, or
          float32[d_out] or [n, d_out].
        - `at_step`, `allow_inexact`: for "contribution", as in `output`.
        - `distinct`: columns; only the best slot for each of their values is returned. "sample" means dataset and
          sample.
        - `inputs`, `model`: in place of `queries`. The model runs on these inputs, and the inputs of the layer are the
          queries.
        - `allow_partial`: if a machine of a distributed memory does not answer, return the hits of the others.
          `scan.missing` lists what is missing.

        With score="gradient", `queries` are `memory.gradients(…)` or a query set recorded with loss=. `layer` may be a
        list or "*", over which scores are summed, and `by` is not allowed. "contribution" of single slots needs SGD,
        Adam or another rule by entry, and a layer that shares no weight.

        Scores are sums in float64 in a fixed order, so they are the same on every backend. Attention compares inputs
        and does not show what caused an output.

        Raises BadMask and EmptyMask for `where`; Inexact if keys are not finite or, for "contribution", if the record
        is not exact enough; Unavailable if a machine does not answer.
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
        """Sum the scores of each query over groups of slots.

        - `by`: the columns to group by.
        - `k`: return only the k groups with the largest sums by absolute value; None for all groups.

        The other arguments are as in `topk`, and so are the errors. With score="contribution", layers whose slots have
        no separate values are answered for groups, under most optimizers.
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
        """Rank the scores of all slots, to see how many slots share the attention.

        - `points`: the most ranks to return, at least 11. They are evenly spaced on a logarithmic axis and contain the
          first ten.

        The other arguments are as in `topk`, and so are the errors. score="gradient" is not supported. Each query takes
        one pass over all keys.
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
        """Compute the output of a layer, bias included, from only the slots that `where` keeps: float32[n, d_out].

        - `where`: an ablation. The terms of all other slots are removed from the sum.
        - `at_step`: the number of recorded steps that count; None for the end, 0 for the initial network.
        - `allow_inexact`: return a result even if the reconstruction error is above 10 %.
        - `kernel`: "linear" uses the attention scores. "softmax" uses their softmax over `temperature` (1.0 by
          default), and reads every slot for every query.
        - `initial`: False leaves out W_0 and the whole bias.

        The other arguments are as in `topk`. An ablation subtracts recorded updates. It does not predict a network
        retrained without these data.

        Raises Inexact if the record is not exact enough or, for "softmax", if the slots lack separate values; otherwise
        as `topk`.
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
        """Split the output of a layer into what each group of slots added to it: float64[n, G, d_out].

        - `by`: the columns to group by.

        The other arguments are as in `output`. The result also has the terms that belong to no group: initial weights,
        bias, unrecorded changes and residual. All terms add up to `output` with the same `where` and `at_step`. Raises
        as `output`.
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
        """Test whether an ablation changes predictions more than a random ablation of the same size does.

        - `where`: the ablation. Slots for which it is false are removed.
        - `n`: the number of random sets of samples to remove, each of the same size.

        The other arguments are as in `output`. A second comparison uses siblings: other values of the column that
        `where` names, or other spans of as many steps. A change is unusual if it is outside the central 95 % of both.
        Removing any tenth of a training changes many predictions, so a changed prediction means little by itself.

        Query the output layer. The first call for a layer takes one pass over its training. Raises as `output`, and
        BadInput if the weights of 65 groups take more than 1 GiB.
        """
        return Placebo(layer, _given(queries), as_filter(where), n, at_step, allow_inexact)

    @_asks
    def weights(
        self,
        where: FilterLike | Mapping[str, FilterLike] | None = None,
        at_step: int | None = None,
        allow_inexact: bool = False,
    ) -> NetworkWeights:
        """Compute the parameters of the whole network from only some slots, or as of an earlier step.

        - `where`: an ablation; or a mapping of slot space to ablation. Spaces that it does not name stay whole.
        - `at_step`, `allow_inexact`: as in `output`.

        Load the result with `load_state_dict`, or use `applied`. Raises as `output`.
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
        """Measure, for each layer, how much the terms that an ablation removes cancel each other.

        - `where`: the ablation, as in `weights`.
        - `layer`: one layer; None for all.

        The figure is 1 if all terms push one way, and tens or hundreds if they mostly cancel. Under optimizers that
        scale gradients, such as Adam, slots lack separate terms. For these layers `concentrations` shows how far the
        ablation moves the weights, and in how few entries. Raises as `output`.
        """
        return MaskCancellation(as_filters(where) or "", at_step, layer, allow_inexact)

    @_asks
    def slots(self, ids: Hits | Sequence[int] | NDArray[np.int64], space: str | None = None) -> SlotLookup:
        """The columns of some slots, in their order.

        - `ids`: the hits of `topk`, or slot numbers in `space`.

        Raises BadInput for numbers without a space if the memory has several, and NotFound for a slot that does not
        exist.
        """
        return _lookup(ids, space)

    @_asks
    def sql(self, statement: str) -> SqlStatement:
        """The rows of one SELECT statement over slots, steps and the other tables.

        It runs in a separate process that can read nothing else. Raises BadInput with DuckDB's message, and TimedOut.
        """
        return SqlStatement(statement)

    @_asks
    def query_set(self, name: str, layer: str | None = None) -> QuerySetLookup:
        """A stored query set: its labels and outputs, and the queries of `layer` if you name one. Raises NotFound."""
        return QuerySetLookup(name, layer)

    @_asks
    def previews(
        self, samples: Sequence[int] | NDArray[np.int64], dataset: str | None = None, *, query_set: str | None = None
    ) -> PreviewLookup:
        """The previews of some samples of a dataset, or of some examples of a query set.

        - `samples`: at most 1,024 numbers, as passed to step(sample=…), or numbers of examples.
        - `dataset`: None for samples recorded without a dataset.

        `missing` of the result lists samples without a preview. Raises NotFound if there are no previews, and BadInput
        for more than 8 MiB.
        """
        return PreviewLookup(as_ids(samples, "samples"), dataset, query_set)

    @_asks
    def verify(self) -> Verification:
        """Measure the reconstruction error and status of each layer at the end of the training, by reading all keys and
        values.
        """
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
    """The query methods of a memory: an `Engine` for a folder, a `Client` for a server.

    It is a context manager. `ask` takes each query as a value: `ask(TopK(…))`.
    """

    @abstractmethod
    def ask(self, question: Question[A]) -> A:
        """The result of a query given as a value."""

    @abstractmethod
    def close(self) -> None:
        """Free the resources that it holds."""

    def _answered(self, question: Question[A]) -> A:
        return asked_of(self, question, self.ask(question))

    def queries(self, model: nn.Module, inputs: Any, batch_size: int = 256, batch_dim: int = 0) -> dict[str, Vectors]:
        """Run the model on inputs, and return the queries of each recorded layer by name.

        The queries of a layer are its inputs. `inputs` are as in `Recorder.query_set`. Raises BadInput if the model is
        not the recorded one.
        """
        from dualform.live.queries import queries

        return queries(model, inputs, self.info(), batch_size, batch_dim)

    def gradients(
        self, model: nn.Module, inputs: Any, labels: Any, loss: Loss, batch_size: int = 256, batch_dim: int = 0
    ) -> ExampleGradients:
        """Compute the gradients of single examples, the queries for score="gradient", in each layer recorded with
        values.

        - `loss`: a function (outputs, labels) that returns one number for each example, such as cross_entropy(…,
          reduction="none").

        Raises BadInput for another model, for labels that do not fit, and for a loss that is not one finite number for
        each example.
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
        """A notebook widget that shows what an example attends to, by groups and slots. You can change filters with the
        mouse.

        - `query`: an example of a query set, such as "test/17".
        - `token`: its token, in layers that see tokens; None for the last.
        - `score`: "dot", "abs" or "contribution".
        - `target`: an output "3" or a margin "3-8".

        Anything left empty is chosen for you: the first example, the last layer of its query set, and groups by label.
        Errors are shown in the widget. Raises MissingPackage without the extra [notebook].
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
        layer = self.info().require_output_layer() if layer is None else layer
        found = of_layer(self.queries(model, inputs), layer)
        rest = {name: own for name, own in named.items() if name != "layer"}
        return self._answered(question(self, layer, found, **rest))

    def applied(
        self,
        model: nn.Module,
        where: FilterLike | Mapping[str, FilterLike] | None = None,
        at_step: int | None = None,
        allow_inexact: bool = False,
    ) -> AbstractContextManager[Weights]:
        """Compute with ablated or earlier weights inside a `with` block, as returned by `weights`.

        Afterwards the model has its own weights again, bit for bit. Parameters that were not recorded keep the model's
        values; the `Weights` that `with` yields list them as `not_recorded`.

        Raises as `weights`, BadInput if the model is not the recorded one, and RecordingError if a recorder is open on
        it.
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
    """The query methods of a memory for asyncio. Await each of them."""

    @abstractmethod
    async def ask(self, question: Question[A]) -> A:
        """The result of a query given as a value."""

    @abstractmethod
    async def close(self) -> None:
        """Free the resources that it holds."""

    async def _answered(self, question: Question[A]) -> A:
        return await self.ask(question)  # what a notebook shows of it cannot wait for further answers

    async def queries(
        self, model: nn.Module, inputs: Any, batch_size: int = 256, batch_dim: int = 0
    ) -> dict[str, Vectors]:
        """As `Answers.queries`."""
        from dualform.live.queries import queries

        return queries(model, inputs, await self.info(), batch_size, batch_dim)

    async def gradients(
        self, model: nn.Module, inputs: Any, labels: Any, loss: Loss, batch_size: int = 256, batch_dim: int = 0
    ) -> ExampleGradients:
        """As `Answers.gradients`."""
        from dualform.live.gradients import gradients

        return gradients(model, inputs, labels, loss, await self.info(), batch_size, batch_dim)

    async def _ask_by_inputs(self, question: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        from dualform.live.queries import of_layer

        model, inputs, layer = _of_model(arguments, named)
        layer = (await self.info()).require_output_layer() if layer is None else layer
        found = of_layer(await self.queries(model, inputs), layer)
        rest = {name: own for name, own in named.items() if name != "layer"}
        return await self._answered(question(self, layer, found, **rest))

    @asynccontextmanager
    async def applied(
        self,
        model: nn.Module,
        where: FilterLike | Mapping[str, FilterLike] | None = None,
        at_step: int | None = None,
        allow_inexact: bool = False,
    ) -> AsyncIterator[Weights]:
        """As `Answers.applied`, with `async with`."""
        from dualform.live.applied import applied

        with applied(model, await self.weights(where, at_step, allow_inexact)) as weights:
            yield weights

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
