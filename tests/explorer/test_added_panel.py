"""A panel is one entry of PANELS and a template: pages and exports show it in its place."""

from __future__ import annotations

import re

import pytest
from jinja2 import ChoiceLoader, DictLoader, PackageLoader

import dualform
from dualform_explorer import rendering
from dualform_explorer.export import choose, exported_page
from dualform_explorer.glossary import GLOSSARY
from dualform_explorer.panels import PANELS, Panel, Place, panels_in
from dualform_explorer.view import Snapshot
from tests.explorer.served import served

TEMPLATE = """{% extends "panel.html" %}
{% block remark %}<span class="soft">of {{ state.item }}</span>{% endblock %}
{% block panel %}<p>{{ panel }} layers</p>{% endblock %}
"""


def classes_before(text: str, part: str) -> str:
    """The last of a page's columns and sections that begins before a part of it."""
    begins = r'<div class="(side|first)"|id="fold-(\w+)"|<summary>(Data|Layers|Training|Record)</summary>'
    return "".join(re.findall(begins, text[: text.index(part)])[-1]).lower()


@pytest.fixture(params=["side", "first", "data", "record"])
def place(request, monkeypatch) -> Place:
    monkeypatch.setitem(PANELS, "count", Panel("Count of layers", request.param, lambda view: len(view.info.layers)))
    added = DictLoader({"panels/count.html": TEMPLATE})
    monkeypatch.setattr(rendering, "PackageLoader", lambda *own: ChoiceLoader([PackageLoader(*own), added]))
    return request.param


def test_it_stands_on_the_page_in_its_place(folder, place):
    with served({"run": lambda: dualform.open(folder)}) as pages:
        text = pages.get("/explore?item=shapes/3&open=data,layers,training,record").text
    heading = re.sub("</?abbr[^>]*>", "", text)
    assert '<h2 id="title-count">Count of layers <span class="soft">of shapes/3</span></h2>' in heading
    assert f'<abbr title="{GLOSSARY["layer"].meaning}">layers</abbr>' in text
    assert "<p>3 layers</p>" in text
    assert classes_before(text, 'id="panel-count"') == place
    assert panels_in(place)[-1] == "count"


def test_it_stands_in_an_export(memory, info, place):
    html = exported_page(
        Snapshot(memory, info), "run", choose(Snapshot(memory, info), ("shapes/3",), ("label:2",))
    ).html
    assert html.count("<p>3 layers</p>") == 2
    assert classes_before(html, 'id="panel-count-p1"') == place


def test_each_title_is_that_of_its_panel(folder):
    with served({"run": lambda: dualform.open(folder)}) as pages:
        text = pages.get("/explore?item=shapes/3&without=label:1&open=data,layers,training,record").text
    titles = dict(re.findall(r'<h2 id="title-(\w+)">([^<]*?) ?(?:<|$)', re.sub("</?abbr[^>]*>", "", text)))
    absent = ("adjoint", "samples", "places", "scores")  # nothing kept, no group chosen, no convolution, nothing given
    assert titles == {name: panel.title for name, panel in PANELS.items() if name not in absent}
