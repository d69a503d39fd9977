"""What a preview set takes and refuses, and what of it comes back from disk, held against Pillow and what was given."""

from __future__ import annotations

import datetime
import io
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from dualform import PreviewSet
from dualform.answers import Previews
from dualform.errors import BadInput, NotAMemory
from dualform.store.previews.stored_previews import (
    StoredPreviewSet,
    dataset_name,
    preview_folder,
    write_preview_set,
)
from tests.cases import some

RNG = np.random.default_rng(15)


def stored(preview_set: PreviewSet, folder: Any) -> StoredPreviewSet:
    mark, entry = write_preview_set(folder, "gallery/x/samples-000000.arrow", preview_set.samples, preview_set.content)
    return StoredPreviewSet.of(folder, entry, {entry["file"]: mark})


def looked(preview_set: PreviewSet, folder: Any, samples: list[int] | None = None) -> Previews:
    asked = preview_set.samples if samples is None else np.array(samples, dtype=np.int64)
    return stored(preview_set, folder).look(asked)


def pixels(png: bytes | None) -> np.ndarray:
    assert png is not None
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        image.load()
        return np.asarray(image)


def bytes_of(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


@settings(max_examples=10, deadline=None)
@given(images=arrays.arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(4, 9))))
def test_grey_images_are_the_pixels_that_were_given(images, tmp_path_factory):
    found = looked(PreviewSet.images(images), tmp_path_factory.mktemp("g"))
    assert all(np.array_equal(pixels(png), image) for png, image in zip(found.images, images, strict=True))
    assert found.scale is None


@pytest.mark.parametrize("form", ["channels last", "channels first", "tensor", "one channel", "dataset", "list"])
def test_images_are_taken_in_every_form(form, tmp_path):
    rgb, grey = bytes_of(4, 5, 7, 3), bytes_of(4, 5, 7)
    given, expected = {
        "channels last": (rgb, rgb),
        "channels first": (rgb.transpose(0, 3, 1, 2), rgb),
        "tensor": (torch.from_numpy(rgb.transpose(0, 3, 1, 2).copy()), rgb),
        "one channel": (grey[:, None], grey),
        "dataset": (TensorDataset(torch.from_numpy(grey[:, None]), torch.arange(4)), grey),
        "list": ([Image.fromarray(one) for one in rgb], rgb),
    }[form]
    found = looked(PreviewSet.images(given), tmp_path)
    assert all(np.array_equal(pixels(png), image) for png, image in zip(found.images, expected, strict=True))


def test_images_of_a_palette_are_shown_in_their_colours(tmp_path):
    image = Image.fromarray(bytes_of(6, 6, 3)).convert("P")
    found = looked(PreviewSet.images([image]), tmp_path)
    assert np.array_equal(pixels(found.images[0]), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "u2", "?"])
@pytest.mark.parametrize("of", ["an array", "a dataset"])
def test_other_numbers_are_scaled_from_the_least_to_the_greatest_of_all(dtype, of, tmp_path):
    images = (100 * RNG.normal(size=(5, 4, 6)) > 0 if dtype == "?" else 100 * RNG.random((5, 4, 6))).astype(dtype)
    found = looked(PreviewSet.images(images if of == "an array" else list(images)), tmp_path)
    low, high = float(images.min()), float(images.max())
    assert found.scale == (low, high)
    expected = np.rint((images.astype(float) - low) / (high - low) * 255)
    assert np.array_equal(np.stack([pixels(png) for png in found.images]), expected)


def test_images_of_one_number_alone_are_black(tmp_path):
    found = looked(PreviewSet.images(np.full((1, 4, 4), 3.5)), tmp_path)
    assert (found.scale, pixels(found.images[0]).max()) == ((3.5, 3.5), 0)


def test_half_precision_of_torch_is_taken(tmp_path):
    given = torch.arange(16, dtype=torch.bfloat16).reshape(1, 4, 4)
    assert pixels(looked(PreviewSet.images(given), tmp_path).images[0]).tolist() == [
        [round(17 * (4 * row + column)) for column in range(4)] for row in range(4)
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros((3, 784), np.uint8), r"image 0 has the shape \[784\]"),
        (np.zeros((3, 5, 7, 4), np.uint8), r"image 0 has the shape \[5, 7, 4\]"),
        (np.zeros((3, 0, 7), np.uint8), r"image 0 has the shape \[0, 7\]"),
        (np.zeros((3, 3, 5, 3), np.uint8), "its channels may be the first axis or the last"),
        (np.full((2, 4, 4), np.nan), "the images hold NaN or infinity"),
        (np.array([["a"]]), "which are no pixels"),
        (iter([1]), "images must have a length, which"),
        (["a.png"], "which are no pixels"),
        ([3], r"image 0 has the shape \[\]"),
    ],
)
def test_what_are_no_images_is_refused(given, said):
    with pytest.raises(BadInput, match=said):
        PreviewSet.images(given)


def test_which_axis_has_the_channels_can_be_said(tmp_path):
    given = bytes_of(2, 3, 5, 3)
    found = looked(PreviewSet.images(given, channels="last"), tmp_path)
    assert np.array_equal(pixels(found.images[1]), given[1])
    first = looked(PreviewSet.images(given, channels="first"), tmp_path / "first")
    assert np.array_equal(pixels(first.images[1]), given[1].transpose(1, 2, 0))


class Faulty(Dataset[Any]):
    """Its third item is another one."""

    def __init__(self, third: Any) -> None:
        self._third = third

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> Any:
        if number != 2:
            return np.zeros((4, 4)), 0
        if isinstance(self._third, Exception):
            raise self._third
        return self._third, 0


@pytest.mark.parametrize(
    ("third", "said"),
    [
        (np.zeros((4, 4), np.uint8), "image 2 has dtype uint8, but the first image has float64"),
        (np.full((4, 4), np.inf), "image 2 holds NaN or infinity"),
        (np.zeros(4), r"image 2 has the shape \[4\]"),
        (KeyError("gone"), "image 2 cannot be read: KeyError: 'gone'"),
    ],
)
def test_an_item_that_is_no_image_is_named_and_leaves_no_file(third, said, tmp_path):
    with pytest.raises(BadInput, match=said):
        looked(PreviewSet.images(Faulty(third)), tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


class Noisy(Faulty):
    """Each reading of an image is another one."""

    def __getitem__(self, number: int) -> Any:
        return torch.rand(4, 4) + float(np.random.rand()), 0


def test_a_dataset_that_draws_numbers_leaves_the_generators_as_they_were(tmp_path):
    def drawn() -> tuple[torch.Tensor, float]:
        return torch.rand(1), np.random.rand()

    torch.manual_seed(3)
    np.random.seed(3)
    before = drawn()
    torch.manual_seed(3)
    np.random.seed(3)
    looked(PreviewSet.images(Noisy(0)), tmp_path)
    assert drawn() == before


def test_texts_come_back_and_one_token_is_marked(tmp_path):
    passages = ["the cat", "", "größe é"]
    preview_set = PreviewSet.texts(passages, offsets=[[(0, 3), (3, 7), (0, 0)], [], np.array([[0, 5], [6, 7]])])
    found = looked(preview_set, tmp_path, [2, 0, 1, 9])
    assert found.texts == ("größe é", "the cat", "", None)
    assert found[0].marked(1) == ("größe ", "é", "")
    assert found[1].marked(1) == ("the", " cat", "")
    assert found[1].marked(2) is None  # of no characters, as marks of a tokenizer have
    assert found[1].marked(3) is None
    assert found[2].marked(0) is None
    assert not found[3].known
    assert found.missing.tolist() == [9]
    assert looked(PreviewSet.texts(passages), tmp_path / "plain")[0].marked(0) is None


def test_texts_that_go_on_from_one_to_the_next_are_found_by_positions_that_do(tmp_path):
    offsets = [[(0, 3), (4, 7)], [(0, 5)]]
    preview_set = PreviewSet.texts(["the cat", "sleeps"], offsets=offsets, first=np.array([0, 2]), samples=[7, 8])
    found = looked(preview_set, tmp_path, [8, 9, 7])
    assert found.firsts.tolist() == [2, 0, 0]
    assert found[0].marked(2) == ("", "sleep", "s")
    assert [found[0].marked(position) for position in (0, 1, 3)] == [None] * 3
    assert found[2].marked(1) == ("the ", "cat", "")
    assert found[1].marked(0) is None


@pytest.mark.parametrize("first", [[0], [0, -1], [0.0, 1.0], ["a", "b"], [[0], [1]]])
def test_a_first_that_is_no_position_of_each_text_is_refused(first):
    with pytest.raises(BadInput, match="first must contain one whole number from 0 for each of 2 texts"):
        PreviewSet.texts(["a", "b"], offsets=[[(0, 1)], [(0, 1)]], first=first)
    with pytest.raises(BadInput, match="first= needs offsets="):
        PreviewSet.texts(["a", "b"], first=[0, 1])


@pytest.mark.parametrize(
    ("texts", "offsets", "said"),
    [
        ("one", None, "texts must be a list, not one text"),
        (["a", 3], None, "text 1 is of type int"),
        (["\ud800"], None, "text 0 contains half of a surrogate pair"),
        (["ab"], [[(0, 3)]], "position 0 of text 0 has the offsets 0 to 3, but the text has 2 characters"),
        (["ab"], [[(0, 1), (2, 1)]], "position 1 of text 0 has the offsets 2 to 1"),
        (["ab"], [[0, 1]], "the offsets of text 0 must be pairs"),
        (["ab"], [[(0.5, 1.0)]], "the offsets of text 0 must be pairs"),
        (["ab"], [[(0, 1), (1,)]], "the offsets of text 0 must be pairs"),
        (["ab"], [], "offsets has 0 entries for 1 texts"),
    ],
)
def test_what_are_no_texts_is_refused(texts, offsets, said):
    with pytest.raises(BadInput, match=said):
        PreviewSet.texts(texts, offsets=offsets)


FRAME = {"age": [30, None, 41], "score": [0.5, 1.5, None], "name": ["a", None, "<b>"], "new": [True, None, False]}


@pytest.mark.parametrize("form", ["mapping", "pandas", "arrow"])
def test_tables_come_back_row_by_row(form, tmp_path):
    table = {"mapping": FRAME, "pandas": pd.DataFrame(FRAME, dtype=object), "arrow": pa.table(FRAME)}[form]
    found = looked(PreviewSet.table(table), tmp_path, [2, 0, 7, 1])
    expected = [{name: column[row] for name, column in FRAME.items()} for row in (2, 0)]
    assert [dict(own.row or {}) for own in (found[0], found[1])] == expected
    assert found[2].row is None
    assert found.columns["age"].dtype == np.int64
    assert found.columns["age"].tolist() == [41, 30, None, None]
    assert found.columns["name"].tolist() == ["<b>", "a", None, None]


def test_categories_dates_and_decimals_are_shown_as_texts(tmp_path):
    frame = pd.DataFrame({"kind": pd.Categorical(["x", "y"]), "on": pd.to_datetime(["2020-01-02", None])})
    found = looked(PreviewSet.table(frame.iloc[[1, 0]]), tmp_path)
    assert found.columns["kind"].tolist() == ["y", "x"]
    assert found.columns["on"].tolist()[0] is None
    assert found.columns["on"].tolist()[1].startswith("2020-01-02")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "table must have at least one column."),
        ({"a": [[1], [2]]}, "Column 'a' cannot hold list"),
        ({"a": [1], "b": [1, 2]}, "cannot be stored as a table:"),
        (3, "int cannot be stored as a table:"),
        (pa.table([[1], [2]], names=["a", "a"]), "has two columns of one name"),
    ],
)
def test_what_is_no_table_is_refused(table, said):
    with pytest.raises(BadInput, match=said):
        PreviewSet.table(table)


def test_samples_may_have_any_numbers_in_any_order(tmp_path):
    numbers = RNG.permutation(np.r_[np.arange(5000) * 7 - 99, 2**62])
    preview_set = PreviewSet.texts([f"text of {number}" for number in numbers], samples=torch.from_numpy(numbers))
    asked = RNG.choice(np.r_[numbers, 3, -(2**63)], 1000)
    found = stored(preview_set, tmp_path).look(asked)
    known = np.isin(asked, numbers)
    assert np.array_equal(found.known, known)
    assert found.texts == tuple(f"text of {n}" if own else None for n, own in zip(asked, known, strict=True))


@pytest.mark.parametrize("samples", [[0, 0], [1], [0.5, 1], ["a", "b"]])
def test_samples_that_are_no_numbers_of_each_are_refused(samples):
    with pytest.raises(BadInput, match="samples"):
        PreviewSet.texts(["a", "b"], samples=samples)


def test_an_answer_is_bounded_and_says_how_many_fit(tmp_path):
    preview_set = stored(PreviewSet.texts(["x" * (1 << 20)] * 9), tmp_path)
    assert len(preview_set.look(np.arange(8))) == 8
    with pytest.raises(BadInput, match=r"take more than 8\.0 MiB\. Pass at most 8 samples at a time\.") as refused:
        preview_set.look(np.arange(9))
    assert refused.value.field == "samples"


def test_a_sample_that_no_answer_holds_is_not_stored(tmp_path):
    with pytest.raises(BadInput, match=r"the preview of sample 7 takes 9\.0 MiB; the limit is 8 MiB"):
        looked(PreviewSet.texts(["a", "x" * (9 << 20)], samples=[3, 7]), tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_preview_set_of_nothing_has_no_sample(tmp_path):
    found = looked(PreviewSet.texts([]), tmp_path, [0])
    assert (len(found), found.known.tolist()) == (1, [False])


@settings(max_examples=66, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=12), st.text("./\\%aA", max_size=4))
def test_no_name_of_a_dataset_leaves_its_folder(name, other):
    for own in (name, other):
        folder = preview_folder(own)
        assert folder not in (".", "..", "")
        assert "/" not in folder
        assert "\\" not in folder
        assert not folder.startswith(".")
    assert (preview_folder(name) == preview_folder(other)) == (name == other)


def test_a_kind_that_only_newer_versions_know_is_named(tmp_path):
    preview_set = PreviewSet.texts(["a"])
    mark, entry = write_preview_set(
        tmp_path, "gallery/x/samples-000000.arrow", preview_set.samples, preview_set.content
    )
    newer = StoredPreviewSet.of(tmp_path, entry | {"kind": "sounds"}, {entry["file"]: mark})
    with pytest.raises(
        NotAMemory, match="is a preview set of kind 'sounds', which this version of dualform does not read"
    ):
        newer.look(np.array([0]))


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


def test_a_dataset_that_draws_is_scaled_by_the_images_that_are_stored(tmp_path):
    found = looked(PreviewSet.images(Noisy(0)), tmp_path)
    brightness = np.stack([pixels(png) for png in found.images])
    assert (np.count_nonzero(brightness == 0), np.count_nonzero(brightness == 255)) == (1, 1)


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
