"""What taps hang on the modules of a training, and what becomes of an error there.

A training must not fail because its recorder does. Whatever is raised in a hook, an autograd function or a mode of the
recorder is caught right there and handed to the listener, which stops recording or raises it, as `on_error` says. The
training's own errors pass: its code runs inside the recorder's where autograd packs or unpacks a tensor that a tap
saves, as checkpoints and offloading do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

_OF_TRAINING = "_of_the_training"
_Found = TypeVar("_Found")


class FailureListener(Protocol):
    def failed(self, error: Exception, layer: str = "") -> None:
        """The recorder itself failed, in a hook of that layer where the name is known. Raises the error, or returns and
        is told of nothing any more.
        """


def hand_over(listener: FailureListener, error: Exception, layer: str = "") -> None:
    """Called where an error of the recorder was caught. Raises it if it is the training's own, or a warning that Python
    was told to raise, or if the listener does.
    """
    if isinstance(error, Warning) or getattr(error, _OF_TRAINING, False):
        raise error
    listener.failed(error, layer)


def saving(apply: Callable[..., _Found], *args: Any) -> _Found:
    """Call what saves tensors for the backward pass. What packing them raises is the training's own."""
    try:
        return apply(*args)
    except Exception as error:
        setattr(error, _OF_TRAINING, True)
        raise


class ModelHook(ABC):
    """A hook of a module. A copy of it, in a model that is copied or saved, does nothing."""

    listener: FailureListener
    layer: str = ""

    def __call__(self, module: Any, *given: Any) -> Any:
        try:
            return self.run(module, *given)
        except Exception as error:
            hand_over(self.listener, error, self.layer)
            return None

    @abstractmethod
    def run(self, module: Any, *given: Any) -> Any:
        """What the hook does. If it raises, the module goes on as without the hook."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A function of the standard library that takes any arguments and returns None, so that a saved model loads
        # where dualform is not installed.
        return getattr, (nullcontext(), "__exit__")
