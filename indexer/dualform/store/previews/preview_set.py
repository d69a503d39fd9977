"""What samples looked like, as it is given to a recorder or to a finished memory.

dualform.PreviewSet.images(dataset)      images in an array, or a dataset of (image, label)
dualform.PreviewSet.texts(passages)      a text a sample
dualform.PreviewSet.table(frame)         a row a sample
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dualform.errors import BadInput
from dualform.questions.arguments import check_no_nulls
from dualform.store.previews.content import Content

if TYPE_CHECKING:
    from dualform.coding.pixels import Channels


class PreviewSet:
    """Images, texts or rows of a table, one for each of some samples. It is encoded when it is stored."""

    def __init__(self, content: Content, samples: ArrayLike | None = None) -> None:
        """As the constructors below. Raises BadInput where `samples` are not as many numbers, each another one."""
        self._content = content
        self.samples = np.arange(len(content)) if samples is None else _numbers(samples, len(content))
        """int64[n]."""

    @classmethod
    def images(cls, images: Any, *, samples: ArrayLike | None = None, channels: Channels | None = None) -> PreviewSet:
        """Images, grey or RGB: an array or tensor [n, h, w], [n, h, w, c] or [n, c, h, w], or a dataset as torch has
        them, whose items are images or (image, label).

        Numbers of 8 bits are stored as they are; others are scaled from the least to the greatest of all images.
        `samples`: by which number each image is recorded, as step(sample=…) says it; None for 0, 1, …
        `channels`: "first" or "last", where the shape leaves it open. Raises BadInput for what are no images; of a
        dataset the first one is looked at, and the others when they are stored.
        """
        from dualform.store.previews.images import Images

        return cls(Images(images, channels), samples)

    @classmethod
    def texts(
        cls,
        texts: Sequence[str],
        *,
        offsets: Sequence[Any] | None = None,
        first: ArrayLike | None = None,
        samples: ArrayLike | None = None,
    ) -> PreviewSet:
        """Texts. `offsets`: of each, [positions, 2] of where a position of the sample starts and stops in it, in
        characters, as a tokenizer's offset_mapping: by them a slot's `position` is found in the text.

        `first`: of each text, the position that its offsets begin with, where positions count on from text to text;
        None for 0. `samples`: as of images. Raises BadInput for what is no text, and for offsets outside of it.
        """
        from dualform.store.previews.texts import Texts

        return cls(Texts(texts, offsets, first), samples)

    @classmethod
    def table(cls, table: Any, *, samples: ArrayLike | None = None) -> PreviewSet:
        """Rows of a table: a DataFrame, a mapping of columns, Columns, or what Arrow takes for a table.

        Columns hold numbers, truth values and texts; dates, times and decimals become texts. `samples`: as of images.
        Raises BadInput for what is no table, and for other columns.
        """
        from dualform.store.previews.table import TableRows

        return cls(TableRows(table), samples)

    @property
    def kind(self) -> str:
        """ "images", "texts" or "table"."""
        return self._content.kind

    @property
    def content(self) -> Content:
        """What is stored of each sample."""
        return self._content

    def __len__(self) -> int:
        return len(self.samples)

    def store(
        self, path: str | PathLike[str], dataset: str | None = None, *, replace: bool = False, cut_off: bool = False
    ) -> None:
        """Store it in the memory of a folder, as what the samples of a dataset looked like; None for samples that were
        recorded without one. While a training records, its recorder does that: recorder.previews(dataset, preview_set).

        `replace`: in place of the dataset's preview set, where there is one. `cut_off`: the recording did not come to
        its end, and nobody goes on with it. Raises AlreadyExists where there is a preview set of the dataset, Locked
        where the memory is being recorded, BadInput for a sample that cannot be stored; the memory is as before then.
        """
        from dualform.store.previews.stored_later import store_later

        store_later(path, dataset, self.samples, self._content, replace=replace, cut_off=cut_off)

    def __repr__(self) -> str:
        noun = "rows of a table" if self.kind == "table" else self.kind
        return f"Preview set of {len(self):,} {noun}"


def _numbers(samples: ArrayLike, count: int) -> NDArray[np.int64]:
    check_no_nulls(samples, "samples")
    if hasattr(samples, "detach"):
        samples = samples.detach().cpu()
    try:
        found = np.asarray(samples)
    except ValueError as error:  # rows of several lengths
        raise BadInput(
            f"samples must be whole numbers: {error}", hint="Give a whole number for each.", field="samples"
        ) from None
    if found.shape != (count,) or (count and found.dtype.kind not in "iu"):
        raise BadInput(
            f"samples must be int64[{count}], one number for each preview, not {found.dtype}{list(found.shape)}.",
            hint="Pass the numbers that you passed to step(sample=…).",
            field="samples",
        )
    if count and int(found.max()) > np.iinfo(np.int64).max:
        raise BadInput(f"samples names {found.max()}.", hint="A sample's number is an int64.", field="samples")
    numbers = found.astype(np.int64)
    if len(np.unique(numbers)) < count:
        twice = np.sort(numbers)[:-1][np.diff(np.sort(numbers)) == 0][0]
        raise BadInput(f"samples names {twice} twice.", hint="A sample has one preview.", field="samples")
    return numbers
