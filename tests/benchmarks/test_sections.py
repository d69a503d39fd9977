"""What sections make of seconds, of answers and of reports, where no small run shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import processes, recording, serving, values
from benchmarks.data import read_memory
from benchmarks.harness import Section
from benchmarks.search import steepest
from torch import nn

import dualform
from dualform.errors import BadInput
from tests.contract.recorded import record

SECONDS = {"unrecorded": (10.0, 20.0, 10.0), "values": (15.0, 24.0, 14.0), "keys": (11.0, 21.0, 10.0)}
"""Of three repeats, of which a busy machine slowed the second."""


def test_ratios_are_of_repeats_and_tell_their_spread(monkeypatch):
    monkeypatch.setattr(recording, "cores", lambda: 2)
    found = [
        {kind: {"seconds": times[repeat], "steps": 100.0} for kind, times in SECONDS.items()} for repeat in range(3)
    ]
    section = Section("recording", "Recording")
    recording.compare_trainings(section, {4: [dict.fromkeys(("study", "gpt", "toy", "mlp"), one) for one in found]})
    rows = {row.question: row for row in section.rows}
    values = rows["training, keys and values recorded, 100 steps, 4 threads on 2 cores"]
    assert (values.ratio, *values.ratios) == pytest.approx((1.4, 1.2, 1.5))
    assert (values.ours.seconds, values.ours.best, values.ours.worst) == (15.0, 14.0, 24.0)
    assert values.beside_seconds == 10.0
    assert values.met is False
    assert rows["training, only keys recorded, 100 steps, 4 threads on 2 cores"].met is True
    added = rows["what recording adds to a step of a tiny MLP (64-32-10), 4 threads on 2 cores"]
    assert (added.ours.seconds, added.ours.best, added.ours.worst) == pytest.approx((0.04, 0.04, 0.05))
    assert (added.beside_seconds, added.ratio, added.target) == (0.1, None, None)


def test_trainings_run_in_each_kind_and_leave_a_durable_record(tmp_path):
    trainings = recording.trainings(None, 10)
    assert sorted(trainings) == ["checkpointed", "gpt", "mlp", "toy"]
    trainings["toy"].run(tmp_path / "memory", True, 2)
    assert (tmp_path / "memory" / "memory.json").exists()
    threads = torch.get_num_threads()
    small = {"mlp": recording.Training(3, trainings["mlp"].run)}
    for backwards in (False, True):
        (found,) = recording.measure_all(small, tmp_path / "other", threads, backwards=backwards).values()
        assert list(found) == (["values", "unrecorded"] if backwards else ["unrecorded", "values"])
        assert all(one["seconds"] > 0 and one["steps"] == 3 for one in found.values())
        assert not (tmp_path / "other" / "memory").exists()


def test_growth_is_the_steepest_pair_of_sizes():
    assert steepest({100: 1.0, 200: 2.0, 400: 4.0}) == pytest.approx(1.0)
    assert steepest({100: 2.0, 200: 2.0, 400: 4.8}) == pytest.approx(1.2)
    assert steepest({100: 1.0, 200: 1.5, 400: 2.0}) < 1


def test_a_bare_pass_reads_from_the_first_row_that_stays_to_the_last(tmp_path):
    path = record(tmp_path / "run")
    memory, (folder,) = read_memory(path), path.glob("shard-*/layers/2")
    stays = np.zeros(memory.values("2").rows, dtype=bool)
    stays[[1, 3]] = True
    parts = processes.parts_that_stay(folder, memory.layer("2"), stays)
    read = [
        Path(file).read_bytes()[int(start) : int(end)] for file, start, end in (part.rsplit(":", 2) for part in parts)
    ]
    assert read == [rows.block(1, 4).tobytes() for rows in (memory.values("2"), memory.keys("2"))]
    seconds = subprocess.run([sys.executable, "-c", processes.READ, *parts], check=True, capture_output=True, text=True)
    assert 0 < float(seconds.stdout) < 60


def test_weights_that_are_wrong_are_said_to_be():
    right = {"0.weight": np.ones((2, 3))}
    assert values.wrong_weights(right, right) == ""
    assert values.wrong_weights({"0.weight": np.full((2, 3), 1.001)}, right).startswith("0.weight is off by")
    assert values.wrong_weights({}, right).startswith("parameters ")


def test_answers_are_compared_bit_by_bit():
    assert serving.same([np.zeros(2)], [np.zeros(2)])
    for other in ([-np.zeros(2)], [np.zeros(2, np.float32)], [np.zeros((1, 2))], [np.zeros(2)] * 2, []):
        assert not serving.same([np.zeros(2)], other)


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
        processes.served(tmp_path / "run", "--ram", "2 GB") as (address, process),
        serving.watched(process) as held,
    ):
        answered, never, wrong = serving.mix(address, {"best": ask, "refused": refused}, right, 0.5)
        other = serving.mix(address, {"best": ask}, {"best": [right["best"][0][::-1]]}, 0.1)
    assert answered > 0
    assert (never, wrong) == ({"refused"}, "")
    assert other[2] == "best is not what an engine without a bound answers"
    assert 10e6 < held.resident < 2e9
