"""Exports of a panel: its questions as Python and as commands, and their answers as CSV."""

from __future__ import annotations

import csv
import io
import shlex
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from dualform.answers.table import Table
from dualform.errors import NotFound
from dualform.methods import Answers
from dualform.questions import Contribution, Distribution, GroupSum, Output, Placebo, QuerySetExamples, TopK
from dualform.questions.question import Question
from dualform_explorer.memories import beside_of

A = TypeVar("A")
_METHODS = {
    TopK: "topk",
    GroupSum: "group_sum",
    Distribution: "distribution",
    Output: "output",
    Contribution: "contributions",
    Placebo: "placebo",
}
_OPTIONS = {"queries": "--query", "k": "-k", "n": "--placebo"}
"""Command-line options whose names differ from the arguments."""


class Told(Answers):
    """Passes questions on to a memory, and keeps those that a page can show."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.beside = beside_of(answers)
        self.questions: list[Any] = []
        """The questions about a single stored example, in order."""

    def ask(self, question: Question[A]) -> A:
        queries = getattr(question, "queries", None)
        single = isinstance(queries, QuerySetExamples) and queries.count == 1
        if single and type(question) in _METHODS and question not in self.questions:
            self.questions.append(question)
        return self._answers.ask(question)

    def close(self) -> None:
        self._answers.close()


def as_python(question: Question[Any]) -> str:
    """The method call that asks it."""
    said = ", ".join(f"{name}={value!r}" for name, value in _arguments(question))
    return f"memory.{_METHODS[type(question)]}({said})"


def as_command(question: Question[Any], target: str) -> str:
    """The command that asks the memory at `target`."""
    name = _METHODS[type(question)].replace("_", "-")
    parts = ["dualform", "output" if isinstance(question, Placebo) else name, target]
    for argument, value in _arguments(question):
        option = _OPTIONS.get(argument, f"--{argument.replace('_', '-')}")
        if isinstance(question, GroupSum) and argument == "k":
            option = "--top"
        if isinstance(value, bool):
            parts.append("--no-initial" if argument == "initial" else option)
        else:
            parts += [option, ",".join(value) if isinstance(value, list) else str(value)]
    return shlex.join(parts)


def as_csv(answer: object) -> str:
    """All rows of the answer's table. Raises NotFound if it has none."""
    if not isinstance(answer, Table):
        raise NotFound("This answer is no table.", field="panel")
    columns = answer.table()
    written = io.StringIO()
    csv.writer(written).writerows([columns.keys(), *(row.values() for row in columns)])
    return written.getvalue()


def _arguments(question: Question[Any]) -> list[tuple[str, Any]]:
    """The arguments that differ from the defaults."""
    found: list[tuple[str, Any]] = []
    for own in fields(question):  # type: ignore[arg-type]
        value = getattr(question, own.name)
        if value is None or (own.default is not MISSING and value == own.default):
            continue
        if own.name == "target":
            found.append(("target", str(value.output) if value.minus is None else f"{value.output}-{value.minus}"))
            found += [("at_step", value.at_step)] if value.at_step is not None else []
            found += [("allow_inexact", True)] if value.allow_inexact else []
            continue
        if isinstance(value, QuerySetExamples):
            value = _written(value)
        elif isinstance(value, tuple):
            value = value[0] if len(value) == 1 else list(value)
        found.append((own.name, value))
    return found


def _written(queries: QuerySetExamples) -> str:
    tokens = queries.tokens or ("",) * len(queries.examples or ())
    examples = ",".join(
        f"{example}:{token}".rstrip(":") for example, token in zip(queries.examples or (), tokens, strict=True)
    )
    return queries.query_set if queries.examples is None else f"{queries.query_set}/{examples}"
