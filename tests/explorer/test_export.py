"""What a reader takes along: an exported file, calls and commands that ask the same, and numbers of the page."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

from dualform.errors import BadInput, DualformError
from dualform_client.cli import main
from dualform_explorer.export import Told, as_command, as_python, choose, exported_page, standalone
from dualform_explorer.filter import Chip
from dualform_explorer.panels import PANELS
from dualform_explorer.start import corrections_panel
from dualform_explorer.state import State
from dualform_explorer.view import Snapshot, View
from tests.cases import pairwise, some
from tests.explorer.conftest import EXPORTED

MASKS = {"m1": "dataset <> 'noise <b>'", "m2": "label <> 2"}


class Document(HTMLParser):
    """Ids, addresses and the text of a page, view by view."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.labels: list[str] = []
        self.data: dict[str, list[tuple[str, float]]] = {}
        self.tags: Counter[str] = Counter()
        self._view, self._cell = "", ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        said = dict(attrs)
        self.tags[tag] += 1
        if "id" in said:
            self.ids.append(said["id"])
        self.addresses += [said[name] for name in ("href", "src", "action") if name in said]
        self.labels += [said[name] for name in ("for", "aria-labelledby") if name in said]
        if tag == "section" and "view" in said.get("class", "").split():
            self._view = said["id"]
            self.data[self._view] = []
        if tag in ("td", "th"):
            self._cell = said.get("class", "")
        if tag == "data" and self._view:
            self.data[self._view].append((self._cell, float(said["data-value"])))

    handle_startendtag = handle_starttag

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._cell = ""

    def of(self, view: str, kind: str) -> list[float]:
        return [value for cell, value in self.data[view] if kind in cell.split()]


def test_every_view_has_the_apis_numbers(exported, memory):
    found = Document(exported.html)
    assert exported.failed == 0
    assert list(found.data) == [f"p{item}{mask}" for item in (1, 2, 3) for mask in ("", "-m1", "-m2")]
    for number, item in enumerate(EXPORTED, start=1):
        full = np.asarray(memory.output("4", item), dtype=np.float64)[0].tolist()
        assert found.of(f"p{number}", "full") == full
        assert found.of(f"p{number}", "sum") == memory.group_sum("4", item, by=("dataset", "label")).sums[0].tolist()
        for mask, where in MASKS.items():
            view = f"p{number}-{mask}"
            assert found.of(view, "full") == full
            masked = np.asarray(memory.output("4", item, where), dtype=np.float64)[0].tolist()
            assert found.of(view, "ablated") == masked
            sums = memory.group_sum("4", item, by=("dataset", "label"), where=where)
            assert found.of(view, "sum") == sums.sums[0].tolist()
            slots = re.findall(r'data-slot="(\d+)"', _view(exported.html, view))
            assert list(map(int, slots)) == memory.topk("4", item, k=24, where=where).slots[0].tolist()


def test_every_group_has_its_name_and_its_bar(exported):
    for table in some(
        re.findall(r'<table class="sums[^"]*" id="(?:sums|waterfall)-.*?</table>', exported.html, re.DOTALL)
    ):
        rows = re.findall(r"<tr[ >].*?</tr>", table.partition("<tbody>")[2], re.DOTALL)
        names = [re.sub("<[^>]*>", "", re.search(r"<th.*?</th>", row, re.DOTALL)[0]).strip() for row in rows]
        assert names
        assert all(names)
        assert all("<svg" in row for row in rows)


def _view(html: str, name: str) -> str:
    start = html.index(f'id="{name}"')
    end = html.find('<section class="view', start)
    return html[start : end if end > 0 else None]


def test_all_of_it_is_inside_and_every_link_leads_to_a_part_of_it(exported):
    found = Document(exported.html)
    assert not [name for name, count in Counter(found.ids).items() if count > 1]
    for address in found.addresses:
        assert address.startswith("data:image/") or address.removeprefix("#") in found.ids, address
    assert {own for label in found.labels for own in label.split()} <= set(found.ids)
    assert found.tags["form"] == found.tags["input"] == 0
    assert (found.tags["script"], found.tags["style"], found.tags["link"]) == (1, 1, 1)
    assert "http" not in re.sub(r'http-equiv|xmlns="http://www.w3.org/2000/svg"', "", exported.html)


def test_of_nothing_named_those_of_the_start_page_are_taken_and_each_dataset_is_left_out(memory, info):
    with pytest.raises(BadInput, match="no query set"):
        choose(Snapshot(memory, replace(info, query_sets=())), (), ())
    choice = choose(Snapshot(memory, info), (), ())
    assert [chips[0].words for chips in choice.masks[1:]] == [f"dataset {name}" for name in info.datasets]
    assert choice.masks[0] == ()
    panels = {name: corrections_panel(Snapshot(memory, info), name) for name in ("shapes", "noise")}
    corrected = {(name, card.row) for name, own in panels.items() for part in own.corrections for card in part.cards}
    chosen = [(state.query_set, state.row) for state in choice.items]
    assert len(chosen) == len(set(chosen)) <= 12
    assert set(chosen[: min(len(corrected), 12)]) <= corrected
    assert {state.layer for state in choice.items} == {"4"}


@pytest.mark.parametrize(
    ("items", "without", "message"),
    [
        (["shapes/99"], [], "The query set shapes has no example '99': it has 0 to 59."),
        (["none/1"], [], "There is no query set 'none'"),
        (["shapes/3"], ["dataset:nothing"], "There is no dataset 'nothing'. There is "),
        (["shapes/3"], ["colour:3"], "--without colour:3: There is no column 'colour'. Write COLUMN:VALUE"),
        (["shapes/3"], ["label:x"], "'x' is no number, and the column label has numbers."),
    ],
)
def test_what_is_not_there_is_named(memory, info, items, without, message):
    with pytest.raises(BadInput, match=re.escape(message)):
        choose(Snapshot(memory, info), items, without)


def test_a_mask_that_is_written_in_several_ways_is_one(memory, info):
    found = choose(
        Snapshot(memory, info), ("shapes/3",), ("label:1", "label:01", "dataset:noise <b>", "dataset:noise%20<b>")
    )
    assert [[chip.words for chip in chips] for chips in found.masks] == [[], ["label 1"], ["dataset noise <b>"]]


def test_a_file_that_would_be_too_large_is_refused_before_all_of_it_is_drawn(memory, info, choice):
    drawn = []
    with pytest.raises(BadInput, match=r"larger than 0\.5 MiB, as it is after \d of 9 views") as told:
        exported_page(Snapshot(memory, info), "run", choice, 2**19, lambda done, total: drawn.append(done))
    assert "Choose fewer predictions with --item" in told.value.hint
    assert 0 < len(drawn) < 8


def test_a_mask_that_leaves_nothing_says_so_in_the_place_of_each_answer(memory, info, choice):
    state = replace(
        choice, masks=((), (Chip.of(False, ("dataset",), ("shapes",)), Chip.of(False, ("dataset",), ("noise <b>",))))
    )
    exported = exported_page(Snapshot(memory, info), "run", state)
    assert exported.failed > 3
    assert "matches no" in _view(exported.html, "p1-m1")
    assert "data-failure" not in _view(exported.html, "p1")


def test_what_leads_nowhere_is_gone_and_the_rest_stays_as_it_is():
    html = (
        '<section id="a" aria-labelledby="t"><h2 id="t">A &amp; B &#39;x&#39; '
        '<a id="paper" href="paper?a">as in the paper</a></h2>'
        '<form action="explore"><label for="v">x <input id="v" name="v"></label></form>'
        '<a class="card chosen" href="" aria-current="true" data-layer="0"><b>0</b></a><a href="#p1">there</a>'
        'a <a class="token" href="" tabindex="-1">word</a> of it'
        '<svg viewBox="0 0 1 1"><rect x="1" class="h1"/><rect class="hit" data-first="0"/>'
        '<a class="card" href="">A</a></svg></section>'
    )
    assert standalone(html, "p2") == (
        '<section id="a-p2" aria-labelledby="t-p2"><h2 id="t-p2">A &amp; B &#39;x&#39; </h2>'
        '<span class="card chosen" data-layer="0"><b>0</b></span><a href="#p1">there</a>'
        'a <span class="token">word</span> of it'
        '<svg viewBox="0 0 1 1"><rect x="1" class="h1"/><g class="card">A</g></svg></section>'
    )


def test_the_file_holds_texts_as_text_forbids_everything_else_and_its_examples_follow_one_another(exported, memory):
    assert "noise <b>" not in exported.html
    assert "noise &lt;b&gt;" in exported.html
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', exported.html)
    assert policy.startswith("default-src &#39;none&#39;; img-src data:;")
    assert "unsafe" not in policy
    assert not re.search(r"\sstyle=|\son\w+=|javascript:", exported.html)
    first, second = _view(exported.html, "p1"), _view(exported.html, "p2")
    assert re.search(r'<a id="after-p1" rel="next" href="#p2">', first)
    assert 'rel="prev"' not in first
    assert re.search(r'<a id="before-p2" rel="prev" href="#p1">', second)
    assert re.search(r'rel="next" href="#p2-m1"', _view(exported.html, "p1-m1"))
    assert "rel=" not in _view(exported.html, "p3")
    assert f'data-value="{memory.verify()["4"].reconstruction_error!r}"' in first


PLAIN = State("", "shapes", 3, "4", ("dataset", "label"))


STATES = {
    "plain": PLAIN,
    "filtered, as of a step": replace(PLAIN, chips=(Chip.of(False, ("dataset",), ("noise <b>",)),), at=40),
    "contribution": replace(PLAIN, score="contribution", target="1-0", by=("label",)),
    "without initial weights": replace(PLAIN, initial=False),
}


PANELS_SHOWN = ["answer", "output", "sums", "slots", "terms", "ranks", "steps"]


SHOWN = [*pairwise(PANELS_SHOWN, STATES), ("placebo", "filtered, as of a step")]
"""A placebo is one of a filter."""


@pytest.mark.parametrize(("panel", "state"), SHOWN)
def test_the_call_asks_the_same_question(memory, info, panel, state):
    told = Told(memory)
    PANELS[panel].make(View(told, info, STATES[state]))
    for question in some(told.questions):
        again = Told(memory)
        eval(as_python(question), {"memory": again})
        assert again.questions == [question]


@pytest.mark.parametrize(("panel", "state"), [own for own in SHOWN if own[0] not in ("terms", "steps")])
def test_the_command_runs(memory, info, folder, panel, state, capsys):
    told = Told(memory)
    PANELS[panel].make(View(told, info, STATES[state]))
    for question in some(told.questions):
        command = shlex.split(as_command(question, str(folder)))
        assert command[0] == "dualform"
        assert main([*command[1:], "--json"]) == 0, (command, capsys.readouterr().err)


def test_step_zero_is_a_step(memory):
    told = Told(memory)
    with suppress(DualformError):
        told.group_sum("4", "shapes/3", by="label", score="contribution", target="1", at_step=0)
    (question,) = told.questions
    assert "at_step=0" in as_python(question)
    assert "--at-step 0" in as_command(question, "run")


def test_a_table_holds_the_numbers_of_the_page(pages, memory):
    page = pages.get("/explore?item=shapes/3&open=data").text
    sums = page[page.index('id="panel-sums"') :]
    address = unescape(re.search(r'href="(csv\?[^"]+)"', sums)[1])
    answer = pages.get("/" + address)
    assert answer.status == 200
    assert answer.headers["content-disposition"] == 'attachment; filename="sums.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    found = memory.group_sum("4", "shapes/3", by=("dataset", "label"))
    assert sorted(float(row["sum"]) for row in rows) == sorted(found.sums[0].tolist())
    assert {(row["dataset"], int(row["label"])) for row in rows} == set(found.groups)
    for wrong in ("panel=none&question=0", "panel=sums&question=9", "panel=sums&question=x", "panel=sums"):
        assert pages.get(f"/csv?item=shapes/3&{wrong}").status == 404, wrong
    assert pages.get("/csv?item=nothing/3&panel=sums&question=0").status == 400
    refused = pages.get("/csv?item=shapes/3&where=colour=1&panel=sums&question=0")
    assert "no slot column &#39;colour&#39;" in refused.text  # and not that there is no such file


def test_a_part_alone_stands_above_its_question_and_error(pages):
    page = pages.get("/explore?item=shapes/3&open=data").text
    whole = unescape(page)
    assert "memory.group_sum(layer='4', queries='shapes/3', by=['dataset', 'label']" in whole
    assert re.search("dualform topk run (--query shapes/3 --layer 4|--layer 4 --query shapes/3)", whole)
    assert whole.count("Export") >= 4
    sums = page[page.index('id="panel-sums"') :]
    address = unescape(re.search(r'href="(panel\?[^"]+)#print"', sums)[1])
    frame = unescape(re.search(r"<code data-frame>(.*?)</code>", sums)[1])
    assert frame.startswith(f'<iframe src="{address}" ')
    elsewhere = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    alone = pages.get("/" + address, **elsewhere)
    text = unescape(alone.text)
    assert alone.status == 200
    assert "x-frame-options" not in alone.headers
    assert "frame-ancestors" not in alone.headers["content-security-policy"]
    assert text.count('<section id="panel-') == text.count('id="panel-sums"') == 1
    assert "shapes/3 in run: memory.group_sum(layer='4', queries='shapes/3', by=['dataset', 'label']" in text
    assert re.search(r"\(record exact, reconstruction error \d\.\de-\d\d\)", text)
    assert 'details class="publish"' not in text
