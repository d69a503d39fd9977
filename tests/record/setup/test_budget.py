"""A budget: what is kept of a training that would take more, and that no more is ever taken."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import BadInput, Inexact
from dualform.record.setup.budget import Budget, BudgetPlan, Bytes, disk_use, held_back
from dualform.store import shard
from dualform.store.files.ram_budget import bytes_of
from dualform.store.manifest import Manifest
from dualform.store.reading.runs import opened
from tests.record.listed import rows_of
from tests.trainings import learn, record_steps, take_steps

MB = 10**6

sizes = st.integers(0, 3 * MB)

a_step = st.tuples(sizes, sizes, st.integers(0, MB // 10), st.integers(0, MB // 10), st.floats(0, 1))


class Disk:
    """Rows take what they are, tables up to twice that, and until a commit is over both their journal as well."""

    def __init__(self, begun):
        self.durable, self.pending = begun, []

    def commit(self):
        self.durable += sum(b.rows + 2 * b.tables for b in self.pending)
        self.pending = []
        return self.durable

    @property
    def most(self):
        return self.durable + sum(2 * b.rows + 4 * b.tables for b in self.pending)


@settings(max_examples=20, deadline=None)
@given(
    limit=st.integers(20 * MB, 60 * MB),
    planned=st.none() | st.integers(1, 60),
    steps=st.lists(a_step, max_size=60),
    flushes=st.sets(st.integers(0, 60)),
    others=st.integers(0, MB),
)
def test_a_budget_is_never_exceeded_whatever_the_steps_are(limit, planned, steps, flushes, others):
    disk = Disk(MB)
    budget = Budget(limit, disk.commit, MB, planned, 1.0, others)
    shares, kept_others = [1.0], [others > 0]
    for number, (rows, tables, other_rows, logged, drawn) in enumerate(steps):
        if budget.used_up:
            break
        slots, logs = Bytes(rows, tables), Bytes(tables=logged)
        taken = Bytes(other_rows * budget.keeps_others)
        shares.append(budget.share_of(slots, logs))
        kept_others.append(budget.keeps_others)
        kept = Bytes(int(rows * drawn), int(tables * drawn))  # by the worst of lots
        brought = kept + taken + logs
        slots_fit, others_fit = budget.admits(kept + logs, taken)
        if not others_fit:
            brought = kept + logs if slots_fit else logs
        budget.charge(brought, brought.rows - kept.rows if brought.rows > kept.rows else 0)
        disk.pending.append(brought)
        if number in flushes:
            budget.measure()
        if number:  # there may be no room for the first step at all, which is said when the second one begins
            assert disk.most <= limit - held_back(limit) - MB
    assert not any(after and not before for before, after in pairwise(kept_others))
    halvings = [np.log2(before / after) for before, after in pairwise(shares[1:])]
    assert all(count >= 0 and count == int(count) for count in halvings)


def test_a_planned_training_fills_its_budget():
    limit, slots, logs = 2000 * MB, Bytes(MB, 10_000), Bytes(0, 1000)
    disk = Disk(MB)
    budget = Budget(limit, disk.commit, MB, 10_000, 1.0)
    for step in range(10_000):
        share = budget.share_of(slots, logs)
        brought = Bytes(int(slots.rows * share), int(slots.tables * share)) + logs
        assert budget.fits(brought)
        budget.charge(brought)
        disk.pending.append(brought)
        assert share == pytest.approx(0.17, rel=0.1), step
    assert disk.commit() > 0.85 * limit


def test_a_plan_whose_logs_alone_do_not_fit_is_told_and_keeps_slots_until_then(tmp_path):
    model = network()
    optimizer = sgd(model)
    recorder = dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True, budget=20 * MB, steps=100_000)
    said = r"is too small for the logs of 100,000 steps: recording ends after about \d"

    def train():
        with recorder:
            for _ in range(3):
                with recorder.step():
                    model(torch.ones(4, 8)).sum().backward()
                    optimizer.step()

    with pytest.warns(RuntimeWarning, match=said) as told:
        train()
    assert len(told) == 1
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().slots == {"sample": 12}


@pytest.mark.parametrize(
    ("said", "meant"), [(5, 5), ("5 B", 5), ("2 GB", 2 * 10**9), ("1.5kb", 1500), ("3MiB", 3 << 20)]
)
def test_bytes_are_read(said, meant):
    assert bytes_of(said) == meant


@pytest.mark.parametrize("said", [0, True, 1.5, "5", "GB", "5 furlongs", "-5 GB", None])
def test_no_bytes_are_refused(said):
    with pytest.raises(BadInput, match=r"^budget must be "):
        bytes_of(said)


def network(width=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, 3))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"budget": "1 MB"}, "budget"),
        ({"budget": "all"}, "budget"),
        ({"budget": "1 GB", "keep": "rows"}, "keep"),
        ({"budget": "1 GB", "steps": 0}, "steps"),
        ({"steps": 0}, "steps"),
        ({"budget": "1 GB", "keys": False}, "budget"),
        ({"budget": "1 GB", "sink": lambda header: None}, "budget"),
    ],
)
def test_what_cannot_be_held_is_refused_before_the_training(tmp_path, options, field):
    model = network()
    with pytest.raises(BadInput) as refused:
        dualform.Recorder(model, sgd(model), tmp_path / "m", quiet=True, **options)
    assert refused.value.field == field
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("field", "said"),
    [
        *(("seed", own) for own in (0.9, "3", True, 2**64, -(2**63) - 1)),
        *(("steps", own) for own in (0, 2.5, float("inf"))),
    ],
)
def test_what_is_no_whole_number_is_refused_as_it_was_said(tmp_path, field, said):
    model = network()
    with pytest.raises(BadInput, match=re.escape(f"not {said!r}.")) as refused:
        dualform.Recorder(model, sgd(model), tmp_path / "m", quiet=True, budget="1 GB", **{field: said})
    assert refused.value.field == field
    assert refused.value.message.startswith(f"{field} must be a whole number")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("seed", [-(2**63), 2**64 - 1, np.uint64(2**64 - 1), np.int32(-3)])
def test_every_whole_number_of_64_bits_is_a_seed(tmp_path, seed):
    plan = BudgetPlan.of("1 GB", "samples", np.int64(5), seed, tmp_path, None)
    assert (plan.rule.seed, plan.steps) == (int(seed), 5)
    assert type(plan.rule.seed) is type(plan.steps) is int


def test_a_real_recording_stays_within_it_to_its_last_byte(tmp_path, monkeypatch):
    """Files are looked at before and after each transaction and manifest, with the journal that they replace."""
    limit, taken = 24 * MB, []

    def watched(whole):
        def look(*arguments, **named):
            taken.append(disk_use(tmp_path / "m"))
            found = whole(*arguments, **named)
            taken.append(disk_use(tmp_path / "m"))
            return found

        return look

    monkeypatch.setattr(shard, "append", watched(shard.append))
    monkeypatch.setattr(Manifest, "write", watched(Manifest.write))
    model = network(400)
    optimizer = sgd(model)
    generator = torch.Generator().manual_seed(0)
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True, budget=limit) as recorder:
        for step in range(18):
            x = torch.randn(512, 400, generator=generator)  # 0.8 MB
            y = torch.randint(3, (512,), generator=generator)
            with recorder.step(label=y):
                loss = cross_entropy(model(x), y)
                learn(optimizer, loss)
            if not step:
                recorder.query_set("test", torch.randn(5, 400))
        with pytest.raises(BadInput, match=r"query set 'large' takes 16\.4 MB, but only .* of the budget is left\."):
            recorder.query_set("large", torch.randn(10_000, 400))
    assert max(taken) <= limit
    assert disk_use(tmp_path / "m") <= limit
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == 18
        shares = [row["share"] for row in rows_of(tmp_path / "m", "shares")]
        assert 0.1 < shares[0] <= 0.5
        assert shares == sorted(shares, reverse=True)
        assert 0.001 < shares[-1] < shares[0]
        whole = (1 / memory.slots(range(memory.info().slots["sample"]))["share"]).sum()
        assert whole == pytest.approx(18 * 512, rel=0.25)
        assert set(memory.info().query_sets[0].layers) == {"0", "2"}


def test_a_budget_that_logs_alone_use_up_ends_the_recording_not_the_training(tmp_path):
    model = nn.ModuleDict({f"part {number}": nn.Linear(4, 4) for number in range(40)})
    optimizer, budget, trained = sgd(model), 15 * MB, []

    def train():
        with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True, budget=budget) as recorder:
            for step in range(60):
                with recorder.step():
                    loss = sum(part(torch.ones(2, 4)).square().sum() for part in model.values())
                    learn(optimizer, loss)
                trained.append(step)

    with pytest.warns(RuntimeWarning, match=r"recording stopped after .* the budget of 15 MB is used up"):
        train()
    assert len(trained) == 60
    assert disk_use(tmp_path / "m") <= budget
    with dualform.open(tmp_path / "m") as memory:
        assert 0 < memory.info().steps < 60
        assert "cut off" in memory.info().cut_off


def test_what_earlier_runs_and_the_optimizer_take_is_part_of_it(tmp_path):
    """A training that is stopped and resumed again and again adds a run each time; buffers are stored once a run."""
    model = torch.nn.Linear(1200, 1200)
    optimizer = torch.optim.Adam(model.parameters())
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "cold", budget="32 MB", quiet=True),
        optimizer,
        1,
        lambda _: model(torch.ones(1, 1200)).sum(),
        label=[0],
    )
    with pytest.raises(BadInput, match="is too small: weights, optimizer state, tables and earlier runs take"):
        dualform.Recorder(model, optimizer, tmp_path / "warm", budget="32 MB", quiet=True)
    budget = disk_use(tmp_path / "cold") + 15 * MB
    with pytest.raises(BadInput, match="is too small: weights, optimizer state, tables and earlier runs take"):
        dualform.Recorder(model, sgd(model), tmp_path / "cold", budget=budget, resume=True, quiet=True)


class Scaled(nn.Module):
    """A layer beside a parameter of no layer, 1 MiB of it, of which a row is kept at each step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.scale, self.layer = nn.Parameter(torch.ones(1 << 18)), nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x * self.scale[:4]) + self.scale[4:7]


@pytest.mark.parametrize("planned", [None, 60])
def test_parameters_of_no_layer_are_dropped_before_any_slot(tmp_path, planned):
    model, limit, steps = Scaled(), 40 * MB, 60
    optimizer = sgd(model)
    recorder = dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True, budget=limit, steps=planned)
    with recorder:
        take_steps(recorder, optimizer, steps, lambda step: model(torch.full((2, 4), step / steps)).square().sum())
    assert disk_use(tmp_path / "m") <= limit
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == steps
        assert not memory.info().cut_off
        assert memory.topk("layer", np.ones((1, 4), np.float32)).scan.share == 1
        assert memory.verify()["layer"].exact
        last = memory.weights()["scale"].numpy()
        assert last.tobytes() == model.scale.detach().numpy().tobytes()
        kept = opened(tmp_path / "m").others.moments
        assert kept == list(range(1, 1 + len(kept)))
        assert 5 < len(kept) < 30 if planned is None else not kept
        with pytest.raises(Inexact, match=f"are unknown at step {steps - 1}: scale"):
            memory.weights(at_step=steps - 1)
        assert all(status.exact for status in memory.weights(at_step=len(kept)).statuses.values())


def test_a_query_set_that_would_leave_no_room_for_a_step_is_refused(tmp_path):
    model = network()
    optimizer = sgd(model)
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True, budget=16 * MB) as recorder:
        for step in range(4):
            with recorder.step(label=torch.zeros(4, dtype=torch.int64)):
                learn(optimizer, model(torch.ones(4, 8)).sum())
            if step == 2:
                recorder.flush()
                budget = recorder._controller.session.writer._sampler._budget
                room = budget.left - (budget.left - budget.spare) // 2  # with it, half of a step's logs would be left
                with pytest.raises(BadInput, match="of the budget is left"):
                    recorder.query_set("large", torch.ones((room - 3 * 8192) // (4 * (8 + 6 + 3)), 8))
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == 4
