from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from matplotlib.figure import Figure

from dualform_studies.images.continual import study as continual
from dualform_studies.images.data.datasets import Images
from dualform_studies.images.joint import study as joint
from dualform_studies.images.single import study as single
from dualform_studies.pages import frame

DOTS = 40
"""An inch, of figures."""
FEWER = 1000
"""Test images of the real data that a study in miniature looks at: it counts over all of them, time after time."""


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that a test saves, to look at what is in them."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: object, **keywords: object) -> None:
        figures.append(figure)
        save(figure, *args, **keywords)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


@pytest.fixture(scope="module", autouse=True)
def _coarse_figures() -> Iterator[None]:
    """PNGs have few dots, of which most of a study in miniature's time would go into colours; SVGs are as always."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "packed_png", partial(frame.packed_png, dpi=DOTS))
        yield


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made and not drawn, which takes longer than all else: the same ones are, of made-up data."""
    save = Figure.savefig

    def blank(figure: Figure, *args: object, **keywords: object) -> None:
        save(Figure(figsize=(0.1, 0.1)), *args, **keywords)

    monkeypatch.setattr(Figure, "savefig", blank)


@pytest.fixture
def fewer_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The studies get all training images of the real data, and the first of its test images."""
    for study in (single, joint, continual):

        def load(*arguments: object, whole=study.load_dataset):
            dataset = whole(*arguments)
            test = dataset.test
            return replace(dataset, test=Images(test.pixels[:FEWER], test.labels[:FEWER]))

        monkeypatch.setattr(study, "load_dataset", load)
