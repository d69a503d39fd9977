"""The server: tools over one memory, spoken over stdin and stdout."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import anyio
from mcp import types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from dualform.faults import as_dualform_error
from dualform.methods import Answers
from dualform_mcp.layer_tools import ANSWER, OUTPUT, SUMS, TOPK
from dualform_mcp.memory_tools import INFO, SLOTS, SQL, is_offered
from dualform_mcp.tool import MOST_MESSAGE, Tool, as_json, cut

INSTRUCTIONS = """\
A record of a neural network's training that answers exact questions. A linear layer trained by gradient descent is a
key-value memory: its output is W_0 q plus the sum over all training datapoints t (slots) of (x_t . q) e_t, where x_t is
the layer's input then (key), e_t its error signal (value), q its input now (query) and x_t . q the score, or attention.
Ask info first. Then answer for why an example is predicted as it is, group_sum for what a prediction attends to (by
dataset, label, step), topk for single datapoints, and output for what a layer outputs without some of them. A score
says how alike two inputs are to a layer; a contribution says what a datapoint brought to an output; neither says what
the network would have been without it.
"""


def mcp_server(memory: Answers) -> Server[Any]:
    """A server whose tools ask the memory. Raises the memory's error if it cannot be asked."""
    every: list[Tool[Any]] = [INFO, ANSWER, TOPK, SUMS, OUTPUT, SLOTS]
    tools = {tool.name: tool for tool in (*every, *([SQL] if is_offered(memory) else []))}

    async def list_tools(
        context: ServerRequestContext[Any], asked: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(tool) for tool in tools.values()])

    async def call_tool(context: ServerRequestContext[Any], asked: types.CallToolRequestParams) -> types.CallToolResult:
        if asked.name not in tools:
            return _failed("not_found", f"Unknown tool {asked.name!r}.", f"Tools: {', '.join(tools)}.")
        return await anyio.to_thread.run_sync(_called, memory, tools[asked.name], asked.arguments or {})

    return Server(
        "dualform",
        version=version("dualform"),
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def serve(memory: Answers) -> None:
    """Answers over stdin and stdout until stdin ends."""
    server = mcp_server(memory)

    async def run() -> None:
        async with stdio_server() as (read, write), anyio.create_task_group() as tasks:
            sent, heard = anyio.create_memory_object_stream[SessionMessage | Exception]()

            async def hear() -> None:
                """Reply to lines that are not messages. `mcp` would skip them, and the sender would wait."""
                async with sent:
                    async for message in read:
                        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                            if isinstance(message, Exception):
                                await write.send(SessionMessage(_misread(message)))
                            else:
                                await sent.send(message)

            tasks.start_soon(hear)
            await server.run(heard, write, server.create_initialization_options())

    anyio.run(run)


def _misread(error: Exception) -> types.JSONRPCError:
    """The reply to a malformed line, with its id if it has one."""
    found: Any = None
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False)[0]["input"]
        with suppress(ValueError, RecursionError):
            found = json.loads(found) if isinstance(found, str) else found
    own = found.get("id") if isinstance(found, dict) else None
    if not isinstance(own, int) and not (isinstance(own, str) and own.isprintable()):
        own = None
    said = types.ErrorData(
        code=types.PARSE_ERROR,
        message="The line is not a JSON-RPC message, or contains half of a surrogate pair. Send valid UTF-8.",
    )
    return types.JSONRPCError(jsonrpc="2.0", id=own, error=said)


def _described(tool: Tool[Any]) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.schema,
        annotations=types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    )


def _called(memory: Answers, tool: Tool[Any], given: dict[str, Any]) -> types.CallToolResult:
    """The result of a tool, or its error. No traceback leaves this process."""
    try:
        refresh = getattr(memory, "refresh", None)  # a folder's; a server sees by itself what is new
        if refresh is not None:
            refresh()
        answer = tool.call(memory, given)
    except Exception as error:
        ours = as_dualform_error(error)
        return _failed(ours.code, ours.message, ours.hint)
    return types.CallToolResult(content=[types.TextContent(text=as_json(answer))], structured_content=answer)


def _failed(code: str, message: str, hint: str) -> types.CallToolResult:
    message, hint = cut(message, MOST_MESSAGE), cut(hint, MOST_MESSAGE)
    said = {"error": {"code": code, "message": message, "hint": hint}}
    text = f"{message} {hint}".strip()
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=said, is_error=True)
