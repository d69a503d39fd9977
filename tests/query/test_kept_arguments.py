"""What questions ask by is read once: a query set's queries, and the coefficients of a parameter's steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dualform
from dualform.query.weights import coefficients
from dualform.questions import QuerySetExamples
from dualform.store import query_sets
from tests.store import small_memory


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "run"
    small_memory.write(path, [20, 20])
    return path


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[str]:
    """The calls of a function from here on."""
    calls, plain = list[str](), getattr(module, name)

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        return plain(*arguments, **named)

    monkeypatch.setattr(module, name, call)
    return calls


def test_a_query_set_is_read_once_for_all_questions_by_its_rows(memory, monkeypatch):
    with dualform.open(memory) as engine:
        reads = counted(monkeypatch, query_sets, "read_checked")
        for row in range(3):
            engine.topk("layer-0", QuerySetExamples("test", (row,)))
            engine.group_sum("layer-0", QuerySetExamples("test", (row,)), "label")
        assert len(reads) == 2  # its queries, and its outputs: this old memory does not say how many examples it has


def test_coefficients_are_made_once_for_all_masks(memory, monkeypatch):
    with dualform.open(memory) as engine:
        made = counted(monkeypatch, coefficients, "coefficients")
        engine.output("layer-0", QuerySetExamples("test", (0,)), where="slot <> 0", allow_inexact=True)
        of_its_parameters = len(made)
        engine.output("layer-0", QuerySetExamples("test", (0,)), where="slot <> 1", allow_inexact=True)
        assert 0 < of_its_parameters == len(made)
