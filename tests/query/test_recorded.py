"""Questions to a memory that a recorder wrote: the whole path from a training to its answers."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import NotFound
from tests.trainings import learn

STEPS, BATCH, INPUTS = 25, 8, 40


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))


def train(path, watch=None):
    """Two data sets one after the other; returns the network's weights before each step and after the last."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    inputs = torch.randn(INPUTS, 12)
    labels = torch.arange(INPUTS) % 3
    states = []
    with dualform.Recorder(model, optimizer, path) as recorder:
        for step in range(STEPS):
            index = torch.randint(0, INPUTS, (BATCH,))
            states.append({name: value.clone() for name, value in model.state_dict().items()})
            dataset = "early" if step < 10 else "late"
            with recorder.step(dataset=dataset, label=labels[index], sample=index):
                loss = nn.functional.cross_entropy(model(inputs[index]), labels[index])
                learn(optimizer, loss, lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            if watch:
                watch(step, recorder)
        recorder.query_set("test", inputs, label=labels)
    states.append({name: value.clone() for name, value in model.state_dict().items()})
    return model, inputs, states


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "small"
    return path, *train(path)


@pytest.fixture(scope="module")
def memory(trained):
    with dualform.open(trained[0], backend="int8") as memory:
        yield memory


def test_info_says_what_there_is(memory):
    info = memory.info()
    assert (info.slots, info.steps, info.recording) == ({"sample": STEPS * BATCH}, STEPS, False)
    assert [(layer.name, layer.d_in, layer.d_out, layer.exact) for layer in info.layers] == [
        ("0", 12, 16, True),
        ("2", 16, 3, True),
    ]
    assert info.layers[0].distinct_keys <= INPUTS
    assert info.datasets == {"early": 10 * BATCH, "late": 15 * BATCH}
    assert info.columns["sample"]["label"] == "BIGINT"
    assert info.query_sets[0].rows == INPUTS


def test_slots_come_in_the_order_asked(memory):
    found = memory.slots([5, 3, 5])
    assert found["slot"].tolist() == [5, 3, 5]
    assert found.records()[1]["dataset"] == "early"
    with pytest.raises(NotFound, match="There is no slot with number 200"):
        memory.slots([0, 200])
    with pytest.raises(NotFound, match="There is no slot with number -1"):
        memory.slots([-1])
    with pytest.raises(NotFound, match="no space 'token'"):
        memory.slots([0], space="token")
    assert memory.slots([]).rows == 0


def test_a_reader_follows_a_training_that_is_still_running(tmp_path):
    seen = []

    def watch(step, recorder):
        if step == 4:
            recorder.flush()
            seen.append(dualform.open(tmp_path / "run"))
            assert seen[0].info().recording
            assert not seen[0].refresh()
            assert seen[0].topk("0", np.ones(12), k=1000).ids.size == 5 * BATCH

    model, _, _ = train(tmp_path / "run", watch)
    reader = seen[0]
    assert reader.topk("0", np.ones(12), k=1000).scan.slots_scanned == 5 * BATCH
    assert reader.sql("SELECT count(*) AS n FROM slots").records() == [{"n": 5 * BATCH}]
    assert reader.refresh()
    assert reader.topk("0", np.ones(12), k=1000).ids.size == STEPS * BATCH
    assert reader.sql("SELECT count(*) AS n FROM slots").records() == [{"n": STEPS * BATCH}]
    np.testing.assert_allclose(reader.weights()["0.weight"], model.state_dict()["0.weight"], atol=2e-6)
    reader.close()


def test_many_threads_get_the_answers_of_one(trained):
    def ask(memory):
        hits = memory.topk("2", "test", k=7, where="label <> 1", by="dataset")
        sums = memory.group_sum("0", "test", by="label", score="abs")
        return (
            hits.ids.tobytes(),
            hits.flat_scores.tobytes(),
            sums.sums.tobytes(),
            memory.output("2", "test").values.tobytes(),
        )

    with dualform.open(trained[0]) as alone:
        expected = ask(alone)
    found = []
    with dualform.open(trained[0]) as memory:
        threads = [threading.Thread(target=lambda: found.append(ask(memory))) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [expected] * 5


WIDTH, OUTPUTS, QUERIES, BEST = 5, 3, 4, 7
