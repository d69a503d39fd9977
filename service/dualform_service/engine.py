"""What the server asks of whoever answers in its process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from dualform.query.bounds import UNBOUNDED, QuestionBounds
from dualform.questions import LayerQuestion, Question

A = TypeVar("A")


class Engine(Protocol):
    """`dualform.open` gives one."""

    def ask(
        self, question: Question[A], cancelled: Callable[[], bool] | None = None, bounds: QuestionBounds = UNBOUNDED
    ) -> A:
        """The answer; raises Cancelled soon after `cancelled` first says True, BadInput for what exceeds `bounds`."""

    def counted(self, question: LayerQuestion[A]) -> LayerQuestion[A]:
        """The question with each of its queries named, so that their number is known."""

    @property
    def recording(self) -> bool:
        """Whether the memory is still being recorded, or was cut off."""

    @property
    def answered_by(self) -> str:
        """What scores keys, in words."""

    def refresh(self) -> bool:
        """Takes the newest snapshot of a training that still runs; True where there was a newer one.

        Raises NotAMemory where the memory has gone.
        """
