"""The tools as they are described, what they refuse, and how much an answer takes at most."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from mcp import Client
from torch import nn

import dualform
from dualform.answers import Columns
from dualform.errors import Inexact, ServiceError
from dualform_explorer.panels.answer import answer_panel
from dualform_explorer.state import read_state
from dualform_explorer.view import View
from dualform_mcp.server import mcp_server
from dualform_mcp.tool import MOST_BYTES, MOST_MESSAGE, MOST_ROWS, MOST_TEXT, bounded, plain
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.service import canned
from tests.service.canned import Canned
from tests.trainings import learn

TOOLS = ["info", "answer", "topk", "group_sum", "output", "slots", "sql"]


async def asked(memory, tool, **arguments):
    async with Client(mcp_server(memory)) as agent:
        return await agent.call_tool(tool, arguments)


async def test_each_says_what_it_answers_and_takes(memory):
    async with Client(mcp_server(memory)) as agent:
        tools = {tool.name: tool for tool in (await agent.list_tools()).tools}
        assert "ask info first" in " ".join(agent.instructions.split()).lower()
    assert list(tools) == TOOLS
    for tool in tools.values():
        assert len(tool.description) > 80
        assert tool.annotations.read_only_hint
        assert tool.input_schema["additionalProperties"] is False
        for name, said in tool.input_schema["properties"].items():
            assert said["description"], (tool.name, name)
    limits = {name: tools[name].input_schema["properties"] for name in TOOLS}
    assert limits["topk"]["k"]["maximum"] == limits["group_sum"]["k"]["maximum"] == 100
    assert limits["slots"]["ids"]["maxItems"] == 100


MISTAKES = {
    "an unknown layer": ("topk", {"layer": "nix", "query": "test/1"}, "not_found", "There is no layer 'nix'"),
    "a mask that leaves nothing": (
        "topk", {"layer": "0", "query": "test/1", "where": "step > 99"}, "empty_mask", "matches none of 48 slots",
    ),
    "a mask that is no expression": (
        "group_sum", {"layer": "0", "query": "test/1", "by": "label", "where": "label ="}, "bad_mask", "where",
    ),
    "an argument that there is not": (
        "topk", {"layer": "0", "query": "test/1", "were": "label = 1"}, "bad_input", "were: Extra inputs",
    ),
    "two filters": (
        "topk", {"layer": "0", "query": "test/1", "where": "label = 1", "where_slots": [1]}, "bad_input",
        "where and where_slots cannot be combined",
    ),
    "no ids": ("output", {"query": "test/1", "where_samples": []}, "bad_input", "where_samples: List should have"),
    "too many slots": ("topk", {"layer": "0", "query": "test/1", "k": 101}, "bad_input", "k: Input should be less"),
    "too many queries": ("topk", {"layer": "0", "query": "test/0-8"}, "bad_input", "names 9 examples"),
    "a score that there is not": (
        "topk", {"layer": "0", "query": "test/1", "score": "nix"}, "bad_input", "Unknown score 'nix'",
    ),
    "a step without a direction": (
        "topk", {"layer": "0", "query": "test/1", "at_step": 2}, "bad_input", "at_step cannot be used with score=",
    ),
    "an output that the layer has not": (
        "output", {"layer": "2", "query": "test/1", "outputs": [4]}, "bad_input", "outputs contains 4, but the "
        "layer has 4 outputs",
    ),
    "a slot that there is not": ("slots", {"ids": [48]}, "not_found", "48"),
    "an example that there is not": ("answer", {"query": "test/99"}, "bad_input", "no example"),
    "a set that there is not": ("answer", {"query": "none/1"}, "bad_input", "no query set 'none'"),
    "a column that there is not": ("answer", {"query": "test/1", "by": "colour"}, "bad_input", "no column 'colour'"),
    "a mask of an answer that leaves nothing": (
        "answer", {"query": "test/1", "where": "step > 99"}, "empty_mask", "matches none",
    ),
    "SQL that writes": ("sql", {"statement": "DROP TABLE slots"}, "bad_input", "SELECT"),
}  # fmt: skip


@pytest.mark.parametrize(("tool", "arguments", "code", "message"), MISTAKES.values(), ids=MISTAKES)
async def test_mistakes_are_errors_with_a_hint(memory, tool, arguments, code, message):
    told = await asked(memory, tool, **arguments)
    assert told.is_error
    error = told.structured_content["error"]
    assert error["code"] == code
    assert message in f"{error['message']} {error['hint']}"
    (content,) = told.content
    assert content.text == f"{error['message']} {error['hint']}".strip()


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("sql", {"statement": "SELECT error(repeat('E', 1000000))"}),
        ("topk", {"layer": "\x01" * 1_000_000, "query": "test/1"}),
        ("topk", {f"a{number}": 1 for number in range(5000)}),
        ("y" * 1_000_000, {}),
    ],
)
async def test_an_error_has_room_for_no_more_than_an_answer(memory, tool, arguments):
    told = await asked(memory, tool, **arguments)
    assert told.is_error
    assert len(told.structured_content["error"]["message"]) == MOST_MESSAGE
    assert len(told.model_dump_json().encode()) <= MOST_BYTES


async def test_a_fault_is_an_error_without_a_traceback():
    memory = Canned()
    server = mcp_server(memory)
    memory.error = RuntimeError("what nobody foresaw")
    async with Client(server) as agent:
        told = await agent.call_tool("info", {})
    assert told.is_error
    assert "what nobody foresaw" in told.content[0].text
    assert "Traceback" not in told.content[0].text
    assert "fault of dualform" in told.structured_content["error"]["hint"]


async def test_what_was_committed_meanwhile_is_seen():
    memory = Canned()
    assert not (await asked(memory, "info")).is_error
    assert memory.refreshed.is_set()


async def test_an_answer_has_room_for_so_much_and_says_what_is_left_out(memory):
    told = await asked(memory, "sql", statement="SELECT range AS number FROM range(1000)")
    rows = [{"number": number} for number in range(MOST_ROWS)]
    assert told.structured_content["rows"] == rows
    assert told.structured_content["rows_left_out"] == 1000 - MOST_ROWS
    told = await asked(memory, "sql", statement="SELECT repeat('ü', 999) AS text FROM range(150)")
    found = told.structured_content
    assert len(told.content[0].text.encode()) <= MOST_BYTES
    assert len(found["rows"]) + found["rows_left_out"] == 150
    assert {row["text"] for row in found["rows"]} == {"ü" * (MOST_TEXT - 1) + "…"}
    assert json.loads(told.content[0].text) == found


async def test_a_network_of_many_layers_is_told_in_parts():
    memory = Canned()
    layers = tuple(replace(canned.LAYER, name=f"h.{number}.fc", views=()) for number in range(500))
    many = {f"{'n' * 60}{number}": "x" * 150 for number in range(100)}
    columns = {space: dict.fromkeys(list(many)[:40], "BIGINT") for space in ("sample", "token")}
    datasets = dict.fromkeys(many, 3)
    memory.contents = replace(canned.INFO, layers=layers, skipped=many, datasets=datasets, columns=columns)
    told = await asked(memory, "info")
    found = told.structured_content
    assert len(told.content[0].text.encode()) <= MOST_BYTES
    assert [one["layer"] for one in found["layers"]] == [f"h.{number}.fc" for number in range(len(found["layers"]))]
    assert 0 < len(found["layers"]) == 500 - found["layers_left_out"]
    assert found["in_all"] == {
        "layers": 500,
        "query_sets": len(canned.INFO.query_sets),
        "datasets": 100,
        "skipped": 100,
    }
    found = (await asked(memory, "info", layers="h.49?.fc")).structured_content
    assert [one["layer"] for one in found["layers"]] == [f"h.{number}.fc" for number in range(490, 500)]


def test_numbers_that_json_or_javascript_lacks_are_texts():
    rows = Columns({"x": np.array([np.nan, np.inf, -np.inf, 1.5], np.float32), "n": [2**53, 2**53 - 1, None, True]})
    found = bounded({"rows": [{"x": x, "n": n} for x, n in zip(rows["x"], rows["n"], strict=True)]}, "rows")["rows"]
    assert [row["x"] for row in found] == ["nan", "inf", "-inf", 1.5]
    assert [row["n"] for row in found] == ["9007199254740992", 2**53 - 1, None, True]


STATUSES = {
    "keys alone": ("topk", {"layer": "0", "query": "test/1"}, "the layer's inputs bit for bit"),
    "their sums": ("group_sum", {"layer": "0", "query": "test/1", "by": "label"}, "the layer's inputs bit for bit"),
    "absolute sums": ("group_sum", {"layer": "0", "query": "test/1", "by": "label", "score": "abs"}, "right to 1e-6"),
    "gradients": ("topk", {"layer": "*", "query": "traced/1", "score": "gradient"}, "stored error signals"),
    "columns": ("slots", {"ids": [0]}, "as the training gave it"),
    "tables": ("sql", {"statement": "SELECT count(*) AS n FROM slots"}, "as the training gave it"),
}


@pytest.mark.parametrize(("tool", "arguments", "reason"), STATUSES.values(), ids=STATUSES)
async def test_an_answer_that_needs_no_weights_says_how_exact_it_is(memory, tool, arguments, reason):
    status = (await asked(memory, tool, **arguments)).structured_content["status"]
    assert (status["name"], status["exact"], status["error"]) == ("exact", True, None)
    assert reason in status["reason"]


async def test_scores_of_a_layer_that_cannot_be_rebuilt_are_exact_and_its_weights_are_not(tmp_path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, tmp_path / "run", values=False, quiet=True) as recorder:
        with recorder.step(label=[0, 1]):
            learn(optimizer, model(torch.eye(3)[:2]).sum())
        recorder.query_set("test", torch.ones(1, 3))
    with dualform.open(tmp_path / "run") as memory:
        (layer,) = (await asked(memory, "info")).structured_content["layers"]
        told = (await asked(memory, "topk", layer="", query="test/0")).structured_content
    assert layer["status"]["name"] == "scores only"
    assert told["status"]["name"] == "exact"
    assert [row["slot"] for row in told["hits"]] == [0, 1]


async def test_a_cancellation_that_cannot_be_had_is_told_in_the_answer_alone(memory, monkeypatch, capfd):
    def refused(*asked):
        raise Inexact("this server measures no cancellation under Adam.")

    monkeypatch.setattr(type(memory), "cancellation", refused)
    told = await asked(memory, "output", layer="2", query="test/1", where="step > 1")
    assert not told.is_error
    answer = told.structured_content
    assert answer["cancellation"] is None
    assert answer["cancellation_unmeasured"] == "this server measures no cancellation under Adam."
    assert answer["outputs"]
    assert capfd.readouterr() == ("", "")


def test_names_that_are_alike_where_they_are_cut_keep_their_values():
    long = "x" * 2 * MOST_TEXT
    found = plain({f"{long}1": 1, f"{long}2": 2, f"{long}3": 3})
    assert list(found.values()) == [1, 2, 3]
    assert max(map(len, found)) <= MOST_TEXT


async def test_a_statement_of_too_many_columns_is_refused(memory):
    names = ", ".join(f"{number} AS column_{number}_{'x' * 200}" for number in range(500))
    told = await asked(memory, "sql", statement=f"SELECT {names}")
    assert told.is_error
    assert told.structured_content["error"]["message"] == "the result has 500 columns; the limit is 60."
    told = await asked(memory, "sql", statement=f"SELECT {', '.join(names.split(', ')[:60])}")
    assert len(told.content[0].text.encode()) <= MOST_BYTES
    assert [list(row) for row in told.structured_content["rows"]] == [told.structured_content["columns"]]


FILTERS = {
    "samples": ({"where_samples": [4, 9]}, {"sample": [4, 9]}),
    "slots": ({"where_slots": [0, 5, 40]}, {"slot": [0, 5, 40]}),
    "SQL": ({"where": "step > 1"}, "step > 1"),
}


@pytest.mark.parametrize(("given", "where"), FILTERS.values(), ids=FILTERS)
async def test_each_tool_takes_ids_in_place_of_sql_and_asks_the_output_layer(memory, given, where):
    assert memory.info().output_layer == "2"
    told = (await asked(memory, "topk", query="test/1", k=3, **given)).structured_content
    assert told["layer"] == "2"
    assert [row["slot"] for row in told["hits"]] == memory.topk("2", "test/1", 3, where).slots[0].tolist()
    told = (await asked(memory, "group_sum", query="test/1", by="label", **given)).structured_content
    assert told["slots_matching"] == memory.topk("2", "test/1", 1, where).scan.slots_matching
    told = (await asked(memory, "output", query="test/1", outputs=[0, 1, 2, 3], **given)).structured_content
    assert [row["value"] for row in told["outputs"]] == np.asarray(memory.output("2", "test/1", where))[0].tolist()


async def test_distinct_lists_each_sample_once(memory):
    told = (await asked(memory, "topk", query="test/1", k=10, distinct="sample")).structured_content
    samples = [(row["dataset"], row["sample"]) for row in told["hits"]]
    assert len(set(samples)) == len(samples)
    found = memory.topk("2", "test/1", 10, distinct="sample")
    assert [row["repeats"] for row in told["hits"]] == found.repeats.tolist()


async def test_an_ablation_of_the_output_layer_comes_with_its_placebo(memory):
    where = "dataset = 'first'"
    told = (await asked(memory, "output", query="test/1,6", where=where, placebo=40)).structured_content
    found = memory.placebo("2", "test/1,6", where, 40)
    assert [own["query"] for own in told["placebo"]] == ["test/1", "test/6"]
    assert [own["change"] for own in told["placebo"]] == found.change.tolist()
    assert [own["unusual"] for own in told["placebo"]] == found.unusual.tolist()
    assert [own["flips"] for own in told["placebo"]] == found.flips.tolist()
    table = found.table()
    assert [own["random_interval"] for own in told["placebo"]] == [
        [low, high] for low, high in zip(table["random_low"].tolist(), table["random_high"].tolist(), strict=True)
    ]
    assert [own["random_flips"] for own in told["placebo"]] == table["random_flips"].tolist()
    assert told["placebo_summary"] == {
        **found.summary(), "random_sets": found.random, "sibling_sets": len(found.siblings),
    }  # fmt: skip


NO_PLACEBO = {
    "another layer": ({"layer": "0"}, "only for the output layer"),
    "without the initial weights": ({"initial": False}, "need the initial weights"),
}


@pytest.mark.parametrize(("given", "reason"), NO_PLACEBO.values(), ids=NO_PLACEBO)
async def test_where_random_sets_say_nothing_the_answer_says_why(memory, given, reason):
    told = (await asked(memory, "output", query="test/1", where="step > 1", **given)).structured_content
    assert told["placebo"] is None
    assert reason in told["placebo_unmeasured"]


@pytest.mark.parametrize("given", [{}, {"where": "step > 1", "placebo": 0}])
async def test_no_placebo_is_measured_without_a_filter_or_for_no_sets(memory, given):
    assert "placebo" not in (await asked(memory, "output", query="test/1", **given)).structured_content


@pytest.mark.parametrize("kind", [Inexact, ServiceError])
async def test_a_placebo_that_is_refused_is_told_in_the_answer(memory, monkeypatch, kind):
    def refused(*asked):
        raise kind("this server has no placebo.")

    monkeypatch.setattr(type(memory), "placebo", refused)
    told = await asked(memory, "output", query="test/1", where="step > 1")
    assert not told.is_error
    assert told.structured_content["placebo"] is None
    assert told.structured_content["placebo_unmeasured"] == "this server has no placebo."
    assert told.structured_content["outputs"]


async def test_without_a_known_output_layer_a_layer_must_be_named():
    told = await asked(Canned(), "topk", query="test/1")
    assert told.structured_content["error"]["message"] == "which layer gives the network's outputs is not known."


async def test_a_server_without_sql_has_no_tool_for_it():
    with Server(Canned(), ServiceConfig("127.0.0.1:0")) as server, dualform.connect(server.address) as memory:
        async with Client(mcp_server(memory)) as agent:
            assert [tool.name for tool in (await agent.list_tools()).tools] == TOOLS[:-1]
        told = await asked(memory, "sql", statement="SELECT 1")
    assert told.is_error
    assert told.structured_content["error"] == {
        "code": "not_found",
        "message": "Unknown tool 'sql'.",
        "hint": "Tools: info, answer, topk, group_sum, output, slots.",
    }


async def test_of_inputs_in_float64_no_score_says_that_keys_have_all_their_bits(tmp_path):
    model = nn.Linear(3, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.full((2, 3), 1 / 3, dtype=torch.float64)
    with dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True) as recorder:
        with recorder.step(label=[0, 1]):
            learn(optimizer, model(inputs).sum())
        recorder.query_set("test", inputs, label=[0, 1], loss=lambda out, label: out.sum(1))
    with dualform.open(tmp_path / "run") as memory:
        for score in ("dot", "abs", "cosine", "gradient"):
            told = (await asked(memory, "topk", layer="", query="test/0", score=score)).structured_content
            assert "those of a model in float64 are rounded to float32" in told["status"]["reason"], score


@pytest.mark.parametrize("arguments", [{}, {"by": "step"}, {"at_step": 2}, {"where": "label <> 1"}], ids=str)
async def test_parts_are_contributions_and_add_up_to_the_margin(memory, arguments):
    told = (await asked(memory, "answer", query="test/1", **arguments)).structured_content
    given = {"where": arguments.get("where"), "at_step": arguments.get("at_step")}
    found = memory.contributions(told["layer"], "test/1", tuple(told["by"]), **given)
    top, other = told["predicted"]["output"], told["less"]["output"]
    whole = np.asarray(memory.output(told["layer"], "test/1", at_step=given["at_step"]))[0]
    assert top == whole.argmax()
    groups = {group: own[top] - own[other] for group, own in zip(found.groups, found.sums[0], strict=True)}
    parts = {tuple(own["part"]): own["value"] for own in told["parts"] if own["kind"] == "group"}
    assert {group: pytest.approx(value) for group, value in parts.items()} == groups
    assert sum(own["value"] for own in told["parts"]) == pytest.approx(told["margin"], abs=1e-5)
    assert ("placebo" in told) == ("where" in arguments)
    if "where" in arguments:
        assert told["placebo"]["verdict"] in ("unusual", "within the random range")


async def test_the_sentence_is_that_of_the_page(memory):
    told = (await asked(memory, "answer", query="test/1")).structured_content
    state = read_state([("item", "test/1")], memory.info()).state
    panel = answer_panel(View(memory, memory.info(), state))
    assert told["sentence"] == panel.words
    assert told["sentence"].startswith(f"Predicted {panel.predicted[0]}")
    assert all(f"{part.value:+.4g}" in told["sentence"] for part in panel.told)
