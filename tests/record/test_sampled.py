"""What is kept of a sampled training is what an unsampled recording of it has, of the samples whose lots are drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dualform
from dualform.answers.table import percent
from dualform.deletion.delete import delete, planned_deletion
from dualform.errors import Inexact
from dualform.record.setup.budget import Budget
from dualform.store.maintenance.check import what_is_wrong
from dualform_client.cli.outputs import described
from tests.record.sampled_training import (
    BUDGET,
    COLUMNS,
    ROWS,
    SEED,
    SHARES,
    STEPS,
    drawn,
    picked,
    record,
    scripted,
    view_of,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "m"
    record(folder)
    with dualform.open(folder) as memory:
        yield memory


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """A memory of some samples, and the trained model."""
    folder = tmp_path_factory.mktemp("samples") / "m"
    with pytest.MonkeyPatch.context() as monkeypatch:
        scripted(monkeypatch, *SHARES)
        model = record(folder, budget=BUDGET, seed=SEED)
    with dualform.open(folder) as memory:
        yield memory, model


@pytest.mark.parametrize("keep", ["samples", "steps"])
def test_what_is_kept_is_what_it_was_bit_by_bit(tmp_path, whole, samples, monkeypatch, keep):
    folder = samples[0].path
    if keep == "steps":
        folder = tmp_path / "m"
        scripted(monkeypatch, *SHARES)
        record(folder, budget=BUDGET, keep=keep, seed=SEED)
    with dualform.open(folder) as memory:
        info = memory.info()
        assert not what_is_wrong(folder)
        assert info.steps == STEPS
        assert len(info.slots) > 2
        for layer in info.layers:
            entries = picked(whole, layer.space, keep)
            assert 0 < len(entries) < whole.info().slots[layer.space]
            assert memory.keys(layer.name).tobytes() == whole.keys(layer.name, entries).tobytes(), layer.name
            assert memory.values(layer.name).tobytes() == whole.values(layer.name, entries).tobytes()
        for space in info.slots:
            entries = picked(whole, space, keep)
            columns, expected = memory.slots(range(info.slots[space]), space), whole.slots(entries, space)
            for name in (*COLUMNS, *(["token"] if space == "token" else [])):
                assert columns[name].tolist() == expected[name].tolist(), (space, name)
            assert columns["share"].tolist() == [SHARES[step] for step in columns["step"]]
        told = memory.sql("SELECT * FROM shares ORDER BY step, space").records()
        assert {row["step"]: row["share"] for row in told} == {n: s for n, s in enumerate(SHARES) if s < 1}
        for row in told:
            view = view_of(whole, row["space"])
            assert row["slots"] == whole.sql(f"SELECT count(*) AS n FROM {view} WHERE step = {row['step']}")["n"][0]
            own = view_of(memory, row["space"])
            assert row["kept"] == memory.sql(f"SELECT count(*) AS n FROM {own} WHERE step = {row['step']}")["n"][0]


def test_answers_stand_on_the_sample_and_say_so(whole, samples):
    memory, _ = samples
    queries = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    entries = picked(whole, "token")
    share = len(entries) / whole.info().slots["token"]
    hits = memory.topk("tokens", queries, k=4, where="label < 2")
    label = whole.slots(entries, "token")["label"]
    scores = whole.keys("tokens", entries).astype(np.float64) @ queries.T.astype(np.float64)
    scores[label >= 2] = -np.inf
    order = np.argsort(-scores, axis=0, kind="stable")[:4].T
    assert [own.tolist() for own in hits.slots] == order.tolist()
    np.testing.assert_allclose(np.stack(hits.scores), np.take_along_axis(scores.T, order, 1), rtol=1e-6)
    sums = memory.group_sum("tokens", queries, by="label")
    expected = [scores[label == own].sum(0) for (own,) in sums.groups if own < 2]
    np.testing.assert_allclose(sums.sums[:, :2], np.transpose(expected), rtol=1e-6)
    assert hits.scan.share == sums.scan.share == share
    assert hits.scan.sample == f"a sample of {100 * share:.3g} % of the slots of all steps, kept within a budget"
    said = memory.info().sampling
    assert said.startswith("A budget of 1,000,000,000 bytes a process keeps samples, each with all of its slots, by")
    assert f"{100 * share:.3g} % of the slots of token, all of them before step 2" in said
    assert whole.topk("tokens", queries).scan.share == 1
    assert not whole.info().sampling


def test_weights_are_exact_up_to_the_first_step_that_lacks_slots_and_refused_behind_it(whole, samples):
    memory, model = samples
    statuses = {layer.name: layer.status for layer in memory.info().layers}
    for name, status in statuses.items():
        assert (status.name, status.since) == ("approximate", 3 if name == "expert" else 2) or name == "expert"
        assert "a sample of" in status.reason
    early, expected = memory.weights(at_step=2), whole.weights(at_step=2)
    assert early.scan.share == 1
    assert memory.cancellation("label < 2", 2).scan.share == 1
    assert memory.output("tokens", np.ones((1, 5), np.float32), at_step=2).scan.share == 1
    assert {name: own.numpy().tobytes() for name, own in early.items()} == {
        name: own.numpy().tobytes() for name, own in expected.items()
    }
    assert all(status.exact for status in early.statuses.values())
    for at_step in (3, None):
        with pytest.raises(Inexact, match=r"kept within a budget.*at_step=2 or less") as refused:
            memory.weights(at_step=at_step)
        assert "allow_inexact=True" in refused.value.hint
    entries = picked(whole, "sample")
    column = whole.slots(entries, "sample")
    keys, values = (own("rows", entries).astype(np.float64) for own in (whole.keys, whole.values))
    early_ones = column["step"] < 5
    weigh = whole.coefficients("rows", np.array(entries)[early_ones], 5)
    initial = memory.weights(at_step=0)["rows.weight"].numpy()
    share_of_sum = initial + (values[early_ones] * weigh[:, None]).T @ keys[early_ones]
    found = memory.weights(at_step=5, allow_inexact=True)
    removed = memory.cancellation("label < 2", None, "tokens", allow_inexact=True)
    assert 0.1 < found.scan.share == removed.scan.share < 0.9
    assert f"These figures are computed from {removed.scan.sample}." in described(removed)[0]
    np.testing.assert_allclose(found["rows.weight"].numpy(), share_of_sum, atol=1e-6)
    assert "a sample of" in found.statuses["rows"].reason
    at_end = memory.weights(allow_inexact=True)  # what the others brought stands in it, like W_0
    np.testing.assert_allclose(at_end["rows.weight"].numpy(), model.rows.weight.detach().numpy(), atol=1e-6)
    assert at_end.unrecorded_change["rows"] > 0.1
    reconstruction = memory.verify()["rows"]
    assert not reconstruction.exact
    assert reconstruction.reconstruction_error > 0.1


def test_the_share_is_that_of_all_steps_whatever_step_an_answer_is_as_of_and_says_so(whole, samples):
    """As of every step behind the first that lacks slots, and the more of them were kept the earlier it is."""
    memory, query = samples[0], np.ones((1, 5), np.float32)
    kept, had = (np.asarray(own.slots(range(own.info().slots["token"]), "token")["step"]) for own in (memory, whole))
    share = len(kept) / len(had)
    until = [np.float64((kept < at_step).sum()) / (had < at_step).sum() for at_step in (3, 5, 6)]
    assert until[0] > until[1] > until[2] > share  # which no answer claims to say
    said = f"{percent(share)} of those of all steps, kept within a budget"
    for at_step in (3, 5, 6, None):
        found = memory.output("tokens", query, at_step=at_step, allow_inexact=True)
        assert found.scan.share == share
        assert found.scan.sample == f"a sample of {percent(share)} of the slots of all steps, kept within a budget"
        assert said in memory.weights(at_step=at_step, allow_inexact=True).statuses["tokens"].reason
    assert memory.output("tokens", query, at_step=2).scan.sample == ""


def test_a_rule_that_needs_every_slot_leaves_scores_behind_the_first_one_dropped(tmp_path, monkeypatch):
    scripted(monkeypatch, 1.0, 1.0, 0.5)
    record(tmp_path / "m", 4, budget=BUDGET, optimizer=lambda own: torch.optim.AdamW(own, lr=0.01))
    with dualform.open(tmp_path / "m") as memory:
        status = memory.info().layers[0].status
        assert status.name == "scores only"
        assert "from step 2 on, and AdamW's updates are made of all." in status.reason
        assert all(own.exact for own in memory.weights(at_step=2).statuses.values())
        with pytest.raises(Inexact, match="cannot be reconstructed"):
            memory.weights(allow_inexact=True)


def test_a_step_without_room_is_dropped_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(Budget, "fits", lambda budget, recorded: False)
    record(tmp_path / "m", steps=2, budget=BUDGET)
    with dualform.open(tmp_path / "m") as memory:
        assert set(memory.info().slots.values()) == {0}
        assert set(memory.sql("SELECT share FROM shares")["share"].tolist()) == {0.0}
        assert memory.info().steps == 2


def test_samples_are_deleted_of_a_sample(tmp_path, samples, monkeypatch):
    before = samples[0].sql("SELECT share, step FROM samples WHERE sample <> 2 AND step < 3 ORDER BY datapoint")
    scripted(monkeypatch, *SHARES)
    record(tmp_path / "m", steps=3, budget=BUDGET, seed=SEED)  # of all of which the row is known
    with dualform.open(tmp_path / "m") as memory:
        shares = [share_of(memory, layer) for layer in memory.info().layers]
        assert min(shares) > 0.5
    for gone in ("sample = 2", "sample = 5"):
        delete(tmp_path / "m", gone)
    with dualform.open(tmp_path / "m") as memory:
        assert [share_of(memory, layer) for layer in memory.info().layers] == shares
        after = memory.sql("SELECT share, step FROM samples ORDER BY datapoint")
        assert len(after.records()) < len(before.records())
        assert memory.info().layers[0].status.since == 2
        assert f"a sample of {percent(shares[0])} of those of all steps" in memory.info().layers[0].reason
    assert not what_is_wrong(tmp_path / "m")


def share_of(memory, layer):
    return memory.group_sum(layer.name, np.ones((1, layer.d_in), np.float32), by="step").scan.share


def test_a_step_whose_others_were_dropped_was_not_one_sample_s_alone(tmp_path, monkeypatch):
    kept = [row for row in range(ROWS) if drawn(SEED, 2, row) < 0.5]
    assert len(kept) > 1
    scripted(monkeypatch, 1.0, 1.0, 0.5)
    record(tmp_path / "m", steps=3, budget=BUDGET, seed=SEED)
    where = f"step = 2 AND sample IN ({', '.join(map(str, kept))})"
    assert planned_deletion(tmp_path / "m", where).alone == 0
    assert planned_deletion(tmp_path / "m", "step = 1").alone == 1


def test_hardly_less_than_all_is_not_said_to_be_all():
    assert [percent(share) for share in (1.0, 0.9999999, 0.9994, 0.5, 1e-5)] == [
        "100 %", "over 99.9 %", "99.9 %", "50 %", "0.001 %",
    ]  # fmt: skip
