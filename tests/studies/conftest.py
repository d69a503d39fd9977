from __future__ import annotations

from pathlib import Path

import pytest

from tests.studies.images.idx_files import write_dataset


@pytest.fixture(scope="session")
def made_up_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with made-up patterns under the names of MNIST and Fashion-MNIST."""
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder / "mnist", seed=1)
    write_dataset(folder / "fashion-mnist", seed=2)
    return folder
