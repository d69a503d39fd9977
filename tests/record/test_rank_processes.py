"""Data-parallel trainings whose ranks are real processes: uneven batches, micro-batches, clipping, a rank that dies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dualform
from dualform.record.setup.budget import disk_use
from dualform.store.layer import ROWS_OF_A_RANK
from dualform.store.maintenance.check import what_is_wrong
from dualform.store.reading.snapshot import Snapshot
from tests.cases import some

from .rank_trainings import STEPS, batch
from .sampled_training import drawn


def check_exact(memory):
    for name, reconstruction in memory.verify().items():
        assert reconstruction.exact, (name, reconstruction.reason)
        assert reconstruction.reconstruction_error <= 1e-5, name


def test_ranks_are_one_exact_memory(two):
    with dualform.open(two / "even") as memory:
        check_exact(memory)
        labels = [batch(rank, step, 6)[1] for step in range(STEPS) for rank in range(2)]
        columns = memory.slots(np.arange(STEPS * 2 * 6), "sample")
        assert columns["label"].tolist() == torch.cat(labels).tolist()
        assert columns["sample"].tolist() == [*range(6), *range(100, 106)] * STEPS
    factors = np.asarray(Snapshot.open(two / "even").table("factors")["factor"])
    np.testing.assert_allclose(factors, np.full(STEPS * 4, 1 / 2), rtol=1e-5)


@pytest.mark.parametrize("keep", ["samples", "steps"])
def test_ranks_keep_each_its_part_of_a_budget_by_lots_of_one_seed(two, keep):
    with dualform.open(two / f"budgeted-{keep}") as memory:
        told = memory.sql("SELECT step, share, slots, kept FROM shares").records()
        assert len(told) == 2 * STEPS  # those of the first rank come first
        share = {(number // STEPS, row["step"]): row["share"] for number, row in enumerate(told)}
        assert all(0.1 < own < 0.7 for own in share.values())
        expected, dropped = [], 0
        for step in range(STEPS):
            for rank in range(2):
                lots = [
                    drawn(3, step, *([rank * ROWS_OF_A_RANK + row] if keep == "samples" else [])) for row in range(600)
                ]
                stays = np.array(lots) < share[rank, step]
                expected.append(batch(rank, step, 600)[0].numpy()[stays])
                dropped += int((~stays).sum())
        np.testing.assert_array_equal(memory.keys("0"), np.concatenate(expected))
        assert dropped
        scan = memory.topk("0", np.ones((1, 5), np.float32)).scan
        assert scan.share == len(np.concatenate(expected)) / (2 * 600 * STEPS)
        assert "of which each process has its own rows by a share of its own" in memory.info().sampling
    assert disk_use(two / f"budgeted-{keep}") < 40 * 10**6
    assert not what_is_wrong(two / f"budgeted-{keep}")


def test_ranks_with_batches_of_different_sizes_are_one_exact_memory(two):
    with dualform.open(two / "uneven") as memory:
        check_exact(memory)
        rows = [batch(rank, step, 4 + rank + step % 3)[0] for step in range(STEPS) for rank in range(2)]
        np.testing.assert_array_equal(memory.keys("0"), torch.cat(rows).numpy())


@pytest.mark.parametrize(("name", "steps"), [("accumulated", STEPS), ("inside", STEPS // 2)])
def test_micro_batches_without_synchronisation_are_explained(two, name, steps):
    with dualform.open(two / name) as memory:
        check_exact(memory)
        assert memory.info().steps == steps
        assert memory.keys("0").shape == (STEPS * (4 + 5), 5)


def test_a_rank_with_fewer_batches_parts_and_the_first_explains_the_rest(two):
    with dualform.open(two / "fewer-1") as memory:
        check_exact(memory)
        assert memory.keys("0").shape == ((2 * STEPS - 3) * 6, 5)


def test_where_the_first_rank_has_fewer_batches_the_status_says_so(two):
    with dualform.open(two / "fewer-0") as memory:
        for reconstruction in some(memory.verify().values()):
            assert (reconstruction.status.name, reconstruction.status.since) == ("approximate", STEPS - 4)
            assert reconstruction.status.reason.startswith(
                "rank 0 ran out of batches before the others; the slots of one "
            )


def test_a_rank_that_is_killed_leaves_its_shard_to_its_last_commit(two):
    with dualform.open(two / "killed") as memory:
        info = memory.info()
        assert info.cut_off == ("the recording was cut off after step 3: shard-00001 did not come to its end.")
        assert info.steps == 4
        assert memory.keys("0").shape == (4 * 2 * 4, 5)
