"""What taps hang on the modules of a training."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any


class ModelHook:
    """A hook of a module. A copy of it, in a model that is copied or saved, does nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A function of the standard library that takes any arguments and returns None, so that a saved model loads
        # where dualform is not installed.
        return getattr, (nullcontext(), "__exit__")
