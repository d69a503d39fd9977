"""estimate: a training by its module and name, and what is told of it."""

from __future__ import annotations

import pytest

TRAINING = """
import torch
from torch import nn

def train(record):
    print("the training's own words")
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model, optimizer) as recorder:
        for _ in range(5):
            with recorder.step():
                model(torch.ones(4, 3)).sum().backward()
                optimizer.step()

def failing(record):
    raise ZeroDivisionError("in my own code")

number = 1
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    (tmp_path / "a_training_of_mine.py").write_text(TRAINING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])


def test_it_tells_bytes_and_seconds(dualform):
    told = dualform(
        "estimate", "a_training_of_mine:train", "--steps", 100, "--samples", 4, "--trial-steps", 3, "--json"
    )
    assert told.code == 0
    assert told.json["slots"] == {"sample": 400}
    assert (told.json["steps"], told.json["tried"]) == (100, 3)
    assert told.json["ways"].keys() == {"stored", "float32", "bfloat16", "digests"}
    assert "the training's own words" in told.err


def test_it_prints_a_text_and_hands_on_its_options(dualform, monkeypatch, tmp_path):
    calls = []
    called = "dualform.costs.estimate.estimate"
    monkeypatch.setattr(called, lambda *of, **named: calls.append((of, named)) or "a table")
    asked = "estimate a_training_of_mine:train --steps 7 --layers a.* --layers b --budget 20GB --folder"
    told = dualform(*asked.split(), tmp_path)
    assert told.out == "a table\n"
    ((train, steps), named) = calls[0]
    assert (train.__name__, steps) == ("train", 7)
    assert named == {"samples": None, "layers": ("a.*", "b"), "tried": 20, "folder": tmp_path, "budget": "20GB"}


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ("a_training_of_mine:nothing", "a_training_of_mine has no function 'nothing'."),
        ("a_training_of_mine:number", "a_training_of_mine has no function 'number'."),
        ("a_training_of_mine", "'a_training_of_mine' names no function."),
        ("no.such.module:train", "There is no module 'no'."),
        ("no_such_file.py:train", "There is no file no_such_file.py."),
        ("a_training_of_mine:failing", "a_training_of_mine:failing raised ZeroDivisionError: in my own code"),
    ],
)
def test_what_cannot_be_run(dualform, training, message):
    told = dualform("estimate", training, "--steps", 100, "--json")
    assert (told.code, told.json["error"]["message"]) == (2, message)
