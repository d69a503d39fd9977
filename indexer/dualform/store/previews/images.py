"""Images of a preview set, from an array or a dataset.

Shapes: n images of h lines of w pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.answers import Previews
from dualform.answers.contents import IMAGES, PNG
from dualform.coding.pixels import Channels, as_numbers, check_finite, framed, scaled
from dualform.coding.png import encoded
from dualform.errors import BadInput
from dualform.store.files.durable_files import damaged
from dualform.store.previews.content import FoundRows, gathered, generators_kept


class Images:
    """Numbers of 8 bits are stored as they are; others are scaled from the least to the greatest of all images."""

    kind = IMAGES
    schema = pa.schema([("png", pa.binary())])

    def __init__(self, images: Any, channels: Channels | None) -> None:
        """An array is checked as a whole, of a dataset the first image. Raises BadInput for what are no images."""
        if channels not in (None, "first", "last"):
            raise BadInput(
                f"Unknown channels {channels!r}.", hint='Choose channels="first" or channels="last".', field="channels"
            )
        self._channels = channels
        self._whole = as_numbers(images) if _is_array(images) else None
        self._dataset = images
        self._type: np.dtype[Any] | None = None
        try:
            self._count = len(images)
        except TypeError:
            raise BadInput(
                f"images must have a length, which {type(images).__name__} lacks.",
                hint="Pass an array [n, height, width], or a dataset of (image, label) with a length.",
                field="images",
            ) from None
        if self._whole is not None:
            check_finite(self._whole, "the images hold")
        if self._count:
            with generators_kept():
                first = self._image(0)
            self._type = first.dtype
            framed(0, first, self._channels)

    def __len__(self) -> int:
        return self._count

    def scale(self) -> tuple[float, float] | None:
        return self._scale

    @cached_property
    def _scale(self) -> tuple[float, float] | None:
        if not self._count or self._type == np.uint8:
            return None
        if self._whole is not None:
            return float(self._whole.min()), float(self._whole.max())
        least, greatest = np.inf, -np.inf
        with generators_kept():  # what the dataset draws now it will draw again when the images are stored
            for number in range(self._count):
                image = self._image(number)
                check_finite(image, f"image {number} holds")
                least, greatest = min(least, float(image.min())), max(greatest, float(image.max()))
        return least, greatest

    def batches(self) -> Iterator[pa.RecordBatch]:
        return gathered(((encoded(self._pixels(number)),) for number in range(self._count)), self.schema)

    @staticmethod
    def look(found: FoundRows) -> Previews:
        images = found.spread(found.rows.column("png").to_pylist(), None)
        for sample, image in zip(found.samples.tolist(), images, strict=True):
            if image is not None and not image.startswith(PNG):
                raise damaged(found.path, f"has an image of sample {sample} that is not a PNG")
        return Previews(found.samples, IMAGES, found.known, images=images, scale=found.scale)

    def _pixels(self, number: int) -> NDArray[np.uint8]:
        """uint8[h, w], or [h, w, 3]."""
        image = framed(number, self._image(number), self._channels)
        scale = self.scale()
        if scale is None:
            return image
        least, greatest = scale
        check_finite(image, f"image {number} holds")
        return scaled(image, least, greatest)

    def _image(self, number: int) -> NDArray[Any]:
        """As it was given."""
        if self._whole is not None:
            return np.asarray(self._whole[number])
        try:
            item = self._dataset[number]
            image = as_numbers(item[0] if _has_label(item) else item)
        except BadInput:
            raise
        except Exception as error:  # whatever a dataset of somebody's own raises
            raise BadInput(
                f"image {number} cannot be read: {type(error).__name__}: {error}",
                hint="Pass a dataset whose items are images, or (image, label).",
                field="images",
            ) from error
        if self._type is not None and self._whole is None and image.dtype != self._type:
            raise BadInput(
                f"image {number} has dtype {image.dtype}, but the first image has {self._type}.",
                hint="Pass images of one dtype.",
                field="images",
            )
        return image


def _has_label(item: Any) -> bool:
    """Whether an item of a dataset is (image, label): nested lists are an image's lines."""
    return isinstance(item, tuple) or (isinstance(item, list) and not isinstance(item[0], list))


def _is_array(images: Any) -> bool:
    return isinstance(images, np.ndarray) or hasattr(images, "detach")
