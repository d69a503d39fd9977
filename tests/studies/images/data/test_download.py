from __future__ import annotations

from pathlib import Path

import numpy as np
import pooch
import pytest

from dualform.errors import Damaged, NotFound
from dualform_studies.data_folder import data_folder
from dualform_studies.images.data.download import SOURCES, load_dataset
from tests.studies.images.at_hand import at_hand
from tests.studies.images.idx_files import write_dataset, write_idx


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def retrieve(*args: object, **keywords: object) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(pooch, "retrieve", retrieve)


def test_reads_the_files_in_the_folder(made_up_data: Path, offline: None):
    dataset = load_dataset("fashion-mnist", made_up_data)
    assert dataset.name == "fashion-mnist"
    assert dataset.train.pixels.shape == (400, 784)
    assert dataset.test.labels.tolist() == [row % 10 for row in range(60)]
    assert dataset.label_names[9] == "ankle boot"


def test_the_environment_names_the_folder(made_up_data: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DUALFORM_DATA", str(made_up_data))
    assert data_folder(None) == made_up_data
    assert at_hand("mnist", None)
    assert data_folder(Path("elsewhere")) == Path("elsewhere")


def test_missing_data_says_where_it_looked_and_what_to_set(tmp_path: Path, offline: None):
    assert not at_hand("mnist", tmp_path)
    with pytest.raises(NotFound) as caught:
        load_dataset("mnist", tmp_path)
    assert str(caught.value) == (
        f"train-images-idx3-ubyte.gz of mnist is not in {tmp_path / 'mnist'}, and downloading it from "
        "https://ossci-datasets.s3.amazonaws.com/mnist/ failed: no route to host. "
        "Name a folder that holds mnist/train-images-idx3-ubyte.gz with --data DIR or the environment variable "
        "DUALFORM_DATA."
    )


def test_a_missing_file_is_fetched_with_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def retrieve(url: str, known_hash: str, *, fname: str, path: Path) -> str:
        asked.append((url, known_hash))
        write_dataset(path, seed=1)
        return str(path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    load_dataset("fashion-mnist", tmp_path)
    assert asked == [
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/train-images-idx3-ubyte.gz",
            "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        )
    ]


def test_sources_name_a_hash_for_each_file():
    for source in SOURCES.values():
        assert len(source.label_names) == 10
        assert len(set(source.md5)) == 4
        assert all(len(bytes.fromhex(md5)) == 16 for md5 in source.md5)


def test_unknown_name_lists_those_that_exist():
    with pytest.raises(NotFound, match=r"there is no dataset 'cifar'\. Datasets: mnist, fashion-mnist\."):
        load_dataset("cifar")


@pytest.mark.parametrize(
    ("file", "array", "message"),
    [
        ("t10k-images-idx3-ubyte.gz", np.zeros((60, 28, 27)), "has images of 28 x 27 pixels instead of 28 x 28"),
        ("t10k-labels-idx1-ubyte.gz", np.zeros(59), "has 59 labels for 60 images in"),
        ("t10k-labels-idx1-ubyte.gz", np.full(60, 10), "has a label 10; classes are 0 to 9"),
    ],
    ids=["shape", "count", "label"],
)
def test_files_that_do_not_fit_are_damage(tmp_path: Path, file: str, array: np.ndarray, message: str):
    folder = write_dataset(tmp_path / "mnist", seed=1)
    write_idx(folder / file, array)
    with pytest.raises(Damaged, match=message):
        load_dataset("mnist", tmp_path)
