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
