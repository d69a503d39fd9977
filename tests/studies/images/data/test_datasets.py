from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dualform_studies.images.data.datasets import digits, permuted
from dualform_studies.images.data.download import load_dataset


def test_inputs_are_normalised_by_the_training_images_that_are_kept(made_up_data: Path):
    dataset = load_dataset("mnist", made_up_data)
    pixels = dataset.train.pixels.astype(np.float64)
    kept = pixels[dataset.split.kept]
    assert len(kept) == 400 - 400 // 6
    assert dataset.mean == pytest.approx(kept.mean(), rel=1e-12)
    assert dataset.std == pytest.approx(kept.std(), rel=1e-12)
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
