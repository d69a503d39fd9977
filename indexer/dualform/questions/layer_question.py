"""Shared by questions about one layer: queries, each answered as if asked alone."""

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
    """A query about one layer, with a filter or ablation `where`."""

    layer: str | None
    """The name of the layer; None for the layer that gives the network's outputs."""
    queries: Queries

    def __post_init__(self) -> None:
        object.__setattr__(self, "queries", as_queries(self.queries))
        check_layer(self.layer)
        own: Any = self
        object.__setattr__(self, "where", as_filter(own.where))

    @property
    def kind(self) -> Hashable | None:
        """Equal for queries that differ only in their vectors and can be joined; None for one that cannot."""
        given = self.queries.kind
        rest = tuple(getattr(self, field.name) for field in fields(self) if field.name != "queries")
        return None if given is None else (type(self), *rest, given)

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

    def joined(self, others: Sequence[Self]) -> Self:
        """One value with the queries of all, this one's first. All must be of one kind."""
        if not others:
            return self
        return replace(self, queries=joined_queries([self.queries, *(one.queries for one in others)]))
