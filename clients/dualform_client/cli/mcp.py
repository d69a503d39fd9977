"""dualform mcp: a memory's answers for agents."""

from __future__ import annotations

import click

from dualform.extras import optional
from dualform.methods import Answers
from dualform_client.cli.target import asks_target


@click.command()
@asks_target
@click.option("--json", "as_json", is_flag=True, help="What keeps it from starting as one JSON object on stdout.")
def mcp(memory: Answers, as_json: bool) -> None:
    """Answer an agent's questions by the Model Context Protocol.

    Over stdin and stdout, until stdin ends, with tools that only read: info, topk, sums, output, slots and, where the
    TARGET answers it, sql. An agent starts this command itself; docs/agents.md says how.

    \b
    Example:
      dualform mcp runs/demo
    """
    optional("mcp")
    from dualform_mcp.server import serve

    serve(memory)
