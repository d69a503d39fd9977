"""dualform sql: free SQL over the tables of a memory."""

from __future__ import annotations

import click

from dualform.methods import Answers
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_table
from dualform_client.cli.target import asks_target


@click.command()
@asks_target
@click.argument("statement")
@json_option
def sql(memory: Answers, statement: str, as_json: bool) -> None:
    """Run one read-only SELECT over slots, steps and logs.

    \b
    Example:
      dualform sql runs/demo "SELECT dataset, count(*) AS slots FROM slots GROUP BY dataset"
    """
    columns = memory.sql(statement)
    if as_json:
        print_json({"columns": columns.keys(), "rows": columns.records()})
        return
    print_table(f"{columns.rows} rows", columns.keys(), [list(record.values()) for record in columns.records()])
