"""Free SQL over the tables of a memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dualform.errors import BadInput, Forbidden
from dualform.methods import Answers
from dualform_mcp.bounds import MOST_ROWS, cut_apart
from dualform_mcp.status import told
from dualform_mcp.tool import Arguments, Tool

MOST_COLUMNS = 60
"""The most columns of an answer, which contains their names twice."""


class SqlArguments(Arguments):
    statement: str = Field(
        description="One SELECT of DuckDB's SQL, for example: SELECT label, count(*) AS slots FROM slots GROUP BY label"
    )


def answer(memory: Answers, asked: SqlArguments) -> Mapping[str, Any]:
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
    answer,
    "rows",
)
