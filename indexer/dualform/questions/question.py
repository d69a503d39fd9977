"""What questions share, queries (inputs of a layer), and look-ups of what a memory holds.

Shapes: n queries, d dimensions of a layer's input.

Queries check themselves when they are made, as far as possible without a memory. The memory checks widths and query
sets.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Annotated, Any, Generic, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dualform.answers import Columns, MemoryInfo, Previews, QuerySet, Reconstructions
from dualform.errors import BadInput
from dualform.questions.arguments import LayerName, as_array, as_ids, as_name, as_query_set, check_fields, shown

Answer_co = TypeVar("Answer_co", covariant=True)


class Question(Generic[Answer_co]):
    """A query as a value. It checks its arguments when it is made, as far as that needs no memory."""

    def __post_init__(self) -> None:
        check_fields(self)


MOST_EXAMPLES = 1_000_000
"""Queries that a text may name."""


def finite_rows(given: Any, many: str = "queries", one: str = "query", width: str = "d") -> NDArray[np.float32]:
    """float32[n, width] of a tensor or what NumPy makes an array of; of a single row [width] too.

    Raises BadInput, whose field is `many`, for other shapes, no row at all, and numbers that are masked or not finite.
    """
    if np.ma.is_masked(given):
        raise BadInput(
            f"{many} must not contain masked numbers.", hint=f"Give each a value: {many}.filled(0).", field=many
        )
    try:
        array = as_array(given)
        if np.iscomplexobj(array):
            raise TypeError("they are complex")
        with np.errstate(over="ignore"):  # what overflows float32 is infinite there, and refused below
            rows = array.astype(np.float32, copy=False)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{many} must be numbers: {error}.", field=many) from None
    if rows.ndim == 1:
        rows = rows[None, :]
    if rows.ndim != 2:
        raise BadInput(
            f"{many} must be float32[n, {width}] or float32[{width}], got an array of {rows.ndim} dimensions.",
            field=many,
        )
    if not len(rows):
        raise BadInput(f"{many} must have at least one row.", hint=f"Pass at least one {one}.", field=many)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise BadInput(
            f"{one.capitalize()} {int(np.argmin(finite))} contains NaN or infinity.",
            hint="Every number must be finite in float32.",
            field=many,
        )
    return np.ascontiguousarray(rows)


@dataclass(frozen=True)
class Vectors:
    """Queries as numbers: n vectors of width d, the input of the layer.

    Takes a tensor or anything that NumPy makes an array of, also a single query [d]. Raises BadInput for other shapes,
    an empty array, and numbers that are missing or not finite.
    """

    rows: NDArray[np.float32]
    """float32[n, d], finite."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", finite_rows(self.rows))

    @property
    def count(self) -> int:
        """n."""
        return len(self.rows)

    @property
    def kind(self) -> Hashable:
        """Equal for queries that can be joined."""
        return Vectors, self.rows.shape[1]


ALL_TOKENS = -1
"""In place of a token's number: every token of the example."""


@dataclass(frozen=True)
class QuerySetExamples:
    """Examples of a stored query set: the inputs of the layer when the query set was recorded.

    A layer that sees whole examples has one query for each; other layers have one for each token or place. Queries
    raise NotFound for an unknown query set, example or token.
    """

    query_set: str
    examples: tuple[int, ...] | None = None
    """Numbers from 0; None for every query of the layer, which you need if the network chooses the layer's rows."""
    tokens: tuple[int, ...] = ()
    """The token of each example, from 0, or ALL_TOKENS; empty for all tokens of each."""

    def __post_init__(self) -> None:
        if self.examples is not None:
            object.__setattr__(self, "examples", _whole_numbers(self.examples, "examples"))
        object.__setattr__(self, "tokens", _whole_numbers(self.tokens, "tokens"))
        if self.tokens and len(self.tokens) != len(self.examples or ()):
            raise BadInput(
                f"tokens must have one entry for each of the {len(self.examples or ())} examples, not "
                f"{len(self.tokens)}.",
                hint="Leave tokens out for all tokens of each example.",
                field="queries",
            )

    @property
    def every_token(self) -> bool:
        """Whether some example is queried with all of its tokens."""
        return not self.tokens or ALL_TOKENS in self.tokens

    @property
    def count(self) -> int | None:
        """n, or a lower bound if an example is queried with all of its tokens; None for every query of the layer."""
        return None if self.examples is None else len(self.examples)

    @property
    def kind(self) -> Hashable | None:
        """As `Vectors.kind`; None for every query of the layer."""
        return (QuerySetExamples, self.query_set) if self.examples else None

    def names(self, count: int, examples: int | None = None) -> list[str]:
        """The names of the first `count` queries: "test/17", or "test/17:4" in layers that see tokens.

        `examples`: how many the query set has, if all of them are queried.
        """
        known = tuple(range(examples or count)) if self.examples is None else self.examples
        tokens = self.tokens or (ALL_TOKENS,) * len(known)
        whole = tokens.count(ALL_TOKENS)
        each = max(1, (count - len(tokens) + whole) // whole) if whole else 1
        parts = [
            (example, range(each) if token == ALL_TOKENS else (token,))
            for example, token in zip(known, tokens, strict=True)
        ]
        whole_examples = each == 1 and not any(token != ALL_TOKENS for token in tokens)
        return [
            f"{self.query_set}/{example}" if whole_examples else f"{self.query_set}/{example}:{token}"
            for example, own in parts
            for token in own
        ][:count]


@dataclass(frozen=True)
class SlotKeys:
    """The keys of slots, as queries. Queries raise NotFound for a slot that the layer lacks."""

    slots: tuple[int, ...]
    """Numbers in the layer's slot space."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", _whole_numbers(self.slots, "slots"))

    @property
    def count(self) -> int:
        """n."""
        return len(self.slots)

    @property
    def kind(self) -> Hashable | None:
        """As `Vectors.kind`; None without slots."""
        return SlotKeys if self.slots else None


Queries: TypeAlias = Vectors | QuerySetExamples | SlotKeys
QueriesLike: TypeAlias = Queries | ArrayLike | str


def joined_queries(queries: Sequence[Queries]) -> Queries:
    """The queries of all, in order. They are of one kind."""
    match queries[0]:
        case Vectors():
            return Vectors(np.concatenate([one.rows for one in queries if isinstance(one, Vectors)]))
        case QuerySetExamples(query_set):
            named = [one for one in queries if isinstance(one, QuerySetExamples)]
            examples = tuple(chain.from_iterable(one.examples or () for one in named))
            tokens = tuple(chain.from_iterable(one.tokens or (ALL_TOKENS,) * (one.count or 0) for one in named))
            return QuerySetExamples(query_set, examples, () if set(tokens) == {ALL_TOKENS} else tokens)
        case SlotKeys():
            slots = (one.slots for one in queries if isinstance(one, SlotKeys))
            return SlotKeys(tuple(chain.from_iterable(slots)))


def as_queries(queries: QueriesLike, name: str = "queries") -> Queries:
    """Vectors, QuerySetExamples or SlotKeys as they are; numbers as Vectors; texts as QuerySetExamples: "test",
    "test/17" and "test/17:4" for all of a query set, one example, and its token 4; "test/3,17", "test/10-19" and
    "test/17:0-4" for several.

    Raises BadInput where a text names no examples after its last slash, or a range of none or of too many.
    """
    if isinstance(queries, Vectors | QuerySetExamples | SlotKeys):
        return queries
    if not isinstance(queries, str):
        return Vectors(queries)  # type: ignore[arg-type]  # it makes an array of them
    name, slash, said = queries.rpartition("/")
    if not slash:
        return QuerySetExamples(queries)
    try:
        parts = [_examples_of(part) for part in said.split(",")]
    except ValueError:
        raise BadInput(
            f"{shown(queries)} does not name an example of a query set: {shown(said)} is not a number.",
            hint='Write "SET/EXAMPLE", for example "test/17"; "test/17:4" for its token 4, "test/3,17" or '
            '"test/10-19" for several.',
            field="queries",
        ) from None
    if not all(examples and tokens for examples, tokens in parts):
        raise BadInput(
            f"{shown(queries)} contains an empty range.",
            hint='Write the smaller number first, for example "test/10-19".',
            field="queries",
        )
    if sum((own.stop - own.start) * (tokens.stop - tokens.start) for own, tokens in parts) > MOST_EXAMPLES:
        raise BadInput(
            f"{shown(queries)} names more than {MOST_EXAMPLES:,} queries.",
            hint="Split it into several calls.",
            field="queries",
        )
    pairs = [(example, token) for examples, tokens in parts for example in examples for token in tokens]
    tokens = tuple(token for _, token in pairs)
    return QuerySetExamples(name, tuple(example for example, _ in pairs), () if set(tokens) == {ALL_TOKENS} else tokens)


def _whole_numbers(given: Any, what: str) -> tuple[int, ...]:
    """A tuple of what is given in a sequence; whether these are numbers of something there is, is known when asked."""
    if isinstance(given, tuple) and all(type(number) is int for number in given):
        return given
    try:
        numbers = as_array(given)
        if numbers.ndim == 0:
            raise ValueError("it is one value")
        return tuple(numbers.tolist())
    except (TypeError, ValueError):
        raise BadInput(
            f"{what} must be a list of whole numbers, not {shown(given)}.",
            hint=f"For example {what}=[17].",
            field="queries",
        ) from None


def _examples_of(said: str) -> tuple[range, range]:
    """The examples and tokens of "17", "10-19" or "17:0-4". Raises ValueError for anything else."""
    examples, colon, tokens = said.partition(":")
    return _range_of(examples), _range_of(tokens) if colon else range(ALL_TOKENS, ALL_TOKENS + 1)


def _range_of(said: str) -> range:
    """The numbers of "17" or "10-19", the last one too. Raises ValueError for anything else."""
    first, dash, last = said.partition("-")
    if not (first.strip().isdecimal() and (last.strip().isdecimal() or not dash)):
        raise ValueError(said)
    return range(int(first), int(last if dash else first) + 1)


@dataclass(frozen=True)
class LayerQuestion(Question[Answer_co]):
    """A query about one layer, with a filter or ablation `where`."""

    layer: LayerName
    """The name of the layer; None for the layer that gives the network's outputs."""
    queries: Annotated[Queries, as_queries]

    @property
    def bytes_a_query(self) -> float | None:
        """The most bytes that the result for one query takes; None if that depends on the memory."""
        return None

    @property
    def rebuilds(self) -> bool:
        """Whether the result may need rebuilt weights or contributions."""
        return False

    @property
    def most_joined(self) -> int | None:
        """The most queries that are worth answering together; None if each adds little cost."""
        return None

    @property
    def kind(self) -> Hashable | None:
        """Equal for queries that differ only in their vectors and can be joined; None for one that cannot."""
        given = self.queries.kind
        rest = tuple(getattr(self, field.name) for field in fields(self) if field.name != "queries")
        return None if given is None else (type(self), *rest, given)

    def joined(self, others: Sequence[Self]) -> Self:
        """One value with the queries of all, this one's first. All must be of one kind."""
        if not others:
            return self
        return replace(self, queries=joined_queries([self.queries, *(one.queries for one in others)]))


@dataclass(frozen=True)
class Inventory(Question[MemoryInfo]):
    """The layers, slots, datasets, columns and query sets of a memory."""


@dataclass(frozen=True, eq=False)
class SlotLookup(Question[Columns]):
    """The columns of some slots, in the order of `ids`."""

    ids: Annotated[NDArray[np.int64], as_ids]
    """int64[n]."""
    space: str | None = None
    """The slot space; None if the memory has only one."""


@dataclass(frozen=True)
class SqlStatement(Question[Columns]):
    """The rows of one SELECT over slots, steps, and the other tables."""

    text: str


@dataclass(frozen=True)
class QuerySetLookup(Question[QuerySet]):
    """A stored query set, with the queries of `layer` if it is given."""

    name: Annotated[str, as_query_set]
    layer: LayerName = None


MOST_SAMPLES = 1024
"""The most samples whose previews can be asked for at once."""


@dataclass(frozen=True, eq=False)
class PreviewLookup(Question[Previews]):
    """The previews of some samples of a dataset, or of some examples of a query set, in the order of `samples`.

    Raises BadInput for more than 1,024 samples, and for both a dataset and a query set.
    """

    samples: Annotated[NDArray[np.int64], as_ids]
    """int64[n]: the column `sample` of slots or, with `query_set`, numbers of examples from 0."""
    dataset: Annotated[str | None, as_name] = None
    """The name of the dataset; None for samples recorded without one."""
    query_set: Annotated[str | None, as_name] = None
    """The name of the query set, in place of a dataset."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.samples) > MOST_SAMPLES:
            raise BadInput(
                f"samples must have at most {MOST_SAMPLES:,} entries, not {len(self.samples):,}.",
                hint=f"Pass {MOST_SAMPLES:,} of them at a time.",
                field="samples",
            )
        if self.dataset is not None and self.query_set is not None:
            raise BadInput(
                "dataset and query_set cannot be combined.", hint="Pass only one of them.", field="query_set"
            )


@dataclass(frozen=True)
class Verification(Question[Reconstructions]):
    """The reconstruction error of each layer at the end of the training. It reads all keys and values."""
