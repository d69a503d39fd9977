"""Ranks that are real processes: data-parallel, and sharded by fully_shard, so that each holds rows of parameters."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import distributed, nn

import dualform
from dualform.errors import BadInput, RecordingError
from dualform.record.recorder import Recorder
from dualform.record.setup.budget import disk_use
from dualform.store.layer import ROWS_OF_A_RANK
from dualform.store.maintenance.check import what_is_wrong
from dualform.store.reading.snapshot import Snapshot
from tests.cases import some
from tests.record.listed import rows_of
from tests.record.rank_trainings import STEPS, batch
from tests.record.sampled_training import drawn
from tests.record.sharded_trainings import WIDTH, batch as sharded_batch, fully_shard, mesh_of, momentum, net
from tests.trainings import learn


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


def test_ranks_keep_each_its_part_of_a_budget_by_lots_of_one_seed(two):
    with dualform.open(two / "budgeted") as memory:
        told = rows_of(two / "budgeted", "shares")
        assert len(told) == 2 * STEPS  # those of the first rank come first
        share = {(number // STEPS, row["step"]): row["share"] for number, row in enumerate(told)}
        assert all(0.1 < own < 0.7 for own in share.values())
        expected, dropped = [], 0
        for step in range(STEPS):
            for rank in range(2):
                lots = [drawn(3, step, rank * ROWS_OF_A_RANK + row) for row in range(600)]
                stays = np.array(lots) < share[rank, step]
                expected.append(batch(rank, step, 600)[0].numpy()[stays])
                dropped += int((~stays).sum())
        np.testing.assert_array_equal(memory.keys("0"), np.concatenate(expected))
        assert dropped
        scan = memory.topk("0", np.ones((1, 5), np.float32)).scan
        assert scan.share == len(np.concatenate(expected)) / (2 * 600 * STEPS)
        assert "of which each process has its own rows by a share of its own" in memory.info().sampling
    assert disk_use(two / "budgeted") < 40 * 10**6
    assert not what_is_wrong(two / "budgeted")


def test_ranks_with_batches_of_different_sizes_are_one_exact_memory(two):
    with dualform.open(two / "uneven") as memory:
        check_exact(memory)
        rows = [batch(rank, step, 4 + rank + step % 3)[0] for step in range(STEPS) for rank in range(2)]
        np.testing.assert_array_equal(memory.keys("0"), torch.cat(rows).numpy())


def test_micro_batches_without_synchronisation_are_explained(two):
    with dualform.open(two / "accumulated") as memory:
        check_exact(memory)
        assert memory.info().steps == STEPS
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


def test_a_process_ends_though_it_never_left_its_recorder(two):
    """It is the first rank's, which came to its end."""
    with dualform.open(two / "never") as memory:
        assert memory.info().steps == 3
        assert "cut off" in memory.info().cut_off


def check(memory, most, rows):
    found = memory.verify()
    assert sorted(found) == ["0", "3"]
    for name, reconstruction in found.items():
        assert reconstruction.reconstruction_error <= most, (name, reconstruction)
    assert memory.keys("0").shape == (rows, WIDTH)
    return {reconstruction.status.name for reconstruction in found.values()}


@pytest.mark.parametrize("name", ["sharded-sgd", "sharded-adamw", "sharded-inside"])
def test_a_sharded_training_is_one_exact_memory(two, name):
    with dualform.open(two / name) as memory:
        assert check(memory, 1e-5, STEPS * (4 + 5)) == {"exact"}


def test_half_precision_is_graded_as_measured(two):
    with dualform.open(two / "sharded-half") as memory:
        assert check(memory, 2e-3, STEPS * (4 + 5)) == {"exact to bfloat16"}


def test_recording_changes_no_bit_and_the_final_weights_are_whole(two):
    recorded, other, unrecorded = (
        torch.load(two / f"{name}.pt") for name in ("sharded-adamw-0", "sharded-adamw-1", "unrecorded-0")
    )
    with dualform.open(two / "sharded-adamw") as memory:
        rebuilt, queries = memory.weights(), memory.query_set("test", "0").queries
        with pytest.warns(UserWarning, match="^not recorded, so they stand as at the end of the training: 1.bias"):
            assert torch.equal(memory.weights(at_step=2)["1.weight"], recorded["1.weight"])
    for name, tensor in recorded.items():
        assert torch.equal(tensor, unrecorded[name]), name
        assert torch.equal(tensor, other[name]), name
        torch.testing.assert_close(rebuilt[name], tensor, atol=1e-6, rtol=1e-5)
    assert torch.equal(torch.from_numpy(queries), sharded_batch(0, 0)[0])


def test_blocks_of_sharded_parameters_are_layers(two):
    with dualform.open(two / "sharded-tokens") as memory:
        found = memory.verify()
        parts = [f"attention.{part}" for part in ("q", "k", "v", "out_proj")]
        assert sorted(found) == sorted(["embedding", *parts, "convolution", "head"])
        for name, reconstruction in found.items():
            assert reconstruction.status.name == "exact", (name, reconstruction)
            assert reconstruction.reconstruction_error <= 1e-5, (name, reconstruction)
        assert memory.info().skipped == {
            "free": "it is sharded over processes, and products with what is put together of it are not seen",
            "states": "it is sharded over processes, and its error signals are computed from whole weights",
        }


def test_a_rank_may_hold_no_row(two):
    with dualform.open(two / "sharded-few") as memory:
        assert check(memory, 1e-5, STEPS * (4 + 5)) == {"exact"}


@pytest.fixture
def one_process():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def by_columns(model):
    from torch.distributed.tensor import Shard

    mesh = mesh_of(1)
    return fully_shard(model, mesh=mesh, shard_placement_fn=lambda own: Shard(own.dim() - 1))


def in_groups(model):
    return fully_shard(model, mesh=mesh_of(1, 1, mesh_dim_names=("copies", "rows")))


def tensor_parallel(model):
    from torch.distributed.tensor import distribute_module

    return distribute_module(model, mesh_of(1))


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (by_columns, "S(1) over a mesh of (1,)"),
        (in_groups, "R, S(0) over a mesh of (1, 1)"),
        (tensor_parallel, "R over a mesh of (1,)"),
    ],
)
def test_other_placements_are_refused_by_name(one_process, tmp_path, place, said):
    model = place(net())
    with pytest.raises(RecordingError) as caught:
        Recorder(model, momentum(model), tmp_path / "m")
    assert str(caught.value) == (
        f"'0.weight' is a DTensor placed as {said}. Record a model whose parameters are whole, or sharded by "
        f"fully_shard over one axis of ranks."
    )


ORDER = "Call fully_shard first, make the optimizer after it, and the recorder after both."


def test_an_optimizer_that_was_made_before_sharding_is_refused(one_process, tmp_path):
    model = net()
    optimizer = momentum(model)
    fully_shard(model, mesh=mesh_of(1))
    with pytest.raises(RecordingError) as caught:
        Recorder(model, optimizer, tmp_path / "m")
    assert (
        str(caught.value)
        == f"The optimizer was made before fully_shard, so it does not hold the model's tensors. {ORDER}"
    )


def test_a_recorder_that_was_made_before_sharding_is_refused(one_process, tmp_path):
    model = net()
    with Recorder(model, momentum(model), tmp_path / "m") as recorder:
        fully_shard(model, mesh=mesh_of(1))
        with pytest.raises(RecordingError) as caught, recorder.step():
            pass
    assert str(caught.value) == (f"the model was sharded after the recorder was made. {ORDER}")


def test_a_sharded_training_is_not_resumed(one_process, tmp_path):
    model = fully_shard(net(), mesh=mesh_of(1))
    with pytest.raises(RecordingError) as caught:
        Recorder(model, momentum(model), tmp_path / "m", resume=True)
    assert str(caught.value) == (
        "The training of a sharded model cannot be resumed in its memory. Record the rest of "
        "the training into another folder."
    )


def test_one_process_may_hold_all_rows(one_process, tmp_path):
    """And a parameter that fully_shard was told to leave alone is whole."""
    model = net()
    left = model[3].bias
    fully_shard(model, mesh=mesh_of(1), ignored_params={left})
    optimizer = momentum(model)
    with Recorder(model, optimizer, tmp_path / "m", quiet=True) as recorder:
        for step in range(STEPS):
            x, y = sharded_batch(0, step)
            told = pytest.warns(RuntimeWarning, match="^only final values are stored of sharded parameters")
            with nullcontext() if step else told, recorder.step(label=y):
                learn(optimizer, nn.functional.cross_entropy(model(x), y))
    assert (recorder.summary.recorded, recorder.summary.trained) == (4663, 4729)
    with dualform.open(tmp_path / "m") as memory:
        assert check(memory, 1e-5, STEPS * 4) == {"exact"}
        with pytest.raises(BadInput, match=r"^The model is sharded, and this process holds only a part of its weight"):
            memory.queries(model, sharded_batch(0, 0)[0])
        with pytest.raises(BadInput, match=r"^The model is sharded"), memory.applied(model):
            pass
