"""Answers that are remembered: panels of one page, and pages one after another, ask the same questions."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from threading import Lock
from typing import Any, TypeVar, cast

from dualform.answers import MemoryInfo
from dualform.errors import Unavailable
from dualform.methods import Answers
from dualform.questions import Inventory, PreviewLookup, Question, SlotLookup

A = TypeVar("A")
_MOST = 400
"""Answers that are kept: those of some dozens of pages."""


class RememberedAnswers(Answers):
    """Whoever answers for a memory, asked each question once as of a snapshot. Safe to use from several threads.

    A question that is being answered is not asked again beside it: who asks it too waits for the same answer.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._lock = Lock()
        self._found: OrderedDict[Any, Future[Any]] = OrderedDict()
        self._seen: MemoryInfo | None = None
        self._closed = False

    def ask(self, question: Question[A]) -> A:
        if isinstance(question, Inventory):
            return cast("A", self._info(question))
        if isinstance(question, SlotLookup | PreviewLookup):  # each is its own
            return cast("A", self._answers.ask(question))
        with self._lock:
            found = self._found.get(question)
            mine = found is None
            if found is None:
                found = self._found[question] = Future()
                if len(self._found) > _MOST:
                    self._found.popitem(last=False)
            else:
                self._found.move_to_end(question)
        if mine:
            self._answer(question, found)
        return cast("A", found.result())

    def _answer(self, question: Question[Any], found: Future[Any]) -> None:
        try:
            found.set_result(self._answers.ask(question))
        except BaseException as error:
            with self._lock:
                if self._found.get(question) is found:
                    del self._found[question]
            found.set_exception(error)
        if self._closed:  # meanwhile, and SQL has started its process again
            self._answers.close()

    def _info(self, question: Inventory) -> MemoryInfo:
        """Always asked: it says of which snapshot answers are, and those of another one are forgotten."""
        info = self._answers.ask(question)
        with self._lock:
            if info != self._seen:  # not its number alone, which another training in the same place may have, too
                self._seen = info
                self._found.clear()
        return info

    def close(self) -> None:
        self._closed = True
        self._answers.close()


class OneSnapshot(Answers):
    """The answers of one snapshot. Those of another one, of a memory that moved on meanwhile, are refused: no page adds
    up what belongs to two.
    """

    def __init__(self, answers: Answers, snapshot: int) -> None:
        self._answers, self._snapshot = answers, snapshot

    def ask(self, question: Question[A]) -> A:
        answer = self._answers.ask(question)
        seen = getattr(getattr(answer, "scan", None), "snapshot", 0)  # 0 where an answer does not say it
        if seen not in (0, self._snapshot):
            raise Unavailable(
                "The memory moved on to newer steps while this was being answered.", hint="Ask for the page again."
            )
        return answer

    def close(self) -> None:
        self._answers.close()
