"""A rerun answers as a memory that had stored the keys: the same ids, the same bits of every score and signed sum."""

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform import GroupSum, QuerySetExamples, TopK, Vectors
from dualform.query.sums import grouping, key_sums
from dualform.rerun import rerun
from tests.cases import some
from tests.trainings import take_steps

from .trained import Training

QUERIES = Vectors(np.random.default_rng(5).normal(size=(4, 7)))
QUESTIONS = [
    TopK("2", QUERIES, k=7),
    TopK("0", QuerySetExamples("test", (0, 1), (0, 0)), k=5, score="abs"),
    TopK("2", QuerySetExamples("test"), k=3, where="label <> 1 AND step >= 3"),
    TopK("2", QUERIES, k=2, by=("dataset", "label")),
    TopK("0", QuerySetExamples("test", (0,), (0,)), k=3, by=("position",), score="abs"),
    TopK("2", QUERIES, k=10**6, where="step = 1"),
    GroupSum("2", QUERIES, by=("dataset", "label")),
    GroupSum("0", QuerySetExamples("test"), by=("label",), where="dataset = 'odd'"),
    GroupSum("2", QUERIES, by=("position",)),
    GroupSum("0", QuerySetExamples("test", (2,), (0,)), by=("label",), score="abs"),
    GroupSum("2", Vectors(np.abs(QUERIES.rows)), by=("label",), score="abs"),
]
SAMPLES, TOKENS = Training(steps=12, rows=60, spread=60), Training(steps=8, rows=12, tokens=10, spread=60)
BLOCK = 256


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """In which sums are added up, so that windows begin within a short training; few hits wait to be ranked."""
    for module in (key_sums, rerun):
        monkeypatch.setattr(module, "BLOCK", BLOCK)
    monkeypatch.setattr(rerun, "_PENDING", 9)


@pytest.fixture(scope="module", params=[SAMPLES, TOKENS], ids=["samples", "tokens"])
def runs(request, tmp_path_factory):
    """An engine over the stored memory of a training, its folder without keys, and how to train again."""
    training, folder = request.param, tmp_path_factory.mktemp("runs")
    training.run(lambda model, optimizer: dualform.Recorder(model, optimizer, folder / "stored"))
    training.run(lambda model, optimizer: dualform.Recorder(model, optimizer, folder / "m", keys=False))
    return dualform.open(folder / "stored"), folder / "m", training


def reran(runs, questions, **options):
    _, path, training = runs
    return training.run(lambda model, optimizer: dualform.Rerun(model, optimizer, path, questions, **options)).answers()


def assert_same(found, stored):
    if isinstance(stored, dualform.Hits):
        assert np.array_equal(found.ids, stored.ids)
        assert found.flat_scores.tobytes() == stored.flat_scores.tobytes()
    else:
        assert found.sums.tobytes() == stored.sums.tobytes()
    assert np.array_equal(found.counts, stored.counts)
    assert (found.groups, found.by) == (stored.groups, stored.by)
    assert found.scan.slots_matching == stored.scan.slots_matching
    assert found.scan.slots_scanned == stored.scan.slots_scanned


@pytest.mark.parametrize("window_bytes", [1, 128 << 20], ids=["several windows", "one window"])
def test_every_question_has_the_stored_memorys_answer(runs, window_bytes):
    stored = runs[0]
    assert stored.info().slots[stored.info().layers[0].space] > 2 * BLOCK  # so that the smallest windows are three
    for question, found in zip(QUESTIONS, reran(runs, QUESTIONS, window_bytes=window_bytes), strict=True):
        expected = stored.ask(question)
        if isinstance(question, GroupSum) and question.score == "abs" and question.layer == "0":
            assert_near(found, expected)
        else:
            assert_same(found, expected)


def assert_near(found, stored):
    """Absolute sums, which a memory that has all keys at once takes from matrix products."""
    np.testing.assert_allclose(found.sums, stored.sums, rtol=1e-12)
    assert found.groups == stored.groups


def test_sums_of_many_groups_are_the_stored_memorys(runs, monkeypatch):
    monkeypatch.setattr(grouping, "BUDGET", 100)  # any grouping is one of many groups
    questions = [
        GroupSum("2", QUERIES, by=("sample", "label")),
        GroupSum("0", QuerySetExamples("test"), by=("sample",), where="label > 0", score="abs"),
    ]
    signed, absolute = reran(runs, questions, window_bytes=1)
    assert_same(signed, runs[0].ask(questions[0]))
    assert_near(absolute, runs[0].ask(questions[1]))


def test_questions_may_be_put_as_an_engine_takes_them(runs):
    hits, sums = reran(runs, [TopK("2", "test/3", k=4), GroupSum("2", QUERIES.rows[0], by="label")])
    assert_same(hits, runs[0].topk("2", "test/3", k=4))
    assert_same(sums, runs[0].group_sum("2", QUERIES.rows[0], by="label"))


class Last(nn.Module):
    """A recurrent layer's outputs, without its state."""

    def __init__(self, kind):
        super().__init__()
        self.inner = kind(5, 4, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0]


def words():
    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)), torch.randint(0, 9, (5, 6, 7)), "0"


def images():
    convolution = nn.Conv2d(2, 3, 3, padding=1)
    return nn.Sequential(convolution, nn.Flatten(2), nn.Linear(20, 3)), torch.randn(5, 6, 2, 4, 5), "0"


def gru():
    return nn.Sequential(Last(nn.GRU), nn.Linear(4, 3)), torch.randn(5, 6, 7, 5), "0.inner.gates"


@pytest.mark.parametrize("made", [words, images, gru])
def test_layers_of_other_kinds_have_the_stored_memorys_answers(made, tmp_path):
    def run(recorder):
        torch.manual_seed(0)
        model, batches, _ = made()
        optimizer = torch.optim.Adam(model.parameters())
        with recorder(model, optimizer) as recording:
            take_steps(recording, optimizer, batches, lambda x: model(x).square().sum(), sample=np.arange(6))
        return recording

    run(lambda *of: dualform.Recorder(*of, tmp_path / "stored"))
    run(lambda *of: dualform.Recorder(*of, tmp_path / "m", keys=False))
    layer = made()[2]
    with dualform.open(tmp_path / "stored") as stored:
        queries = np.abs(stored.keys(layer)[:3]) + np.float32(0.5)
        questions = [TopK(layer, queries, k=5), GroupSum(layer, queries, by=("position",))]
        answers = run(lambda *of: dualform.Rerun(*of, tmp_path / "m", questions)).answers()
        for question, found in some(zip(questions, answers, strict=True)):
            assert_same(found, stored.ask(question))
