"""The numbers of the map, held to the keys themselves in float64, and what its addresses answer."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections import Counter
from html import unescape

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

import dualform
from dualform.errors import BadInput, EmptyMask, Unavailable
from dualform.methods import Answers
from dualform.questions import SlotLookup, TopK, Vectors
from dualform_explorer import map as map_page
from dualform_explorer.groups import HUES, hue_of
from dualform_explorer.map import BEST, axes_of, map_points
from dualform_explorer.memories import RememberedAnswers
from dualform_explorer.state import read_state
from dualform_explorer.view import View
from tests.explorer.served import Troubled, served
from tests.trainings import learn


def points_of(memory: Answers, kind: str = "pca", **params: str) -> dict:
    info = memory.info()
    reading = read_state([*params.items()], info)
    assert reading.state, reading.faults
    return json.loads(map_points(View(memory, info, reading.state), kind))


def keys_of(memory, layer: str, slots) -> np.ndarray:
    """float64[m, d], which only an embedded memory gives."""
    return np.asarray(memory.keys(layer, np.array(slots)), dtype=np.float64)


def principal(queries: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean, the two axes and their shares, by the covariance; float64."""
    rows = queries.astype(np.float64)
    covariance = np.cov(rows, rowvar=False, bias=True)
    sizes, axes = np.linalg.eigh(covariance)
    axes = axes[:, [-1, -2]].T
    signs = [np.sign(own[np.abs(own).argmax()]) for own in axes]
    return rows.mean(axis=0), axes * np.array(signs)[:, None], sizes[[-1, -2]] / sizes.sum()


@settings(max_examples=13, deadline=None)
@given(arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 6)), elements=st.integers(-4, 4).map(float)))
def test_axes_are_orthonormal_or_zero_and_the_same_each_time(queries):
    if (queries == queries[0]).all():
        with pytest.raises(BadInput, match="are equal"):
            axes_of(queries)
        return
    axes = axes_of(queries)
    rows = queries.astype(np.float64) - queries.mean(axis=0, dtype=np.float64)
    gram = axes.directions @ axes.directions.T
    rank = min(2, np.linalg.matrix_rank(rows))
    assert np.allclose(gram, np.diag([1.0, float(rank == 2)]))
    variance = (rows**2).sum()
    assert np.allclose(axes.shares, [((rows @ own) ** 2).sum() / variance for own in axes.directions])
    assert axes.shares[0] >= axes.shares[1] - 1e-12
    assert axes_of(queries.copy()).directions.tolist() == axes.directions.tolist()


@pytest.mark.parametrize("score", ["abs", "contribution"])
def test_scores_and_lines_are_those_of_the_page(memory, score):
    own = {"score": score, "target": "1-0"} if score == "contribution" else {"score": score}
    found = points_of(memory, item="shapes/7", layer="4", **own)
    hits = memory.topk("4", "shapes/7", k=10**6, **own)
    scores = dict(zip(hits.slots[0].tolist(), hits.scores[0].tolist(), strict=True))
    assert found["score"] == pytest.approx([scores[slot] for slot in found["slot"]], rel=1e-5)
    assert [found["slot"][place] for place in found["best"]] == hits.slots[0][:BEST].tolist()


@pytest.fixture(scope="module")
def many_labels(tmp_path_factory):
    """37 labels, of which some slots have none, and a query set in whose second layer all queries are equal."""
    path = tmp_path_factory.mktemp("explorer") / "labels"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(60, 3), torch.arange(60) % 37
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        for step in range(3):
            with recorder.step(**({"label": labels} if step else {})):
                learn(optimizer, model(inputs).square().sum())
        recorder.query_set("held", inputs[:7])
        recorder.query_set("same", inputs[:1].repeat(5, 1))
        recorder.query_set("two", torch.tensor([[1.0, 2.0, -1.0], [-1.0, -2.0, 1.0]]))
    with dualform.open(path) as memory:
        yield memory


def test_of_labels_with_one_colour_the_most_frequent_has_it(many_labels):
    found = points_of(many_labels, item="held/2", layer="0")
    assert found["sample"] == []
    assert [own["value"] for own in found["datasets"]] == [None]
    hues: dict[int, list] = {}
    for own in found["labels"]:
        if own["hue"] >= 0:
            assert own["hue"] == hue_of(many_labels.info(), ("label",), (own["value"],))
            hues.setdefault(own["hue"], []).append(own)
    assert len(hues) == HUES
    assert all(len(own) == 1 for own in hues.values())
    for own in found["labels"]:
        if own["value"] is not None:
            assert own["count"] <= hues[own["value"] % HUES][0]["count"]
    assert next(own for own in found["labels"] if own["value"] is None)["hue"] == -1


def test_the_page_says_what_it_draws_and_leads_back(pages):
    page = pages.get("/explore?item=shapes/3&layer=4&by=label&without=label:1")
    (there,) = re.findall(r'id="to-map" href="([^"]*)"', page.text)
    text = pages.get("/" + unescape(there)).text
    assert 'id="back" href="explore?item=shapes/3&amp;layer=4&amp;by=label&amp;without=label:1"' in text
    assert 'data-points="points?item=shapes/3&amp;layer=4&amp;by=label&amp;without=label:1"' in text
    assert "<noscript><p" in text
    assert "The map needs JavaScript" in text
    assert "Only the slots that the filter keeps are drawn." in text
    found = pages.get("/points?item=shapes/3&layer=4&by=label&without=label:1")
    assert found.headers["content-type"] == "application/json"
    assert 1 not in {own["value"] for own in json.loads(found.text)["labels"]}


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("colour=red", "colour"),
        ("q=fox", "q"),
        ("item=shapes/999", "item"),
        ("where=" + "x" * 4001, "where"),
    ],
)
def test_what_is_wrong_with_an_address_is_named(pages, query, parameter):
    page = pages.get(f"/map?{query}")
    assert page.status == 400
    assert f'data-parameter="{parameter}"' in page.text
    assert len(page.text) < 20_000
    if parameter != "colour":
        assert pages.get(f"/points?{query}").status == 400


@pytest.mark.parametrize(
    ("fixture", "item", "row", "layer", "where"),
    [
        ("memory", "noise/3", 3, "2", "label = 2 OR step < 9"),
        ("memory", "shapes/7", 7, "4", "dataset = 'noise <b>'"),
        ("texts", "held/2", 2 * 8 + 7, "3", "position > 3"),
    ],
)
def test_every_number_is_that_of_the_keys(request, fixture, item, row, layer, where):
    memory = request.getfixturevalue(fixture)
    found = points_of(memory, item=item, layer=layer, where=where)
    columns = memory.slots(np.array(found["slot"]), next(iter(memory.info().slots)))
    if where:
        everything = points_of(memory, item=item, layer=layer)["slot"]
        matching = set(memory.topk(layer, item, k=10**6, where=where).slots[0].tolist())
        assert set(found["slot"]) == matching < set(everything)
    assert found["matching"] == len(found["slot"]) > 50

    queries = memory.query_set(item.split("/")[0], layer).queries
    mean, axes, shares = principal(queries)
    keys = keys_of(memory, layer, found["slot"])
    coordinates = (keys - mean) @ axes.T
    drawn = np.stack([found["x"], found["y"]], axis=1)
    assert np.abs(drawn - coordinates).max() < 6e-5 * np.abs(coordinates).max()
    assert np.allclose(found["query"], (queries[row] - mean) @ axes.T, rtol=0, atol=6e-5 * np.abs(coordinates).max())
    assert np.allclose(found["shares"], shares, rtol=1e-5)
    share = (coordinates**2).sum() / ((keys - mean) ** 2).sum()
    assert found["share"] == pytest.approx(share, rel=1e-4)
    assert f"{100 * found['share']:.1f} % of the slots' squared distances" in found["about"].replace(
        "\N{NARROW NO-BREAK SPACE}", " "
    )
    assert f"have {100 * shares[0]:.1f} % and {100 * shares[1]:.1f} %" in found["about"].replace(
        "\N{NARROW NO-BREAK SPACE}", " "
    )

    scores = keys @ queries[row].astype(np.float64)
    assert np.allclose(found["score"], scores, rtol=1e-4, atol=1e-5 * np.abs(scores).max())
    best = np.lexsort((found["slot"], -scores.astype(np.float32)))[:BEST]
    assert sorted(scores[found["best"]]) == pytest.approx(sorted(scores[best]), rel=1e-5)
    for name in ("step", "sample", "position"):
        own = columns[name].tolist()
        assert found[name] == (own if any(value is not None for value in own) else [])
    for name in ("label", "dataset"):
        own = columns[name].tolist()
        assert [found[f"{name}s"][place]["value"] for place in found[name]] == own
        assert {kind["value"]: kind["count"] for kind in found[f"{name}s"]} == Counter(own)


@pytest.mark.parametrize("where", ["", "slot % 2 = 0", "label = 1"])
def test_of_many_slots_an_even_part_is_drawn_and_always_the_best(memory, monkeypatch, where):
    whole = points_of(memory, item="shapes/7", layer="4", where=where)
    monkeypatch.setattr(map_page, "MOST", 150)
    monkeypatch.setattr(map_page, "_SPARE", 20)
    found = points_of(memory, item="shapes/7", layer="4", where=where)
    assert found["matching"] == whole["matching"] > 150
    assert 80 < len(found["slot"]) <= 150
    assert set(found["slot"]) <= set(whole["slot"])
    best = [whole["slot"][place] for place in whole["best"]]
    assert [found["slot"][place] for place in found["best"]] == best
    place = {slot: number for number, slot in enumerate(whole["slot"])}
    for number, slot in enumerate(found["slot"]):
        for name in ("x", "y", "score", "step", "sample"):
            assert found[name][number] == whole[name][place[slot]]
    part = len(found["slot"]) / whole["matching"]
    assert f"{len(found['slot'])} of {whole['matching']} slots are drawn ({100 * part:.1f} %)" in found[
        "about"
    ].replace("\N{NARROW NO-BREAK SPACE}", " ")
    # No stretch of the training is drawn much more than another.
    for name, pieces in (("step", 3), ("slot", 5)):
        bounds = np.quantile(whole[name], np.linspace(0, 1, pieces + 1))
        counts, every = (np.histogram(own[name], bounds)[0] for own in (found, whole))
        assert np.abs(counts / every - part).max() < 0.1


def test_without_scores_of_single_slots_the_map_stands_and_says_why(memory):
    def refuse(question):
        if isinstance(question, TopK) and question.score == "contribution":
            raise BadInput("Single slots have no contribution.", field="score")

    found = points_of(Troubled(memory, refuse), item="shapes/7", layer="4", score="contribution", target="1")
    assert (found["score"], found["best"], len(found["x"])) == ([], [], 720)
    assert found["about"].endswith("There are no lines and no scores: Single slots have no contribution.")
    with pytest.raises(EmptyMask):
        points_of(memory, item="shapes/7", where="label = 99")


def test_queries_on_one_line_give_one_axis_and_equal_ones_no_map(many_labels):
    """And the mean of two is zero."""
    found = points_of(many_labels, item="two/1", layer="0")
    assert found["shares"] == pytest.approx([1.0, 0.0])
    keys = keys_of(many_labels, "0", found["slot"])
    assert np.allclose(found["x"], keys @ np.array([1.0, 2.0, -1.0]) / np.sqrt(6), atol=1e-3)
    assert set(found["y"]) == {0.0}
    assert found["share"] == pytest.approx((np.square(found["x"]).sum()) / (keys**2).sum(), rel=1e-3)
    with pytest.raises(BadInput, match="are equal in this layer"):
        points_of(many_labels, item="same/0", layer="0")


def test_one_sample_for_the_pointer(pages, text_pages, texts):
    answer = json.loads(pages.get("/preview?dataset=shapes&sample=17").text)
    assert answer["image"].startswith("data:image/png;base64,")
    found = json.loads(text_pages.get("/preview?dataset=fables&sample=0&position=2").text)
    (own,) = texts.previews([0], "fables")
    assert found["passage"] == [*own.marked(2)]
    for query in ("", "dataset=shapes", "sample=-1", "sample=1&position=y", "sample=" + "1" * 30, "sample=%D9%A3"):
        assert pages.get(f"/preview?{query}").status == 400
    nothing = json.loads(pages.get("/preview?dataset=none&sample=3").text)
    assert (nothing["image"], nothing["passage"], nothing["row"]) == ("", None, {})
    assert pages.get("/preview?memory=none&sample=3").status == 404


def test_trouble_is_json_and_a_map_that_is_late_is_had_by_asking_again(pages, folder, caplog):
    for where in ("label%20=%2099", "slot%20/*"):
        assert pages.get(f"/map?where={where}").status == 200
        answer = pages.get(f"/points?where={where}")
        assert (answer.status, bool(json.loads(answer.text)["message"])) == (400, True)
    let_go, asked, trouble = threading.Event(), [], []

    def ask(question):
        if isinstance(question, SlotLookup):
            asked.append(question)
            trouble[0]()

    def gone():
        raise Unavailable("The server went away.", hint="Start it again.")

    def broken():
        raise ZeroDivisionError("in the midst of it")

    with served({"run": lambda: Troubled(dualform.open(folder), ask)}, deadline=2.0) as pages:
        trouble[:] = [gone]
        answer = pages.get("/points?item=shapes/3")
        assert (answer.status, json.loads(answer.text)["hint"]) == (502, "Start it again.")
        trouble[:] = [broken]
        answer = pages.get("/points?item=shapes/3")
        assert (answer.status, json.loads(answer.text)["message"]) == (500, "ZeroDivisionError: in the midst of it")
        assert "Traceback" not in answer.text
        assert "the map failed" in caplog.text
        trouble[:] = [lambda: let_go.wait(30)]
        before = len(asked)
        late = pages.get("/points?item=shapes/3")
        assert (late.status, json.loads(late.text)["code"]) == (502, "late")
        threading.Timer(0.5, let_go.set).start()
        assert pages.get("/points?item=shapes/3").status == 200
    assert len(asked) == before + 1


def test_large_answers_are_not_kept(memory):
    asked = []
    remembered = RememberedAnswers(Troubled(memory, asked.append))
    for k, times in ((10_000, 1), (10_001, 2)):
        question = TopK("4", Vectors(np.ones((1, 12))), k=k)
        for _ in range(2):
            assert remembered.ask(question).ids.tolist() == memory.ask(question).ids.tolist()
        assert sum(getattr(own, "k", None) == k for own in asked) == times


def test_a_score_belongs_to_its_slot_where_gradients_were_thrown_away(tmp_path):
    """Slots of steps 2 and 3 have no contribution, because no update used their gradients."""
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(4, 3)), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True) as recorder:
        for step in range(6):
            with recorder.step(sample=torch.arange(8), label=torch.arange(8) % 3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), torch.arange(8) % 3).backward()
                if step not in (2, 3):
                    optimizer.step()
        recorder.query_set("test", inputs)
    with dualform.open(tmp_path / "run") as memory:
        points = points_of(memory, item="test/0", layer="0", score="contribution", target="0-1")
        own = memory.group_sum("0", "test/0", ("slot",), score="contribution", target="0-1")
    expected = dict(zip((slot for (slot,) in own.groups), own.sums[0].tolist(), strict=True))
    assert (len(expected), len(points["slot"])) == (32, 48)
    np.testing.assert_allclose(points["score"], [expected.get(slot, 0.0) for slot in points["slot"]], atol=1e-6)


FAKE = """
fits = []


class UMAP:
    def __init__(self, random_state):
        assert random_state == 0

    def fit(self, points):
        fits.append(points)
        self.embedding_ = self.transform(points)
        return self

    def transform(self, points):
        return (points[:, [1, 0]] * 2).astype("float32")
"""


@pytest.fixture
def umap(tmp_path, monkeypatch):
    (tmp_path / "umap.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    del sys.modules["umap"]
    map_page._umap.cache_clear()


def test_a_umap_is_made_once_of_the_coordinates_on_many_axes(memory, monkeypatch, umap):
    monkeypatch.setattr(map_page, "MOST_UMAP", 300)
    found, again = (points_of(memory, "umap", item=item, layer="0") for item in ("shapes/7", "shapes/7"))
    assert found == again
    queries = memory.query_set("shapes", "0").queries
    mean, axes, _ = principal(queries)
    expected = 2 * (keys_of(memory, "0", found["slot"]) - mean) @ axes[::-1].T
    assert len(found["x"]) == len(found["slot"]) <= 300
    np.testing.assert_allclose(np.stack([found["x"], found["y"]], 1), expected, atol=1e-3)
    np.testing.assert_allclose(found["query"], 2 * (queries[7] - mean) @ axes[::-1].T, atol=1e-3)
    (fitted,) = sys.modules["umap"].fits
    assert fitted.shape == (len(found["x"]), min(50, *queries.shape))
    assert "A UMAP of the coordinates on the" in found["about"]
    with pytest.raises(BadInput, match="at least 20 slots"):
        points_of(memory, "umap", item="shapes/7", layer="0", where="slot < 9")


def test_the_page_offers_a_umap_where_the_package_is_installed(pages, umap):
    text = pages.get("/map?item=shapes/7&layer=0&axes=umap").text
    assert '<option value="umap" selected>UMAP</option>' in text
    (address,) = re.findall(r'data-points="([^"]*)"', text)
    assert "A UMAP" in json.loads(pages.get("/" + unescape(address)).text)["about"]


@pytest.mark.skipif(map_page.axes_known() != ("pca",), reason="the package umap is installed")
def test_without_the_package_there_is_no_umap(pages):
    assert 'name="axes" data-at-once' not in pages.get("/map?item=shapes/7").text
    assert pages.get("/map?item=shapes/7&axes=umap").status == 400
    assert pages.get("/points?item=shapes/7&axes=umap").status == 400
