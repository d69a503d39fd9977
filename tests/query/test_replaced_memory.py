"""Another memory in the folder of one that is open: nothing that was held of the first answers for the second."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import dualform
from dualform import kernels
from tests.store.small_memory import batches_of, open_writer, write

SIZES = [40, 50, 60, 30]
QUERY = np.ones((1, 5), dtype=np.float32)
INT8 = pytest.param("int8", marks=pytest.mark.skipif(kernels.library() is None, reason="the loops are not compiled"))


def answers(memory):
    best = memory.topk("layer-1", QUERY, k=2)
    sums = memory.group_sum("layer-1", QUERY, by="dataset").sums.tolist()
    rows = memory.keys("layer-1").tolist(), memory.values("layer-1").tolist()
    return best.ids.tolist(), best.flat_scores.tolist(), sums, rows


@pytest.mark.parametrize("committed", [True, False], ids=["segments", "journal"])
@pytest.mark.parametrize("backend", [INT8, "numpy"])
def test_a_refresh_holds_nothing_of_the_memory_before(tmp_path, backend, committed):
    folder = tmp_path / "run"
    for seed, place in enumerate((folder, tmp_path / "other")):
        if committed:
            write(place, SIZES, seed)
        else:
            writer = open_writer(place, journal_seconds=0.0)
            for batch in batches_of(SIZES, seed):
                writer.append(batch)
            writer.abandon()
    memory = dualform.open(folder, backend=backend)
    before = answers(memory)
    shutil.rmtree(folder)
    (tmp_path / "other").rename(folder)
    assert memory.refresh()
    expected = answers(dualform.open(folder, backend=backend))
    assert answers(memory) == expected != before
