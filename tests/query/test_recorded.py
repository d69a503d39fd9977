"""Questions to a memory that a recorder wrote: the whole path from a training to its answers."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import dualform
from dualform.errors import NotFound
from dualform.query.engine import Engine
from tests.query import arrays, oracle
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


def test_outputs_are_those_of_the_live_network(memory, trained):
    _, model, inputs, _ = trained
    hidden = model[1](model[0](inputs))
    np.testing.assert_allclose(memory.output("0", inputs.numpy()), model[0](inputs).detach(), atol=2e-5)
    np.testing.assert_allclose(memory.output("2", "test"), model[2](hidden).detach(), atol=2e-5)


def test_weights_are_those_of_every_step(memory, trained):
    _, _, _, states = trained
    for step in (0, 1, 13, STEPS):
        found = memory.weights(at_step=step)
        for name, value in states[step].items():
            np.testing.assert_allclose(found[name], value, atol=2e-6)
    network().load_state_dict(memory.weights("dataset = 'early'"))


def test_hits_and_sums_are_those_of_the_stored_keys(memory):
    ids = np.arange(STEPS * BATCH)
    keys = memory._view.snapshot.keys("2").of_entries(ids)
    columns = memory.slots(ids)
    queries = memory.query_set("test", layer="2").queries
    assert columns["slot"].tolist() == ids.tolist()
    where = "dataset <> 'late' AND label < 2"
    stays = [d != "late" and label < 2 for d, label in zip(columns["dataset"], columns["label"], strict=True)]
    exact = oracle.scores(keys, queries[7])
    left = np.flatnonzero(stays).tolist()
    hits = memory.topk("2", "test/7,3", k=5, where=where)
    assert hits.slots[0].tolist() == oracle.best(exact, left, 5)
    sums = memory.group_sum("2", "test/7", by=("dataset", "label"))
    assert sums.groups == tuple((d, label) for d in ("early", "late") for label in range(3))
    np.testing.assert_allclose(sums.sums.sum(), sum(exact), rtol=1e-9)
    assert memory.sql("SELECT dataset, count(*) AS n FROM slots GROUP BY dataset ORDER BY dataset").records() == [
        {"dataset": "early", "n": 80},
        {"dataset": "late", "n": 120},
    ]


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


def stored(seed: int, count: int, steps: int, order: np.ndarray, dense: bool) -> tuple[Engine, np.ndarray]:
    """Keys, values and labels drawn by the seed, in this order over so many steps; and queries."""
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((count, WIDTH)).astype(np.float32)
    values = rng.standard_normal((count, OUTPUTS)).astype(np.float32)
    labels, queries = rng.integers(0, 3, count), rng.standard_normal((QUERIES, WIDTH)).astype(np.float32)
    initial = {"l.weight": rng.standard_normal((OUTPUTS, WIDTH)), "l.bias": rng.standard_normal(OUTPUTS)}
    columns = {"step": np.arange(count) * steps // count, "label": labels[order], "dataset": ["d"] * count}
    made = arrays.memory(
        {"l": keys[order] if dense else keys},
        columns,
        values={"l": values[order]},
        rows_of_slots=None if dense else {"l": order},
        initial=initial,
        segment_rows=7,
    )
    return arrays.engine(made), queries


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(BEST, 60),
    steps=st.integers(1, 9),
    dense=st.booleans(),
    where=st.sampled_from([None, "label <> 1"]),
)
def test_a_shuffled_memory_answers_alike(seed: int, count: int, steps: int, dense: bool, where: str | None):
    order = np.random.default_rng(seed + 1).permutation(count)
    one, queries = stored(seed, count, steps, np.arange(count), dense)
    other, _ = stored(seed, count, steps, order, dense)
    if where and not (np.asarray(one.slots(np.arange(count))["label"]) != 1).any():
        return
    outputs = [np.asarray(each.output("l", queries, where=where)) for each in (one, other)]
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-6, atol=1e-6)
    for score in ("dot", "abs"):
        sums = [each.group_sum("l", queries, by="label", where=where, score=score) for each in (one, other)]
        assert sums[0].groups == sums[1].groups
        np.testing.assert_allclose(sums[1].sums, sums[0].sums, rtol=1e-6, atol=1e-6 if score == "abs" else 1e-12)
        hits = [each.topk("l", queries, k=BEST, where=where, score=score) for each in (one, other)]
        assert hits[1].flat_scores.tobytes() == hits[0].flat_scores.tobytes()
        # The pairs are drawn from a continuum: no two score the same, so that there is one ranking.
        for found, expected in zip(hits[1].slots, hits[0].slots, strict=True):
            assert order[found].tolist() == expected.tolist()
