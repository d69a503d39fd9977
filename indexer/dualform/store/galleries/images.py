"""Images of a gallery, from an array or a dataset.

Shapes: n images of h lines of w pixels, c channels (1 of grey, 3 of RGB).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.answers import Appearances
from dualform.answers.appearances import IMAGES, PNG
from dualform.errors import BadInput, Damaged
from dualform.store.galleries.content import gathered
from dualform.store.galleries.found_rows import FoundRows
from dualform.store.galleries.generators import generators_kept
from dualform.store.galleries.png import encoded

Channels: TypeAlias = Literal["first", "last"]
_PALETTES = ("L", "RGB", "1", "I", "F", "I;16", "I;16L", "I;16B", "I;16N")
"""Modes of an image of Pillow whose numbers are its pixels' brightness."""


class Images:
    """Numbers of 8 bits are stored as they are; others are scaled from the least to the greatest of all images."""

    kind = IMAGES
    schema = pa.schema([("png", pa.binary())])

    def __init__(self, images: Any, channels: Channels | None) -> None:
        """An array is checked as a whole, of a dataset the first image. Raises BadInput for what are no images."""
        if channels not in (None, "first", "last"):
            raise BadInput(f"channels is {channels!r}.", hint='Give "first" or "last".', field="channels")
        self._channels = channels
        self._whole = as_numbers(images) if _is_array(images) else None
        self._dataset = images
        self._type: np.dtype[Any] | None = None
        try:
            self._count = len(images)
        except TypeError:
            raise BadInput(
                f"{type(images).__name__} holds no images that can be counted.",
                hint="Give an array [n, height, width], or a dataset of (image, label) with a length.",
                field="images",
            ) from None
        if self._whole is not None:
            _check_finite(self._whole, "the images hold")
        if self._count:
            with generators_kept():
                first = self._image(0)
            self._type = first.dtype
            self._frame(0, first)

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
                _check_finite(image, f"image {number} holds")
                least, greatest = min(least, float(image.min())), max(greatest, float(image.max()))
        return least, greatest

    def batches(self) -> Iterator[pa.RecordBatch]:
        return gathered(((encoded(self._pixels(number)),) for number in range(self._count)), self.schema)

    @staticmethod
    def look(found: FoundRows) -> Appearances:
        images = found.spread(found.rows.column("png").to_pylist(), None)
        for sample, image in zip(found.samples.tolist(), images, strict=True):
            if image is not None and not image.startswith(PNG):
                raise Damaged(f"{found.path}: the image of sample {sample} is no PNG.")
        return Appearances(found.samples, IMAGES, found.known, images=images, scale=found.scale)

    def _pixels(self, number: int) -> NDArray[np.uint8]:
        """uint8[h, w], or [h, w, 3]."""
        image = self._frame(number, self._image(number))
        scale = self.scale()
        if scale is None:
            return image
        least, greatest = scale
        _check_finite(image, f"image {number} holds")
        # By halves, for the distance of two numbers may be more than a float says.
        shares = (image.astype(np.float64) / 2 - least / 2) / ((greatest / 2 - least / 2) or 1.0)
        return np.rint(255 * np.clip(shares, 0, 1)).astype(np.uint8)

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
                hint="Give a dataset whose items are images, or (image, label).",
                field="images",
            ) from error
        if self._type is not None and self._whole is None and image.dtype != self._type:
            raise BadInput(
                f"image {number} holds {image.dtype}, and the first one {self._type}.",
                hint="Give images of one type.",
                field="images",
            )
        return image

    def _frame(self, number: int, image: NDArray[Any]) -> NDArray[Any]:
        """[h, w] or [h, w, 3]. Raises BadInput for what is no image, or leaves open which axis is that of channels."""
        if image.ndim == 3:
            image = self._with_channels_last(number, image)
        if image.ndim not in (2, 3) or not image.size:
            raise _no_image(number, image)
        return image

    def _with_channels_last(self, number: int, image: NDArray[Any]) -> NDArray[Any]:
        first, last = image.shape[0] in (1, 3), image.shape[2] in (1, 3)
        if self._channels is None and first and last:
            raise BadInput(
                f"image {number} has the shape {list(image.shape)}: its channels may be the first axis or the last.",
                hint='Say which: channels="first" or "last".',
                field="channels",
            )
        if not (first if self._channels == "first" else last if self._channels == "last" else first or last):
            raise _no_image(number, image)
        if self._channels == "first" or (self._channels is None and first):
            image = image.transpose(1, 2, 0)
        return image[:, :, 0] if image.shape[2] == 1 else image


def as_numbers(value: Any) -> NDArray[Any]:
    """An array, a tensor or an image of Pillow as numbers. Raises BadInput where it holds anything else."""
    if hasattr(value, "detach"):
        value = _of_tensor(value)
    elif getattr(value, "mode", "L") not in _PALETTES:
        value = value.convert("RGB")
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "buif":
        raise BadInput(
            f"{type(value).__name__} holds {numbers.dtype}, which are no pixels.",
            hint="Give images as numbers: arrays, tensors, or a dataset of (image, label).",
            field="images",
        )
    return numbers


def _of_tensor(tensor: Any) -> NDArray[Any]:
    try:
        own = tensor.detach().cpu()
        if own.dtype.is_floating_point and own.dtype.itemsize < 4:  # of which NumPy has not all
            own = own.float()
        return np.asarray(own.numpy())
    except (TypeError, RuntimeError) as error:  # a sparse one, or one without numbers
        raise BadInput(
            f"{type(tensor).__name__} cannot be read as numbers: {error}",
            hint="Give a dense tensor of plain numbers.",
            field="images",
        ) from None


def _has_label(item: Any) -> bool:
    """Whether an item of a dataset is (image, label): nested lists are an image's lines."""
    return isinstance(item, tuple) or (isinstance(item, list) and not isinstance(item[0], list))


def _is_array(images: Any) -> bool:
    return isinstance(images, np.ndarray) or hasattr(images, "detach")


def _check_finite(numbers: NDArray[Any], what: str) -> None:
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise BadInput(f"{what} NaN or infinity.", hint="Give finite numbers.", field="images")


def _no_image(number: int, image: NDArray[Any]) -> BadInput:
    return BadInput(
        f"image {number} has the shape {list(image.shape)}.",
        hint="An image is [height, width], or has 1 or 3 channels: [height, width, c] or [c, height, width]. Rows of "
        "pixels are reshaped first, as images.reshape(-1, 28, 28).",
        field="images",
    )
