"""Numbers as they are given: by NumPy, by torch, or in lists of either."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_array(given: Any) -> NDArray[Any]:
    """What NumPy makes of numbers; of tensors, too, of any type and in any place, with gradients or without, alone or
    in lists.

    Raises TypeError or ValueError for what no array can be made of.
    """
    try:
        return np.asarray(_without_tensors(given))
    except RuntimeError as error:  # raised by torch for a tensor without numbers
        raise TypeError(str(error)) from None


def _without_tensors(given: Any) -> Any:
    if hasattr(given, "detach"):  # a tensor: NumPy knows nothing of its gradients, of bfloat16, or of a GPU
        own = given.detach().cpu()
        return (own.float() if own.is_floating_point() else own).numpy()
    if isinstance(given, list | tuple) and _first_is_tensor(given):
        return [_without_tensors(part) for part in given]
    return given


def _first_is_tensor(given: Any) -> bool:
    """Of lists in lists, the innermost: one that holds numbers is left to NumPy."""
    while isinstance(given, list | tuple) and given:
        given = given[0]
    return hasattr(given, "detach")
