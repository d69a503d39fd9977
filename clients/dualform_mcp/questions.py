"""Shared by tools that ask about one layer: their arguments, and remarks for their answers."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from dualform.answers import Scan, Status
from dualform.errors import BadInput
from dualform.methods import Answers
from dualform.questions import QuerySetExamples, as_queries
from dualform.questions.filters import FilterLike
from dualform.questions.scores import CONTRIBUTION
from dualform_mcp.bounds import MOST_QUERIES
from dualform_mcp.status import reason_of, told
from dualform_mcp.tool import Arguments

WHERE = (
    "Use only slots for which this SQL expression over their columns is true, for example: label <> 3 AND step < 100; "
    "info lists the columns. Default: all slots. In topk and group_sum this is a filter; in output it is an ablation, "
    "arithmetic on this training and not a retraining."
)
MOST_IDS = 10_000
"""Ids of samples or slots in a filter."""


class LayerArguments(Arguments):
    layer: str | None = Field(
        None, description="A layer's name, as info lists it. Default: the layer that gives the network's outputs."
    )
    query: str = Field(
        description="Stored examples to ask with, as SET/EXAMPLE, counted from 0: test/17; test/3,17 for two; "
        "test/10-13 for four; test/17:4 for token 4 of example 17, in layers that see tokens. "
        f"At most {MOST_QUERIES}. info lists the query sets and how many examples each has."
    )
    where: str | None = Field(None, description=WHERE)
    where_samples: list[int] | None = Field(
        None,
        min_length=1,
        max_length=MOST_IDS,
        description="In place of where: use only the slots of these samples, by the numbers in the column sample. "
        "If datasets share numbers, write where: dataset = 'first' AND sample IN (3, 5).",
    )
    where_slots: list[int] | None = Field(
        None, min_length=1, max_length=MOST_IDS, description="In place of where: use only the slots with these ids."
    )
    at_step: int | None = Field(None, ge=0, description="As of so many recorded steps; the end where it is left out.")
    allow_inexact: bool = Field(
        False, description="Answer from a record that is further from the training's weights than the bound allows."
    )

    @property
    def filter(self) -> FilterLike | None:
        """As the methods take it. Raises BadInput for more than one."""
        given: dict[str, FilterLike | None] = {
            "where": self.where,
            "where_samples": None if self.where_samples is None else {"sample": self.where_samples},
            "where_slots": None if self.where_slots is None else {"slot": self.where_slots},
        }
        found = {name: own for name, own in given.items() if own is not None}
        if len(found) > 1:
            raise BadInput(
                f"{' and '.join(found)} cannot be combined.", hint="Give only one of them.", field=[*found][-1]
            )
        return next(iter(found.values()), None)

    def layer_of(self, memory: Answers) -> str:
        """The layer that is named, or the output layer. Raises BadInput where that is not known."""
        return memory.info().require_output_layer() if self.layer is None else self.layer


class ScoreArguments(LayerArguments):
    score: str | None = Field(
        None,
        description="dot (the inner product of key and query; the default), abs, cosine, contribution (what a slot "
        "brought to an output; needs target), or gradient (dot products of gradients, of a query set that was taken "
        "with a "
        'loss; layer "*" sums them over all layers).',
    )
    target: str | None = Field(
        None,
        description='Of score contribution: an output of the layer by its number, "3", or one less another, "3-8". '
        "at_step and allow_inexact go with it alone.",
    )

    @property
    def asked(self) -> dict[str, Any]:
        """Arguments of the methods that ask."""
        score = self.score or ("dot" if self.target is None else CONTRIBUTION)
        return {
            "score": score,
            "target": self.target,
            "at_step": self.at_step,
            "allow_inexact": self.allow_inexact,
        }


def few_queries(memory: Answers, said: str) -> QuerySetExamples:
    """The stored examples that a text names. Raises BadInput for more than an answer has room for."""
    asked = as_queries(said)
    assert isinstance(asked, QuerySetExamples), "a text names rows of a query set"
    count = asked.count
    if count is None:
        count = next((query_set.rows for query_set in memory.info().query_sets if query_set.name == asked.query_set), 0)
    if count > MOST_QUERIES:
        raise BadInput(
            f"{said!r} names {count} examples; the limit is {MOST_QUERIES}.",
            hint=f"Ask with fewer, for example {asked.query_set}/0-{MOST_QUERIES - 1}.",
            field="query",
        )
    return asked


def query_names(memory: Answers, asked: QuerySetExamples, count: int) -> list[str]:
    """The name of each query of an answer, which can be used to ask again."""
    examples = None
    if asked.examples is None:
        examples = next(own.examples for own in memory.info().query_sets if own.name == asked.query_set)
    return asked.names(count, examples)


def beside(scan: Scan, space: str, status: Status | None, score: str = CONTRIBUTION) -> dict[str, Any]:
    """Remarks about an answer: its scan, space and exactness. `status`: None for scores that need no weights."""
    return {
        "space": space,
        "status": told(status, reason_of(score)),
        "slots_scanned": scan.slots_scanned,
        "slots_matching": scan.slots_matching,
        "snapshot": scan.snapshot,
        **({"share": scan.share} if scan.sample else {}),
    }


def names(said: str | None) -> tuple[str, ...]:
    """ "dataset, label" as the names of columns."""
    return tuple(name.strip() for name in said.split(",")) if said else ()
