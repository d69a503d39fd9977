from __future__ import annotations

from pathlib import Path

import pytest

from tests.studies.text.made_up import write_aesop, write_wikitext2


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with made-up texts under the names of the two corpora; WikiText-2 lacks its train split."""
    folder = tmp_path_factory.mktemp("texts")
    write_aesop(folder)
    write_wikitext2(folder, "valid", "test")
    return folder


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take most of a small study's time: where nothing is said of them, empty files stand for them."""

    def draw(path: Path, *given: object) -> None:
        for suffix in (".png", ".svg"):
            path.with_suffix(suffix).touch()

    for name in ("draw_attention", "draw_course"):
        monkeypatch.setattr(f"dualform_studies.text.study.{name}", draw)
