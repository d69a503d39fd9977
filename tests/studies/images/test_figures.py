from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dualform_studies.images.datasets import Dataset, digits, permuted
from dualform_studies.images.figures import (
    draw_accuracies,
    draw_distribution,
    draw_sums,
    draw_top_images,
    draw_weighted_sums,
)
from dualform_studies.images.query_figure import Query
from dualform_studies.images.spotlight import LayerSpotlight


@pytest.fixture(scope="module")
def pair() -> tuple[Dataset, Dataset]:
    return digits(), permuted(digits())


@pytest.fixture
def layers(pair: tuple[Dataset, Dataset]) -> list[LayerSpotlight]:
    groups = tuple((dataset.name, label) for dataset in pair for label in range(10))
    top = [{"dataset": "digits", "label": 3, "sample": row, "step": row, "score": 9.5 - row} for row in range(3)]
    rng = np.random.default_rng(0)
    return [
        LayerSpotlight(
            layer=f"layer-{number}",
            groups=groups,
            best=[np.sort(rng.random(40 + at, dtype=np.float32))[::-1] for at in range(20)],
            sums=rng.random(20) * 1000,
            counts=np.full(20, 480),
            top=top[: 3 - number],
        )
        for number in range(2)
    ]


@pytest.mark.parametrize(
    ("draw", "across", "up", "numbers"),
    [
        (
            draw_distribution,
            "training class; of each, the 59 datapoints of greatest weight, descending",
            "attention weight",
            "Figure 4",
        ),
        (draw_sums, "training class", "summed weights", "Figure 5"),
    ],
    ids=["distribution", "sums"],
)
def test_axes_are_labelled_with_units_and_figures_of_the_paper_named(
    draw, across, up, numbers, tmp_path: Path, pair, layers, drawn
):
    path = draw(tmp_path / "report" / "figure.png", layers, Query(pair[0], 4, 3), pair, numbers)
    assert path.read_bytes().startswith(b"\x89PNG")
    panels = [axes for axes in drawn[0].get_axes() if axes.get_ylabel()]
    assert [panel.get_title(loc="left") for panel in panels] == ["layer-0", "layer-1"]
    assert all(panel.get_ylabel().startswith(up) and "(no unit)" in panel.get_ylabel() for panel in panels)
    assert panels[-1].get_xlabel() == across
    assert [tick.get_text() for tick in panels[-1].get_xticklabels()] == [str(label) for label in range(10)] * 2
    words = " ".join(text.get_text() for axes in drawn[0].get_axes() for text in axes.texts)
    assert f"({numbers} of the paper)" in words
    assert f"digits test image 4, class {pair[0].test.labels[4]}, recognised as 3" in words
    assert "permuted-digits" in words


def test_top_images_name_dataset_class_weight_and_step(tmp_path: Path, pair, layers, drawn):
    path = draw_top_images(tmp_path / "top.png", layers, Query(pair[0], 4, 3), pair, "Figure 10")
    assert path.stat().st_size > 1000
    titles = [axes.get_title() for axes in drawn[0].get_axes()]
    assert titles.count("digits: 3\nweight 9.5, step 0") == 2
    assert titles.count("digits: 3\nweight 7.5, step 2") == 1


def test_accuracies_are_in_percent(tmp_path: Path, drawn):
    accuracy = {"digits": {"a": 0.97, "b": 0.5}, "permuted-digits": {"a": 0.1, "b": 0.96}}
    path = draw_accuracies(tmp_path / "accuracy.png", accuracy, {"a": "after the first", "b": "at the end"})
    assert path.stat().st_size > 1000
    axes = drawn[0].get_axes()[0]
    assert axes.get_ylabel() == "test accuracy (%)"
    assert axes.get_xlabel() == "the network"
    assert [text.get_text() for text in axes.texts] == ["97.0", "50.0", "10.0", "96.0"]


def test_weighted_sums_are_labelled_as_such(tmp_path: Path, pair, layers, drawn):
    path = draw_weighted_sums(tmp_path / "weighted.png", layers, Query(pair[0], 4, 3), pair)
    assert path.stat().st_size > 1000
    panels = [axes for axes in drawn[0].get_axes() if axes.get_ylabel()]
    assert all(panel.get_ylabel().startswith("weighted sums") for panel in panels)
    heights = [bar.get_height() for bar in panels[0].patches if bar.get_width() == 0.72]
    assert heights == layers[0].sums.tolist()
