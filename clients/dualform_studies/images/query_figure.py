"""A figure about one test image: a header that shows the query, and panels below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from dualform_studies.figures import new_figure
from dualform_studies.images.datasets import Dataset

TRUE_MARK, GIVEN_MARK = "★", "●"
"""After the name of the class that the query has, and of the one that the network gives it."""
TRUE_AREA: Any = {"facecolor": "#F8F0A6", "edgecolor": "none", "linewidth": 0}
GIVEN_AREA: Any = {"facecolor": "none", "edgecolor": "0.2", "linestyle": (0, (3, 2)), "linewidth": 0.9}
"""Behind the same two classes: one is filled and the other framed, so that no colour has to be seen."""

_HEADER = 0.85


@dataclass(frozen=True, eq=False)
class Query:
    """The test image that a figure is about."""

    dataset: Dataset
    row: int
    """Its row among the test images."""
    given: int
    """The class that the final network gives it."""

    @property
    def label(self) -> int:
        return int(self.dataset.test.labels[self.row])

    @property
    def picture(self) -> NDArray[np.float32]:
        return self.dataset.picture(self.dataset.test.pixels[self.row])

    def __str__(self) -> str:
        true, given = (self.dataset.label_names[label] for label in (self.label, self.given))
        return f"{self.dataset.name} test image {self.row}, class {true}, recognised as {given}"


@contextmanager
def query_figure(path: Path, query: Query, title: str, height: float, *, classes: bool) -> Iterator[SubFigure]:
    """A figure under a header with the query's picture; `classes` explains the marks of its classes."""
    with new_figure(path, _HEADER + height) as figure:
        grid = figure.add_gridspec(2, 1, height_ratios=(_HEADER, height))
        _draw_header(figure.add_subfigure(grid[0]), query, title, classes)
        yield figure.add_subfigure(grid[1])


def show_picture(panel: Axes, picture: NDArray[np.float32], caption: str = "") -> None:
    """One image from 0 (black) to 1 (white), without ticks."""
    panel.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    panel.set(xticks=[], yticks=[])
    panel.set_title(caption, fontsize=7, pad=3)


def _draw_header(header: SubFigure, query: Query, title: str, classes: bool) -> None:
    grid = header.add_gridspec(1, 2, width_ratios=(1, 9))
    show_picture(header.add_subplot(grid[0]), query.picture)
    words = header.add_subplot(grid[1])
    words.set_axis_off()
    words.text(0, 0.97, title, va="top", fontsize=10, weight="bold", transform=words.transAxes)
    words.text(0, 0.56, f"query: {query}", va="top", transform=words.transAxes)
    if classes:
        words.legend(handles=_signs(query), loc="lower left", bbox_to_anchor=(-0.007, -0.16), ncols=2, borderaxespad=0)


def _signs(query: Query) -> Sequence[Patch]:
    if query.given == query.label:
        return [Patch(label=f"{TRUE_MARK} its class, recognised", **TRUE_AREA)]
    given = Patch(label=f"{GIVEN_MARK} the class recognised", **GIVEN_AREA)
    return [Patch(label=f"{TRUE_MARK} its class", **TRUE_AREA), given]
