"""--layer and --query: which layers are asked, and with what."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dualform.questions import QuerySetExamples, TopK
from dualform_client.cli.layer_answers import named_layers
from tests.wire.values import same


def test_several_layers_are_asked_one_after_the_other(dualform, folder):
    """A list, a pattern, and a server answer as each layer does alone."""
    from dualform import open as open_memory
    from dualform_service.server import Server

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
            for target, said, order in (
                (folder, "2, 0", wanted), (server.address, "2,[02]", wanted), (folder, "*", wanted[::-1]),
                (folder, "[2]", wanted[:1]),
            ):  # fmt: skip
                assert dualform(command, target, "--layer", said, *options, "--json").json == {"layers": order}, said


def test_several_layers_are_a_table_each_and_no_note_comes_twice(dualform, folder):
    asked = ["output", folder, "--query", "test/1", "--where", "step < 3", "--layer"]
    first, second, both = (dualform(*asked, said) for said in ("0", "2", "0,2"))
    assert both.out == first.out + second.out
    assert both.err.count("It is not retraining without them") == 1


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
