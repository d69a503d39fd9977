from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualform.answers import GroupSums, Hits
from dualform_studies.report import Report
from dualform_studies.text.attention import Attention, Questions, Standard
from dualform_studies.text.corpora import Vocabulary
from dualform_studies.text.course import draw_course
from dualform_studies.text.page import draw_attention, quantiles, spread
from dualform_studies.text.prompts import AESOP, Prompt, forms_of


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50), st.integers(1, 20))
def test_stretches_cover_every_value_once(values: list[float], bins: int) -> None:
    array = np.array(values)
    starts, levels = quantiles(array, bins, (0.0, 0.5, 1.0))
    parts = np.split(array, starts[1:])
    assert len(starts) == min(bins, len(values))
    assert np.ptp([len(part) for part in parts]) <= 1
    for part, found in zip(parts, levels.T, strict=True):
        assert found == pytest.approx([part.min(), np.median(part), part.max()], abs=1e-9)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=40), st.floats(0.001, 0.2))
def test_labels_keep_their_order_within_the_panel_and_do_not_collide(places: list[float], gap: float) -> None:
    found = spread(np.array(places), gap)
    order = np.argsort(places, kind="stable")
    apart = min(gap, 1 / max(1, len(places)))
    assert np.all(np.diff(found[order]) >= apart - 1e-9)
    assert np.all((found >= apart / 2 - 1e-9) & (found <= 1 - apart / 2 + 1e-9))


def test_labels_with_room_stand_above_their_points() -> None:
    np.testing.assert_allclose(spread(np.array([0.7, 0.2, 0.5]), 0.1), [0.7, 0.2, 0.5])


def test_the_figure_names_its_axes_and_marks_the_papers_passages(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    sums = draw.gamma(2.0, size=(2, 900))
    by_position = GroupSums(tuple((at,) for at in range(900)), sums, np.full(900, 3))
    by_step = GroupSums(tuple((at,) for at in range(60)), draw.normal(size=(1, 60)), np.full(60, 45))
    hits = Hits(np.arange(1), np.ones(1, dtype=np.float32), np.ones((1, 1), dtype=np.int64))
    text = "ab"
    tokens = Vocabulary(text, "character").encode(text)
    asking = Questions([Prompt("table-3", text)], [tokens], [slice(0, 2)], np.ones((2, 4), dtype=np.float32))
    attention = Attention(hits, by_position, by_position, by_step)
    # The second passage is not in the text, the third not among the positions that were read.
    standard = Standard(AESOP[0], [400, None, 2000], forms_of(3), [])
    path = draw_attention(tmp_path / "figure.png", asking, attention, 0, "character", standard)
    assert path.stat().st_size > 10_000
    svg = (tmp_path / "figure.svg").read_text()
    ElementTree.fromstring(svg)
    for words in (
        "training token position (characters from the beginning of the text)",
        "training step",
        "passages of the paper's Table 3",
        "<!-- P1 -->",
    ):
        assert words in svg
    assert "<!-- P2 -->" not in svg
    assert "<!-- P3 -->" not in svg
    assert "no unit" not in svg


@pytest.mark.parametrize("tables", [[3, 4], []])
def test_the_course_has_a_panel_for_each_table(tmp_path: Path, tables: list[int]) -> None:
    course: list[Report] = [
        {
            "updates": 10 * at,
            "perplexity": 30.0 / at,
            "tables": [
                {
                    "table": table,
                    "passages": [
                        {"row": "Top-1", "leads": True, "rank": 900 // at if table == 3 else None},
                        {"row": "Top-2", "leads": True, "rank": None},
                        {"row": "Negative", "leads": False, "rank": at if table == 4 else None},
                    ],
                    "of_ten": [at, 2],
                }
                for table in tables
            ],
        }
        for at in (1, 2, 3)
    ]
    draw_course(tmp_path / "course.png", course)
    svg = (tmp_path / "course.svg").read_text()
    assert [f"<!-- Table {table} -->" in svg for table in (3, 4)] == [table in tables for table in (3, 4)]
    assert "<!-- perplexity -->" in svg
    # The legend has every passage that some panel shows, and no other.
    for words in ("Top-1 of the paper", "not attended to in the paper"):
        assert (f"<!-- {words} -->" in svg) == bool(tables)
    assert "<!-- Top-2 of the paper -->" not in svg
