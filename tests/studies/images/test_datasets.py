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
from tests.studies.images.files import (
    CIFAR10_EACH,
    at_hand,
    cifar10_records,
    write_cifar10,
    write_dataset,
    write_idx,
)


def test_inputs_are_normalised_by_the_training_images_that_are_kept(made_up_data: Path):
    dataset = load_dataset("mnist", made_up_data)
    pixels = dataset.train.pixels.astype(np.float64)
    kept = pixels[dataset.split.kept]
    assert len(kept) == 400 - 400 // 6
    assert (dataset.mean.item(), dataset.std.item()) == pytest.approx((kept.mean(), kept.std()), rel=1e-12)
    inputs = dataset.inputs(dataset.train)
    assert inputs.dtype == np.float32
    np.testing.assert_allclose(inputs, (pixels - kept.mean()) / kept.std(), atol=1e-5)
    alone = dataset.inputs(dataset.train, np.array([7]))
    np.testing.assert_array_equal(alone[0], inputs[7], err_msg="an image gives the same bits in any batch")


def test_digits_hold_out_a_test_set_and_permuted_pixels_are_the_same_in_another_order():
    plain, other = digits(), permuted(digits())
    assert (len(plain.train), len(plain.test)) == (1400, 397)
    np.testing.assert_array_equal(plain.split.trained, np.arange(1400))
    assert np.concatenate([plain.train.pixels, plain.test.pixels]).shape == (1797, 64)
    assert sorted(set(plain.test.labels.tolist())) == list(range(10))
    assert plain.picture(plain.test.pixels[0]).max() <= 1
    assert other.name == "permuted-digits"
    np.testing.assert_array_equal(other.train.labels, plain.train.labels)
    np.testing.assert_array_equal(np.sort(other.train.pixels, axis=1), np.sort(plain.train.pixels, axis=1))
    assert (other.train.pixels != plain.train.pixels).any(axis=1).all()


def test_files_are_read_in_the_folder_that_is_named(made_up_data: Path, monkeypatch: pytest.MonkeyPatch):
    dataset = load_dataset("fashion-mnist", made_up_data)
    assert dataset.train.pixels.shape == (400, 784)
    assert dataset.test.labels.tolist() == [row % 10 for row in range(60)]
    assert (dataset.name, dataset.label_names[9]) == ("fashion-mnist", "ankle boot")
    monkeypatch.setenv("DUALFORM_DATA", str(made_up_data))
    assert data_folder(None) == made_up_data
    assert data_folder(Path("elsewhere")) == Path("elsewhere")


def test_a_missing_file_is_fetched_with_its_hash_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def retrieve(url: str, known_hash: str, *, fname: str, path: Path) -> str:
        asked.append((url, known_hash))
        if path.parent != tmp_path:
            raise ConnectionError("no route to host")
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
    with pytest.raises(NotFound) as caught:
        load_dataset("mnist", tmp_path / "elsewhere")
    assert str(caught.value) == (
        f"train-images-idx3-ubyte.gz of mnist is not in {tmp_path / 'elsewhere' / 'mnist'}, and downloading it from "
        "https://ossci-datasets.s3.amazonaws.com/mnist/ failed: no route to host. "
        "Name a folder that holds mnist/train-images-idx3-ubyte.gz with --data DIR or the environment variable "
        "DUALFORM_DATA."
    )
    hashes = [bytes.fromhex(md5) for source in SOURCES.values() for md5 in source.md5]
    assert len(set(hashes)) == 8
    with pytest.raises(NotFound, match=r"there is no dataset 'cifar'\. Datasets: mnist, fashion-mnist, cifar-10\."):
        load_dataset("cifar")
    with pytest.raises(NotFound, match=r"data_batch_1\.bin of CIFAR-10 is not in .* Unpack .*cifar-10-binary\.tar\.gz"):
        load_dataset("cifar-10", tmp_path)


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


@pytest.mark.parametrize("name", ["images.gz", "images"])
def test_idx_files_are_read_as_they_were_written_and_damage_is_named(tmp_path: Path, name: str):
    path = write_idx(tmp_path / name, IMAGES)
    np.testing.assert_array_equal(read_idx(path, dimensions=3), IMAGES)
    with pytest.raises(Damaged, match="has 3 dimensions instead of 1"):
        read_idx(path, dimensions=1)
    whole = path.read_bytes()
    damaged = {whole[:-9]: "", whole[:14] + bytes([whole[14] ^ 0xFF]) + whole[15:]: "", b"<html>moved</html>": ""}
    if name == "images":
        damaged = {
            b"": "holds 0 bytes, too few for an IDX header",
            whole[:9]: "is cut short inside its header",
            whole[:-1]: "has 23 bytes of data, but its header announces 24",
            whole + b"\0": "has 25 bytes of data, but its header announces 24",
            b"\0\0\x0d\3" + whole[4:]: "is not an IDX file of unsigned bytes: it starts with 00 00 0d 03",
        }
    for content, message in damaged.items():
        path.write_bytes(content)
        with pytest.raises(Damaged, match=f"{name} {message or 'cannot be read'}"):
            read_idx(path, dimensions=3)


def test_of_sixty_thousand_images_the_rows_of_the_papers_code_are_trained_on():
    split = draw_split(60_000)
    assert (len(split.kept), len(split.trained), len(np.unique(split.kept))) == (50_000, 40_053, 50_000)
    assert split.trained[:5].tolist() == [29887, 8423, 49602, 5607, 31244]
    assert split.trained[-5:].tolist() == [36850, 6877, 8478, 42607, 40844]
    assert len(np.setdiff1d(split.trained, draw_split(60_000, draw=1).trained)) > 10_000
    assert every_row(3).kept.tolist() == every_row(3).trained.tolist() == [0, 1, 2]


@pytest.mark.parametrize("images", [1, 5, 400])
def test_another_number_of_images_is_split_by_the_same_rule(images: int):
    split = draw_split(images)
    rng = np.random.RandomState(0xC1CAFA52)
    chances = [rng.random_sample() for _ in range(images - images // 6)]
    order = np.random.RandomState(0x1234).permutation(images).tolist()
    assert split.kept.tolist() == order[: images - images // 6]
    assert split.trained.tolist() == [row for row, chance in zip(order, chances, strict=False) if chance > 0.2]


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


def test_cifar10_is_read_in_order_normalised_by_plane_and_split_as_in_the_papers_code(made_up_data: Path):
    train, test = read_cifar10(made_up_data)
    content = np.frombuffer(cifar10_records(1), dtype=np.uint8).reshape(CIFAR10_EACH, 3073)
    np.testing.assert_array_equal(train.labels[CIFAR10_EACH : 2 * CIFAR10_EACH], content[:, 0])
    np.testing.assert_array_equal(train.pixels[CIFAR10_EACH : 2 * CIFAR10_EACH], content[:, 1:])
    np.testing.assert_array_equal(test.labels, np.frombuffer(cifar10_records(5), dtype=np.uint8)[::3073])
    dataset = load_dataset("cifar-10", made_up_data)
    every = train.pixels.reshape(-1, 3, 1024).astype(np.float64)
    mean, std = (getattr(every, what)(axis=(0, 2), keepdims=True) for what in ("mean", "std"))
    found = dataset.inputs(train).reshape(-1, 3, 1024)
    np.testing.assert_allclose(found, (every - mean) / std, rtol=1e-4, atol=1e-5)
    # Of CIFAR-10's 50,000 none are held out before a fifth is left out, and their order is that of the files.
    expected = np.flatnonzero(np.random.RandomState(0xC1CAFA52).rand(len(train)) > 0.2)
    np.testing.assert_array_equal(dataset.split.kept, np.arange(len(train)))
    np.testing.assert_array_equal(dataset.split.trained, expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (cifar10_records(1)[:-1], "has 184379 bytes, not a multiple of the 3073 bytes of a CIFAR-10 image"),
        (b"", "has 0 bytes"),
        (bytes([10]) + bytes(3072), "has a label 10; classes are 0 to 9"),
    ],
    ids=["cut", "empty", "label"],
)
def test_files_of_cifar10_that_do_not_fit_are_damage(tmp_path: Path, content: bytes, message: str):
    write_cifar10(tmp_path)
    (tmp_path / FOLDER / "data_batch_2.bin").write_bytes(content)
    with pytest.raises(Damaged, match=rf"data_batch_2\.bin {message}"):
        load_dataset("cifar-10", tmp_path)
