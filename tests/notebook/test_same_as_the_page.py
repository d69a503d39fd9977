"""The widget is the page's core: asked the same, both show the same numbers, and they are the API's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest

import dualform
from dualform.methods import Answers
from dualform_explorer.groups import MOST_GROUPS
from tests.explorer import recorded, recorded_table, recorded_text
from tests.explorer.served import Served, served

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


KINDS = {
    "images of two datasets": Kind(
        "shapes/3", None, "shapes/3", "4", {"dataset": "noise <b>"}, "dataset:noise <b>", "dataset <> 'noise <b>'"
    ),
    "a text": Kind("held/3", 2, "held/3:2", "3", {"label": 2}, "label:2",
                   "label IS DISTINCT FROM 2"),
    "the last token of a text": Kind("held/3", None, f"held/3:{recorded_text.WORDS - 1}", "1", {"step": 7}, "step:7",
                                     "step <> 7"),
    "a table": Kind("held/2", None, "held/2", "", {"label": 1}, "label:1", "label IS DISTINCT FROM 1"),
}  # fmt: skip
RECORD = {
    "images of two datasets": recorded.record,
    "a text": recorded_text.record,
    "the last token of a text": recorded_text.record,
    "a table": recorded_table.record,
}


@pytest.fixture(scope="module", params=KINDS)
def asked(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kind, Answers, Served]]:
    folder: Path = RECORD[request.param](tmp_path_factory.mktemp("same") / "run")
    with dualform.open(folder) as memory, served({"run": lambda: dualform.open(folder)}, deadline=60.0) as pages:
        yield KINDS[request.param], memory, pages


def shown_groups(view) -> list[float]:
    return [own["sum"] for own in view["groups"] if not own["gone"]]


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize(("score", "target"), [("dot", ""), ("abs", ""), ("contribution", "1"),
                                               ("contribution", "1-0")])  # fmt: skip
def test_widget_page_and_api_show_the_same_numbers(asked, score, target, masked):
    kind, memory, pages = asked
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
    assert shown_groups(view) == sums.sums[0].tolist()
    assert [float(own) for own in _GROUP.findall(page.text)] == sums.sums[0].tolist()

    hits = memory.topk(kind.layer, kind.stored, k=SHOWN, **question)
    best = list(zip(hits.slots[0].tolist(), hits.scores[0].tolist(), strict=True))
    assert [(own["slot"], own["score"]) for own in view["slots"]] == best
    assert [(int(slot), float(own)) for slot, own in _SLOT.findall(page.text)] == best

    (measures,) = _MEASURE.findall(page.text)
    assert re.findall(r">(\w+)</a>", measures) == [own["shown"] for own in view["scores"]]


def test_an_output_that_contributions_go_to_is_chosen_as_on_the_page(asked):
    kind, memory, pages = asked
    view = memory.explorer(kind.item, layer=kind.layer, token=kind.token, score="contribution").view
    address = {"item": kind.item, "layer": kind.layer, "score": "contribution"}
    page = pages.get("/explore?" + urlencode(address))
    assert page.status == 303
    assert f"target={view['target']}&" in page.headers["location"] + "&"


def test_the_answer_is_that_of_the_page(asked):
    kind, memory, pages = asked
    view = memory.explorer(kind.item, layer=kind.layer, token=kind.token).view
    assert "error" not in view, view
    page = pages.get(
        "/explore?"
        + urlencode({"item": kind.item, "layer": kind.layer} | ({} if kind.token is None else {"token": kind.token}))
    ).text
    part = page[page.index('id="panel-answer"') :]
    part = part[: part.index("</section>")]
    if view["answer"] is None:
        assert "sentence" not in part
        return
    numbers = re.findall(r'data-part="(?:initial|bias|unrecorded|group|rest)".*?data-value="([^"]+)"', part, re.DOTALL)
    assert [own["value"] for own in view["answer"]["parts"]] == list(map(float, numbers))
    words = "".join(str(value) for kind, value in view["answer"]["sentence"] if kind == "strong")
    assert words == "".join(re.findall(r"<b>(.*?)</b>", part[part.index('id="sentence"') :].partition("</p>")[0]))
