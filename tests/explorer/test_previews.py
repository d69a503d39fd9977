"""What samples look like on the pages: as memory.previews answers, byte for byte, or as a function says."""

from __future__ import annotations

import io
import re
import shutil
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from threading import Lock, Thread
from time import sleep
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from markupsafe import escape
from PIL import Image

import dualform
import dualform_explorer
from dualform.answers import Preview
from dualform.errors import BadInput, NotAMemory, NotFound
from dualform.questions import PreviewLookup
from dualform_explorer.panels.data import slots_panel
from dualform_explorer.panels.example import query_panel
from dualform_explorer.preview_function import GIVEN, AnswersWithPreviews, coded_preview
from dualform_explorer.previews import shown_of_examples, shown_preview, tokens_of_passage
from dualform_explorer.start import query_set_panel
from dualform_explorer.state import State
from dualform_explorer.view import Snapshot, View
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.damage import flip
from tests.explorer import recorded_table
from tests.explorer.recorded_text import HOSTILE, WORDS, offsets, passages
from tests.explorer.served import Served, Troubled

PLAIN = State("", "shapes", 3, "4", ("dataset", "label"), k=60)


TEXT = State("", "held", 3, "3", ("label",), k=60)


PREFIX = "data:image/png;base64,"


def png(image: str) -> bytes:
    assert image.startswith(PREFIX)
    return b64decode(image.removeprefix(PREFIX), validate=True)


def test_thumbnails_are_those_of_the_slots_samples(memory, info):
    panel = slots_panel(View(memory, info, PLAIN))
    assert panel.kind == "image"
    assert {own.dataset for own in panel.slots} == {"shapes", "noise <b>"}
    for own in panel.slots:
        (preview,) = memory.previews([own.sample], own.dataset)
        assert png(own.preview.image) == preview.image
    assert len({own.preview.image for own in panel.slots}) == panel.samples


def test_queries_and_cards_look_like_the_query_sets_examples(memory, info):
    (own,) = memory.previews([3], query_set="shapes")
    assert png(query_panel(View(memory, info, PLAIN)).preview.image) == own.image
    for card in query_set_panel(Snapshot(memory, info), "noise").cards:
        (own,) = memory.previews([card.row], query_set="noise")
        assert png(card.preview.image) == own.image


def test_passages_have_the_slots_token_marked(texts):
    panel = slots_panel(View(texts, texts.info(), TEXT))
    rows = texts.slots(np.array([own.slot for own in panel.slots]), "token")
    own = passages()
    assert panel.kind == "text"
    for slot, sample, position in zip(panel.slots, rows["sample"].tolist(), rows["position"].tolist(), strict=True):
        before, token, behind = slot.preview.passage
        assert before + token + behind == own[sample]
        assert (len(before), len(before) + len(token)) == offsets(own[sample])[position]


def test_a_passage_of_a_query_has_each_of_its_tokens_to_pick(texts):
    for row in (0, 5):
        panel = query_panel(View(texts, texts.info(), replace(TEXT, row=row, token=2)))
        passage = passages()[row]
        assert "".join(own.text for own in panel.passage) == passage
        picked = {own.position: own.text for own in panel.passage if own.position is not None}
        assert picked == {place: passage[start:stop] for place, (start, stop) in enumerate(offsets(passage))}
        assert [own.position for own in panel.passage if own.marked] == [2]
    assert passages()[0] == HOSTILE


def test_no_slots_token_is_marked_where_positions_are_of_several_kinds_and_it_says_so(texts):
    info = texts.info()
    assert len(info.layers) > 1
    other = replace(info.layers[0], name="decoder", space="target")
    several = replace(info, layers=(*info.layers, other))
    slots, query = slots_panel(View(texts, several, TEXT)), query_panel(View(texts, several, replace(TEXT, token=2)))
    why = "No token is marked: positions are of several kinds (target, token), and texts do not say which."
    assert slots.missing == why
    assert [own.position for own in query.passage if own.marked] == [2]  # the layer has as many places as the text
    assert {own.preview.passage[1] for own in slots.slots} == {""}
    rows = texts.slots(np.array([own.slot for own in slots.slots]), "token")
    assert [own.preview.passage[0] for own in slots.slots] == [passages()[own] for own in rows["sample"].tolist()]


def test_a_token_that_the_example_does_not_have_is_named_and_none_of_another_is_shown(texts):
    with pytest.raises(NotFound, match=f"The example has no token {WORDS}: it has 0 to {WORDS - 1}."):
        query_panel(View(texts, texts.info(), replace(TEXT, token=WORDS)))


def test_rows_of_a_table_are_shown_by_column(table_folder):
    own = recorded_table.columns()
    with dualform.open(table_folder) as memory:
        info = memory.info()
        state = State("", "held", 1, "", ("label",))
        panel = slots_panel(View(memory, info, state))
        assert panel.kind == "table"
        for slot in panel.slots:
            assert slot.preview.row == pytest.approx({name: values[slot.sample] for name, values in own.items()})
        assert query_panel(View(memory, info, state)).preview.row["name"] == "row 1 <i>"


def test_long_passages_are_cut_around_their_token():
    text = "a" * 1000 + " token " + "b" * 1000
    places = np.array([[0, 1000], [1001, 1006], [1007, 2007]], dtype=np.int32)
    before, token, behind = shown_preview(Preview(1, text=text, offsets=places), 1).passage
    assert token == "token"
    assert before == "…" + "a" * 159 + " "
    assert behind == " " + "b" * 159 + "…"
    before, token, behind = shown_preview(Preview(1, text=text)).passage
    assert (before, token, behind) == ("a" * 320 + "…", "", "")


def test_tokens_without_a_place_and_tokens_that_overlap_are_not_offered():
    text = "one two three"
    places = np.array([[0, 0], [0, 3], [2, 5], [4, 7], [4, 7], [8, 13]], dtype=np.int32)
    own = tokens_of_passage(Preview(1, text=text, offsets=places), 3)
    assert [(token.text, token.position) for token in own] == [
        ("one", 1),
        (" ", None),
        ("two", 3),
        (" ", None),
        ("three", 5),
    ]
    assert tokens_of_passage(Preview(1, text=text, offsets=places), 0) == ()
    many = np.array([[place, place + 1] for place in range(1000)], dtype=np.int32)
    own = tokens_of_passage(Preview(1, text="x" * 1000, offsets=many), 500)
    assert [own[0].text, own[1].position, own[-2].position, own[-1].text] == ["…", 350, 650, "…"]


def test_tokens_are_picked_by_the_positions_that_a_text_counts_from():
    places = np.array([[0, 3], [4, 7], [8, 13]], dtype=np.int32)
    text = Preview(1, text="one two three", offsets=places, first=2)
    for position in (2, 3, 4):
        own = tokens_of_passage(text, position)
        assert [(token.text, token.position) for token in own] == [
            ("one", 2),
            (" ", None),
            ("two", 3),
            (" ", None),
            ("three", 4),
        ]
        marked = next(token.text for token in own if token.marked)
        assert marked == shown_preview(text, position).passage[1]
    assert tokens_of_passage(text, 1) == tokens_of_passage(text, 5) == ()


def test_more_than_an_answer_holds_is_shown_as_far_as_it_goes(memory, info):
    def limit(question):
        if isinstance(question, PreviewLookup) and len(question.samples) > most:
            raise BadInput("what these samples looked like takes more than 8.0 MiB.", field="samples")

    limited, most = Troubled(memory, limit), 6
    previews = shown_of_examples(Snapshot(limited, info), "shapes", range(20))
    assert [own.kind for own in previews] == ["image"] * 5 + ["none"] * 15
    assert previews.missing == "Only the first 5 samples are shown: all 20 would be too large for a page."
    most = 0
    alone = shown_of_examples(Snapshot(limited, info), "shapes", [3])
    assert alone.missing == "what these samples looked like takes more than 8.0 MiB."


def test_a_damaged_preview_set_leaves_the_numbers_and_is_named(memory, info, folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (file,) = [own for own in (copy / "gallery").rglob("*.arrow") if "noise" in own.parent.name]
    flip(file, file.stat().st_size // 2)
    with dualform.open(copy) as damaged:
        panel, whole = slots_panel(View(damaged, info, PLAIN)), slots_panel(View(memory, info, PLAIN))
        assert query_panel(View(damaged, info, PLAIN)).missing == ""
    assert [(own.slot, own.score) for own in panel.slots] == [(own.slot, own.score) for own in whole.slots]
    assert file.name in panel.missing


GIVEN_STATE = State("", "shapes", 3, "4", ("dataset", "label"), k=12, open=("data",))
RNG = np.random.default_rng(15)


def drawn(dataset: str | None, sample: int) -> np.ndarray:
    """An image that no other sample of any dataset has."""
    return np.full((4, 6), sample, np.uint8) if dataset == "shapes" else np.full((6, 4), 255 - sample, np.uint8)


def pixels(png: bytes | None) -> np.ndarray:
    assert png is not None
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        return np.asarray(image)


def at(url: str) -> Served:
    return Served(int(url.rstrip("/").rpartition(":")[2]))


def test_slots_are_shown_as_the_function_says_and_queries_as_their_query_set_does(memory, info):
    asked = []
    shown = AnswersWithPreviews(Troubled(memory, asked.append), drawn)
    panel, stored = slots_panel(View(shown, shown.info(), GIVEN_STATE)), slots_panel(View(memory, info, GIVEN_STATE))
    assert [(own.slot, own.score) for own in panel.slots] == [(own.slot, own.score) for own in stored.slots]
    assert asked
    assert not [question for question in asked if isinstance(question, PreviewLookup)], "they need not be had"
    for own in panel.slots:
        given = pixels(b64decode(own.preview.image.removeprefix(PREFIX), validate=True))
        assert np.array_equal(given, drawn(own.dataset, own.sample))
    assert (
        query_panel(View(shown, shown.info(), GIVEN_STATE)).preview
        == query_panel(View(memory, info, GIVEN_STATE)).preview
    )
    assert shown.info().previews == {"": GIVEN, "shapes": GIVEN, "noise <b>": GIVEN}


def test_samples_it_says_nothing_of_are_shown_by_their_columns(memory):
    shown = AnswersWithPreviews(memory, lambda dataset, sample: None)
    panel = slots_panel(View(shown, shown.info(), GIVEN_STATE))
    assert (panel.kind, panel.missing) == ("none", "")


def test_a_wrong_type_is_named_and_not_taken_for_too_much(memory):
    shown = AnswersWithPreviews(memory, lambda dataset, sample: {1, 2})
    panel = slots_panel(View(shown, shown.info(), GIVEN_STATE))
    assert panel.kind == "none"
    assert panel.missing.startswith(f"What <lambda>({panel.slots[0].dataset!r}, {panel.slots[0].sample}) gave cannot")
    assert " be shown: it is of type set. Give an image (an array, a tensor" in panel.missing


def test_texts_have_their_token_marked(memory):
    shown = AnswersWithPreviews(memory, lambda dataset, sample: (f"one {sample}", [(0, 3), (4, 4 + len(str(sample)))]))
    found = shown.previews([12, 3], "shapes")
    assert [own.marked(1) for own in found] == [("one ", "12", ""), ("one ", "3", "")]


def test_rows_may_have_columns_that_others_lack(memory):
    rows = {1: {"a": 1}, 2: {"b": "x"}}
    found = AnswersWithPreviews(memory, lambda dataset, sample: rows.get(sample)).previews([2, 3, 1], None)
    assert [own.row and dict(own.row) for own in found] == [{"b": "x", "a": None}, None, {"b": None, "a": 1}]


def test_one_dataset_is_of_one_kind(memory):
    shown = AnswersWithPreviews(memory, lambda dataset, sample: "text" if sample else np.zeros((2, 2), np.uint8))
    with pytest.raises(BadInput, match="gave images for sample 0 and texts for sample 1 of one dataset"):
        shown.previews([0, 1], "shapes")


def test_of_a_function_more_than_an_answer_holds_is_shown_as_far_as_it_goes(memory, info):
    shown = AnswersWithPreviews(memory, lambda dataset, sample: "x" * (1 << 20))
    assert len(shown.previews(np.arange(8), "shapes")) == 8
    with pytest.raises(BadInput, match=r"takes more than 8 MiB\. Ask for at most 8 at a time\."):
        shown.previews(np.arange(9), "shapes")
    panel = slots_panel(View(shown, info, replace(GIVEN_STATE, k=100)))
    assert panel.missing.startswith("Only the first ")


def test_pages_have_the_functions_pictures_and_what_it_raises(folder, memory, info):
    """Through a server; and what it raises stands in the place of the pictures of a folder."""
    seen = []

    def preview(dataset: str | None, sample: int) -> Any:
        seen.append((dataset, sample))
        return drawn(dataset, sample)

    def raising(dataset: str | None, sample: int) -> Any:
        raise KeyError(f"<b>{dataset}")

    stored = slots_panel(View(memory, info, GIVEN_STATE))
    with (
        Server(memory, ServiceConfig("127.0.0.1:0")) as server,
        dualform_explorer.explore(server.address, preview) as pages,
    ):
        page = at(pages.url).get(f"/explore?{GIVEN_STATE.query()}").text
    for own in stored.slots:
        png = coded_preview(drawn(own.dataset, own.sample), own.sample).image
        assert PREFIX + b64encode(png).decode() in page
        assert own.preview.image not in page
    assert set(seen) == {(own.dataset, own.sample) for own in stored.slots}
    with dualform_explorer.explore(folder, raising) as pages, dualform.open(folder) as beside:
        page = at(pages.url).get(f"/explore?{GIVEN_STATE.query()}").text
        assert beside.info().steps > 0, "it is open elsewhere, too"
    first = stored.slots[0]
    assert str(escape(f"raising({first.dataset!r}, {first.sample}) raised KeyError: ")) in page
    assert not re.search("Traceback|<b>shapes|<b>noise", page)
    assert all(f'data-slot="{own.slot}"' in page for own in stored.slots)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.array([[0, 7], [255, 3]], np.uint8), [[0, 7], [255, 3]]),
        (np.array([[0.0, 0.5], [0.25, 0.75]]), [[0, 128], [64, 191]]),
        (np.array([[0, 1], [1, 0]], bool), [[0, 255], [255, 0]]),
        (np.array([[0.0, 2.0], [1.0, 2.0]]), [[0, 255], [128, 255]]),
        (np.array([[-1.0, 0.0], [1.0, 0.0]], np.float32), [[0, 128], [255, 128]]),
        (np.array([[100, 300], [200, 100]], np.uint16), [[0, 255], [128, 0]]),
        (np.array([[0, 1], [1, 0]]), [[0, 255], [255, 0]]),
        (torch.tensor([[[0.0, 1.0]]]), [[0, 255]]),
        ((Image.new("L", (2, 1), 9), 4), [[9, 9]]),
    ],
)
def test_images_are_scaled_as_the_docstring_says(given, expected):
    assert pixels(coded_preview(given, 5).image).tolist() == expected


def test_images_of_colours_come_in_every_form():
    rgb = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    for given in (rgb, torch.from_numpy(rgb.transpose(2, 0, 1).copy()), Image.fromarray(rgb)):
        assert np.array_equal(pixels(coded_preview(given, 0).image), rgb)


@pytest.mark.parametrize(
    "given",
    [
        {"age": np.int64(3), "name": "a", "on": date(2020, 1, 2), "cost": Decimal("1.5"), "none": None},
        pd.Series([3, "a", date(2020, 1, 2), Decimal("1.5"), None], index=["age", "name", "on", "cost", "none"]),
    ],
)
def test_rows_are_plain_values(given):
    own = coded_preview(given, 0)
    assert dict(own.row or {}) == {"age": 3, "name": "a", "on": "2020-01-02", "cost": "1.5", "none": None}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"\x89PNG", "it is of type bytes"),
        (pd.DataFrame({"a": [1]}), "it is of type DataFrame"),
        (np.zeros(784), r"image 5 has the shape \[784\]"),
        (np.full((4, 4), np.nan), "image 5 holds NaN"),
        (np.array([["a"]]), "which are no pixels"),
        (np.zeros((3, 4, 3)), "its channels may be the first axis or the last"),
        ("\ud800", "text 5 contains half of a surrogate pair"),
        (("ab", [(0, 3)]), "position 0 of text 5 has the offsets 0 to 3"),
        ({"a": [1]}, "column 'a' holds list"),
        ({"a": "\ud800"}, "contains half of a surrogate pair"),
    ],
)
def test_what_a_preview_set_would_not_take_is_refused(given, said):
    with pytest.raises(BadInput, match=said):
        coded_preview(given, 5)


@pytest.mark.parametrize(
    ("preview", "said"),
    [
        (3, "preview is of type int"),
        (lambda: 0, r"cannot be called as preview\(dataset, sample\)"),
        (lambda dataset, sample, more: 0, "cannot be called"),
    ],
)
def test_what_cannot_be_called_so_is_refused(folder, preview: Callable[..., Any], said):
    with pytest.raises(BadInput, match=said):
        dualform_explorer.explore(folder, preview)


def test_targets_that_cannot_be_opened_are_refused_at_once(folder, tmp_path):
    with pytest.raises(NotAMemory):
        dualform_explorer.explore(tmp_path / "none")
    with pytest.raises(BadInput, match="No target is given, or one twice"):
        dualform_explorer.explore([folder, str(folder)])
    with pytest.raises(BadInput, match="No target is given"):
        dualform_explorer.explore([])
    with pytest.raises(BadInput, match="no token is asked for"):
        dualform_explorer.explore(folder, address="0.0.0.0:0")


def test_several_are_shown_and_none_is_answered_for_when_they_are_closed(folder, text_folder):
    pages = dualform_explorer.explore([folder, text_folder])
    assert repr(pages) == f"ServedPages at {pages.url}"
    start = at(pages.url).get("/").text
    assert folder.name in start
    assert text_folder.name in start
    pages.close()
    pages.wait()
    with pytest.raises(OSError, match=r"refused|reset"):
        at(pages.url).get("/")


def test_of_several_memories_too_one_thread_at_a_time_calls_the_function(memory):
    """What it gave is read before it is called again, as of a function that draws into one array."""
    canvas, calling, seen = np.zeros((4, 4), np.uint8), Lock(), []

    def drawing(dataset: str | None, sample: int) -> np.ndarray:
        assert calling.acquire(blocking=False), "two threads at a time"
        canvas[:] = sample
        sleep(0.001)
        calling.release()
        return canvas

    def ask(number: int) -> None:
        shown, samples = AnswersWithPreviews(memory, drawing), np.arange(10) + 20 * number
        found = shown.previews(samples, "shapes")
        seen.append([int(pixels(own.image)[0, 0]) for own in found] == samples.tolist())

    threads = [Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 8


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unreadable:
    def __array__(self, *given: Any, **named: Any) -> np.ndarray:
        raise OSError("image file is truncated")


def test_what_cannot_be_read_is_refused_by_the_call_that_gave_it(memory):
    def raising(dataset: str | None, sample: int) -> Any:
        raise Silent

    with pytest.raises(BadInput, match=r"^raising\('shapes', 3\) raised Silent\.$"):
        AnswersWithPreviews(memory, raising).previews([3], "shapes")

    def given(dataset: str | None, sample: int) -> Any:
        return Unreadable()

    def ending(dataset: str | None, sample: int) -> Any:
        sys.exit(3)

    with pytest.raises(BadInput, match=r"raised SystemExit: 3\."):
        AnswersWithPreviews(memory, ending).previews([3], "shapes")
    said = r"^What given\('shapes', 3\) gave cannot be shown: reading it raised OSError: image file is truncated\.$"
    with pytest.raises(BadInput, match=said):
        AnswersWithPreviews(memory, given).previews([3], "shapes")


def test_an_image_of_a_file_that_ends_early_leaves_the_slots_without_looks(memory):
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 255, (64, 64), dtype=np.uint8)).save(file, "PNG")
    shown = AnswersWithPreviews(memory, lambda dataset, sample: Image.open(io.BytesIO(file.getvalue()[:900])))
    panel = slots_panel(View(shown, shown.info(), GIVEN_STATE))
    assert len(panel.slots) == 12
    assert "cannot be shown: reading it raised OSError" in panel.missing
