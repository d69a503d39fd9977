"""Previews of training samples. Shapes: n samples in a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers.columns import SHOWN, Columns, as_html, as_text, column_of
from dualform.answers.html import cell_of
from dualform.answers.scan import Scan
from dualform.answers.table import Table, counted, free_name

IMAGES, TEXTS, TABLE = KINDS = ("images", "texts", "table")
"""The kinds of preview sets."""
MOST_BYTES = 8 << 20
"""The most bytes in one answer, and so for one sample."""
PNG = b"\x89PNG\r\n\x1a\n"
"""How every PNG begins, and nothing else that a browser would run or follow does."""


@dataclass(frozen=True, eq=False)
class Preview:
    """The preview of one sample: its `image`, its `text` or its `row`, by kind. All are None without a preview."""

    sample: int
    image: bytes | None = None
    """A PNG."""
    text: str | None = None
    offsets: NDArray[np.int32] | None = None
    """int32[positions, 2]: the start and stop of each position in `text`, in characters; None if unknown."""
    first: int = 0
    """The position of the first of `offsets`."""
    row: Mapping[str, Any] | None = None
    """Plain values by column; NULL is None."""

    @property
    def known(self) -> bool:
        """Whether the sample has a preview."""
        return not (self.image is None and self.text is None and self.row is None)

    def marked(self, position: int) -> tuple[str, str, str] | None:
        """`text` before a position, at it and after it; None if its place is unknown or empty, as for padding."""
        place = position - self.first
        if self.text is None or self.offsets is None or not 0 <= place < len(self.offsets):
            return None
        start, stop = self.offsets[place].tolist()
        return None if start == stop else (self.text[:start], self.text[start:stop], self.text[stop:])


@dataclass(frozen=True, eq=False, repr=False)
class Previews(Table):
    """The previews of some samples of a dataset or examples of a query set, in the order of the call.

    Iterating gives a `Preview` for each; `previews[i]` shows `samples[i]`. Contents are data, never code: PNG images or
    texts.
    """

    samples: NDArray[np.int64]
    """int64[n], as in the call."""
    kind: str
    """ "images", "texts" or "table"."""
    known: NDArray[np.bool_]
    """bool[n]: whether each sample has a preview."""
    images: tuple[bytes | None, ...] = ()
    """A PNG for each sample (8 bits, grey or RGB), None without a preview. Empty for other kinds."""
    texts: tuple[str | None, ...] = ()
    """A text for each sample, None without a preview. Empty for other kinds."""
    offsets: tuple[NDArray[np.int32], ...] | None = None
    """For each text, the offsets of its positions, [0, 2] without a preview; None if the texts were stored without
    offsets. `Preview.offsets` reads them by the column `position`."""
    firsts: NDArray[np.int64] | None = None
    """int64[n]: the position of the first offset of each text; None if all are 0."""
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """The columns of a table by name, n entries each, NULL without a preview. Empty for other kinds."""
    scale: tuple[float, float] | None = None
    """The numbers shown as black and as full brightness, for images that were not 8-bit numbers."""
    scan: Scan = field(default_factory=Scan)

    def __getitem__(self, place: int) -> Preview:
        if not self.known[place]:
            return Preview(int(self.samples[place]))
        return Preview(
            int(self.samples[place]),
            self.images[place] if self.images else None,
            self.texts[place] if self.texts else None,
            None if self.offsets is None else self.offsets[place],
            0 if self.firsts is None else int(self.firsts[place]),
            {name: column[[place]].tolist()[0] for name, column in self.columns.items()}
            if self.kind == TABLE
            else None,
        )

    def __iter__(self) -> Iterator[Preview]:
        return (self[place] for place in range(len(self)))

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def rows(self) -> int:
        return len(self)

    @property
    def missing(self) -> NDArray[np.int64]:
        """int64[m]: the `samples` without a preview."""
        return self.samples[~self.known]

    def table(self, most: int | None = None) -> Columns:
        """One row for each sample: its number, and its image (a PNG), its text or its columns."""
        shown = {"sample": self.samples[:most]}
        if self.kind == TABLE:
            own = {name: column[:most] for name, column in self.columns.items()}
            return Columns({free_name("sample", own): shown["sample"], **own}, self.scan)
        content = self.images if self.kind == IMAGES else self.texts
        return Columns({**shown, self.kind.removesuffix("s"): column_of(content[:most])}, self.scan)

    def __repr__(self) -> str:
        if self.kind != IMAGES:
            return super().__repr__()
        sizes = [None if image is None else f"a PNG of {len(image):,} bytes" for image in self.images[: SHOWN + 2]]
        return as_text(
            Columns({"sample": self.samples[: SHOWN + 2], "image": column_of(sizes)}), self.rows, self.title()
        )

    def _html(self, memory: Any, question: Any) -> str:
        """With the images themselves. They are data with a media type, so a browser runs nothing."""
        if self.kind != IMAGES:
            return super()._html(memory, question)
        pictures = column_of([cell_of(own) for own in islice(self, SHOWN + 2)])
        return as_html(Columns({"sample": self.samples[: SHOWN + 2], "image": pictures}), self.rows, self.title())

    def title(self) -> str:
        lacking = len(self.missing)
        beside = f", {lacking:,} of them not in the preview set" if lacking else ""
        return f"Previews: {self.kind} of {counted(len(self), 'sample')}{beside}"
