from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dualform_studies.images.datasets import digits, normalised_together, permuted
from dualform_studies.images.download import load_dataset


def test_inputs_are_normalised_by_the_training_images(made_up_data: Path):
    dataset = load_dataset("mnist", made_up_data)
    pixels = dataset.train.pixels.astype(np.float64)
    inputs = dataset.inputs(dataset.train)
    assert inputs.dtype == np.float32
    np.testing.assert_allclose(inputs, (pixels - pixels.mean()) / pixels.std(), atol=1e-5)
    np.testing.assert_allclose(dataset.inputs(dataset.test).mean(), 0, atol=0.2)


def test_an_image_gives_the_same_bits_in_any_batch(made_up_data: Path):
    dataset = load_dataset("mnist", made_up_data)
    alone = dataset.inputs(dataset.train, np.array([7]))
    np.testing.assert_array_equal(alone[0], dataset.inputs(dataset.train)[7])


def test_digits_hold_out_a_test_set():
    dataset = digits()
    assert (len(dataset.train), len(dataset.test)) == (1400, 397)
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
    assert other.mean == pytest.approx(plain.mean)
    assert other.std == pytest.approx(plain.std)


def test_datasets_normalised_together_share_mean_and_deviation(made_up_data: Path):
    pair = [load_dataset(name, made_up_data) for name in ("mnist", "fashion-mnist")]
    pixels = np.concatenate([dataset.train.pixels for dataset in pair]).astype(np.float64)
    for dataset in normalised_together(pair):
        assert (dataset.mean, dataset.std) == pytest.approx((pixels.mean(), pixels.std()))
        expected = (dataset.train.pixels - pixels.mean()) / pixels.std()
        np.testing.assert_allclose(dataset.inputs(dataset.train), expected, atol=1e-5)
