"""Reports and their pages."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dualform_studies.claims import HOLDS, Beside, Claim
from dualform_studies.figures import LARGEST_PNG, new_figure, save_animation
from dualform_studies.report import (
    Cell,
    MarkedPassage,
    Page,
    Table,
    page_html,
    percent,
    table_markdown,
)


class Texts(HTMLParser):
    """The texts of an HTML document by the tag that they stand in, and the sources of its images."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.images: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.images.append(dict(attrs)["src"])
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, "tags close in the order in which they opened"

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self.open[-1], data))


@pytest.fixture
def page(tmp_path: Path) -> Page:
    page = Page(tmp_path, "Foxes & <crows>")
    page.heading("What was seen")
    page.paragraph("Asked with `label < 3`.")
    with new_figure(tmp_path / "report" / "plot.png", 1.0) as figure:
        figure.subplots().plot([1, 2])
    page.figure(tmp_path / "report" / "plot.png", "Two points (Figure 4 of the paper).")
    rows = [("a|b", 384000, 0.5, None), (MarkedPassage("as f", "a", "st as\nhe could"), 1, 1e-6, "x")]
    page.table("passages", "Passages.", ["passage", "slots", "weight", "note"], rows)
    return page


def test_everything_is_written(page: Page, tmp_path: Path):
    verify = {"layer-0": {"reconstruction_error": 2e-6, "exact": True, "reason": ""}}
    report = {"study": "foxes", "command": "dualform study foxes", "verify": verify}
    report["claims"] = [Claim("section 5.2", "Foxes run.", "one fox", "81 %", HOLDS, "80 % or more").plain()]
    report["beside_paper"] = [Beside("accuracy", "96 %", "97 %").plain()]
    assert page.write(report) == tmp_path / "report" / "index.html"
    written = {path.name for path in (tmp_path / "report").iterdir()}
    assert written == {"index.html", "plot.png", "plot.svg", "report.json"}
    assert json.loads((tmp_path / "report" / "report.json").read_text()) == report
    assert [table["name"] for table in report["tables"]] == ["claims", "beside", "passages", "reconstruction"]
    assert report["tables"][2]["rows"][1] == ["as f[a]st as\nhe could", 1, 1e-6, "x"]
    assert report["machine"]["torch"]
    kinds = [item.kind for item in page.items]
    assert kinds == ["heading", "paragraph", "figure", "table", "table", "table", "heading", "table"]


def test_a_page_made_again_names_the_machine_of_its_figures(page: Page):
    report = {"study": "foxes", "command": "dualform study foxes", "machine": {"processor": "of the first time"}}
    page.write(report)
    assert "processor of the first time." in (page.run / "report" / "index.html").read_text()


def test_html_escapes_what_it_shows_and_marks_the_token(page: Page):
    page.write({"command": "dualform study foxes"})
    shown = Texts((page.run / "report" / "index.html").read_text())
    assert shown.open == []
    assert ("h1", "Foxes & <crows>") in shown.texts
    assert ("code", "label < 3") in shown.texts
    assert ("code", "dualform study foxes") in shown.texts
    assert ("mark", "a") in shown.texts
    assert ("td", "384,000") in shown.texts
    assert ("td", "-") in shown.texts
    assert shown.images == ["plot.png"]


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("`label <> 3 AND _x[1] * 2`", "`label <> 3 AND _x[1] * 2`"),
        ("`a || b`", r"`a \|\| b`"),
        ("a|b\nc", r"a\|b c"),
        ("a_b `c_d` <e>", r"a\_b `c_d` \<e\>"),
        ("one ` alone_", r"one \` alone\_"),
    ],
)
def test_code_in_a_cell_is_shown_as_it_is(cell: str, shown: str):
    assert table_markdown(Table("one", "One.", ["mask"], [[cell]])).split("\n")[-1] == f"| {shown} |"


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        ([1, 0.5, None], True),
        (["96.5 %", "-", ""], True),
        (["75.1 ± 0.8", "1,234", "-0.3", "+2", "7.9e-06"], True),
        (["1", "as after MNIST"], False),
        (["1-2"], False),
        ([None, "-"], False),
    ],
)
def test_a_column_of_numbers_stands_to_the_right(cells: list[Cell], numbers: bool):
    table = Table("one", "One.", ["n"], [[cell] for cell in cells])
    assert table_markdown(table).split("\n")[3] == ("| ---: |" if numbers else "| --- |")
    report = {"command": "dualform study one", "machine": {}}
    assert ('class="number"' in page_html("One", report, [table])) == numbers


def test_a_figure_bears_its_title(tmp_path: Path):
    with new_figure(tmp_path / "titled.png", 1.0, "Two points") as figure:
        figure.subplots().plot([1, 2])
    assert figure.get_suptitle() == "Two points"


def test_a_picture_of_many_colours_is_packed(tmp_path: Path):
    noise = np.random.default_rng(0).random((60, 60, 3))
    with new_figure(tmp_path / "noise.png", 3.0) as figure:
        figure.subplots().imshow(noise)
    assert (tmp_path / "noise.png").stat().st_size <= LARGEST_PNG


def test_colours_are_fitted_to_shades_and_paper_stays_white(tmp_path: Path):
    ramp = np.linspace(0, 1, 200)
    shades = np.stack([*np.meshgrid(ramp, ramp), np.full((200, 200), 0.3)], axis=-1)
    errors = {}
    for fitted in (True, False):
        path = tmp_path / f"{fitted}.png"
        with new_figure(path, 3.0, shades=fitted) as figure:
            figure.subplots().imshow(shades, interpolation="bilinear")
        with Image.open(path) as picture:
            drawn = np.asarray(picture.convert("RGB")).astype(float)
        assert drawn[2, 2].tolist() == [255, 255, 255]
        # A row of the picture's middle, where red goes from nought to full, and green stays.
        row = drawn[300][(drawn[300] < 250).any(axis=1)]
        errors[fitted] = np.abs(row[:, 2] - 0.3 * 255).mean()
    assert errors[True] < errors[False]


def test_the_same_figure_is_the_same_file(tmp_path: Path):
    for name in ("a", "b"):
        with new_figure(tmp_path / f"{name}.png", 1.0) as figure:
            figure.subplots().plot([1, 2])
    for kind in ("png", "svg"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_a_share_is_told_in_per_cent():
    assert (percent(0.97449), percent(0.5, "g"), percent(1 / 3, ".3g")) == ("97.4 %", "50 %", "33.3 %")


def frame(at: int, side: int = 60) -> Image.Image:
    pixels = np.full((side, side, 3), 255, np.uint8)
    pixels[:, : side * at // 4] = (0, 114, 178)
    return Image.fromarray(pixels)


def test_frames_come_back_in_their_order_and_without_end(tmp_path):
    frames = [frame(at) for at in (1, 2, 3)]
    path = save_animation(tmp_path / "moving.png", frames, 70)
    with Image.open(path) as picture:
        assert (picture.n_frames, picture.info["loop"]) == (3, 0)
        for at, expected in enumerate(frames):
            picture.seek(at)
            assert picture.info["duration"] == 70
            np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), np.asarray(expected))


def test_colours_are_given_up_until_it_is_small_enough(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (4, 150, 150, 3), np.uint8)
    path = save_animation(tmp_path / "moving.png", [Image.fromarray(one) for one in noise], 70)
    assert path.stat().st_size <= LARGEST_PNG
    with Image.open(path) as picture:
        assert picture.n_frames == 4


def test_frames_are_given_up_where_colours_are_not_enough(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (8, 200, 200, 3), np.uint8)
    path = save_animation(tmp_path / "moving.png", [Image.fromarray(one) for one in noise], 70)
    assert path.stat().st_size <= LARGEST_PNG
    with Image.open(path) as picture:
        assert picture.n_frames == 4
        assert picture.info["duration"] == 140
