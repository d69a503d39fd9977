"""Claims and their exact tests, reports, pages and figures."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from math import comb, inf, nan, nextafter
from pathlib import Path
from string import Formatter
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import dualform_studies
from dualform_studies.claims import (
    FAILS,
    HOLDS,
    IN_PART,
    Beside,
    Claim,
    can_reach,
    is_gain,
    judge,
    mcnemar,
    sign_test,
    texts,
    verdict,
    verdict_at_most,
)
from dualform_studies.figures import LARGEST_PNG, new_figure, save_animation
from dualform_studies.report import (
    Cell,
    MarkedPassage,
    Page,
    Table,
    beside_table,
    claims_table,
    page_html,
    percent,
    table_markdown,
)


def test_a_verdict_follows_from_the_measure_and_not_from_what_is_no_number():
    measures = (0.9, 0.8, 0.79, 0.5, 0.49)
    assert [verdict(one, holds=0.8, in_part=0.5) for one in measures] == [HOLDS, HOLDS, IN_PART, IN_PART, FAILS]
    small = (0.1, 0.2, 0.21, 0.5, 0.51)
    assert [verdict_at_most(one, holds=0.2, in_part=0.5) for one in small] == [HOLDS, HOLDS, IN_PART, IN_PART, FAILS]
    for judged, *values in ((verdict, nan, 0.8, 0.5), (verdict, 0.7, 0.5, 0.8), (verdict_at_most, 0.3, 0.5, 0.2)):
        with pytest.raises(ValueError, match="no verdict"):
            judged(*values)


@pytest.mark.parametrize("name", [name for name, said in texts().items() if "holds" in said])
def test_a_claim_holds_from_its_own_value_on(name: str):
    said = texts()[name]
    holds, in_part = (float(Fraction(said[key])) for key in ("holds", "in_part"))
    worse = inf if said.get("at_most") else -inf
    named = {
        key: "x" for text in said.values() if isinstance(text, str) for _, key, _, _ in Formatter().parse(text) if key
    }
    words = named | {"level": 0.05, "chance": 0.01}
    values = (holds, nextafter(holds, worse), in_part, nextafter(in_part, worse))
    found = [judge(name, value, "ours", **words) for value in values]
    assert [claim.verdict for claim in found] == [HOLDS, IN_PART, IN_PART, FAILS]
    for text in (found[0].section, found[0].claim, found[0].paper, found[0].criterion):
        assert text
        assert "{" not in text


def test_every_claim_is_judged_by_a_study():
    folder = Path(dualform_studies.__file__).parent
    sources = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    assert len(texts()) > 50
    for name in texts():
        study, own = name.split(".", 1)
        assert f'"{name}"' in sources or (f'f"{study}.{{' in sources and f'"{own}"' in sources), name


def test_exact_tests_of_small_counts():
    assert mcnemar(0, 0) == mcnemar(3, 3) == 1.0
    assert mcnemar(10, 2) == mcnemar(2, 10) == pytest.approx(2 * (1 + 12 + 66) / 2**12)
    assert mcnemar(0, 5000) < 1e-300
    assert mcnemar(430, 510) == pytest.approx(2 * sum(comb(940, few) for few in range(431)) / 2**940)
    assert [is_gain(*counts) for counts in ((8, 0), (0, 8), (7, 0), (120, 100))] == [True, False, False, False]
    for above, below, ties, p in ((5, 0, 3, 1 / 32), (0, 5, 0, 1.0), (2, 1, 0, 0.5), (0, 0, 4, 1.0)):
        assert sign_test(np.array([0.3] * above + [-0.1] * below + [0.0] * ties)) == pytest.approx(p)
    assert [can_reach(0.05, count) for count in (1, 4, 5, 24)] == [False, False, True, True]


def plot(path: Path, title: str = "") -> Path:
    with new_figure(path, 1.0, title) as figure:
        figure.subplots().plot([1, 2])
    assert figure.get_suptitle() == title
    return path


CLAIM = Claim("section 5.2", "Its class leads.", "one example", "81 % of 10,000", HOLDS, "80 % or more")


def test_a_page_and_its_report_have_everything_escaped_and_in_order(tmp_path: Path):
    page = Page(tmp_path, "Foxes & <crows>")
    page.heading("What was seen")
    page.paragraph("Asked with `label < 3`.")
    page.figure(plot(tmp_path / "report" / "plot.png", "Two"), "Two points (Figure 4 of the paper).")
    rows = [("a|b", 384000, 0.5, None), (MarkedPassage("as f", "a", "st as\nhe could"), 1, 1e-6, "x")]
    page.table("passages", "Passages.", ["passage", "slots", "weight", "note"], rows)
    verify = {"layer-0": {"reconstruction_error": 2e-6, "exact": True, "reason": ""}}
    report = {"study": "foxes", "command": "dualform study foxes", "verify": verify, "claims": [CLAIM.plain()]}
    report["beside_paper"] = [Beside("accuracy", "96 %", "97 %").plain()]
    assert page.write(report) == tmp_path / "report" / "index.html"
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "index.html", "plot.png", "plot.svg", "report.json"
    }  # fmt: skip
    assert json.loads((tmp_path / "report" / "report.json").read_text()) == report
    assert [table["name"] for table in report["tables"]] == ["claims", "beside", "passages", "reconstruction"]
    assert report["tables"][2]["rows"][1] == ["as f[a]st as\nhe could", 1, 1e-6, "x"]
    assert report["machine"]["torch"]
    kinds = [item.kind for item in page.items]
    assert kinds == ["heading", "paragraph", "figure", "table", "table", "table", "heading", "table"]
    document = (tmp_path / "report" / "index.html").read_text().partition("\n")[2]
    shown = ElementTree.fromstring(re.sub(r"(<(?:meta|img)[^>]*)>", r"\1/>", document))  # which refuses tags left open
    assert [image.get("src") for image in shown.iter("img")] == ["plot.png"]
    assert {
        ("h1", "Foxes & <crows>"), ("code", "label < 3"), ("code", "dualform study foxes"), ("mark", "a"),
        ("td", "384,000"), ("td", "-"), ("td", "holds"),
    } <= {(element.tag, element.text) for element in shown.iter()}  # fmt: skip


def test_a_page_made_again_names_the_machine_of_its_figures(tmp_path: Path):
    report = {"study": "foxes", "command": "dualform study foxes", "machine": {"processor": "of the first time"}}
    Page(tmp_path, "Foxes").write(report)
    assert "processor of the first time." in (tmp_path / "report" / "index.html").read_text()


def test_claims_and_figures_stand_in_tables():
    table = claims_table([CLAIM.plain()])
    assert table.rows == [["section 5.2", "Its class leads.", "one example", "81 % of 10,000", "80 % or more", "holds"]]
    row = Beside("accuracy", "97.3 %", text="97 %").plain()
    assert beside_table([row]).rows == [["accuracy", "97.3 %", "97 %", "-"]]
    both = beside_table([{"study": "single"} | row])
    assert (both.columns[0], both.rows) == ("study", [["single", "accuracy", "97.3 %", "97 %", "-"]])
    assert (percent(0.97449), percent(0.5, "g"), percent(1 / 3, ".3g")) == ("97.4 %", "50 %", "33.3 %")


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


def test_the_same_figure_is_the_same_file(tmp_path: Path):
    one, other = (plot(tmp_path / f"{name}.png") for name in ("a", "b"))
    assert one.read_bytes() == other.read_bytes()
    assert one.with_suffix(".svg").read_bytes() == other.with_suffix(".svg").read_bytes()


def test_a_picture_of_many_colours_is_packed(tmp_path: Path):
    with new_figure(tmp_path / "noise.png", 3.0) as figure:
        figure.subplots().imshow(np.random.default_rng(0).random((200, 200, 3)))
    assert (tmp_path / "noise.png").stat().st_size <= LARGEST_PNG


def test_colours_are_fitted_to_shades_and_paper_stays_white(tmp_path: Path):
    ramp = np.linspace(0, 1, 200)
    shades = np.stack([*np.meshgrid(ramp, ramp), np.full((200, 200), 0.3)], axis=-1)
    errors = {}
    for fitted in (True, False):
        path = tmp_path / f"{fitted}.png"
        with new_figure(path, 3.0, shades=fitted) as figure:
            figure.subplots().imshow(shades, interpolation="bilinear")
        assert path.stat().st_size <= LARGEST_PNG
        with Image.open(path) as picture:
            drawn = np.asarray(picture.convert("RGB")).astype(float)
        assert drawn[2, 2].tolist() == [255, 255, 255]
        # A row of the picture's middle, where red goes from nought to full, and green stays.
        row = drawn[300][(drawn[300] < 250).any(axis=1)]
        errors[fitted] = np.abs(row[:, 2] - 0.3 * 255).mean()
    assert errors[True] < errors[False]


def frame(at: int, side: int = 60) -> Image.Image:
    pixels = np.full((side, side, 3), 255, np.uint8)
    pixels[:, : side * at // 4] = (0, 114, 178)
    return Image.fromarray(pixels)


def test_frames_come_back_in_their_order_and_without_end(tmp_path):
    frames = [frame(at) for at in (1, 2, 3)]
    with Image.open(save_animation(tmp_path / "moving.png", frames, 70)) as picture:
        assert (picture.n_frames, picture.info["loop"]) == (3, 0)
        for at, expected in enumerate(frames):
            picture.seek(at)
            assert picture.info["duration"] == 70
            np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), np.asarray(expected))


@pytest.mark.parametrize(("frames", "side", "kept"), [(4, 150, 4), (8, 200, 4)], ids=["colours", "frames"])
def test_colours_and_then_frames_are_given_up_until_it_is_small_enough(tmp_path, frames: int, side: int, kept: int):
    noise = np.random.default_rng(0).integers(0, 255, (frames, side, side, 3), np.uint8)
    path = save_animation(tmp_path / "moving.png", [Image.fromarray(one) for one in noise], 70)
    assert path.stat().st_size <= LARGEST_PNG
    with Image.open(path) as picture:
        assert (picture.n_frames, picture.info["duration"]) == (kept, 70 * frames // kept)
