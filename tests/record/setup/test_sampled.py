"""What is kept of a sampled training is what an unsampled recording has, of the samples whose lots are drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import dualform
from dualform.answers.table import percent
from dualform.deletion.delete import delete, planned_deletion
from dualform.errors import BadInput, Inexact
from dualform.record.setup.budget import Budget
from dualform.store.layer import Sampling
from dualform.store.maintenance.check import what_is_wrong
from dualform_client.cli.outputs import described
from tests.cases import some
from tests.record.listed import rows_of
from tests.record.resumed_training import ROWS as RESUMED_ROWS, Training
from tests.record.sampled_training import BUDGET, COLUMNS, ROWS, SEED, SHARES, STEPS, drawn, picked, record, scripted
from tests.trainings import record_steps


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
        told = some(rows_of(folder, "shares"))
        assert {row["step"]: row["share"] for row in told} == {n: s for n, s in enumerate(SHARES) if s < 1}
        for row in told:
            for own, count in ((whole, row["slots"]), (memory, row["kept"])):
                slots = own.slots(range(own.info().slots[row["space"]]), row["space"])
                assert np.count_nonzero(slots["step"] == row["step"]) == count


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
        assert {row["share"] for row in rows_of(tmp_path / "m", "shares")} == {0.0}
        assert memory.info().steps == 2


def test_samples_are_deleted_of_a_sample(tmp_path, monkeypatch):
    scripted(monkeypatch, *SHARES)
    record(tmp_path / "m", steps=3, budget=BUDGET, seed=SEED)  # of all of which the row is known
    with dualform.open(tmp_path / "m") as memory:
        shares = [share_of(memory, layer) for layer in memory.info().layers]
        assert min(shares) > 0.5
        before = memory.info().slots["sample"]
    for gone in ("sample = 2", "sample = 5"):
        delete(tmp_path / "m", gone)
    with dualform.open(tmp_path / "m") as memory:
        assert [share_of(memory, layer) for layer in memory.info().layers] == shares
        assert 0 < memory.info().slots["sample"] < before
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


def test_a_resumed_training_goes_on_with_the_share_it_had_and_the_lots_of_its_steps(tmp_path, monkeypatch):
    Training().run(tmp_path / "whole", 7)
    scripted(monkeypatch, 1.0, 1.0, 0.5)
    Training().run(tmp_path / "m", 5, (4,), tmp_path / "checkpoint", budget=BUDGET)
    monkeypatch.setattr(Budget, "share_of", lambda budget, slots, logs: budget.share)  # what it begins with
    again = Training()
    again.load(tmp_path / "checkpoint")
    again.run(tmp_path / "m", 7, budget=BUDGET, resume=True)
    with dualform.open(tmp_path / "m") as memory, dualform.open(tmp_path / "whole") as whole:
        entries = picked(whole, "sample", shares=(1.0, 1.0, *[0.5] * 5), seed=0)
        assert 2 * RESUMED_ROWS < len(entries) < 7 * RESUMED_ROWS
        assert memory.keys("0").tobytes() == whole.keys("0", entries).tobytes()
        assert memory.slots(range(len(entries)), "sample")["step"].tolist() == (
            whole.slots(entries, "sample")["step"].tolist()
        )
        assert memory.info().layers[0].status.since == 2
        assert memory.topk("0", np.ones((1, 5), np.float32)).scan.share == len(entries) / (7 * RESUMED_ROWS)
    with dualform.open([tmp_path / "whole", tmp_path / "m"]) as both:
        assert both.topk("0", np.ones((1, 5), np.float32)).scan.share == (7 * RESUMED_ROWS + len(entries)) / (
            14 * RESUMED_ROWS
        )
        assert "all of them before step 9" in both.info().sampling
        assert set(both.slots(range(both.info().slots["sample"]), "sample")["share"].tolist()) == {1.0, 0.5}
        assert both.topk("0", np.ones((1, 5), np.float32), where="share = 1").scan.slots_matching == 9 * RESUMED_ROWS


class Strip(nn.Module):
    """Images side by side in one map."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.maps = nn.Conv2d(1, 2, 1)

    def forward(self, x):
        return self.maps(x.permute(1, 2, 0)[None]).square().sum()


@pytest.mark.parametrize("keep", ["samples", "steps"])
def test_keys_of_several_samples_are_refused_at_the_first_step(tmp_path, keep):
    model = Strip()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = dualform.Recorder(
        model, optimizer, tmp_path / "m", quiet=True, budget=BUDGET, keep=keep, routed="maps", spaces={"maps": "pixel"}
    )

    def train():
        record_steps(
            recorder,
            optimizer,
            1,
            lambda _: model(torch.randn(3, 1, 4)),
            at={"pixel": {"row": torch.arange(3).repeat(4)}},
            label=torch.arange(3),
        )

    if keep == "steps":
        train()
        assert dualform.open(tmp_path / "m").info().slots == {"pixel": 12}
    else:
        with pytest.raises(BadInput, match=r"'maps' stores one key for several samples.*keep=\"steps\""):
            train()


def test_a_column_of_the_training_s_own_is_no_share(tmp_path):
    Training().run(tmp_path / "budgeted", 2, budget=BUDGET)
    training = Training()
    with training.recorder(tmp_path / "own") as recorder, recorder.step(share=0.5):
        training.model(torch.randn(3, 5)).square().sum().backward()
    with pytest.raises(BadInput, match=r"column 'share' was passed to step\(\) in .*own") as refused:
        dualform.open([tmp_path / "own", tmp_path / "budgeted"])
    assert "one by one" in refused.value.hint


@settings(deadline=None)
@given(st.integers(-(2**63), 2**64), st.integers(0, 2**40), st.lists(st.integers(-1, 2**50), max_size=5))
def test_lots_are_those_of_whole_numbers(seed, step, rows):
    given_rows = np.array(rows, np.int64)
    assert Sampling("samples", seed, 1).lots(step, given_rows).tolist() == [drawn(seed, step, row) for row in rows]
    assert Sampling("steps", seed, 1).lots(step, given_rows).tolist() == [drawn(seed, step)] * len(rows)


@pytest.mark.parametrize("axis", ["row", "step", "seed"])
def test_lots_are_as_good_as_chance_along_each_of_their_numbers(axis):
    count = 1 << 14
    if axis == "row":
        lots = Sampling("samples", 0, 1).lots(3, np.arange(count))
    else:
        lots = np.array([drawn(*((0, n, 3) if axis == "step" else (n, 0, 3))) for n in range(count)])
    edges = np.histogram(lots, 16, (0, 1))[0]
    assert ((edges - count / 16) ** 2 / (count / 16)).sum() < 40  # chi squared, 15 degrees: one in 2,000
    assert abs(np.corrcoef(lots[:-1], lots[1:])[0, 1]) < 4 / count**0.5
