"""What a function of the reader's own says of a sample is what pages show of it, and what it cannot say is said."""

from __future__ import annotations

import io
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
from dualform.errors import BadInput, NotAMemory
from dualform.questions import PreviewLookup
from dualform_explorer.panels.data import slots_panel
from dualform_explorer.panels.example import query_panel
from dualform_explorer.preview_function import GIVEN, AnswersWithPreviews, coded_preview
from dualform_explorer.state import State
from dualform_service.config import ServiceConfig
from dualform_service.server import Server
from tests.explorer.served import Intercepted, Served

PLAIN = State("", "shapes", 3, "4", ("dataset", "label"), k=12, open=("data",))
PREFIX = "data:image/png;base64,"
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


class TestOnPages:
    def test_slots_are_shown_as_the_function_says_and_queries_as_their_query_set_does(self, memory, info):
        shown = AnswersWithPreviews(memory, drawn)
        panel, stored = slots_panel(shown, shown.info(), PLAIN), slots_panel(memory, info, PLAIN)
        assert [(own.slot, own.score) for own in panel.slots] == [(own.slot, own.score) for own in stored.slots]
        for own in panel.slots:
            given = pixels(b64decode(own.preview.image.removeprefix(PREFIX), validate=True))
            assert np.array_equal(given, drawn(own.dataset, own.sample))
        assert query_panel(shown, shown.info(), PLAIN).preview == query_panel(memory, info, PLAIN).preview
        assert shown.info().previews == {"": GIVEN, "shapes": GIVEN, "noise <b>": GIVEN}

    @pytest.mark.parametrize("through", ["a folder", "a server"])
    def test_a_page_has_the_functions_pictures(self, folder, memory, info, through):
        seen = []

        def preview(dataset: str | None, sample: int) -> Any:
            seen.append((dataset, sample))
            return drawn(dataset, sample)

        with Server(memory, ServiceConfig("127.0.0.1:0")) as server:
            target = folder if through == "a folder" else server.address
            with dualform_explorer.explore(target, preview) as pages:
                page = at(pages.url).get(f"/explore?{PLAIN.query()}").text
            stored = slots_panel(memory, info, PLAIN)
            for own in stored.slots:
                png = coded_preview(drawn(own.dataset, own.sample), own.sample).image
                assert PREFIX + b64encode(png).decode() in page
                assert own.preview.image not in page
            assert set(seen) == {(own.dataset, own.sample) for own in stored.slots}

    def test_what_it_raises_stands_where_the_pictures_would_and_leaves_the_numbers(self, folder, memory, info):
        def preview(dataset: str | None, sample: int) -> Any:
            raise KeyError(f"<b>{dataset}")

        with dualform_explorer.explore(folder, preview) as pages:
            page = at(pages.url).get(f"/explore?{PLAIN.query()}").text
        panel = slots_panel(memory, info, PLAIN)
        first = panel.slots[0]
        said = f"preview({first.dataset!r}, {first.sample}) raised KeyError: "
        assert str(escape(said)) in page
        assert "Traceback" not in page
        assert "<b>shapes" not in page
        assert "<b>noise" not in page
        assert all(f'data-slot="{own.slot}"' in page for own in panel.slots)

    def test_a_function_that_ends_the_process_ends_nothing(self, memory):
        shown = AnswersWithPreviews(memory, lambda dataset, sample: sys.exit(3))
        with pytest.raises(BadInput, match=r"raised SystemExit: 3\."):
            shown.previews([1], "shapes")

    def test_samples_it_says_nothing_of_are_shown_by_their_columns(self, memory):
        shown = AnswersWithPreviews(memory, lambda dataset, sample: None)
        panel = slots_panel(shown, shown.info(), PLAIN)
        assert (panel.kind, panel.missing) == ("none", "")

    def test_a_wrong_type_is_named_and_not_taken_for_too_much(self, memory):
        shown = AnswersWithPreviews(memory, lambda dataset, sample: {1, 2})
        panel = slots_panel(shown, shown.info(), PLAIN)
        assert panel.kind == "none"
        assert panel.missing.startswith(
            f"What <lambda>({panel.slots[0].dataset!r}, {panel.slots[0].sample}) gave cannot"
        )
        assert " be shown: it is of type set. Give an image (an array, a tensor" in panel.missing

    def test_texts_have_their_token_marked(self, memory):
        shown = AnswersWithPreviews(
            memory, lambda dataset, sample: (f"one {sample}", [(0, 3), (4, 4 + len(str(sample)))])
        )
        found = shown.previews([12, 3], "shapes")
        assert [own.marked(1) for own in found] == [("one ", "12", ""), ("one ", "3", "")]

    def test_rows_may_have_columns_that_others_lack(self, memory):
        rows = {1: {"a": 1}, 2: {"b": "x"}}
        found = AnswersWithPreviews(memory, lambda dataset, sample: rows.get(sample)).previews([2, 3, 1], None)
        assert [own.row and dict(own.row) for own in found] == [{"b": "x", "a": None}, None, {"b": None, "a": 1}]

    def test_one_dataset_is_of_one_kind(self, memory):
        shown = AnswersWithPreviews(memory, lambda dataset, sample: "text" if sample else np.zeros((2, 2), np.uint8))
        with pytest.raises(BadInput, match="gave images for sample 0 and texts for sample 1 of one dataset"):
            shown.previews([0, 1], "shapes")

    def test_more_than_an_answer_of_a_preview_set_holds_is_shown_as_far_as_it_goes(self, memory, info):
        shown = AnswersWithPreviews(memory, lambda dataset, sample: "x" * (1 << 20))
        assert len(shown.previews(np.arange(8), "shapes")) == 8
        with pytest.raises(BadInput, match=r"takes more than 8 MiB\. Ask for at most 8 at a time\."):
            shown.previews(np.arange(9), "shapes")
        panel = slots_panel(shown, info, replace(PLAIN, k=100))
        assert panel.missing.startswith("Only the first ")


def test_whoever_answers_is_not_asked_what_the_function_says(memory):
    asked = []
    shown = AnswersWithPreviews(Intercepted(memory, asked.append), drawn)
    panel = slots_panel(shown, shown.info(), PLAIN)
    assert all(own.preview.image for own in panel.slots)
    assert asked
    assert not [question for question in asked if isinstance(question, PreviewLookup)]
    query_panel(shown, shown.info(), PLAIN)
    assert [question.query_set for question in asked if isinstance(question, PreviewLookup)] == ["shapes"]


class TestOneSample:
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
    def test_images_are_scaled_as_the_docstring_says(self, given, expected):
        assert pixels(coded_preview(given, 5).image).tolist() == expected

    def test_images_of_colours_come_in_every_form(self):
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
    def test_rows_are_plain_values(self, given):
        own = coded_preview(given, 0)
        assert dict(own.row or {}) == {"age": 3, "name": "a", "on": "2020-01-02", "cost": "1.5", "none": None}

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (b"\x89PNG", "it is of type bytes"),
            (3, "it is of type int"),
            ([[0, 1]], "it is of type list"),
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
    def test_what_a_preview_set_would_not_take_is_refused(self, given, said):
        with pytest.raises(BadInput, match=said):
            coded_preview(given, 5)


class TestExplore:
    @pytest.mark.parametrize(
        ("preview", "said"),
        [
            (3, "preview is of type int"),
            (lambda: 0, r"cannot be called as preview\(dataset, sample\)"),
            (lambda dataset, sample, more: 0, "cannot be called"),
        ],
    )
    def test_what_cannot_be_called_so_is_refused(self, folder, preview: Callable[..., Any], said):
        with pytest.raises(BadInput, match=said):
            dualform_explorer.explore(folder, preview)

    def test_targets_that_cannot_be_opened_are_refused_at_once(self, folder, tmp_path):
        with pytest.raises(NotAMemory):
            dualform_explorer.explore(tmp_path / "none")
        with pytest.raises(BadInput, match="No target is given, or one twice"):
            dualform_explorer.explore([folder, str(folder)])
        with pytest.raises(BadInput, match="No target is given"):
            dualform_explorer.explore([])
        with pytest.raises(BadInput, match="no token is asked for"):
            dualform_explorer.explore(folder, address="0.0.0.0:0")

    def test_several_are_shown_and_none_is_answered_for_when_they_are_closed(self, folder, text_folder):
        pages = dualform_explorer.explore([folder, text_folder])
        assert repr(pages) == f"ServedPages at {pages.url}"
        start = at(pages.url).get("/").text
        assert folder.name in start
        assert text_folder.name in start
        pages.close()
        pages.wait()
        with pytest.raises(OSError, match=r"refused|reset"):
            at(pages.url).get("/")

    def test_a_memory_is_looked_at_while_it_is_open_elsewhere(self, folder):
        with dualform_explorer.explore(folder) as pages, dualform.open(folder) as memory:
            assert at(pages.url).get("/news").status == 200
            assert memory.info().steps > 0


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

    said = r"^What given\('shapes', 3\) gave cannot be shown: reading it raised OSError: image file is truncated\.$"
    with pytest.raises(BadInput, match=said):
        AnswersWithPreviews(memory, given).previews([3], "shapes")


def test_an_image_of_a_file_that_ends_early_leaves_the_slots_without_looks(memory):
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 255, (64, 64), dtype=np.uint8)).save(file, "PNG")
    shown = AnswersWithPreviews(memory, lambda dataset, sample: Image.open(io.BytesIO(file.getvalue()[:900])))
    panel = slots_panel(shown, shown.info(), PLAIN)
    assert len(panel.slots) == 12
    assert "cannot be shown: reading it raised OSError" in panel.missing
