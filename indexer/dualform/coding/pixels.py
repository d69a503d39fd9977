"""The pixels of an image, whatever it comes as.

Shapes: h lines of w pixels, c channels (1 of grey, 3 of RGB).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput

Channels: TypeAlias = Literal["first", "last"]
_PALETTES = ("L", "RGB", "1", "I", "F", "I;16", "I;16L", "I;16B", "I;16N")
"""Modes of an image of Pillow whose numbers are its pixels' brightness."""


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


def framed(number: int, image: NDArray[Any], channels: Channels | None) -> NDArray[Any]:
    """[h, w] or [h, w, 3]. Raises BadInput for what is no image, or leaves open which axis is that of channels."""
    if image.ndim == 3:
        image = _with_channels_last(number, image, channels)
    if image.ndim not in (2, 3) or not image.size:
        raise _no_image(number, image)
    return image


def _with_channels_last(number: int, image: NDArray[Any], channels: Channels | None) -> NDArray[Any]:
    first, last = image.shape[0] in (1, 3), image.shape[2] in (1, 3)
    if channels is None and first and last:
        raise BadInput(
            f"image {number} has the shape {list(image.shape)}: its channels may be the first axis or the last.",
            hint='Say which: channels="first" or "last".',
            field="channels",
        )
    if not (first if channels == "first" else last if channels == "last" else first or last):
        raise _no_image(number, image)
    if channels == "first" or (channels is None and first):
        image = image.transpose(1, 2, 0)
    return image[:, :, 0] if image.shape[2] == 1 else image


def scaled(image: NDArray[Any], least: float, greatest: float) -> NDArray[np.uint8]:
    """Finite numbers as brightness: the least is black, the greatest 255."""
    # By halves, for the distance of two numbers may be more than a float says.
    shares = (image.astype(np.float64) / 2 - least / 2) / ((greatest / 2 - least / 2) or 1.0)
    return np.rint(255 * np.clip(shares, 0, 1)).astype(np.uint8)


def check_finite(numbers: NDArray[Any], what: str) -> None:
    """`what`: holds the numbers, for the error: "image 3 holds". Raises BadInput for NaN and infinity."""
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise BadInput(f"{what} NaN or infinity.", hint="Give finite numbers.", field="images")


def _no_image(number: int, image: NDArray[Any]) -> BadInput:
    return BadInput(
        f"image {number} has the shape {list(image.shape)}.",
        hint="An image is [height, width], or has 1 or 3 channels: [height, width, c] or [c, height, width]. Rows of "
        "pixels are reshaped first, as images.reshape(-1, 28, 28).",
        field="images",
    )
