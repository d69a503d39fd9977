"""What a recorder says: a table at the start, bytes after the first step, and loudly that it recorded nothing."""

from __future__ import annotations

import sys
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import RecordingError
from dualform.record.setup import summary
from tests.record.listed import Opened


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 10))
    model[3].requires_grad_(False)
    return model


def train(recorder, model, optimizer, steps=1, rows=200):
    with recorder:
        train_inside(recorder, model, optimizer, steps, rows)


def train_inside(recorder, model, optimizer, steps, rows=200):
    for _ in range(steps):
        with recorder.step(label=torch.randint(0, 10, (rows,))):
            optimizer.zero_grad()
            model(torch.randn(rows, 40)).square().mean().backward()
            optimizer.step()


def test_the_table_and_what_the_first_step_takes(tmp_path, capsys):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    recorder = dualform.Recorder(model, optimizer, tmp_path / "m")
    train(recorder, model, optimizer, steps=2)
    recorded = 41 * 64 + 65 * 10
    assert capsys.readouterr().err == (
        f"dualform records {recorded:,} of {recorded + 128:,} trained numbers (96.2%) in {tmp_path / 'm'}\n"
        "  recorded  0  40 -> 64\n"
        "            4  64 -> 10\n"
        "  skipped   1: not a matrix product (LayerNorm)\n"
        "            3: its weight is frozen\n"
        "  AdamW: scores, outputs and weights, also with filters and as of every step\n"
        "dualform: 148 kB a step\n"
    )
    assert recorder.summary.layers == {"0": (40, 64), "4": (64, 10)}
    assert (recorder.summary.recorded, recorder.summary.trained) == (recorded, recorded + 128)
    assert str(recorder.summary).endswith("\n  148 kB a step")


GB = 10**9

WARNING = "the disk may not hold the memory: "


@pytest.fixture
def disk(monkeypatch):
    """A disk with so much space: `disk(bytes)`, None where it does not tell."""

    def has(free):
        def disk_usage(folder):
            if free is None:
                raise PermissionError
            return SimpleNamespace(free=free)

        monkeypatch.setattr(summary.shutil, "disk_usage", disk_usage)

    return has


@pytest.fixture
def clock(monkeypatch):
    """Each step takes 25 seconds: a run of four is longer than a minute."""
    monkeypatch.setattr(summary, "monotonic", count(0, 25).__next__)


def told_of(tmp_path, capsys, run, **options):
    """What is said below the table of so many steps."""
    model = network()
    recorder = dualform.Recorder(model, torch.optim.AdamW(model.parameters()), tmp_path / "m", **options)
    train(recorder, model, recorder._controller.plan.owners.optimizers[0], run)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("dualform: ")]


@pytest.mark.parametrize("quiet", [False, True])
def test_a_run_that_the_disk_will_not_hold_is_warned_of_once(tmp_path, capsys, disk, clock, quiet):
    disk(35_000_000)
    with pytest.warns(RuntimeWarning, match=f"{WARNING}240 steps take about 35.5 MB, and 35 MB is free") as warned:
        told = told_of(tmp_path, capsys, 6, steps=240, quiet=quiet)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert told == ([] if quiet else ["dualform: 148 kB a step; 35.5 MB for 240 steps; 35 MB free on the disk"])


def test_a_run_of_unknown_length_is_told_of_after_a_minute(tmp_path, capsys, disk, clock):
    disk(31 * GB)
    assert told_of(tmp_path, capsys, 8) == [
        "dualform: 148 kB a step",
        "dualform: 148 kB a step; 591 kB for 4 steps so far; 31 GB free on the disk, enough for 209,867 more steps",
    ]


def test_it_is_warned_of_once_where_the_disk_is_full_within_an_hour(tmp_path, capsys, disk, clock):
    disk(10 * 148_000)
    with pytest.warns(
        RuntimeWarning, match=rf"{WARNING}at 5\.\d\d kB a second, 1\.48 MB last about 4 minutes"
    ) as warned:
        told_of(tmp_path, capsys, 8)
    assert len(warned) == 1


def test_a_disk_that_does_not_tell_its_space_is_no_reason_to_warn(tmp_path, capsys, disk, clock):
    disk(None)
    assert told_of(tmp_path, capsys, 6)[-1] == "dualform: 148 kB a step; 591 kB for 4 steps so far"


def test_a_budget_bounds_what_a_run_takes(tmp_path, capsys, disk):
    disk(60_000_000)
    said = told_of(tmp_path, capsys, 2, steps=1000, budget="50 MB")
    assert said == ["dualform: 148 kB a step; 50 MB for 1,000 steps; 60 MB free on the disk"]


def test_a_resumed_run_is_told_of_its_own_steps(tmp_path, capsys, disk):
    disk(31 * GB)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for done in (0, 3):
        recorder = dualform.Recorder(model, optimizer, tmp_path / "m", resume=True, steps=240)
        with recorder:
            train_inside(recorder, model, optimizer, 3)
            recorder.flush()
        assert f"for {240 - done} steps; 31 GB free" in capsys.readouterr().err


def on_disk(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_bytes_a_step_are_those_on_disk(tmp_path):
    taken = {}
    for steps in (10, 60):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        recorder = dualform.Recorder(model, optimizer, tmp_path / str(steps), quiet=True)
        train(recorder, model, optimizer, steps)
        taken[steps] = on_disk(tmp_path / str(steps))
    assert recorder.summary.bytes_a_step == pytest.approx((taken[60] - taken[10]) / 50, rel=0.05)


def test_layers_of_a_kind_share_a_line(tmp_path):
    model = nn.Sequential(
        *(nn.ModuleDict({"up": nn.Linear(4, 4), "norm": nn.LayerNorm(4)}) for _ in range(12)), nn.Linear(4, 2)
    )
    summary = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m").summary
    assert summary.bytes_a_step is None
    assert len(summary.layers) == 13
    assert str(summary).splitlines()[1:4] == [
        "  recorded  *.up (12)  4 -> 4",
        "            12         4 -> 2",
        "  skipped   *.norm (12): not a matrix product (LayerNorm)",
    ]


@pytest.mark.parametrize(
    ("arguments", "answers"),
    [
        ({"values": False}, "scores and sums; outputs and weights would need values=True"),
        ({"keys": False}, "no keys are stored: answer scores and sums with dualform.Rerun"),
    ],
)
def test_what_can_be_asked(tmp_path, arguments, answers):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert dualform.Recorder(model, optimizer, tmp_path / "m", **arguments).summary.answers == answers


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_quiet(tmp_path, capsys, monkeypatch, way):
    if way == "environment":
        monkeypatch.setenv("DUALFORM_QUIET", "1")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(dualform.Recorder(model, optimizer, tmp_path / "m", quiet=way == "argument"), model, optimizer)
    assert capsys.readouterr().err == ""


def test_no_training_ends_where_nobody_can_be_told(tmp_path, monkeypatch):
    class Broken:
        def write(self, text):
            raise BrokenPipeError

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, stream in enumerate((Broken(), None)):
        monkeypatch.setattr(sys, "stderr", stream)
        recorder = dualform.Recorder(model, optimizer, tmp_path / f"m{number}")
        train(recorder, model, optimizer)
        assert recorder.steps == 1


def test_a_run_whose_steps_came_to_nothing_says_why_of_each_layer(tmp_path):
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.other = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x):
            return self.used(x)

    model = Heads()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")

    def training():
        with opened.recorder:
            with pytest.raises(ZeroDivisionError), opened.recorder.step():
                1 / 0  # noqa: B018
            with opened.recorder.step():
                model(torch.full((3, 4), float("nan"))).sum().backward()

    with pytest.warns(
        RuntimeWarning, match="used: every step that reached it failed, or held NaN .*; other: it was not"
    ):
        training()


def test_an_error_is_not_followed_by_another(tmp_path, recwarn):
    model = network()
    recorder = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    model(torch.randn(3, 40)).sum().backward()
    with pytest.raises(RecordingError), recorder, recorder.step():
        pass
    assert not recwarn.list
