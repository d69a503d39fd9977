from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dualform.errors import Damaged
from dualform_studies.images.data.idx import read_idx
from tests.studies.images.idx_files import write_idx

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
