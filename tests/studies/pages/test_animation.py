from __future__ import annotations

import numpy as np
from PIL import Image

from dualform_studies.pages.animation import save_animation
from dualform_studies.pages.frame import LARGEST_PNG


def frame(at: int, side: int = 60) -> Image.Image:
    pixels = np.full((side, side, 3), 255, np.uint8)
    pixels[:, : side * at // 4] = (0, 114, 178)
    return Image.fromarray(pixels)


def test_frames_come_back_in_their_order_and_without_end(tmp_path):
    frames = [frame(at) for at in (1, 2, 3)]
    path = save_animation(tmp_path / "moving.png", frames, 70)
    with Image.open(path) as picture:
        assert (picture.n_frames, picture.info["loop"]) == (3, 0)
        for at, expected in enumerate(frames):
            picture.seek(at)
            assert picture.info["duration"] == 70
            np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), np.asarray(expected))


def test_colours_are_given_up_until_it_is_small_enough(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (4, 150, 150, 3), np.uint8)
    path = save_animation(tmp_path / "moving.png", [Image.fromarray(one) for one in noise], 70)
    assert path.stat().st_size <= LARGEST_PNG
    with Image.open(path) as picture:
        assert picture.n_frames == 4


def test_frames_are_given_up_where_colours_are_not_enough(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (8, 200, 200, 3), np.uint8)
    path = save_animation(tmp_path / "moving.png", [Image.fromarray(one) for one in noise], 70)
    assert path.stat().st_size <= LARGEST_PNG
    with Image.open(path) as picture:
        assert picture.n_frames == 4
        assert picture.info["duration"] == 140
