"""Models that fully_shard parts over ranks: each holds rows, and all of them measure together."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import distributed, nn

import dualform
from dualform.errors import BadInput, RecordingError
from dualform.record.recorder import Recorder
from tests.trainings import learn

from . import sharded_trainings
from .processes import launch
from .sharded_trainings import STEPS, WIDTH, batch, fully_shard, mesh_of, momentum, net


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
    assert torch.equal(torch.from_numpy(queries), batch(0, 0)[0])


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


def test_ranks_that_do_not_end_together_leave_no_final_weights(two):
    with dualform.open(two / "left") as memory:
        reconstruction = memory.verify()["0"]
        assert (reconstruction.status.name, reconstruction.reconstruction_error) == ("approximate", None)
        assert reconstruction.status.reason.startswith("rank 0 lost contact with the others: ")


def test_a_rank_may_hold_no_row(tmp_path):
    assert launch(sharded_trainings.few_rows, 4, tmp_path) == [0] * 4
    with dualform.open(tmp_path / "sharded-few") as memory:
        assert check(memory, 1e-5, STEPS * (4 + 5 + 6 + 7)) == {"exact"}


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
            x, y = batch(0, step)
            told = pytest.warns(RuntimeWarning, match="^only final values are stored of sharded parameters")
            with nullcontext() if step else told, recorder.step(label=y):
                learn(optimizer, nn.functional.cross_entropy(model(x), y))
    assert (recorder.summary.recorded, recorder.summary.trained) == (4663, 4729)
    with dualform.open(tmp_path / "m") as memory:
        assert check(memory, 1e-5, STEPS * 4) == {"exact"}
        with pytest.raises(BadInput, match=r"^The model is sharded, and this process holds only a part of its weight"):
            memory.queries(model, batch(0, 0)[0])
        with pytest.raises(BadInput, match=r"^The model is sharded"), memory.applied(model):
            pass
