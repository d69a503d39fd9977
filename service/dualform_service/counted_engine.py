"""An engine whose answers are bounded, and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dualform.query.bounds import UNBOUNDED, QuestionBounds
from dualform.questions import Question
from dualform_service.engine import Engine
from dualform_service.metrics import Metrics

A = TypeVar("A")


class CountedEngine:
    """As the engine within `bounds`, but for `metrics`, which has what it answered about the memory of that name."""

    def __init__(self, engine: Engine, metrics: Metrics, memory: str, bounds: QuestionBounds = UNBOUNDED) -> None:
        self._engine, self._metrics, self._memory, self._bounds = engine, metrics, memory, bounds

    def ask(
        self, question: Question[A], cancelled: Callable[[], bool] | None = None, bounds: QuestionBounds | None = None
    ) -> A:
        """`bounds`: None for its own."""
        answer = self._engine.ask(question, cancelled, self._bounds if bounds is None else bounds)
        self._metrics.answered(self._memory, question, answer)
        return answer

    @property
    def recording(self) -> bool:
        return self._engine.recording

    @property
    def answered_by(self) -> str:
        return self._engine.answered_by

    def refresh(self) -> bool:
        return self._engine.refresh()
