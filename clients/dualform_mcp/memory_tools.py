"""Tools about what a memory holds: info, slots and sql."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dualform.answers import LayerInfo, QuerySetInfo
from dualform.errors import BadInput, Forbidden
from dualform.methods import Answers
from dualform.patterns import matches
from dualform_mcp.tool import MOST_NAMES, MOST_ROWS, Arguments, Tool, cut_apart, first, told


class InfoArguments(Arguments):
    layers: str | None = Field(
        None, description="Only layers whose names fit this pattern, for example h.*.attn.*; all where it is left out."
    )


def _info(memory: Answers, asked: InfoArguments) -> Mapping[str, Any]:
    found = memory.info()
    return {
        "steps": found.steps,
        "optimizer": found.optimizer,
        "slots": dict(found.slots),
        "recording": found.recording,
        "cut_off": found.cut_off,
        "sampling": found.sampling,
        "snapshot": found.snapshot,
        "query_sets": [_query_set(query_set) for query_set in found.query_sets[:MOST_NAMES]],
        "datasets": first(found.datasets),
        "columns": {space: first(columns) for space, columns in first(found.columns).items()},
        "skipped": first(found.skipped),
        "layers": [
            _layer(layer) for layer in found.layers if asked.layers is None or matches(layer.name, asked.layers)
        ],
        "in_all": {
            "layers": len(found.layers),
            "query_sets": len(found.query_sets),
            "datasets": len(found.datasets),
            "skipped": len(found.skipped),
        },
    }


def _layer(layer: LayerInfo) -> dict[str, Any]:
    return {
        "layer": layer.name,
        "space": layer.space,
        "d_in": layer.d_in,
        "d_out": layer.d_out,
        "slots": layer.slots,
        "values": layer.values,
        "status": told(layer.status),
        **({"views": layer.views[:MOST_NAMES]} if layer.views else {}),
    }


def _query_set(query_set: QuerySetInfo) -> dict[str, Any]:
    return {
        "query_set": query_set.name,
        "rows": query_set.rows,
        "examples": query_set.examples,
        "layers": len(query_set.layers),
    }


INFO = Tool(
    "info",
    "What this record of a network's training holds; ask it first. Layers with their width and their status (how exact "
    "the record was measured to be), query sets (stored examples to ask with), datasets, the slots' columns by slot "
    "space, and layers that were skipped, with the reason.",
    InfoArguments,
    _info,
    "layers",
)


class SlotsArguments(Arguments):
    ids: list[int] = Field(min_length=1, max_length=100, description="Slot ids, as topk gives them.")
    space: str | None = Field(
        None, description="The slot space that they count in, as topk says; may be left out where there is only one."
    )


def _slots(memory: Answers, asked: SlotsArguments) -> Mapping[str, Any]:
    found = memory.slots(asked.ids, asked.space)
    return {"space": found.space, "slots": found.records(), "status": told(None), "snapshot": found.scan.snapshot}


SLOTS = Tool(
    "slots",
    "The columns of training datapoints by slot id: step, row in the batch, dataset, label, sample, and what else was "
    "recorded of them. topk gives these columns with its hits already.",
    SlotsArguments,
    _slots,
    "slots",
)


MOST_COLUMNS = 60
"""The most columns of an answer, which contains their names twice."""


class SqlArguments(Arguments):
    statement: str = Field(
        description="One SELECT of DuckDB's SQL, for example: SELECT label, count(*) AS slots FROM slots GROUP BY label"
    )


def _sql(memory: Answers, asked: SqlArguments) -> Mapping[str, Any]:
    found = memory.sql(asked.statement)
    if len(found.keys()) > MOST_COLUMNS:
        raise BadInput(
            f"the result has {len(found.keys())} columns; the limit is {MOST_COLUMNS}.",
            hint="Select only the columns that you need.",
            field="statement",
        )
    return {
        "columns": cut_apart(found.keys()),
        "rows": found.records(),
        "status": told(None),
        "snapshot": found.scan.snapshot,
    }


def is_offered(memory: Answers) -> bool:
    """Whether the memory answers SQL; a server does so only where it was started with --sql, and a token allows it."""
    try:
        memory.sql("SELECT 1")
    except Forbidden:
        return False
    return True


SQL = Tool(
    "sql",
    "Run one read-only SELECT over the tables slots (slot, step, row, position, dataset, label, sample, and more; of "
    "further slot spaces a table of the space's name), steps, labels, and what was kept of leaving samples out: "
    "adjoints (name, query, example: such as test/17, sample, value: the predicted change of a query's loss without "
    "the sample), retrainings (name, set, query, example, change: the real one) and left_out (name, set, sample: what "
    f"each retraining lacked). At most {MOST_ROWS} rows come back: aggregate, or add LIMIT. Scores are not in the "
    "tables; ask topk and sums for those.",
    SqlArguments,
    _sql,
    "rows",
)
