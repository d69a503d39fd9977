"""Queries by the names that they were asked by: test/17, and what the example's label is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dualform.errors import DualformError
from dualform.methods import Answers
from dualform.questions import Queries, QuerySetExamples

_OF_EXAMPLES = "sample"
"""The slot space of layers whose rows are a query set's examples, and have its labels; others have rows of tokens."""


@dataclass(frozen=True)
class AskedQuery:
    """One of a question's queries, as a table names it."""

    query: int
    """Its place among them, from 0."""
    name: str
    """SET/EXAMPLE, or SET/EXAMPLE:TOKEN of a layer that sees tokens; where numbers were asked with, its place alone."""
    label: int | None = None
    """None where it has none, or none is known."""

    def __str__(self) -> str:
        return self.name if self.label is None else f"{self.name} (label {self.label})"


def asked_queries(memory: Answers, queries: Queries, count: int, space: str) -> list[AskedQuery]:
    """Those of an answer that has so many, for a layer whose slots are of that space."""
    if not isinstance(queries, QuerySetExamples):
        return [AskedQuery(query, str(query)) for query in range(count)]
    labels = _labels(memory, queries.query_set) if space == _OF_EXAMPLES else {}
    known = queries.examples is not None or space == _OF_EXAMPLES
    examples = (
        None if known else next(own.examples for own in memory.info().query_sets if own.name == queries.query_set)
    )
    return [AskedQuery(query, name, labels.get(name)) for query, name in enumerate(queries.names(count, examples))]


def _labels(memory: Answers, query_set: str) -> dict[str, int]:
    """By example, as SET/EXAMPLE, where it is known."""
    try:
        labels = memory.query_set(query_set).labels
    except DualformError:  # the question is answered: a server that does not give the whole query set spoils nothing
        return {}
    return (
        {}
        if labels is None
        else {f"{query_set}/{example}": label for example, label in enumerate(labels.tolist()) if label >= 0}
    )


def names_record(asked: list[AskedQuery]) -> dict[str, Any]:
    """What JSON has of them beside the numbers of the queries."""
    return {"asked": [asdict(own) for own in asked]}
