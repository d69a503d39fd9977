"""What all questions have in common: the type of their answer."""

from __future__ import annotations

from typing import Generic, TypeVar

Answer_co = TypeVar("Answer_co", covariant=True)


class Question(Generic[Answer_co]):
    """A query as a value. It checks its arguments when it is made, as far as that needs no memory."""
