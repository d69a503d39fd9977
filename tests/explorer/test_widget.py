"""The notebook's widget is the page's core: asked the same, both show the same numbers, and they are the API's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from urllib.parse import urlencode

import pytest

import dualform
from dualform.methods import Answers
from dualform_explorer.groups import MOST_GROUPS
from tests.cases import pairwise
from tests.explorer.recorded_text import WORDS
from tests.explorer.served import Served, panels_of, served

_GROUP = re.compile(r'<tr data-group="[^"]*">.*?<td class="right sum"><data [^>]*data-value="([^"]+)"', re.DOTALL)


_SLOT = re.compile(r'data-slot="(\d+)".*?<span class="score"><data [^>]*data-value="([^"]+)"', re.DOTALL)


_MEASURE = re.compile(r'<nav class="choice" aria-label="Score">(.*?)</nav>', re.DOTALL)


SHOWN = 12


@dataclass(frozen=True)
class Kind:
    """A memory, and what is asked of it: an example and its place, the stored query that these are, and a mask."""

    item: str
    token: int | None
    stored: str
    layer: str
    mask: dict[str, object]
    written: str
    """The mask as the page's address has it, and as SQL."""
    where: str


TEXT = Kind("held/3", 2, "held/3:2", "3", {"label": 2}, "label:2", "label IS DISTINCT FROM 2")
KINDS = {
    "images": Kind(
        "shapes/3", None, "shapes/3", "4", {"dataset": "noise <b>"}, "dataset:noise <b>", "dataset <> 'noise <b>'"
    ),
    "text": TEXT,
    "last token": replace(TEXT, token=None, stored=f"held/3:{WORDS - 1}", layer="1"),
    "table": Kind("held/2", None, "held/2", "", {"label": 1}, "label:1", "label IS DISTINCT FROM 1"),
}
FIXTURES = {"images": ("memory", "pages"), "text": ("texts", "text_pages"), "last token": ("texts", "text_pages")}
MEASURES = [("dot", ""), ("abs", ""), ("contribution", "1"), ("contribution", "1-0")]


@pytest.fixture(scope="module")
def table(table_folder) -> Iterator[tuple[Answers, Served]]:
    with dualform.open(table_folder) as memory, served({"run": lambda: dualform.open(table_folder)}) as pages:
        yield memory, pages


def opened(request: pytest.FixtureRequest, kind: str) -> tuple[Answers, Served]:
    if kind == "table":
        return request.getfixturevalue("table")
    memory, pages = map(request.getfixturevalue, FIXTURES[kind])
    return memory, pages


@pytest.mark.parametrize(("name", "measure", "masked"), pairwise(list(KINDS), MEASURES, [False, True]))
def test_widget_page_and_api_show_the_same_numbers(request, name, measure, masked):
    kind, (memory, pages), (score, target) = KINDS[name], opened(request, name), measure
    given = {"query": kind.item, "layer": kind.layer, "score": score, "target": target, "token": kind.token, "k": SHOWN}
    widget = memory.explorer(**given)
    if masked:
        widget.masks = [{"values": kind.mask, "keep": False}]
    view = widget.view
    assert "error" not in view, view

    address = {"item": kind.item, "layer": kind.layer, "score": score, "target": target, "k": SHOWN, "open": "data"}
    address |= {} if kind.token is None else {"token": kind.token}
    address |= {"without": kind.written} if masked else {}
    page = pages.get("/explore?" + urlencode(address))
    assert page.status == 200, page.text
    assert view["where"] == (kind.where if masked else "")
    by = tuple(view["by"].split(","))
    assert by == (("dataset", "label") if "shapes" in kind.item else ("label",))

    question = {"score": score, "where": kind.where if masked else None} | ({"target": target} if target else {})
    sums = memory.group_sum(kind.layer, kind.stored, by=by, **question)
    assert len(sums.groups) <= MOST_GROUPS
    assert [own["sum"] for own in view["groups"] if not own["gone"]] == sums.sums[0].tolist()
    assert [float(own) for own in _GROUP.findall(page.text)] == sums.sums[0].tolist()

    hits = memory.topk(kind.layer, kind.stored, k=SHOWN, **question)
    best = list(zip(hits.slots[0].tolist(), hits.scores[0].tolist(), strict=True))
    assert [(own["slot"], own["score"]) for own in view["slots"]] == best
    assert [(int(slot), float(own)) for slot, own in _SLOT.findall(page.text)] == best
    (measures,) = _MEASURE.findall(page.text)
    assert re.findall(r">(\w+)</a>", measures) == [own["shown"] for own in view["scores"]]


@pytest.mark.parametrize("name", KINDS)
def test_the_answer_and_the_output_that_contributions_go_to_are_those_of_the_page(request, name):
    kind, (memory, pages) = KINDS[name], opened(request, name)
    asked = {"item": kind.item, "layer": kind.layer} | ({} if kind.token is None else {"token": kind.token})
    view = memory.explorer(kind.item, layer=kind.layer, token=kind.token, score="contribution").view
    page = pages.get("/explore?" + urlencode(asked | {"score": "contribution"}))
    assert page.status == 303
    assert f"target={view['target']}&" in page.headers["location"] + "&"

    view = memory.explorer(kind.item, layer=kind.layer, token=kind.token).view
    part = panels_of(pages.get("/explore?" + urlencode(asked)).text)["answer"]
    assert (view["answer"] is None) == ("sentence" not in part)
    numbers = re.findall(r'data-part="(?:initial|bias|unrecorded|group|rest)".*?data-value="([^"]+)"', part, re.DOTALL)
    told = view["answer"] or {"parts": [], "sentence": []}
    assert [own["value"] for own in told["parts"]] == list(map(float, numbers))
    words = "".join(str(value) for kind, value in told["sentence"] if kind == "strong")
    assert words == "".join(re.findall(r"<b>(.*?)</b>", part.partition('id="sentence"')[2].partition("</p>")[0]))
