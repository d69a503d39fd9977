from __future__ import annotations

import pytest
from matplotlib.figure import Figure


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
