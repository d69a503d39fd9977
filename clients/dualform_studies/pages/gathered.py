"""Figures of many pages, gathered for one document: of each the smaller file, and none that is too large."""

from __future__ import annotations

import shutil
from pathlib import Path

from PIL import Image

from dualform.errors import BadInput, NotFound
from dualform_studies.pages.frame import LARGEST_PNG


class GatheredFigures:
    """They are copied when the document is whole: where one is missing or too large, an earlier one stays as it was."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._sources: dict[str, Path] = {}
        """The file to copy, by where it goes."""

    def take(self, part: str, png: Path) -> str:
        """Where the document shows a figure of one of its parts; `png` lies beside its SVG.

        Raises NotFound where the figure is not there, and BadInput for one of more than LARGEST_PNG bytes.
        """
        source = _lighter(png)
        place = f"{self._folder}/{part}/{source.name}"
        self._sources[place] = source
        return place

    def copy(self, docs: Path) -> None:
        """Copy all of them into the document's folder `docs`, in place of those of an earlier document."""
        shutil.rmtree(docs / self._folder, ignore_errors=True)
        for place, source in self._sources.items():
            (docs / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, docs / place)


def _lighter(png: Path) -> Path:
    """The figure's PNG, or its SVG where that is smaller; a PNG that moves stays, for its SVG stands still."""
    if not png.is_file():
        raise NotFound(f"{png}, which its page shows, is not there.", hint="Run its study again.")
    with Image.open(png) as picture:
        moves = getattr(picture, "is_animated", False)
    size, svg = png.stat().st_size, png.with_suffix(".svg")
    if not moves and svg.is_file() and svg.stat().st_size < min(size, LARGEST_PNG):
        return svg
    if size > LARGEST_PNG:
        raise BadInput(
            f"the figure {png} takes {size:,} bytes; a page that is kept under version control has room for "
            f"{LARGEST_PNG:,}.",
            hint="Draw it smaller or with fewer colours.",
        )
    return png
