"""check, delete and estimate."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

import dualform as library
from dualform.store.manifest import Manifest
from tests.damage import flip
from tests.deletion.test_rewrite import write
from tests.store.small_memory import batches_of


def test_a_recording_that_was_cut_off_is_said_to_be_so_and_is_sound(dualform, folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "run")
    manifest = Manifest.read(copy)
    replace(manifest, recording=True).write(copy)
    assert dualform("check", folder) == (0, "no problems\n", "")
    steps = dualform("info", folder, "--json").json["steps"]
    sentence = f"the recording was cut off after step {steps - 1}, or still runs."
    assert dualform("check", copy) == (0, f"{sentence}\nno problems\n", "")
    assert dualform("check", copy, "--json").json == {"problems": [], "cut_off": sentence}
    assert sentence in dualform("info", copy).out.splitlines()
    assert dualform("info", copy, "--json").json["cut_off"] == sentence
    assert dualform("info", folder, "--json").json["cut_off"] == ""


def test_check_finds_a_flipped_bit(dualform, folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "run")
    file = next(copy.rglob("keys-*.faiss"))
    flip(file)
    told = dualform("check", copy, "--json")
    assert told.code == 1
    assert len(told.json["problems"]) == 1
    assert file.name in told.json["problems"][0]
    assert dualform("check", copy).out.endswith("1 problem\n")


def test_it_says_what_it_does_before_it_does_it(dualform, tmp_path, monkeypatch):
    write(tmp_path / "run", batches_of([6, 6]))
    before = len(library.open(tmp_path / "run").keys("layer-1"))
    gone = int(
        (batches_of([6, 6])[1].samples["sample"] == 3).sum() + (batches_of([6, 6])[0].samples["sample"] == 3).sum()
    )
    monkeypatch.setattr("click.confirm", lambda *asked, **how: False)
    refused = dualform("delete", tmp_path / "run", "--where", "sample = 3")
    assert refused.code == 1
    assert "Nothing was deleted." in refused.err
    for sentence in (
        "with their keys, values and columns.",
        "is kept as one sum, as of the end",
        "norm.seen, norm.weight are kept up to step 1 and as of the end, 1 step later;",
        "This is not unlearning.",
        "so few that the sum spans their keys",
    ):
        assert sentence in refused.err
    assert len(library.open(tmp_path / "run").keys("layer-1")) == before
    done = dualform("delete", tmp_path / "run", "--where", "sample = 3", "--yes", "--json")
    assert done.code == 0
    assert done.json["samples"] == gone > 0
    assert done.json["summed"] == ["layer-0", "layer-1"]
    assert len(library.open(tmp_path / "run").keys("layer-1")) == before - gone
    assert "were deleted; what they brought stands as one sum" in dualform("info", tmp_path / "run").out
    again = dualform("delete", tmp_path / "run", "--where", "sample = 3", "--yes", "--json")
    assert again.code == 2
    assert again.json["error"]["code"] == "empty_mask"


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
    class Told(str):
        to_json = dict

    calls = []
    called = "dualform.costs.estimate.estimate"
    monkeypatch.setattr(called, lambda *of, **named: calls.append((of, named)) or Told("a table"))
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
