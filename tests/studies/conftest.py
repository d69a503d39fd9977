from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dualform_studies import figures
from tests.studies.images.files import write_cifar10, write_dataset
from tests.studies.text.made_up import write_aesop, write_wikitext2

DOTS = 40
"""An inch, of figures."""


@pytest.fixture(scope="session")
def made_up_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with made-up data under the names of all datasets; WikiText-2 lacks its train split."""
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder / "mnist", seed=1)
    write_dataset(folder / "fashion-mnist", seed=2)
    write_cifar10(folder)
    write_aesop(folder)
    write_wikitext2(folder, "valid", "test")
    return folder


@pytest.fixture(scope="module")
def coarse_figures() -> Iterator[None]:
    """PNGs have few dots: most of a small study's time would go into their colours. SVGs are as always."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "packed_png", partial(figures.packed_png, dpi=DOTS))
        yield


@contextmanager
def sketching() -> Iterator[list[Figure]]:
    """Figures are made and listed, and blank ones saved in their place: drawing takes longer than all else."""
    made: list[Figure] = []
    save = Figure.savefig

    def note(figure: Figure, *args: object, **keywords: object) -> None:
        made.append(figure)
        save(Figure(figsize=(0.1, 0.1)), *args, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", note)
        yield made


@pytest.fixture
def drawn() -> Iterator[list[Figure]]:
    """The figures that a test saves, to look at what is in them."""
    with sketching() as made:
        yield made
