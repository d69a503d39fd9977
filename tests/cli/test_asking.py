"""topk, sums, output, info, sql and verify: what they ask, and the shape of what they print."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from dualform import Recorder, open as open_memory
from dualform.questions import (
    Contribution,
    Distribution,
    GradientSum,
    GradientTopK,
    GroupSum,
    MaskCancellation,
    Output,
    QuerySetExamples,
    QuerySetLookup,
    Target,
    TopK,
)
from dualform_client.cli.layer_answers import named_layers
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.service import canned
from tests.wire.values import same

EXACT = {"name": "exact", "error": 1e-7, "rounding": 2e-8, "since": None, "reason": ""}
OFF = {"name": "approximate", "error": 0.25, "rounding": 1e-6, "since": 3, "reason": "the weights were moved by hand."}


def test_topk(dualform, address, engine):
    told = dualform("topk", address, "--layer", "fc", "--query", "test/1", "-k", 2, "--where", "label <> 3", "--json")
    assert told.code == 0
    assert told.json == {
        "hits": [
            {"query": 0, "slot": 1, "score": 2.5, "step": 0, "dataset": "mnist", "label": 8, "share": 2.5 / 4},
            {
                "query": 0,
                "slot": 3,
                "score": -1.0,
                "step": 1,
                "dataset": "[bold]\x1b[31m",
                "label": 1,
                "share": 1.0 / 4,
            },
        ],
        "asked": [{"query": 0, "name": "test/1", "label": None}],
        "score": "dot",
        "space": "sample",
    }
    assert list(told.json["hits"][0])[:3] == ["query", "slot", "score"]
    assert engine.asked[0] == TopK("fc", QuerySetExamples("test", (1,)), 2, "label <> 3")


def test_sums(dualform, address, engine):
    asked = ["group-sum", address, "--layer", "fc", "--query", "test", "--by", "dataset, label", "--json"]
    assert dualform(*asked).json == {
        "groups": [{"dataset": 3, "label": 3, "count": 3}, {"dataset": None, "label": None, "count": 1}],
        "sums": [[1.5, 2.5]],
        "asked": [{"query": 0, "name": "test/0", "label": 3}],
        "score": "dot",
        "space": "sample",
    }
    assert engine.asked[0] == GroupSum("fc", QuerySetExamples("test"), ("dataset", "label"))
    for options in (["--score", "abs"], ["--abs"]):
        assert dualform(*asked, *options).json["score"] == "abs"
        assert engine.asked[-2] == GroupSum("fc", QuerySetExamples("test"), ("dataset", "label"), score="abs")
    told = dualform("topk", address, "--layer", "fc", "--query", "test", "--by", "label", "--json")
    assert [(hit["slot"], hit["group"]) for hit in told.json["hits"]] == [(1, {"label": 3}), (3, {"label": 8})]


@pytest.mark.parametrize(
    "options",
    [
        ["topk", "--target", "x"],
        ["topk", "--target", "3", "--abs"],
        ["topk", "--score", "contribution"],
        ["topk", "--score", "cosine", "--abs"],
        ["group-sum", "--by", "label", "--at-step", "3"],
        ["group-sum", "--by", "label", "--allow-inexact"],
        ["group-sum", "--by", "label", "--abs", "--score", "cosine"],
    ],
    ids=" ".join,
)
def test_options_that_do_not_go_together_are_refused(dualform, address, options):
    told = dualform(*options, address, "--layer", "fc", "--query", "test", "--json")
    assert (told.code, told.json["error"]["code"]) == (2, "bad_input")


def test_contributions_along_a_direction(dualform, address, engine):
    asked = [address, "--layer", "fc", "--query", "test", "--at-step", 3, "--json"]
    told = dualform("topk", *asked, "--target", "3-8").json
    assert told["score"] == "contribution"
    assert (told["target"], told["at_step"], told["status"]) == ("3-8", 3, OFF)
    summed = dualform("group-sum", *asked, "--by", "label", "--target", "2", "--top", 1).json
    assert summed["largest"] == [{"query": 0, "group": {"label": None}, "count": 1, "sum": 2.5}]
    assert (summed["total"], summed["target"], summed["status"]) == (2, "2", OFF)
    assert engine.asked[0] == TopK("fc", QuerySetExamples("test"), score="contribution", target=Target(3, 8, at_step=3))
    assert (
        GroupSum("fc", QuerySetExamples("test"), ("label",), score="contribution", target=Target(2, at_step=3), k=1)
        in engine.asked
    )
    told = dualform("group-sum", address, "--layer", "fc", "--query", "test", "--by", "label", "--target", "3-8")
    assert "Layer fc · contributions to output 3 less output 8 by label · " in told.out
    assert "fc: approximate since step 3, error 2.5e-01" in told.err


def test_distribution(dualform, address, engine):
    asked = ["distribution", address, "--layer", "fc", "--query", "test/0,1", "--where", "label <> 3"]
    told = dualform(*asked, "--abs", "--points", 11, "--json")
    one = {"scores": [2.5, 0.5, -1], "cumulative": [2.5, 3, 4], "total": 4, "effective_slots": 16 / 7.5}
    assert told.json == {
        "ranks": [1, 2, 3],
        "count": 3,
        "distributions": [one, one],
        "asked": [{"query": 0, "name": "test/0", "label": 3}, {"query": 1, "name": "test/1", "label": None}],
        "score": "abs",
        "space": "sample",
    }
    assert engine.asked[0] == Distribution("fc", QuerySetExamples("test", (0, 1)), "label <> 3", "abs", None, 11)
    told = dualform(*asked, "--target", "3-8")
    assert "3 of 4 slots · 0.25 s · effective slots 2.1, 2.1\n" in told.out
    assert "fc: approximate since step 3, error 2.5e-01" in told.err
    table = [line.split() for line in told.out.splitlines()]
    assert ["query", "rank", "score", "cumulative", "share"] in table
    assert table.count(["test/1", "2", "0.5", "3", "0.75"]) == 1


def test_terms(dualform, address, engine):
    asked = ["contributions", address, "--layer", "fc", "--query", "test", "--by", "label"]
    told = dualform(*asked, "--at-step", 2, "--json")
    assert told.json == {
        "groups": [{"label": 3, "count": 3}, {"label": None, "count": 1}],
        "sums": [[[1.5, 2.5], [0, -1]]],
        "initial": [[0.5, "inf"]],
        "bias": [0.5, "inf"],
        "unrecorded_change": [[-0.5, "-inf"]],
        "residual": [["nan", 0]],
        "unexplained": None,
        "asked": [{"query": 0, "name": "test/0", "label": 3}],
        "space": "sample",
        "status": told.json["status"],
    }
    assert engine.asked[0] == Contribution("fc", QuerySetExamples("test"), ("label",), None, 2)
    table = [line.removeprefix("test/0 (label 3)").split() for line in dualform(*asked).out.splitlines()[3:]]
    names = ["3", "NULL", "bias", "initial", "unrecorded", "residual", "unexplained"]
    assert [row[0] for row in table if row] == names


@pytest.mark.parametrize(
    ("said", "layers", "shown"),
    [
        ("fc", ("fc",), "Layer fc"),
        ("fc,fc.q", ("fc", "fc.q"), "Layers fc + fc.q"),
        ("*", (), "All layers"),
    ],
    ids=["one", "several", "all"],
)
def test_gradients_are_summed_over_the_layers_named(dualform, address, engine, said, layers, shown):
    asked = [address, "--layer", said, "--query", "test/1", "--score", "gradient"]
    found = dualform("topk", *asked, "-k", 2, "--json").json
    assert (found["score"], [hit["slot"] for hit in found["hits"]]) == ("gradient", [3, 1])
    assert dualform("group-sum", *asked, "--by", "label", "--json").json["sums"] == [[1.5, -2.5]]
    told = dualform("group-sum", *asked, "--by", "label")
    assert told.out.startswith(f"{shown} · gradient scores by label · test/1 · 3 of 4 slots · 0.25 s\n")
    test = QuerySetExamples("test", (1,))
    assert [question for question in engine.asked if isinstance(question, GradientTopK)] == [
        GradientTopK(layers, test, 2)
    ]
    assert {question for question in engine.asked if isinstance(question, GradientSum)} == {
        GradientSum(layers, test, ("label",))
    }


def test_output(dualform, address, engine):
    told = dualform(
        "output", address, "--layer", "fc", "--query", "test/0,1", "--where", "step < 3", "--at-step", 2, "--json"
    )
    assert told.json == {
        "outputs": [[0.5, "inf"]],  # JSON has no infinity
        "space": "sample",
        "kernel": "linear",
        "initial": True,
        "asked": [{"query": 0, "name": "test/0", "label": 3}],
        "status": EXACT,
        "unrecorded_change": 0.0,
        "cancellation": {"fc": 12.5},
        "concentration": {"emb": {"share": 0.75, "greatest": 2.5}},
        "unmoved": [],
    }
    assert engine.asked == [
        Output("fc", QuerySetExamples("test", (0, 1)), "step < 3", 2),
        MaskCancellation("step < 3", 2, "fc"),
        QuerySetLookup("test"),
    ]


def test_output_of_another_kernel(dualform, address, engine):
    asked = ["output", address, "--layer", "fc", "--query", "test/0", "--where", "step < 3"]
    softmax = [*asked, "--kernel", "softmax", "--temperature", 0.5]
    assert dualform(*softmax, "--json").json == {
        "outputs": [[0.5, "inf"]],
        "space": "sample",
        "status": EXACT,
        "unrecorded_change": 0.0,
        "kernel": "softmax",
        "initial": True,
        "temperature": 0.5,
        "effective_slots": [2.5],
        "asked": [{"query": 0, "name": "test/0", "label": 3}],
    }
    assert engine.asked[0] == Output("fc", QuerySetExamples("test", (0,)), "step < 3", None, False, "softmax", 0.5)
    told = dualform(*softmax)
    assert "effective slots" in told.out
    assert told.out.startswith("Layer fc · outputs of the softmax kernel at temperature 0.5")
    assert told.err == (
        "--where takes slots out of the softmax, so that the weights of the others grow, and subtracts what the "
        "removed ones added to the bias. It is not retraining without them. The status is that of the whole sum.\n"
    )
    inexact = dualform(*asked[:-2], "--allow-inexact")
    assert inexact.err == (
        "fc: approximate since step 3, error 2.5e-01: the weights were moved by hand. "
        "Unrecorded change: 0.5 of the distance that training moved the weights.\n"
    )
    alone = dualform(*asked, "--no-initial", "--json")
    assert (alone.json["initial"], alone.json["kernel"]) == (False, "linear")
    assert Output("fc", QuerySetExamples("test", (0,)), "step < 3", initial=False) in engine.asked


def test_info(dualform, address):
    told = dualform("info", address, "--json").json
    (layer,) = told["layers"]
    assert (layer["name"], layer["space"], layer["exact"], layer["reason"]) == ("fc", "sample", True, "")
    assert layer["status"] == EXACT
    assert told["skipped"] == {"norm": "no tap for LayerNorm"}
    assert told["query_sets"] == [
        {"name": "test", "rows": 2, "layers": ["fc"], "previews": "texts", "examples": 2},
        {"name": "older", "rows": 6, "layers": ["fc"], "previews": "", "examples": None},
    ]
    assert told["previews"] == {"mnist": "texts"}


def test_what_share_of_the_slots_an_answer_stands_on(dualform, address, engine, monkeypatch):
    said = "A budget of 9 bytes a process keeps whole steps, by lot (seed 0): 12.5 % of the slots of sample."
    monkeypatch.setattr(canned, "SCAN", replace(canned.SCAN, share=0.125))
    engine.contents = replace(canned.INFO, sampling=said)
    asked = ["--layer", "fc", "--query", "test/1"]
    for command in (["topk", address, *asked], ["group-sum", address, *asked, "--by", "label"]):
        assert dualform(*command, "--json").json["share"] == 0.125
        assert dualform(*command).err == (
            "Computed from a sample of 12.5 % of the slots of all steps, kept within a budget.\n"
        )
    assert dualform("info", address, "--json").json["sampling"] == said
    assert said in dualform("info", address).out


def test_verify(dualform, address):
    assert dualform("verify", address, "--json").json == {
        "fc": {
            "reconstruction_error": 1e-6,
            "status": "exact",
            "reason": None,
            "exact": True,
            "since": None,
            "rounding": 2e-8,
            "rounding_share": 0.25,
        },
        "tied": {
            "reconstruction_error": None,
            "status": "scores only",
            "reason": "a weight used twice",
            "exact": False,
            "since": None,
            "rounding": None,
            "rounding_share": 0.0,
        },
    }


@pytest.mark.parametrize(
    ("arguments", "shows"),
    [
        (["info", "T"], ["2 steps of SGD · 4 sample slots · finished", "fc", "norm", "no tap for LayerNorm", "mnist"]),
        (
            ["topk", "T", "--layer", "fc", "--query", "test"],
            ["Layer fc · attention scores · 3 of 4 slots · 0.25 s", "slot", "score", "2.5", "mnist", "[bold]"],
        ),
        (["topk", "T", "--layer", "fc", "--query", "test", "--by", "label"], ["label", "2.5"]),
        (
            ["group-sum", "T", "--layer", "fc", "--query", "test", "--by", "label", "--abs"],
            ["absolute attention scores by label", "count", "sum", "1.5"],
        ),
        (["output", "T", "--layer", "fc", "--query", "test"], ["outputs of the linear kernel", "largest", "0.5"]),
        (
            ["output", "T", "--layer", "fc", "--query", "test", "--no-initial"],
            ["linear kernel · without W_0 and bias", "0.5"],
        ),
        (["verify", "T"], ["reconstruction error", "1e-06", "scores only", "a weight used twice"]),
        (["sql", "T", "SELECT 1"], ["4 rows", "dataset"]),
    ],
    ids=lambda value: value[0],
)
def test_tables(dualform, address, arguments, shows):
    told = dualform(*[address if argument == "T" else argument for argument in arguments])
    assert told.code == 0
    for text in shows:
        assert text in told.out
    assert "\x1b" not in told.out, "what a memory holds cannot steer the terminal"


def test_a_mask_on_a_table_is_explained(dualform, folder):
    told = dualform("output", folder, "--layer", "2", "--query", "test/1", "--where", "dataset = 'first'")
    assert "It is not retraining without them" in told.err
    assert "Cancellation" not in told.err, "it reads backwards without a placebo beside it"
    tested = dualform("output", folder, "--layer", "2", "--query", "test/1", "--where", "step < 3", "--placebo", "20")
    assert "Cancellation of the removed terms" in tested.err


def test_folder_and_server_print_the_same(dualform, folder):
    questions = [
        ["topk", "T", "--layer", "0", "--query", "test/3,1", "-k", "4", "--by", "dataset,label", "--where", "step > 0"],
        ["group-sum", "T", "--layer", "2", "--query", "test", "--by", "label", "--abs"],
        ["output", "T", "--layer", "2", "--query", "test", "--at-step", "3"],
        ["info", "T"],
        ["verify", "T"],
        ["sql", "T", "SELECT dataset, label, count(*) AS n, avg(weight) AS w FROM slots GROUP BY ALL ORDER BY ALL"],
    ]
    with open_memory(folder) as memory, Server(memory, ServiceConfig("127.0.0.1:0", sql=True)) as server:
        for question in questions:
            here, there = (
                dualform(*[str(target) if part == "T" else part for part in question], "--json")
                for target in (folder, server.address)
            )
            assert here.code == there.code == 0
            assert here.json == there.json


def test_groups_that_json_has_no_number_for_are_texts(dualform, tmp_path):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path / "m", quiet=True) as recorder:
        with recorder.step(f=[math.nan, math.inf, -math.inf, 0.5, None]):
            model(torch.randn(5, 4)).sum().backward()
            optimizer.step()
        recorder.query_set("test", torch.randn(1, 4))
    arguments = (tmp_path / "m", "--layer", "", "--query", "test/0", "--by", "f", "--json")
    hits = [own["group"] for own in dualform("topk", *arguments).json["hits"]]
    for found in (hits, *(dualform(command, *arguments).json["groups"] for command in ("group-sum", "contributions"))):
        assert sorted((own["f"] for own in found), key=repr) == sorted(["nan", "inf", "-inf", 0.5, None], key=repr)
    told = dualform("sql", tmp_path / "m", "SELECT f, 'ü' AS name FROM slots ORDER BY slot", "--json")
    assert [row["f"] for row in told.json["rows"]] == ["nan", "inf", "-inf", 0.5, None]
    wide = dualform("sql", tmp_path / "m", "SELECT 9007199254740991 AS a, -9007199254740993 AS b", "--json").json
    assert wide["rows"] == [{"a": 2**53 - 1, "b": "-9007199254740993"}], "JavaScript would round it"
    assert told.out.isascii()


@pytest.mark.parametrize(
    ("where", "code"),
    [("label = 3 -- a comment", 0), ("label = 3) OR (label = 4", 2), ("label = 3 /* open", 2), ("label = 3)", 2)],
)
def test_a_condition_beside_ids_is_one_condition(dualform, folder, tmp_path, where, code):
    np.save(tmp_path / "ids.npy", np.arange(12))
    asked = ["topk", folder, "--layer", "2", "--query", "test/1", "--where-slots", tmp_path / "ids.npy", "--json"]
    told = dualform(*asked, "--where", where)
    assert told.code == code
    if code == 0:
        assert told.json == dualform(*asked, "--where", "label = 3").json


def test_labels_have_their_names(dualform, tmp_path):
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(4, 3)), torch.randn(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path / "run", label_names={"a": ["cat", "dog", "2"]}, quiet=True) as recorder:
        for _ in range(2):
            with recorder.step(dataset="a", label=torch.arange(6) % 3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), torch.arange(6) % 3).backward()
                optimizer.step()
        recorder.query_set("test", inputs[:1])
    asked = ["topk", tmp_path / "run", "--query", "test/0", "-k", 12]
    told = dualform(*asked)
    assert "1 (dog)" in told.out
    assert " 2 (2)" not in told.out
    assert {hit["label"] for hit in dualform(*asked, "--json").json["hits"]} == {0, 1, 2}


def test_several_layers_are_asked_one_after_the_other(dualform, folder):
    """A list, a pattern, and a server answer as each layer does alone."""
    asked = {
        "topk": ["--query", "test/3-4", "-k", 2],
        "group-sum": ["--query", "test", "--by", "label"],
        "distribution": ["--query", "test/3-4", "--where", "label <> 1"],
        "contributions": ["--query", "test/2", "--by", "label"],
        "output": ["--query", "test/1", "--where", "step < 3"],
    }
    with open_memory(folder) as memory, Server(memory) as server:
        for command, options in asked.items():
            alone = [dualform(command, folder, "--layer", layer, *options, "--json").json for layer in ("2", "0")]
            wanted = [{"layer": layer, **record} for layer, record in zip(("2", "0"), alone, strict=True)]
            for target, said, order in ((server.address, "2,[02]", wanted), (folder, "*", wanted[::-1])):
                assert dualform(command, target, "--layer", said, *options, "--json").json == {"layers": order}, said


@pytest.mark.parametrize(
    ("said", "message"),
    [("0,5", "No layer matches '5'."), ("x*", "No layer matches 'x*'."), ("0,", "--layer '0,' holds an")],
)
def test_what_names_no_layer_is_refused(dualform, folder, said, message):
    told = dualform("topk", folder, "--layer", said, "--query", "test/1", "--json")
    assert told.code == 2
    assert told.json["error"]["message"].startswith(message)


def test_a_name_that_looks_like_a_pattern_or_a_list_is_a_name():
    layers = [SimpleNamespace(name=name, views=views) for name, views in (
        ("up[0]", ()), ("up[1]", ()), ("a,b", ()), ("conv", ("conv.0", "conv.1"))
    )]  # fmt: skip
    memory = SimpleNamespace(info=lambda: SimpleNamespace(layers=layers))
    for name in ("up[0]", "a,b", "conv.1", "unknown"):
        assert named_layers(memory, name) is None
    assert named_layers(memory, "up[[]*") == ["up[0]", "up[1]"]
    assert named_layers(memory, "conv.1,up[1],*p*") == ["conv.1", "up[1]", "up[0]"]


def test_a_range_of_queries(dualform, address, engine):
    for rows, wanted in (("1-3", (1, 2, 3)), ("7,1-2,0", (7, 1, 2, 0))):
        dualform("topk", address, "--layer", "fc", "--query", f"test/{rows}", "--json")
        assert next(own for own in engine.asked[::-1] if isinstance(own, TopK)).queries == QuerySetExamples(
            "test", wanted
        )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("5-3", "'test/5-3' contains an empty range."),
        ("5:3-1", "'test/5:3-1' contains an empty range."),
        ("5:", "'test/5:' does not name an example of a query set: '5:' is not a number."),
        ("a", "'test/a' does not name an example of a query set: 'a' is not a number."),
        (f"0-{10**30}", f"'test/0-{10**30}' names more than 1,000,000 queries."),
    ],
)
def test_what_is_no_range_is_refused(dualform, address, rows, message):
    told = dualform("topk", address, "--layer", "fc", "--query", f"test/{rows}", "--json")
    assert told.code == 2
    assert told.json["error"]["message"] == message


def test_queries_from_a_file(dualform, address, engine, tmp_path):
    rows = np.arange(6, dtype=np.float64).reshape(2, 3)
    np.save(tmp_path / "q.npy", rows)
    assert dualform("topk", address, "--layer", "fc", "--query", tmp_path / "q.npy", "--json").code == 0
    assert same(engine.asked[0].queries.rows, rows.astype(np.float32))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file or directory."),
        (b"", "is not an .npy file of numbers"),
        (b"text", "is not an .npy file of numbers"),
        (np.array([None]), "is not an .npy file of numbers."),
        (np.array(["a"]), "holds <U1, not real numbers."),
        (np.array([1j]), "holds complex128, not real numbers."),
        (np.zeros((1, 2, 3)), "queries must be float32[n, d] or float32[d]"),
        (np.zeros((0, 3)), "queries must have at least one row."),
        (np.array([np.nan]), "Query 0 contains NaN or infinity."),
        (np.array([1e300]), "Query 0 contains NaN or infinity."),
    ],
    ids=["missing", "empty", "text", "objects", "strings", "complex", "three dimensions", "no row", "nan", "too large"],
)
def test_a_query_file_that_cannot_be_asked_with(dualform, tmp_path, content, says):
    file = tmp_path / "q.npy"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        np.save(file, content, allow_pickle=True)
    told = dualform("topk", "127.0.0.1:1", "--layer", "fc", "--query", file, "--json")
    assert told.code == 2
    assert told.json["error"]["code"] == "bad_input"
    assert says in told.json["error"]["message"]
