from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import dualform
from dualform.errors import Damaged, NotFound
from dualform_studies.assignment import Assignment
from dualform_studies.images.cifar10.files import FOLDER, read_cifar10
from dualform_studies.images.cifar10.study import load_cifar10, run_cifar10
from dualform_studies.images.training.recipe import Recipe

FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
EACH = 60


def records(seed: int, count: int = EACH) -> bytes:
    """Images of ten classes, each a pattern of its own under noise; red, green and blue differ in brightness."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    patterns = np.random.default_rng(0).integers(0, 2, (10, 3, 1024)) * 120
    images = patterns[labels] + rng.integers(0, 40, (count, 3, 1024)) + np.array([0, 40, 90])[:, None]
    return np.column_stack([labels, images.reshape(count, -1)]).astype(np.uint8).tobytes()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with made-up files, the last of them compressed."""
    folder = tmp_path_factory.mktemp("data") / FOLDER
    folder.mkdir()
    for seed, name in enumerate(FILES):
        (folder / name).write_bytes(records(seed))
    test = folder / FILES[-1]
    test.with_name(f"{test.name}.gz").write_bytes(gzip.compress(test.read_bytes()))
    test.unlink()
    return folder.parent


def test_images_and_labels_are_those_of_the_files_in_their_order(data: Path):
    train, test = read_cifar10(data)
    assert train.pixels.shape == (5 * EACH, 3072)
    assert train.pixels.dtype == np.uint8
    content = np.frombuffer(records(1), dtype=np.uint8).reshape(EACH, 3073)
    np.testing.assert_array_equal(train.labels[EACH : 2 * EACH], content[:, 0])
    np.testing.assert_array_equal(train.pixels[EACH : 2 * EACH], content[:, 1:])
    np.testing.assert_array_equal(test.labels, np.frombuffer(records(5), dtype=np.uint8)[::3073])


def test_every_plane_is_normalised_by_itself_over_all_training_images(data: Path):
    dataset = load_cifar10(data)
    planes = dataset.inputs(dataset.train).reshape(-1, 3, 1024)
    np.testing.assert_allclose(planes.mean(axis=(0, 2), dtype=np.float64), 0, atol=1e-6)
    np.testing.assert_allclose(planes.std(axis=(0, 2), dtype=np.float64), 1, atol=1e-6)
    pixels = dataset.train.pixels[7].reshape(3, 1024).astype(np.float64)
    every = dataset.train.pixels.reshape(-1, 3, 1024).astype(np.float64)
    green = (pixels[1] - every[:, 1].mean()) / every[:, 1].std()
    np.testing.assert_allclose(dataset.inputs(dataset.train, np.array([7]))[0].reshape(3, 1024)[1], green, rtol=1e-5)


def test_the_split_is_that_of_the_papers_code(data: Path):
    # Of CIFAR-10's 50,000 none are held out before a fifth is left out, and their order is that of the files.
    split = load_cifar10(data).split
    expected = np.flatnonzero(np.random.RandomState(0xC1CAFA52).rand(5 * EACH) > 0.2)
    np.testing.assert_array_equal(split.kept, np.arange(5 * EACH))
    np.testing.assert_array_equal(split.trained, expected)


def test_the_study_trains_records_and_judges(data: Path, tmp_path: Path):
    out = tmp_path / "run"
    report = run_cifar10(Assignment(out, data), Recipe(hidden=(24, 16), lr=0.01, batch=32, steps=40))
    assert json.loads((out / "report" / "report.json").read_text()) == report
    assert report["accuracy"] > 0.5  # the patterns are easy, so the paper's footnote does not hold of them
    [claim] = report["claims"]
    assert claim["verdict"] != "holds"
    with dualform.open(out) as memory:
        assert memory.info().layers[0].d_in == 3072
        given = memory.query_set("test-cifar-10").outputs.argmax(axis=1)
    assert report["accuracy"] == (given == read_cifar10(data)[1].labels).mean()
    assert all(layer["exact"] for layer in report["verify"].values())
    assert "not above 50 %" in (out / "report" / "index.md").read_text()


def test_missing_files_say_where_they_are_to_be_had(tmp_path: Path):
    with pytest.raises(NotFound) as caught:
        load_cifar10(tmp_path)
    assert str(caught.value) == (
        f"data_batch_1.bin of CIFAR-10 is not in {tmp_path / FOLDER}. Unpack "
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz into a folder, and name that folder with --data DIR "
        "or the environment variable DUALFORM_DATA."
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (records(1)[:-1], r"data_batch_2\.bin has 184379 bytes, not a multiple of the 3073 bytes of a CIFAR-10 image"),
        (b"", r"data_batch_2\.bin has 0 bytes"),
        (bytes([10]) + bytes(3072), r"data_batch_2\.bin has a label 10; classes are 0 to 9"),
    ],
    ids=["cut", "empty", "label"],
)
def test_files_that_do_not_fit_are_damage(tmp_path: Path, content: bytes, message: str):
    folder = tmp_path / FOLDER
    folder.mkdir()
    for name in FILES:
        (folder / name).write_bytes(content if name == "data_batch_2.bin" else records(1))
    with pytest.raises(Damaged, match=message):
        load_cifar10(tmp_path)
