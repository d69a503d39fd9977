from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dualform_studies import figures
from tests.studies.images.files import write_dataset

DOTS = 40
"""An inch, of figures."""


@pytest.fixture(scope="session")
def made_up_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with made-up patterns under the names of MNIST and Fashion-MNIST."""
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder / "mnist", seed=1)
    write_dataset(folder / "fashion-mnist", seed=2)
    return folder


@pytest.fixture(scope="module")
def coarse_figures() -> Iterator[None]:
    """PNGs have few dots: most of a study in miniature's time would go into their colours. SVGs are as always."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "packed_png", partial(figures.packed_png, dpi=DOTS))
        yield


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made and not drawn, which takes longer than all else: the same ones are, of made-up data."""
    save = Figure.savefig

    def blank(figure: Figure, *args: object, **keywords: object) -> None:
        save(Figure(figsize=(0.1, 0.1)), *args, **keywords)

    monkeypatch.setattr(Figure, "savefig", blank)
