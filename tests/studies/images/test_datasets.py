"""Datasets of images: files, downloads and splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pooch
import pytest

from dualform.errors import Damaged, NotFound
from dualform_studies.assignment import data_folder
from dualform_studies.images.datasets import (
    FOLDER,
    SOURCES,
    digits,
    draw_split,
    every_row,
    load_dataset,
    permuted,
    read_cifar10,
    read_idx,
)
from tests.studies.images.files import CIFAR10_EACH, CIFAR10_FILES, at_hand, cifar10_records, write_dataset, write_idx


def test_inputs_are_normalised_by_the_training_images_that_are_kept(made_up_data: Path):
    dataset = load_dataset("mnist", made_up_data)
    pixels = dataset.train.pixels.astype(np.float64)
    kept = pixels[dataset.split.kept]
    assert len(kept) == 400 - 400 // 6
    assert dataset.mean.item() == pytest.approx(kept.mean(), rel=1e-12)
    assert dataset.std.item() == pytest.approx(kept.std(), rel=1e-12)
    inputs = dataset.inputs(dataset.train)
    assert inputs.dtype == np.float32
    np.testing.assert_allclose(inputs, (pixels - kept.mean()) / kept.std(), atol=1e-5)
    np.testing.assert_allclose(dataset.inputs(dataset.test).mean(), 0, atol=0.2)


def test_an_image_gives_the_same_bits_in_any_batch(made_up_data: Path):
    dataset = load_dataset("mnist", made_up_data)
    alone = dataset.inputs(dataset.train, np.array([7]))
    np.testing.assert_array_equal(alone[0], dataset.inputs(dataset.train)[7])


def test_digits_hold_out_a_test_set():
    dataset = digits()
    assert (len(dataset.train), len(dataset.test)) == (1400, 397)
    np.testing.assert_array_equal(dataset.split.trained, np.arange(1400))
    together = np.concatenate([dataset.train.pixels, dataset.test.pixels])
    assert together.shape == (1797, 64)
    assert sorted(set(dataset.test.labels.tolist())) == list(range(10))
    assert dataset.picture(dataset.test.pixels[0]).max() <= 1


def test_digits_are_split_alike_each_time():
    np.testing.assert_array_equal(digits().test.pixels, digits().test.pixels)


def test_permuted_pixels_are_the_same_pixels_in_one_other_order():
    plain = digits()
    other = permuted(plain)
    assert other.name == "permuted-digits"
    np.testing.assert_array_equal(other.train.labels, plain.train.labels)
    np.testing.assert_array_equal(np.sort(other.train.pixels, axis=1), np.sort(plain.train.pixels, axis=1))
    assert (other.train.pixels != plain.train.pixels).any(axis=1).all()
    np.testing.assert_array_equal(other.split.trained, plain.split.trained)
    assert other.mean == pytest.approx(plain.mean)
    assert other.std == pytest.approx(plain.std)


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
    with pytest.raises(NotFound, match=r"there is no dataset 'cifar'\. Datasets: mnist, fashion-mnist, cifar-10\."):
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


IMAGES = np.arange(24).reshape(2, 3, 4)


@pytest.mark.parametrize("name", ["images.gz", "images"], ids=["gzipped", "plain"])
def test_reads_what_was_written(tmp_path: Path, name: str):
    array = read_idx(write_idx(tmp_path / name, IMAGES), dimensions=3)
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(array, IMAGES)


def test_wrong_header_is_damage(tmp_path: Path):
    path = write_idx(tmp_path / "images", IMAGES, kind=13)
    with pytest.raises(Damaged) as caught:
        read_idx(path, dimensions=3)
    assert str(caught.value) == (
        f"{path} is not an IDX file of unsigned bytes: it starts with 00 00 0d 03. Remove the file and fetch it again."
    )


def test_wrong_number_of_dimensions_is_damage(tmp_path: Path):
    with pytest.raises(Damaged, match=r"images has 3 dimensions instead of 1"):
        read_idx(write_idx(tmp_path / "images", IMAGES), dimensions=1)


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (0, "holds 0 bytes, too few for an IDX header"),
        (3, "holds 3 bytes, too few for an IDX header"),
        (9, "is cut short inside its header"),
        (39, "has 23 bytes of data, but its header announces 24"),
        (41, "has 25 bytes of data, but its header announces 24"),
    ],
)
def test_wrong_length_is_damage(tmp_path: Path, length: int, message: str):
    path = write_idx(tmp_path / "images", IMAGES)
    path.write_bytes((path.read_bytes() + b"\0")[:length])
    with pytest.raises(Damaged, match=message):
        read_idx(path, dimensions=3)


def test_compressed_file_cut_short_is_damage(tmp_path: Path):
    path = write_idx(tmp_path / "images.gz", IMAGES)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(Damaged, match=r"images\.gz cannot be decompressed"):
        read_idx(path, dimensions=3)


def test_file_that_is_not_gzipped_is_damage(tmp_path: Path):
    path = tmp_path / "images.gz"
    path.write_bytes(b"<html>moved</html>")
    with pytest.raises(Damaged, match=r"images\.gz cannot be decompressed"):
        read_idx(path, dimensions=3)


def test_flipped_bits_are_damage(tmp_path: Path):
    path = write_idx(tmp_path / "images.gz", IMAGES)
    content = bytearray(path.read_bytes())
    content[14] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(Damaged):
        read_idx(path, dimensions=3)


def test_of_sixty_thousand_images_40053_are_trained_on():
    split = draw_split(60_000)
    assert (len(split.kept), len(split.trained)) == (50_000, 40_053)
    assert len(np.unique(split.kept)) == 50_000
    assert set(split.trained) < set(split.kept)


def test_the_rows_are_those_of_the_papers_code():
    split = draw_split(60_000)
    assert split.trained[:5].tolist() == [29887, 8423, 49602, 5607, 31244]
    assert split.trained[-5:].tolist() == [36850, 6877, 8478, 42607, 40844]


@pytest.mark.parametrize("images", [1, 5, 400, 1400])
def test_another_number_of_images_is_split_by_the_same_rule(images: int):
    split = draw_split(images)
    rng = np.random.RandomState(0xC1CAFA52)
    chances = [rng.random_sample() for _ in range(images - images // 6)]
    order = np.random.RandomState(0x1234).permutation(images).tolist()
    assert split.kept.tolist() == order[: images - images // 6]
    assert split.trained.tolist() == [row for row, chance in zip(order, chances, strict=False) if chance > 0.2]


def test_another_draw_has_other_rows():
    assert len(np.setdiff1d(draw_split(60_000).trained, draw_split(60_000, draw=1).trained)) > 10_000


def test_every_row_is_kept_and_trained_on():
    assert every_row(3).kept.tolist() == every_row(3).trained.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "mean", "deviation", "rounding"),
    [("mnist", 33.2748, 78.5179, 5e-5), ("fashion-mnist", 72.897, 89.961, 5e-4)],
)
def test_mean_and_deviation_are_those_of_the_papers_code(name: str, mean: float, deviation: float, rounding: float):
    if not at_hand(name, None):
        pytest.skip(f"no {name} in {data_folder(None)}: set DUALFORM_DATA to the folder that holds it")
    dataset = load_dataset(name)
    assert len(dataset.train) == 60_000
    assert (dataset.mean, dataset.std) == pytest.approx((mean, deviation), abs=rounding)


def test_images_and_labels_are_those_of_the_files_in_their_order(cifar10_data: Path):
    train, test = read_cifar10(cifar10_data)
    assert train.pixels.shape == (5 * CIFAR10_EACH, 3072)
    assert train.pixels.dtype == np.uint8
    content = np.frombuffer(cifar10_records(1), dtype=np.uint8).reshape(CIFAR10_EACH, 3073)
    np.testing.assert_array_equal(train.labels[CIFAR10_EACH : 2 * CIFAR10_EACH], content[:, 0])
    np.testing.assert_array_equal(train.pixels[CIFAR10_EACH : 2 * CIFAR10_EACH], content[:, 1:])
    np.testing.assert_array_equal(test.labels, np.frombuffer(cifar10_records(5), dtype=np.uint8)[::3073])


def test_every_plane_is_normalised_by_itself_over_all_training_images(cifar10_data: Path):
    dataset = load_dataset("cifar-10", cifar10_data)
    planes = dataset.inputs(dataset.train).reshape(-1, 3, 1024)
    np.testing.assert_allclose(planes.mean(axis=(0, 2), dtype=np.float64), 0, atol=1e-6)
    np.testing.assert_allclose(planes.std(axis=(0, 2), dtype=np.float64), 1, atol=1e-6)
    pixels = dataset.train.pixels[7].reshape(3, 1024).astype(np.float64)
    every = dataset.train.pixels.reshape(-1, 3, 1024).astype(np.float64)
    green = (pixels[1] - every[:, 1].mean()) / every[:, 1].std()
    np.testing.assert_allclose(dataset.inputs(dataset.train, np.array([7]))[0].reshape(3, 1024)[1], green, rtol=1e-5)


def test_the_split_is_that_of_the_papers_code(cifar10_data: Path):
    # Of CIFAR-10's 50,000 none are held out before a fifth is left out, and their order is that of the files.
    split = load_dataset("cifar-10", cifar10_data).split
    expected = np.flatnonzero(np.random.RandomState(0xC1CAFA52).rand(5 * CIFAR10_EACH) > 0.2)
    np.testing.assert_array_equal(split.kept, np.arange(5 * CIFAR10_EACH))
    np.testing.assert_array_equal(split.trained, expected)


def test_missing_files_say_where_they_are_to_be_had(tmp_path: Path):
    with pytest.raises(NotFound) as caught:
        load_dataset("cifar-10", tmp_path)
    assert str(caught.value) == (
        f"data_batch_1.bin of CIFAR-10 is not in {tmp_path / FOLDER}. Unpack "
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz into a folder, and name that folder with --data DIR "
        "or the environment variable DUALFORM_DATA."
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            cifar10_records(1)[:-1],
            r"data_batch_2\.bin has 184379 bytes, not a multiple of the 3073 bytes of a CIFAR-10 image",
        ),
        (b"", r"data_batch_2\.bin has 0 bytes"),
        (bytes([10]) + bytes(3072), r"data_batch_2\.bin has a label 10; classes are 0 to 9"),
    ],
    ids=["cut", "empty", "label"],
)
def test_files_of_cifar10_that_do_not_fit_are_damage(tmp_path: Path, content: bytes, message: str):
    folder = tmp_path / FOLDER
    folder.mkdir()
    for name in CIFAR10_FILES:
        (folder / name).write_bytes(content if name == "data_batch_2.bin" else cifar10_records(1))
    with pytest.raises(Damaged, match=message):
        load_dataset("cifar-10", tmp_path)
