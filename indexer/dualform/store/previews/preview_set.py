"""A preview set as it is given to a recorder, or to a finished memory.

dualform.PreviewSet.images(dataset)      images in an array, or a dataset of (image, label)
dualform.PreviewSet.texts(passages)      a text a sample
dualform.PreviewSet.table(frame)         a row a sample
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dualform.errors import AlreadyExists, BadInput
from dualform.questions.arguments import check_no_nulls
from dualform.store.files.durable_files import remove
from dualform.store.locks import being_written, folder_lock, writing
from dualform.store.manifest import Manifest
from dualform.store.previews.content import Content
from dualform.store.previews.stored_previews import FOLDER, dataset_name, free_name, preview_folder, write_preview_set

if TYPE_CHECKING:
    from dualform.coding.pixels import Channels


def _check_unwritten(run: Path, manifest: Manifest, cut_off: bool) -> None:
    """Raises Locked where somebody records into a run's folder, BadInput where that cannot be told."""
    for part in manifest.shards if manifest.recording else ():
        found = writing(run / part.folder)
        if found.going_on:
            raise being_written(run / part.folder, found)
        if found.going_on is None and not cut_off:
            raise BadInput(
                f"The recording in {run} has not ended, and may still be running.",
                hint="If it was cut off, pass cut_off=True.",
                field="path",
            )


class PreviewSet:
    """Images, texts or table rows that show samples in results. Make one with `images`, `texts` or `table`.

    It is encoded when it is stored, by `recorder.previews(…)`, `recorder.query_set(…, previews=…)` or `store`.
    """

    def __init__(self, content: Content, samples: ArrayLike | None = None) -> None:
        """Use `images`, `texts` or `table` instead. Raises BadInput unless `samples` are distinct numbers, one for each
        preview.
        """
        self._content = content
        self.samples = np.arange(len(content)) if samples is None else _numbers(samples, len(content))
        """int64[n]."""

    @classmethod
    def images(cls, images: Any, *, samples: ArrayLike | None = None, channels: Channels | None = None) -> PreviewSet:
        """Previews from images, grey or RGB.

        - `images`: an array or tensor [n, h, w], [n, h, w, c] or [n, c, h, w], or a torch dataset of images or (image,
          label).
        - `samples`: the number of each image, as passed to step(sample=…); None for 0, 1, …
        - `channels`: "first" or "last", if the shape is ambiguous.

        Numbers of 8 bits are stored unchanged. Others are scaled between the smallest and the largest number of all
        images. Raises BadInput for anything that is not an image. For a dataset only the first item is checked here,
        the others when stored.
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
        """Previews from texts.

        - `offsets`: for each text, integers [positions, 2], the start and stop of each position in characters, such as
          a tokenizer's offset_mapping. They locate the `position` of a slot in the text.
        - `first`: for each text, the position of its first offset; None for 0.
        - `samples`: as in `images`.

        Raises BadInput for anything that is not text, and for offsets outside the text.
        """
        from dualform.store.previews.texts import Texts

        return cls(Texts(texts, offsets, first), samples)

    @classmethod
    def table(cls, table: Any, *, samples: ArrayLike | None = None) -> PreviewSet:
        """Previews from the rows of a DataFrame, a mapping of columns, `Columns`, or an Arrow table.

        Columns hold numbers, booleans and texts. Dates, times and decimals become texts. `samples`: as in `images`.
        Raises BadInput for other types.
        """
        from dualform.store.previews.table import TableRows

        return cls(TableRows(table), samples)

    @property
    def kind(self) -> str:
        """ "images", "texts" or "table"."""
        return self._content.kind

    @property
    def content(self) -> Content:
        """The stored content of each sample."""
        return self._content

    def __len__(self) -> int:
        return len(self.samples)

    def store(
        self, path: str | PathLike[str], dataset: str | None = None, *, replace: bool = False, cut_off: bool = False
    ) -> None:
        """Store it in the memory in a folder, as the previews of a dataset. During the training, call recorder.previews
        instead.

        - `dataset`: None for samples recorded without a dataset.
        - `replace`: replace the previews that the dataset already has.
        - `cut_off`: pass True for a recording that was cut off and will not continue.

        Raises AlreadyExists if the dataset has previews, Locked while the memory is being recorded, and BadInput for a
        sample that cannot be stored. In each case the memory is unchanged.
        """
        # The last run of the training gets it: a later one hides those before.
        folder, name = Path(path).absolute(), dataset_name(dataset)
        with folder_lock(folder):
            first = Manifest.read(folder)
            places = [folder, *(folder / run.folder for run in first.runs)]
            having = [place for place in places if name in Manifest.read(place).preview_sets]
            if having and not replace:
                whose = f"dataset {name!r}" if name else "samples without a dataset"
                raise AlreadyExists(
                    f"{having[-1]} already has a preview set for {whose}.",
                    hint="Pass replace=True to replace it.",
                )
            last = places[-1]
            manifest = Manifest.read(last)
            _check_unwritten(last, manifest, cut_off)
            file = free_name(f"{FOLDER}/{preview_folder(name)}", manifest.files)
            mark, entry = write_preview_set(last, file, self.samples, self._content)
            before = manifest.preview_sets.get(name)
            manifest.preview_sets[name], manifest.files[file] = entry, mark
            if before is not None:
                del manifest.files[before["file"]]
            manifest.write(last)
            if before is not None:
                remove(last / before["file"])

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
        raise BadInput(
            f"samples contains {found.max()}, which int64 cannot hold.",
            hint="Pass numbers below 2**63.",
            field="samples",
        )
    numbers = found.astype(np.int64)
    if len(np.unique(numbers)) < count:
        twice = np.sort(numbers)[:-1][np.diff(np.sort(numbers)) == 0][0]
        raise BadInput(f"samples contains {twice} twice.", hint="Pass one preview for each sample.", field="samples")
    return numbers
