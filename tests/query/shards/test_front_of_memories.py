"""A front over memories that were cut off, recorded anew, or hold no keys."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

import dualform
from dualform.errors import NotFound, Unavailable
from dualform.query.engine import Engine
from dualform.query.score.backends import choose
from dualform.query.shards.engines import ShardEngine
from dualform.store.reading.runs import opened
from tests.query.shards.in_process import front_of
from tests.query.shards.memories import SIZES, queries, same, write
from tests.trainings import record_steps

pytestmark = pytest.mark.usefixtures("small_blocks")


def test_a_memory_that_was_cut_off_is_answered_up_to_the_step_that_all_shards_have(tmp_path):
    write(tmp_path / "memory", SIZES, finish=False)
    memory = opened(tmp_path / "memory")
    front, _ = front_of(memory)
    with Engine(memory, choose("numpy")) as one:
        assert one.info().recording
        for layer in ("plain", "repeated", "late"):
            same(*(engine.topk(layer, queries(layer), 9) for engine in (one, front)))
            same(*(engine.group_sum(layer, queries(layer), "label") for engine in (one, front)))
            same(*(engine.output(layer, queries(layer), allow_inexact=True) for engine in (one, front)))


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "in journals alone"])
def test_shards_of_a_memory_that_was_recorded_anew_are_not_merged_with_those_of_before(tmp_path, commit):
    write(tmp_path / "memory", SIZES, commit=commit)
    front, shards = front_of(tmp_path / "memory")
    front.topk("plain", queries("plain"))  # who has read its keys does not look into the files again
    shutil.rmtree(tmp_path / "memory")
    write(tmp_path / "memory", SIZES, seed=9, commit=commit)  # as many commits, frames and steps
    shards.engines[1] = ShardEngine(opened(tmp_path / "memory"), 1, choose("numpy"))
    with pytest.raises(Unavailable, match="moved on"):
        front.topk("plain", queries("plain"))
    assert front.refresh()
    with dualform.open(tmp_path / "memory", backend="numpy") as one:
        same(*(engine.topk("plain", queries("plain")) for engine in (one, front)))


def test_a_layer_without_keys_is_refused_as_by_one_engine(tmp_path):
    layer = torch.nn.Linear(6, 4)
    optimizer = torch.optim.SGD(layer.parameters())
    record_steps(
        dualform.Recorder(layer, optimizer, tmp_path / "memory", keys=False),
        optimizer,
        1,
        lambda _: layer(torch.ones(5, 6)).sum(),
        label=torch.arange(5),
    )
    front, _ = front_of(tmp_path / "memory")
    own = np.ones((1, 6), np.float32)
    for ask in (
        lambda: front.topk("", own),
        lambda: front.group_sum("", own, "label"),
        lambda: front.group_sum("", own, "label", score="abs"),
    ):
        with pytest.raises(NotFound, match="keys=False"):
            ask()
