from __future__ import annotations

from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from dualform_studies.images.continual import study as continual
from dualform_studies.images.data.datasets import Images
from dualform_studies.images.joint import study as joint
from dualform_studies.images.single import study as single

FEWER = 500
"""Test images of the real data that a study in miniature looks at: it counts over all of them, time after time."""


@pytest.fixture(scope="module", autouse=True)
def _coarse_figures(coarse_figures: None) -> None:
    """In all studies of images."""


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


@pytest.fixture
def fewer_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The studies get all training images of the real data, and the first of its test images."""
    for study in (single, joint, continual):

        def load(*arguments: object, whole=study.load_dataset):
            dataset = whole(*arguments)
            test = dataset.test
            return replace(dataset, test=Images(test.pixels[:FEWER], test.labels[:FEWER]))

        monkeypatch.setattr(study, "load_dataset", load)
