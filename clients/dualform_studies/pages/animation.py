"""A moving figure as an animated PNG, which every place that shows a PNG plays or shows the first frame of."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image

from dualform_studies.pages.frame import LARGEST_PNG, with_white

_COLOURS = (64, 32, 16, 8)


def save_animation(path: Path, frames: Sequence[Image.Image], milliseconds: int) -> Path:
    """Save frames of one size as a PNG that shows each for so long and begins again after the last.

    All frames have the colours of the first, as many as LARGEST_PNG allows. Where even few are too many, every other
    frame is left out, and the rest are shown for twice as long.
    """
    for colours in _COLOURS:
        written = _written(frames, colours, milliseconds)
        if len(written) <= LARGEST_PNG:
            path.write_bytes(written)
            return path
    return save_animation(path, frames[::2], 2 * milliseconds)


def _written(frames: Sequence[Image.Image], colours: int, milliseconds: int) -> bytes:
    palette = with_white(frames[0].convert("RGB").quantize(colours, dither=Image.Dither.NONE))
    packed = [frame.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    written = BytesIO()
    packed[0].save(
        written, format="png", save_all=True, append_images=packed[1:], duration=milliseconds, loop=0, optimize=True
    )
    return written.getvalue()
