"""Answers that are bounded, and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dualform.query.bounds import QuestionBounds
from dualform.questions import LayerQuestion, Question
from dualform_service.engine import Engine
from dualform_service.metrics import Metrics

A = TypeVar("A")


class CountedEngine:
    """Answers as the engine does within `bounds`; `metrics` has what it answered about the memory of that name."""

    def __init__(self, engine: Engine, metrics: Metrics, memory: str, bounds: QuestionBounds) -> None:
        self._engine, self._metrics, self._memory, self._bounds = engine, metrics, memory, bounds

    def counted(self, question: LayerQuestion[A]) -> LayerQuestion[A]:
        """As Engine.counted."""
        return self._engine.counted(question)

    def ask(self, question: Question[A], cancelled: Callable[[], bool] | None = None) -> A:
        """Raises what the engine raises, and BadInput for what exceeds the bounds."""
        answer = self._engine.ask(question, cancelled, self._bounds)
        self._metrics.answered(self._memory, question, answer)
        return answer
