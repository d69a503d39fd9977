"""The page over many slots: what it shows is what arithmetic on all keys, in float64, gives."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from benchmarks import oracle
from benchmarks.data import LAYER, GeneratedKeys, read, write_memory

import dualform
from tests.explorer.served import served
from tests.reliability import report, rounds

WIDTH, SHOWN, SEED = 64, 500, 0
_SLOT = re.compile(
    r'<li class="slot" data-slot="(\d+)".*?<span class="score"><data [^>]*data-value="([^"]+)"', flags=re.DOTALL
)


@pytest.mark.soak
def test_the_best_slots_of_a_page_are_those_of_a_brute_force(tmp_path: Path) -> None:
    slots, examples = rounds(4_000, 1_000_000), rounds(2, 20)
    source = GeneratedKeys(WIDTH, SEED)
    write_memory(tmp_path / "run", {LAYER: source}, slots, 10, examples)
    queries = source.queries(examples)
    (right,) = oracle.best(read(tmp_path / "run", queries).keys, queries, SHOWN)
    with served({"run": lambda: dualform.open(tmp_path / "run")}, deadline=600.0) as pages:
        for row in range(examples):
            page = pages.get(f"/explore?item=test/{row}&k={SHOWN}&inexact=yes&open=data,layers,training,record")
            assert page.status == 200
            shown = _SLOT.findall(page.text)
            ids = np.array([int(slot) for slot, _ in shown], dtype=np.int64)
            scores = np.array([float(score) for _, score in shown], dtype=np.float32)
            one = oracle.Best([right.slots[row]], [right.scores[row]], right.tolerance[row : row + 1])
            assert oracle.wrong_exactly(one, [ids], [scores]) == ""
    report(
        f"the {SHOWN} best of {slots:,} slots on a page, beside float64 sums over all keys",
        seed=SEED,
        count=examples,
        outcome="the same slots in the same order, each score to one unit of float32",
    )
