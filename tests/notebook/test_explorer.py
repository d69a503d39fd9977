"""The widget in Python: what its traits ask for is what the memory answers, number by number."""

from __future__ import annotations

import sys
from base64 import b64encode

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform import open as open_memory
from dualform.errors import MissingPackage, ServiceError
from dualform_explorer.filter import where_of
from dualform_explorer.memories import OneSnapshot
from dualform_notebook.state import chip_of
from dualform_service.server import Server
from tests.notebook.conftest import QUOTED, UNSAFE
from tests.notebook.previews import record_images
from tests.trainings import learn


def shown_sums(view):
    return [(tuple(own["values"].values()), own["sum"], own["count"]) for own in view["groups"] if not own["gone"]]


def in_order(sums):
    """Of few groups, as a page has them: in the order of their values."""
    return list(zip(sums.groups, sums.sums[0].tolist(), sums.counts.tolist(), strict=True))


def test_the_view_is_what_the_memory_answers(memory):
    explorer = memory.explorer("test/3", layer="0", by="label", k=5)
    hits = memory.topk("0", "test/3", k=5)
    view = explorer.view
    assert shown_sums(view) == in_order(memory.group_sum("0", "test/3", by="label"))
    assert [(own["rank"], own["slot"], own["score"]) for own in view["slots"]] == [hit[:3] for hit in next(iter(hits))]
    columns = memory.slots(hits).records()
    assert [own["columns"] for own in view["slots"]] == [
        {name: row[name] for name in ("step", "dataset", "label", "sample", "text")} for row in columns
    ]
    query_set = memory.query_set("test")
    largest = int(query_set.outputs[3].argmax())
    assert view["query"] == {
        "query_set": "test", "row": 3, "count": 9, "token": None, "tokens": 1, "label": 3, "label_name": "",
        "read": largest, "read_name": "", "wrong": largest != 3, "preview": None,
    }  # fmt: skip
    assert (view["matching"], view["scanned"], view["space"]) == (48, 48, "sample")
    assert view["status"] == "scores are of stored keys alone, and exact; the layer's record: exact"
    assert memory.explorer("test/3", score="contribution", target="0").view["status"] == "the layer's record: exact"


def test_what_is_not_said_is_chosen(memory):
    view = memory.explorer().view
    assert (view["query"]["query_set"], view["query"]["row"], view["layer"], view["by"]) == (
        "test",
        0,
        "2",
        "dataset,label",
    )
    assert view["layers"] == ["0", "2"]
    assert view["query_sets"] == ["test", "other"]
    assert view["groupings"] == ["dataset,label", "dataset", "label", "sample", "text"]
    assert memory.explorer("other/1").view["query"]["label"] is None


@pytest.mark.parametrize(
    ("masks", "where", "sql"),
    [
        ([], "step < 3", "step < 3"),
        ([{"values": {"label": 3}}], "", "label <> 3 OR label IS NULL"),
        ([{"values": {"label": None}}], "", "label IS NOT NULL"),
        ([{"values": {"label": 1}, "keep": True}, {"values": {"label": 2}, "keep": True}], "", "label IN (1, 2)"),
        ([{"values": {"dataset": "first", "label": 1}}], "step > 0",
         "NOT coalesce(dataset = 'first' AND label = 1, false) AND step > 0"),
        ([{"values": {"text": UNSAFE}}], "", f"text <> '{UNSAFE.replace(chr(39), chr(39) * 2)}'"),
        ([{"values": {"text": QUOTED}, "keep": True}], "", f"text = '{QUOTED.replace(chr(39), chr(39) * 2)}'"),
    ],
)  # fmt: skip
def test_masks_leave_the_slots_that_duckdb_leaves(memory, masks, where, sql):
    score = "abs" if where else "dot"
    explorer = memory.explorer("test/3", layer="2", by="label", score=score, k=48)
    explorer.masks = masks
    explorer.where = where
    left = memory.sql(f"SELECT slot FROM slots WHERE {sql}")["slot"].tolist()
    assert "error" not in explorer.view
    assert sorted(own["slot"] for own in explorer.view["slots"]) == sorted(left)
    assert explorer.view["matching"] == len(left)
    given = where_of([chip_of(mask) for mask in masks], where)
    assert shown_sums(explorer.view) == in_order(memory.group_sum("2", "test/3", "label", given, score))
    whole = memory.group_sum("2", "test/3", "label", score=score)
    assert [own["unmasked"] for own in explorer.view["groups"]] == whole.sums[0].tolist()


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"layer": "nix"}, "There is no layer 'nix'.", "There is: 0, 2."),
        ({"query": "test/99"}, "The query set test has no example '99'", "There is: test/0, test/8."),
        ({"query": "nix/1"}, "There is no query set 'nix'", "There is: test/0, other/0."),
        ({"where": "labl = 3"}, "There is no slot column 'labl'.", "Columns: "),
        ({"where": "label = 1) OR (true"}, "where is not valid SQL", ""),
        ({"where": "step > 99"}, "where matches none of 48 slots", "See which slots there are"),
        ({"by": "nix"}, "There is no column 'nix' to group by.", "There is: "),
        ({"score": "cosine"}, "score is 'cosine', which is none of: dot, abs, contribution.", "There is: "),
        ({"target": "7"}, "target is '7'; it is an output of layer 0, 0 to 4", ""),
        ({"k": 0}, "k must be at least 1, not 0.", "Ask for 1 or more"),
        ({"masks": [{"values": {"nix": 1}}]}, "There is no column 'nix'.", ""),
        ({"masks": [{"values": {}}]}, "a mask is {'values': {}}.", "Give {"),
        ({"masks": [{"values": {"label": [1]}}]}, "a mask is ", "Give {"),
        ({"masks": [{"values": {"label": 1}, "keep": "no"}]}, "'keep': 'no'}", "Give {"),
    ],
)
def test_what_is_refused_is_told_in_the_widget_and_taken_back(memory, change, message, hint):
    explorer = memory.explorer("test/3", layer="0")
    before = {**explorer.view, "turn": None}
    old = {name: getattr(explorer, name) for name in change}
    explorer.set_trait(*next(iter(change.items())))
    error = explorer.view["error"]
    assert message in error["message"]
    assert hint in error["hint"]
    assert set(explorer.view) == {"error", "turn"}, "nothing stands there that was asked before"
    explorer.set_trait(*next(iter(old.items())))
    assert {**explorer.view, "turn": None} == before


def test_a_mask_is_taken_back_exactly_and_an_expression_does_not_reach_beyond_it(memory):
    explorer = memory.explorer("test/3", by="label")
    before = {**explorer.view, "turn": None}
    explorer.masks = [{"values": {"label": 1}, "keep": False}]
    assert explorer.view["chips"] == ["without label 1"]
    explorer.where = "label = 1) OR (true"
    assert "error" in explorer.view
    explorer.where = "true OR false"
    left = memory.sql("SELECT count(*) AS n FROM slots WHERE label IS DISTINCT FROM 1")["n"][0]
    assert explorer.view["matching"] == left
    explorer.where, explorer.masks = "", []
    assert {**explorer.view, "turn": None} == before


def test_a_memory_without_a_query_set_says_so(tmp_path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True) as recorder, recorder.step(label=[0, 1]):
        learn(optimizer, model(torch.ones(2, 3)).sum())
    with open_memory(tmp_path / "run") as opened:
        error = opened.explorer().view["error"]
    assert error["message"].startswith("This memory has no query set: recorder.query_set(")


def test_an_error_that_nobody_foresaw_is_told_too(memory, monkeypatch):
    explorer = memory.explorer("test/3")
    monkeypatch.setattr("dualform_notebook.explorer.view_of", lambda *asked: 1 / 0)
    explorer.layer = "0"
    assert explorer.view["error"]["message"] == "ZeroDivisionError: division by zero"


def test_several_changes_are_one_question_and_every_answer_is_a_turn(memory, monkeypatch):
    explorer = memory.explorer("test/3", layer="0")
    asked = []
    ask = type(memory).ask
    monkeypatch.setattr(
        type(memory), "ask", lambda self, question, *rest: asked.append(question) or ask(self, question)
    )
    turn = explorer.view["turn"]
    explorer.set_state({"layer": "2", "by": "label", "query": "test/4"})
    assert explorer.view["turn"] == turn + 1
    assert len([question for question in asked if type(question).__name__ == "TopK"]) == 1
    assert (explorer.view["layer"], explorer.view["by"], explorer.view["query"]["row"]) == ("2", "label", 4)


def test_a_server_shows_the_same(folder, memory):
    from dualform_client import Client

    with Server(memory) as server, Client(server.address) as client:
        here, there = (own.explorer("test/5", where="step > 1").view for own in (memory, client))
    assert {**here, "turn": None} == {**there, "turn": None}


def test_without_its_package_the_extra_is_named(memory, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(
        MissingPackage, match=r"anywidget is not installed; the extra \[notebook\] brings it"
    ) as missing:
        memory.explorer("test/1")
    assert "pip install 'dualform[notebook]'" in missing.value.hint


def test_nothing_of_it_is_loaded_before_it_is_asked_for(folder):
    import subprocess

    code = (
        f"import sys, dualform; dualform.open({str(folder)!r}).topk('0', 'test/1');"
        "sys.exit(bool({'anywidget', 'traitlets', 'dualform_notebook'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_slots_and_examples_look_as_the_preview_set_has_them(tmp_path):
    path = record_images(tmp_path / "run")
    with open_memory(path) as opened:
        view = opened.explorer("test/2", k=5).view
        slots = opened.slots(opened.topk("0", "test/2", k=5)).records()
        previews = opened.previews([own["sample"] for own in slots], "mine")
        (example,) = opened.previews([2], query_set="test")
        shown = [own["preview"] for own in view["slots"]]
        assert shown == [{"image": f"data:image/png;base64,{b64encode(own.image).decode()}"} for own in previews]
        assert view["query"]["preview"] == {"image": f"data:image/png;base64,{b64encode(example.image).decode()}"}


def test_tokens_with_labels_of_their_own_are_asked_and_marked_in_their_passages(tmp_path):
    torch.manual_seed(0)
    words = [[f"{text}{letter}" for letter in "abcd"] for text in range(8)]
    places = [np.array([[0, 2], [3, 5], [6, 8], [9, 11]])] * 8
    preview_set = dualform.PreviewSet.texts([" ".join(own) for own in words], offsets=places)
    model, inputs, labels = nn.Sequential(nn.Linear(4, 3)), torch.randn(8, 4, 4), torch.randint(3, (8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True) as recorder:
        recorder.previews("mine", preview_set)
        with recorder.step(dataset="mine", sample=torch.arange(8), label=labels):
            learn(optimizer, nn.functional.cross_entropy(model(inputs).flatten(0, 1), labels.flatten()))
        recorder.query_set("test", inputs, label=labels, previews=preview_set)
    with open_memory(tmp_path / "run") as opened:
        for row, token in ((0, 0), (1, 1), (2, 1), (7, 3)):
            view = opened.explorer(f"test/{row}", token=token, layer="0", by="sample").view
            query = view["query"]
            assert (query["count"], query["token"], query["label"]) == (8, token, labels[row, token])
            assert query["preview"]["token"] == words[row][token]
            for own in view["slots"]:
                columns, preview = own["columns"], own["preview"]
                assert preview["token"] == words[columns["sample"]][columns["position"]]
                assert "".join(preview.values()) == " ".join(words[columns["sample"]])
            best = opened.topk("0", f"test/{row}:{token}", k=12)
            assert [own["score"] for own in view["slots"]] == best.scores[0].tolist()
        assert opened.explorer("test/2", k=4).view["query"]["token"] == 3, "the last one where none is named"
        error = opened.explorer("test/2", token=4).view["error"]
    assert error["message"] == "The example has no token 4: it has 0 to 3."


def test_numbers_that_no_browser_can_hold_go_there_as_texts_and_come_back_as_they_were(tmp_path):
    wide = 2**53 + 1
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(4, 4)
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True) as recorder:
        with recorder.step(label=[0, 1, 0, 1], sample=[wide, wide + 1, -wide, 3]):
            learn(optimizer, model(inputs).sum())
        recorder.query_set("test", inputs)
    with open_memory(tmp_path / "m") as memory:
        explorer = memory.explorer("test/0", by="sample")
        groups = [own["values"]["sample"] for own in explorer.view["groups"]]
        assert sorted(groups, key=str) == [f"-{wide}", 3, f"{wide}", f"{wide + 1}"]
        assert {own["columns"]["sample"] for own in explorer.view["slots"]} == set(groups)
        explorer.masks = [{"values": {"sample": f"{wide}"}, "keep": False}]
        left = memory.group_sum("", "test/0", by="sample", where=f"sample <> {wide}")
        shown = {own["values"]["sample"]: own["sum"] for own in explorer.view["groups"] if not own["gone"]}
        assert shown == {f"{key}" if key > 9 or key < 0 else key: own for (key,), own, _ in left.ranked()}
        assert explorer.view["matching"] == 3


def test_a_filter_on_the_output_layer_comes_with_its_placebo(memory):
    explorer = memory.explorer("test/3", layer="2")
    assert explorer.placebo == {}
    explorer.masks = [{"values": {"label": 1}, "keep": False}]
    found = memory.placebo("2", "test/3", "label IS DISTINCT FROM 1")
    own = explorer.placebo
    assert (own["verdict"] == "unusual") == found.unusual[0]
    assert f"{found.random} removals of about {found.removed} of {found.total}" in own["words"]
    assert ("The prediction changes" in own["words"]) == found.flips[0]
    explorer.layer = "0"
    assert explorer.placebo == {}
    explorer.layer, explorer.where = "2", "label ="
    assert explorer.placebo == {}, "the view says what is wrong"


def test_a_placebo_that_is_refused_is_a_note(memory, monkeypatch):
    def refused(*asked):
        raise ServiceError("this server draws no random sets.")

    explorer = memory.explorer("test/3", layer="2")
    monkeypatch.setattr(OneSnapshot, "placebo", refused)
    explorer.where = "label <> 1"
    assert explorer.placebo == {"verdict": "", "words": "No random sets: this server draws no random sets."}
    assert explorer.view["where"] == "label <> 1"
