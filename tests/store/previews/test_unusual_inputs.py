"""What is given for a preview set in a form that few use: stored as it is, or refused in words, never taken for
another.
"""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

from dualform import PreviewSet
from dualform.errors import BadInput
from dualform.store.previews.stored_previews import dataset_name
from tests.cases import some
from tests.store.previews.test_preview_set import bytes_of, looked, pixels


@pytest.mark.parametrize("form", ["alone", "with a label"])
def test_an_image_of_nested_lists_is_the_image_and_no_pair_with_a_label(form, tmp_path):
    rgb = bytes_of(2, 5, 7, 3)
    given = [one.tolist() if form == "alone" else (one.tolist(), 3) for one in rgb]
    found = looked(PreviewSet.images(given), tmp_path)
    low, high = int(rgb.min()), int(rgb.max())
    for png, image in some(zip(found.images, rgb, strict=True)):
        assert np.array_equal(pixels(png), np.rint((image - float(low)) / (high - low) * 255))


@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_images_of_sixteen_bits_are_scaled_in_either_order_of_bytes(order, tmp_path):
    brightness = (np.arange(20).reshape(4, 5) * 3000).astype(order)
    found = looked(PreviewSet.images([Image.fromarray(brightness)]), tmp_path)
    assert found.scale == (0.0, 57000.0)
    assert np.array_equal(pixels(found.images[0]), np.rint(brightness / 57000 * 255))


def test_numbers_further_apart_than_a_float_can_say_are_scaled(tmp_path):
    found = looked(PreviewSet.images(np.array([[[-1.7e308, 1.7e308], [0.0, 0.85e308]]])), tmp_path)
    assert pixels(found.images[0]).tolist() == [[0, 255], [128, 191]]


class Drawing(Dataset[Any]):
    """Each reading of an image is another one."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> Any:
        return torch.rand(5, 6)


def test_a_dataset_that_draws_is_scaled_by_the_images_that_are_stored(tmp_path):
    found = looked(PreviewSet.images(Drawing()), tmp_path)
    brightness = np.stack([pixels(png) for png in found.images])
    assert (np.count_nonzero(brightness == 0), np.count_nonzero(brightness == 255)) == (1, 1)


def test_an_image_that_is_of_another_type_when_it_is_read_again_is_refused(tmp_path):
    class Changing(Dataset[Any]):
        read = 0

        def __len__(self) -> int:
            return 1

        def __getitem__(self, number: int) -> Any:
            self.read += 1
            return np.full((4, 5), 200, np.uint8) if self.read == 1 else np.full((4, 5), 0.9)

    preview_set = PreviewSet.images(Changing())
    with pytest.raises(BadInput, match="image 0 has dtype float64, but the first image has uint8"):
        looked(preview_set, tmp_path)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: PreviewSet.images(torch.eye(4).to_sparse()[None]), "Tensor cannot be read as numbers"),
        (lambda: PreviewSet.images(torch.zeros(1, 4, 4, device="meta")), "Tensor cannot be read as numbers"),
        (lambda: PreviewSet.images(bytes_of(2, 4, 4), samples=[[1], [2, 3]]), "samples must be whole numbers:"),
        (lambda: PreviewSet.images(bytes_of(1, 4, 4), samples=np.array([2**63], "u8")), "samples contains "
        "92233720368547758"),
        (
            lambda: PreviewSet.images(bytes_of(2, 4, 4), samples=np.ma.array([5, 6], mask=[False, True])),
            "samples contains NULL",
        ),
        (lambda: PreviewSet.texts(5), "texts must be a list of texts, not int."),
        (lambda: PreviewSet.texts({"a": "x"}), "texts must be a list of texts, not dict."),
        (lambda: PreviewSet.texts({"x", "y"}), "texts must be a list of texts, not set."),
        (lambda: PreviewSet.texts(pd.DataFrame({"text": ["x"]})), "texts must be a list of texts, not DataFrame."),
        (lambda: PreviewSet.texts(["abc"], offsets=5), "offsets must be a list, not int"),
        (lambda: PreviewSet.texts(["abc"], offsets=[5]), "the offsets of text 0 must be pairs"),
        (
            lambda: PreviewSet.texts(["abc"], offsets=[[(0, 1)]], first=np.array([2**63 + 1], "u8")),
            "first must contain one whole number",
        ),
        (lambda: PreviewSet.table({"a": [2**70]}), "dict cannot be stored as a table:"),
        (lambda: PreviewSet.table(pd.DataFrame({"a": [2**70, 1]})), "DataFrame cannot be stored as a table:"),
        (lambda: PreviewSet.table({1: [1], "1": [2]}), "table has two columns of one name"),
        (
            lambda: PreviewSet.table(pa.table({"a": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})),
            "Column 'a' cannot hold month_day_nano_interval",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_as_it_is_meant_is_refused(make, said):
    with pytest.raises(BadInput, match=said):
        make()


def test_half_precision_of_eight_bits_is_taken(tmp_path):
    given = torch.tensor([[[0.0, 1.0], [2.0, 4.0]]])
    found = looked(PreviewSet.images(given.to(torch.float8_e4m3fn)), tmp_path)
    assert pixels(found.images[0]).tolist() == [[0, 64], [128, 255]]


@pytest.mark.parametrize("of", ["texts", "categories", "an enumeration"])
def test_texts_of_polars_are_taken(of, tmp_path):
    kind = {"texts": pl.String, "categories": pl.Categorical, "an enumeration": pl.Enum(["x", "y"])}[of]
    frame = pl.DataFrame({"a": pl.Series(["y", None, "x"], dtype=kind)})
    assert looked(PreviewSet.table(frame), tmp_path).columns["a"].tolist() == ["y", None, "x"]


def test_spans_of_time_are_stored_with_their_unit(tmp_path):
    given = {"span": [datetime.timedelta(days=1), None], "short": np.array([5, 7], "m8[ms]")}
    found = looked(PreviewSet.table(given), tmp_path)
    assert found.columns["span"].tolist() == ["86400000000 us", None]
    assert found.columns["short"].tolist() == ["5 ms", "7 ms"]


def test_a_table_with_the_columns_sample_and_sample_keeps_them_and_its_samples(tmp_path):
    found = looked(PreviewSet.table({"sample": [5.5], "sample_": [6.5]}, samples=[17]), tmp_path)
    assert found.table().records() == [{"sample__": 17, "sample": 5.5, "sample_": 6.5}]


@pytest.mark.parametrize("dataset", [0, False, []])
def test_what_is_no_name_is_not_taken_for_no_dataset(dataset):
    with pytest.raises(BadInput, match="dataset"):
        dataset_name(dataset)
