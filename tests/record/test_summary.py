"""What a recorder says: a table at the start, bytes after the first step, and loudly that it recorded nothing."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import RecordingError

from .listed import Opened


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 10))
    model[3].requires_grad_(False)
    return model


def train(recorder, model, optimizer, steps=1, rows=200):
    with recorder:
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
        "  AdamW: scores, outputs and weights can be asked, masked and as of every step\n"
        "dualform: 148 kB a step\n"
    )
    assert recorder.summary.layers == {"0": (40, 64), "4": (64, 10)}
    assert (recorder.summary.recorded, recorder.summary.trained) == (recorded, recorded + 128)
    assert str(recorder.summary).endswith("\n  148 kB a step")


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
        ({"values": False}, "scores and sums can be asked; outputs and weights would need values=True"),
        ({"keys": False}, "no keys are stored: a Rerun answers for scores and sums"),
    ],
)
def test_what_can_be_asked(tmp_path, arguments, answers):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert dualform.Recorder(model, optimizer, tmp_path / "m", **arguments).summary.answers == answers


def test_an_optimizer_without_a_rule_is_told_of_before_the_first_step(tmp_path, capsys):
    class Own(torch.optim.Optimizer):
        pass

    model = network()
    recorder = dualform.Recorder(model, Own(model.parameters(), {"lr": 0.1}), tmp_path / "m")
    with pytest.warns(RuntimeWarning, match="Nothing was recorded in"), recorder:
        pass
    told = capsys.readouterr().err
    assert "there is no update rule: attention weights are exact, outputs and weights cannot be rebuilt" in told


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


def test_a_run_without_a_step_is_told_of(tmp_path):
    model = network()
    recorder = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m", quiet=True)
    with (
        pytest.warns(RuntimeWarning, match=r"Nothing was recorded in .*: recorder\.step\(\) was never called\."),
        recorder,
    ):
        pass


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


def test_tied_weights_count_once(tmp_path):
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    model[1].weight = model[0].weight
    recorder = dualform.Recorder(model, torch.optim.AdamW(model.parameters()), tmp_path / "m")
    assert (recorder.summary.recorded, recorder.summary.trained) == (28, 28)
