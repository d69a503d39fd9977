"""The draw of the paper's code, and what it makes of the two datasets."""

from __future__ import annotations

import numpy as np
import pytest

from dualform_studies.data_folder import data_folder
from dualform_studies.images.data.download import load_dataset
from dualform_studies.images.data.split import draw_split, every_row
from tests.studies.images.at_hand import at_hand


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
