"""What a reader takes along: calls that ask the same, commands that run, numbers that are those of the page."""

from __future__ import annotations

import csv
import io
import re
import shlex
from contextlib import suppress
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

import dualform
from dualform.errors import DualformError
from dualform_client.cli import main
from dualform_explorer.export import Told, as_command, as_python
from dualform_explorer.filter import Chip
from dualform_explorer.panels import PANELS
from dualform_explorer.state import State
from dualform_explorer.view import View
from tests.cases import pairwise, some
from tests.explorer.served import served

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


def test_the_file_holds_the_numbers_of_the_page(folder, memory):
    with served({"run": lambda: dualform.open(folder)}) as pages:
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


def test_what_is_said_of_a_panel_is_the_question_it_asked(folder):
    with served({"run": lambda: dualform.open(folder)}) as pages:
        page = unescape(pages.get("/explore?item=shapes/3&without=label:1&open=data").text)
    assert "memory.group_sum(layer='4', queries='shapes/3', by=['dataset', 'label'], where=" in page
    assert (
        "dualform topk run --query shapes/3 --layer 4" in page or "dualform topk run --layer 4 --query shapes/3" in page
    )
    assert np.char.count(page, "Export") >= 4


def test_a_part_alone_stands_above_its_question_and_error(folder):
    with served({"run": lambda: dualform.open(folder)}) as pages:
        page = pages.get("/explore?item=shapes/3&open=data").text
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
