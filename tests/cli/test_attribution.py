"""dualform adjoint and dualform retrain: what the functions give, and errors without a traceback."""

from __future__ import annotations

import numpy as np
import pytest

import dualform as package

PROGRAM = """
import torch
from torch import nn

import dualform

torch.manual_seed(0)
x, y = torch.randn(20, 4), torch.arange(20) % 3
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def batches(step, samples):
    return x[samples], y[samples]


def attribution():
    return {"model": model, "queries": (x[:2] * 0.9, y[:2]), "loss": loss, "batches": batches}


def less():
    return {"model": model}


def record(path):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        for step in range(6):
            rows = (torch.arange(10) + 7 * step) % 20
            with recorder.step(sample=rows, label=y[rows], dataset="a"):
                optimizer.zero_grad()
                loss(model(x[rows]), y[rows]).mean().backward()
                optimizer.step()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attribution")
    (folder / "their_study.py").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        study = __import__("their_study")
        study.record(folder / "run")
        yield folder / "run", package.adjoint(folder / "run", **study.attribution())


def test_adjoint(dualform, recorded, tmp_path):
    run, expected = recorded
    told = dualform("adjoint", run, "--program", "their_study:attribution", "--estimate")
    assert told.out.startswith("2 queries through 6 updates in 1 pass: about ")
    told = dualform(
        "adjoint",
        run,
        "--program",
        "their_study:attribution",
        "-k",
        "3",
        "--name",
        "first",
        "--checkpoint",
        tmp_path / "file",
        "--json",
    )
    assert not (tmp_path / "file").exists()
    assert told.code == 0
    for query in (0, 1):
        best = np.argsort(-np.abs(expected.values[query]), kind="stable")[:3]
        listed = [row for row in told.json["samples"] if row["query"] == query]
        assert [row["sample"] for row in listed] == expected.samples[best].tolist()
        assert [row["value"] for row in listed] == pytest.approx(expected.values[query, best].tolist())
    assert told.json["queries"][1]["loss"] == pytest.approx(expected.losses[1])
    kept = dualform("sql", run, "SELECT count(*) AS rows FROM adjoints WHERE name = 'first'", "--json")
    assert kept.json["rows"] == [{"rows": expected.values.size}]
    table = dualform("adjoint", run, "--program", "their_study:attribution", "--by", "label")
    assert "a derivative, not a retraining" in table.out
    assert "predicted change of the query's loss" in table.err
    by_label = dualform("adjoint", run, "--program", "their_study:attribution", "--by", "label", "--json").json["sums"]
    assert [row["value"] for row in by_label] == pytest.approx(expected.sums("label").sums.ravel().tolist())


def test_retrain(dualform, recorded):
    run, expected = recorded
    asked = ["retrain", run, "--program", "their_study:attribution"]
    told = dualform(*asked, "--without", "label = 1", "--without", "sample IN (3, 4)", "--json")
    assert told.code == 0
    rows = told.json["retrainings"]
    assert [(row["set"], row["query"], row["left_out"]) for row in rows] == [(0, 0, 7), (0, 1, 7), (1, 0, 2), (1, 1, 2)]
    assert rows[3]["predicted"] == pytest.approx(expected.without([3, 4])[1])
    assert told.json["agreement"] is None
    random = dualform(*asked, "--random", "12", "--share", "0.1", "--json").json
    assert random["agreement"]["correlation"] > 0.9
    assert "retraining" in dualform(*asked, "--random", "12", "--share", "0.1").err


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("their_study", "'their_study' names no function."),
        ("nothing_there:attribution", "There is no module 'nothing_there'."),
        ("their_study:nothing", "their_study has no function 'nothing'."),
        ("their_study:less", "returned dict without queries, loss, batches"),
        ("their_study:record", "their_study:record failed"),
    ],
)
def test_programs_that_are_none(dualform, recorded, program, says):
    told = dualform("adjoint", recorded[0], "--program", program, "--json")
    assert told.code == 2
    assert says in told.json["error"]["message"]
