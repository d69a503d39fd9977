"""What the section on memory makes of reports and of answers, and that it sees what a server holds."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from benchmarks import server_memory, words
from benchmarks.sections import memory
from torch import nn

import dualform
from dualform.errors import BadInput


def test_a_whole_runs_memory_is_what_its_report_says(tmp_path):
    row = memory._whole_run(tmp_path / "single")
    assert row.met is None
    assert row.ours.why_not == "no report beside the study says it: dualform study single --out single"
    (tmp_path / "single" / "report").mkdir(parents=True)
    (tmp_path / "single" / "report" / "report.json").write_text(json.dumps({"peak_bytes": 7_500_000_000}))
    row = memory._whole_run(tmp_path / "single")
    assert (row.ours.bytes, row.met, words.target_of(row)) == (7.5e9, False, "at most 6 GB")


def test_answers_are_compared_bit_by_bit():
    assert memory.same([np.zeros(2)], [np.zeros(2)])
    for other in ([-np.zeros(2)], [np.zeros(2, np.float32)], [np.zeros((1, 2))], [np.zeros(2)] * 2, []):
        assert not memory.same([np.zeros(2)], other)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what another process holds")
def test_a_server_is_watched_and_its_answers_are_compared(tmp_path):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True) as recorder, recorder.step(label=range(4)):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    query = np.ones((1, 8), np.float32)

    with dualform.open(tmp_path / "run") as engine:
        (layer,) = engine.info().layers

    def ask(asked):
        return [asked.topk(layer.name, query, k=2).ids]

    def refused(asked):
        raise BadInput("This query needs about 2 GB of RAM; the limit is 1 GB.")

    with dualform.open(tmp_path / "run") as engine:
        right = {"best": ask(engine), "refused": []}
    with (
        server_memory.served(tmp_path / "run", "--ram", "2 GB") as (address, process),
        server_memory.watched(process) as held,
    ):
        answered, never, wrong = memory._mix(address, {"best": ask, "refused": refused}, right, 0.5)
        other = memory._mix(address, {"best": ask}, {"best": [right["best"][0][::-1]]}, 0.1)
    assert answered > 0
    assert (never, wrong) == ({"refused"}, "")
    assert other[2] == "best is not what an engine without a bound answers"
    assert 10e6 < held.anonymous < held.resident < 2e9
