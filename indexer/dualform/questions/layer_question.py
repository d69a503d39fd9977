"""What questions about one layer have in common: queries, each answered as if it had been asked alone."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from dualform.questions.arguments import check_layer
from dualform.questions.filters import as_filter
from dualform.questions.queries import Queries, as_queries, joined_queries
from dualform.questions.question import Answer_co, Question


@dataclass(frozen=True)
class LayerQuestion(Question[Answer_co]):
    """A question about one layer, with a filter `where`.

    Its answer has `part` and `nbytes`, so that several may be answered together.
    """

    layer: str | None
    """None for the layer whose outputs are the network's."""
    queries: Queries

    def __post_init__(self) -> None:
        object.__setattr__(self, "queries", as_queries(self.queries))
        check_layer(self.layer)
        own: Any = self
        object.__setattr__(self, "where", as_filter(own.where))

    @property
    def kind(self) -> Hashable | None:
        """Equal for questions that differ in nothing but their queries and can be joined; None for one that cannot."""
        given = self.queries.kind
        rest = tuple(getattr(self, field.name) for field in fields(self) if field.name != "queries")
        return None if given is None else (type(self), *rest, given)

    @property
    def bytes_a_query(self) -> float | None:
        """Most bytes that the answer to one query takes; None where that depends on the memory."""
        return None

    @property
    def rebuilds(self) -> bool:
        """Whether weights may have to be rebuilt for its answer, or what each slot brought to them."""
        return False

    @property
    def most_joined(self) -> int | None:
        """Most queries, of several questions of a kind, that are worth answering together; None where each adds little
        to what answering one takes.
        """
        return None

    def joined(self, others: Sequence[Self]) -> Self:
        """One question with the queries of all, this one's first. They are of one kind."""
        if not others:
            return self
        return replace(self, queries=joined_queries([self.queries, *(one.queries for one in others)]))
