"""The style of all figures, and animated PNGs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from numpy.typing import NDArray
from PIL import Image

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#F0E442", "#000000")
"""Colours that stay apart for every common kind of colour vision (Okabe and Ito, "Color universal design", 2008)."""
INK = PALETTE[:4]
"""One colour a dataset, in the order of training. No figure tells things apart by colour alone: `HATCHES`, `MARKS`."""
HATCHES = ("", "////", "....", "xxxx")
"""Of areas, in the order of INK."""
MARKS = ("o", "s", "^", "D")
"""Of points and lines, in the order of INK."""
LARGEST_PNG = 120_000
"""Bytes that a figure's PNG may take: pages are kept under version control."""

_WIDTH = 7.5
"""Inches: a page at 100 dots each."""
_DPI = 200
_FITTED = 4
"""Along each side, the pixels of a figure that are one when colours are fitted to it."""
_WHITE = 247
"""Of 255: what red, green and blue of a colour that is all but white have at least."""
_STYLE: Any = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "savefig.dpi": _DPI,
    "svg.hashsalt": "dualform",
}


@contextmanager
def new_figure(path: Path, height: float, title: str = "", shades: bool = False) -> Iterator[Figure]:
    """A figure as wide as a page and so many inches high, saved as PNG and SVG when the block ends.

    `title` says what is to be seen; without one, the panels do. The PNG has twice the pixels of the page's width, and
    as many colours as LARGEST_PNG allows, 256 at most. Where `shades`, these are fitted to a picture of many shades.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        if title:
            figure.suptitle(title, x=0.005, ha="left", fontsize=10, weight="bold")
        yield figure
        path.write_bytes(packed_png(figure, shades=shades))
        figure.set_layout_engine("none")  # everything stays where the PNG has it, and is not laid out twice
        # Without a date and with the same names of parts, the same figure is the same file.
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def show_picture(panel: Axes, picture: NDArray[np.float32], caption: str = "") -> None:
    """One image from 0 (black) to 1 (white), without ticks."""
    panel.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    panel.set(xticks=[], yticks=[])
    panel.set_title(caption, fontsize=7, pad=3)


Rows: TypeAlias = dict[str, list[tuple[NDArray[np.float32], str]]]
"""Pictures with their captions, by the name of their row."""


def show_pictures(figure: FigureBase, rows: Rows, columns: int, **label: Any) -> None:
    """A grid of images with captions; each row is named at its left, by text with the properties `label`."""
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for panels, (name, pictures) in zip(grid, rows.items(), strict=True):
        panels[0].set_ylabel(name, **label)
        for panel in panels[len(pictures) :]:
            panel.set_axis_off()
        for panel, (picture, caption) in zip(panels, pictures, strict=False):
            show_picture(panel, picture, caption)


def packed_png(figure: Figure, dpi: int = _DPI, shades: bool = False) -> bytes:
    """The figure as a PNG of as many colours as LARGEST_PNG allows, 256 at most.

    One that is too large even with few colours is left so, for whoever collects pages.
    """
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    picture = Image.open(drawn).convert("RGB")
    for colours in (256, 64, 16):
        packed = BytesIO()
        palette = _fitted(picture, colours) if shades else None
        few = picture.quantize(colours, palette=palette, dither=Image.Dither.NONE)
        few.save(packed, format="png", optimize=True)
        if packed.tell() <= LARGEST_PNG:
            break
    return packed.getvalue()


def _fitted(picture: Image.Image, colours: int) -> Image.Image:
    """A picture whose palette has the colours that are nearest to those of the picture, and white."""
    # A smaller picture has the same shades, and is fitted in a fraction of the time. Colours that cover the picture's
    # whole range are where fitting begins, or those of small marks would be lost.
    small = picture.reduce(_FITTED)
    return with_white(small.quantize(colours, method=Image.Quantize.MAXCOVERAGE, kmeans=1))


def with_white(few: Image.Image) -> Image.Image:
    """A picture whose palette is that of `few`, but for colours that are all but white, which become white.

    Pillow's look-up in a palette takes nearly equal colours for each other, and paper would turn grey.
    """
    numbers = few.getpalette() or []
    entries = [numbers[at : at + 3] for at in range(0, len(numbers), 3)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([255 if min(entry) >= _WHITE else number for entry in entries for number in entry])
    return palette


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
