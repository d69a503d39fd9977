"""What an engine says that answering has taken."""

from __future__ import annotations

from dataclasses import fields

import pytest

import dualform
from dualform.query.view import Counts


def grown(before: Counts, after: Counts) -> dict[str, float]:
    both = {own.name: (getattr(before, own.name), getattr(after, own.name)) for own in fields(Counts)}
    return {name: new - old for name, (old, new) in both.items() if old is not None and new != old}


def test_the_first_question_reads_and_makes_and_later_ones_find(small_run):
    with dualform.open(small_run) as memory:
        layer, counts = memory.info().layers[0], [memory.counts()]
        for _ in range(4):
            memory.topk(layer.name, [[1.0] * layer.d_in] * 3, k=2, where="step < 3")
            counts.append(memory.counts())
        stored = sum(file.stat().st_size for file in small_run.rglob("*") if file.is_file())
        assert (counts[-1].commits, counts[-1].recording) == (memory.info().snapshot, False)
    cold, warm = grown(*counts[:2]), grown(*counts[-2:])
    assert cold["queries"] == warm["queries"] == 3
    assert 0 < cold["read_bytes"] <= stored
    assert "read_bytes" not in warm
    assert cold["derived_made"] >= 1
    assert "derived_made" not in warm
    assert warm["derived_found"] >= 1
    assert cold["kept_bytes"] > 0
    assert "kept_bytes" not in warm


@pytest.mark.parametrize("name", ["int8", "numpy"])
def test_codes_are_of_backends_that_have_them(small_run, name):
    with dualform.open(small_run, backend=name) as memory:
        layer = memory.info().layers[0]
        for _ in range(3):
            memory.topk(layer.name, [[1.0] * layer.d_in], k=1)
        counts = memory.counts()
    # Of each file of keys, made by the first question and found by the two others.
    files = len(list(small_run.rglob(f"layers/{layer.name}/keys-*"))) if name == "int8" else 0
    assert (counts.codes_made, counts.codes_found) == (files, 2 * files)
    assert (counts.candidates >= 3) == (name == "int8")


def test_a_bound_is_said_as_it_was_given(small_run):
    with dualform.open(small_run, ram="3 GB") as memory:
        assert memory.counts().most_bytes == 3_000_000_000
    with dualform.open(small_run) as memory:
        assert memory.counts().most_bytes is None
