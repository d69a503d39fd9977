"""Twenty questions as an agent asks them over stdin and stdout, each held against the API's own answer."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from mcp import Client, StdioServerParameters

import dualform
from dualform_mcp.server import mcp_server
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig


@dataclass(frozen=True)
class Asked:
    """What an agent asks, and what `expected` of a memory it must be told: names of the answer with their values."""

    tool: str
    arguments: dict[str, Any]
    expected: Any


def hits(memory, layer, query, **asked):
    """The rows of topk, by the methods of a memory: which slots, their scores, and their columns."""
    query_set, _, row = query.partition("/")
    found = memory.topk(layer, query, **asked)
    rows = []
    for number, own in enumerate(found):
        for hit in own:
            said = memory.slots([hit.slot], found.space).records()[0]
            group = {} if hit.group is None else dict(zip(found.by, hit.group, strict=True))
            name = f"{query_set}/{int(row.split(',')[number]) if row else number}"
            rows.append({"query": name, "rank": hit.rank, "slot": hit.slot, "score": hit.score, **said, **group})
    return {"hits": rows, "hits_left_out": 0, **scanned(found)}


def sums(memory, layer, query, by, k=20, **asked):
    """The rows of sums, from the sums of all groups."""
    found = memory.group_sum(layer, query, by=by, **asked)
    rows = []
    for own in range(len(found)):
        order = sorted(range(len(found.groups)), key=lambda group: (-abs(found.sums[own, group]), group))[:k]
        rows += [
            {
                "query": query,
                "group": dict(zip(found.by, found.groups[group], strict=True)),
                "sum": found.sums[own, group],
                "slots": int(found.counts[group]),
            }
            for group in order
        ]
    return {"sums": rows, "sums_left_out": 0, "groups_in_all": len(found.groups), **scanned(found)}


def output(memory, layer, query, most=10, outputs=None, **asked):
    found = memory.output(layer, query, **asked)
    rows = []
    for own in np.asarray(found):
        chosen = outputs or sorted(range(len(own)), key=lambda number: (-own[number], number))[:most]
        rows += [{"query": query, "output": number, "value": float(own[number])} for number in chosen]
    told = {
        "outputs": rows,
        "outputs_left_out": 0,
        "d_out": found.shape[1],
        "unrecorded_change": found.unrecorded_change,
    }
    if "where" in asked:
        told["cancellation"] = {layer: memory.cancellation(asked["where"], asked.get("at_step"), layer)[layer]}
    return told | scanned(found)


def scanned(found):
    scan = found.scan
    return {
        "space": found.space,
        "slots_scanned": scan.slots_scanned,
        "slots_matching": scan.slots_matching,
        "snapshot": scan.snapshot,
    }


def layers(memory):
    found = memory.info()
    return {
        "layers": [
            {
                "layer": one.name, "space": one.space, "d_in": one.d_in, "d_out": one.d_out, "slots": one.slots,
                "values": one.values, "status": {**asdict(one.status), "exact": one.exact},
            }
            for one in found.layers
        ],
        "query_sets": [
            {"query_set": one.name, "rows": one.rows, "examples": one.examples, "layers": len(one.layers)}
            for one in found.query_sets
        ],
        "datasets": dict(found.datasets),
        "columns": {space: dict(columns) for space, columns in found.columns.items()},
        "steps": found.steps,
        "layers_left_out": 0,
    }  # fmt: skip


def rows(memory, statement):
    found = memory.sql(statement)
    return {"columns": list(found.keys()), "rows": found.records(), "rows_left_out": 0}


def looked_up(memory, ids):
    return {"slots": memory.slots(ids, "sample").records(), "space": "sample", "slots_left_out": 0}


BY_LABEL = "SELECT label, count(*) AS slots FROM slots GROUP BY label ORDER BY label"


QUESTIONS = {
    "What was recorded?": Asked("info", {}, layers),
    "What does this prediction attend to?": Asked(
        "topk", {"layer": "0", "query": "test/6", "k": 5}, lambda m: hits(m, "0", "test/6", k=5)
    ),
    "And in the last layer, two predictions at once?": Asked(
        "topk", {"layer": "2", "query": "test/3,0", "k": 3}, lambda m: hits(m, "2", "test/3,0", k=3)
    ),
    "All of a small query set?": Asked(
        "topk", {"layer": "0", "query": "traced", "k": 2}, lambda m: hits(m, "0", "traced", k=2)
    ),
    "Leaving out the second dataset?": Asked(
        "topk",
        {"layer": "0", "query": "test/6", "k": 5, "where": "dataset <> 'zweites ü'"},
        lambda m: hits(m, "0", "test/6", k=5, where="dataset <> 'zweites ü'"),
    ),
    "Whatever the sign?": Asked(
        "topk",
        {"layer": "0", "query": "test/2", "k": 4, "score": "abs"},
        lambda m: hits(m, "0", "test/2", k=4, score="abs"),
    ),
    "Whatever the length of the keys?": Asked(
        "topk",
        {"layer": "0", "query": "test/2", "k": 4, "score": "cosine"},
        lambda m: hits(m, "0", "test/2", k=4, score="cosine"),
    ),
    "The best of each label?": Asked(
        "topk",
        {"layer": "0", "query": "test/1", "k": 2, "by": "label"},
        lambda m: hits(m, "0", "test/1", k=2, by="label"),
    ),
    "What pushed output 1 of this prediction most?": Asked(
        "topk",
        {"layer": "2", "query": "test/4", "k": 5, "target": "1"},
        lambda m: hits(m, "2", "test/4", k=5, score="contribution", target="1"),
    ),
    "What made it 1 and not 0, as of step 4?": Asked(
        "topk",
        {"layer": "2", "query": "test/4", "k": 5, "score": "contribution", "target": "1-0", "at_step": 4},
        lambda m: hits(m, "2", "test/4", k=5, score="contribution", target="1-0", at_step=4),
    ),
    "Whose gradients agree most with its own, over all layers?": Asked(
        "topk",
        {"layer": "*", "query": "traced/3", "k": 4, "score": "gradient"},
        lambda m: hits(m, "*", "traced/3", k=4, score="gradient"),
    ),
    "How much attention goes to each label?": Asked(
        "group_sum", {"layer": "0", "query": "test/6", "by": "label"}, lambda m: sums(m, "0", "test/6", "label")
    ),
    "To each label of each dataset, after step 1?": Asked(
        "group_sum",
        {"layer": "2", "query": "test/6", "by": "dataset, label", "where": "step > 1", "k": 5},
        lambda m: sums(m, "2", "test/6", ("dataset", "label"), 5, where="step > 1"),
    ),
    "Which steps brought most to output 2?": Asked(
        "group_sum",
        {"layer": "2", "query": "test/5", "by": "step", "target": "2", "k": 3},
        lambda m: sums(m, "2", "test/5", "step", 3, score="contribution", target="2"),
    ),
    "What does the last layer answer?": Asked(
        "output", {"layer": "2", "query": "test/6"}, lambda m: output(m, "2", "test/6")
    ),
    "And without the second dataset?": Asked(
        "output",
        {"layer": "2", "query": "test/6", "where": "dataset = 'first'", "most": 2},
        lambda m: output(m, "2", "test/6", 2, where="dataset = 'first'"),
    ),
    "Output 3 and 1 as of step 2?": Asked(
        "output",
        {"layer": "2", "query": "test/6", "at_step": 2, "outputs": [3, 1]},
        lambda m: output(m, "2", "test/6", outputs=[3, 1], at_step=2),
    ),
    "What are these slots?": Asked("slots", {"ids": [47, 0, 3]}, lambda m: looked_up(m, [47, 0, 3])),
    "How many slots has each label?": Asked("sql", {"statement": BY_LABEL}, lambda m: rows(m, BY_LABEL)),
    "How large were the steps?": Asked(
        "sql",
        {"statement": "SELECT step, lr FROM steps ORDER BY step"},
        lambda m: rows(m, "SELECT step, lr FROM steps ORDER BY step"),
    ),
}


SLOTS = {"topk": "hits", "slots": "slots"}
"""The rows of tools that answer slots."""


def stands_on_weights(asked):
    """Whether the answer is as exact as weights that are rebuilt from the record, which was measured."""
    return asked.tool in ("info", "output") or "target" in asked.arguments


async def test_an_agents_questions_get_the_answers_of_the_api(run, memory):
    arguments = ["-m", "dualform_client.cli", "mcp", str(run)]
    await ask_all(StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ)), memory)


async def test_and_so_they_do_from_a_server(memory):
    with (
        Server(memory, ServiceConfig("127.0.0.1:0", sql=True)) as server,
        dualform.connect(server.address) as remote,
    ):
        await ask_all(mcp_server(remote), memory)


async def ask_all(target, memory):
    async with Client(target) as agent:
        for question, asked in QUESTIONS.items():
            told = await agent.call_tool(asked.tool, asked.arguments)
            assert not told.is_error, (question, told.content)
            expected = asked.expected(memory)
            found = told.structured_content
            assert {name: found[name] for name in expected} == expected, question
            if asked.tool in SLOTS:
                slots = [row["slot"] for row in found[SLOTS[asked.tool]]]
                assert slots == [row["slot"] for row in expected[SLOTS[asked.tool]]] != [], question
                assert all(isinstance(slot, int) for slot in slots), question
            for status in (own["status"] for own in found["layers"]) if asked.tool == "info" else (found["status"],):
                assert (status["name"], status["exact"]) == ("exact", True), question
                assert (status["error"] is not None) == stands_on_weights(asked), question
                of_scores = asked.tool in ("topk", "group_sum") and not stands_on_weights(asked)
                assert ("stored keys" in status["reason"]) == of_scores, question
