"""What all figures have in common: page width, type and colours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

INK = ("#2f6690", "#c8702a", "#5b8c5a", "#7d5ba6")
"""One colour a dataset, in the order of training."""

_WIDTH = 7.5
_STYLE: Any = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "savefig.dpi": 200,
    "svg.hashsalt": "dualform",
}


@contextmanager
def new_figure(path: Path, height: float) -> Iterator[Figure]:
    """A figure as wide as a page and so many inches high, saved as PNG and SVG when the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        yield figure
        figure.savefig(path)
        # Without a date and with the same names of parts, the same figure is the same file.
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
