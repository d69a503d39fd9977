from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualform.answers import GroupSums, Hits
from dualform_studies.text.attention import Attention, Questions
from dualform_studies.text.figures import _together, binned, draw_attention
from dualform_studies.text.prompts import Prompt
from dualform_studies.text.tokens import Vocabulary


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50), st.integers(1, 20))
def test_stretches_cover_every_value_once(values: list[float], bins: int) -> None:
    array = np.array(values)
    starts, mean, low, high = binned(array, bins)
    parts = np.split(array, starts[1:])
    assert len(starts) == min(bins, len(values))
    assert np.ptp([len(part) for part in parts]) <= 1
    for part, *found in zip(parts, mean, low, high, strict=True):
        assert found == pytest.approx([part.mean(), part.min(), part.max()], abs=1e-9)


def test_ranks_that_lie_together_share_a_label() -> None:
    assert _together(np.array([10, 90, 12, 50, 9]), near=3) == [(10, [1, 3, 5]), (90, [2]), (50, [4])]


def test_the_figure_names_its_axes_and_units(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    by_position = GroupSums(tuple((at,) for at in range(900)), draw.normal(size=(2, 900)), np.full(900, 3))
    by_step = GroupSums(tuple((at,) for at in range(60)), draw.normal(size=(1, 60)), np.full(60, 45))
    hits = Hits(np.arange(1), np.ones(1, dtype=np.float32), np.ones((1, 1), dtype=np.int64))
    text = "ab"
    tokens = Vocabulary(text, "character").encode(text)
    asking = Questions([Prompt("prompt-1", text)], [tokens], [slice(0, 2)], np.ones((2, 4), dtype=np.float32))
    attention = Attention(hits, by_position, by_position, by_step)
    path = draw_attention(tmp_path / "figure.png", asking, attention, 0, "character")
    assert path.stat().st_size > 10_000
    svg = (tmp_path / "figure.svg").read_text()
    ElementTree.fromstring(svg)
    for words in ("training token position (characters from the beginning)", "training step", "(no unit)"):
        assert words in svg
