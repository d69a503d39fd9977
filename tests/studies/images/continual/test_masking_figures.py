from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from dualform_studies.images.continual.masking_figures import draw_last_steps, draw_masks
from dualform_studies.images.data.datasets import digits, permuted

PAIR = (digits(), permuted(digits()))


def row(part: str, masked: float, retrained: float, label: int | None = None, last: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {"part": part, "label": label, "last": last}
    for kind, first in (("masked", masked), ("retrained", retrained)):
        found[kind] = {PAIR[0].name: first, PAIR[1].name: 1 - first}
    if part != "nothing":
        found |= {"cancellation": {"layer-0": 12.4, "layer-1": 150.6}, "moved": {"layer-0": 0.25, "layer-1": 0.125}}
    return found


SWEPT = [
    row("nothing", 0.5, 0.5),
    row("all of permuted-digits", 0.9, 0.95, last=40),
    row("its class 0, 0", 0.1, 0.6, label=0),
    row("its class 1, 1", 0.2, 0.55, label=1),
    row("its last 30 steps", 0.75, 0.85, last=30),
    row("its last 10 steps", 0.6, 0.65, last=10),
]


def test_rows_are_the_whole_dataset_and_its_classes_in_percent(tmp_path: Path, drawn: list[Figure]):
    assert draw_masks(tmp_path / "masks.png", SWEPT, PAIR).stat().st_size > 1000
    first, second, cancellation, moved = drawn[0].get_axes()
    assert [panel.get_xlabel() for panel in (first, second)] == ["test accuracy (%)"] * 2
    assert [text.get_text() for text in first.texts] == ["50", "90", "10", "20", "50", "95", "60", "55"]
    assert [text.get_text() for text in second.texts] == ["50", "10", "90", "80", "50", "5", "40", "45"]
    rows = [tick.get_text() for tick in first.get_yticklabels()]
    assert rows == ["nothing", "all of permuted-digits", "class 0, 0", "class 1, 1"]
    assert [text.get_text() for text in cancellation.texts] == ["151"] * 3
    assert [text.get_text() for text in moved.texts] == ["0.25"] * 3
    assert list(cancellation.get_lines()[0].get_ydata()) == [1, 2, 3], "nothing left out has no cancellation"


def test_masked_and_retrained_bars_are_told_apart_by_a_hatch(tmp_path: Path, drawn: list[Figure]):
    draw_masks(tmp_path / "masks.png", SWEPT, PAIR)
    first = drawn[0].get_axes()[0]
    assert [bar.get_hatch() for bar in first.patches] == [None] * 4 + ["/////"] * 4
    assert [text.get_text() for text in drawn[0].legends[0].texts] == ["terms removed", "retrained"]


def test_lines_go_from_nothing_left_out_to_everything_evenly(tmp_path: Path, drawn: list[Figure]):
    assert draw_last_steps(tmp_path / "last.png", SWEPT, PAIR).stat().st_size > 1000
    upper, lower = drawn[0].get_axes()
    masked, stopped, *_ = upper.get_lines()
    assert [tick.get_text() for tick in lower.get_xticklabels()] == ["0", "10", "30", "40"]
    assert list(masked.get_xdata()) == [0, 1, 2, 3]
    assert list(masked.get_ydata()) == pytest.approx([50, 60, 75, 90])
    assert list(stopped.get_ydata()) == pytest.approx([50, 65, 85, 95])
    assert [list(line.get_xdata()) for line in lower.get_lines()] == [[1, 2, 3]] * 2
    assert [set(line.get_ydata()) for line in lower.get_lines()] == [{12.4}, {150.6}]
    assert upper.get_ylabel() == "test accuracy (%)"
    assert lower.get_ylabel() == "cancellation:\nsum of norms /\nnorm of sum"
    assert lower.get_xlabel().startswith("last steps of training left out (updates")
    assert len({line.get_marker() for line in lower.get_lines()}) == 2
