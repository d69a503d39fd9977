"""Two memories side by side: hits are matched by dataset and sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform as dual
from dualform_service.server import Server
from tests.record.sampled_training import scripted


def record(path, seed, sample=True, labels=(0, 1, 2), dataset="mine", **options):
    """A memory of 12 samples, seen in an order of its own, each of them twice."""
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Linear(5, 3)), torch.randn(12, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(seed)
    with dual.Recorder(model, optimizer, path, quiet=True, **options) as recorder:
        for index in (*torch.randperm(12).split(4), *torch.randperm(12).split(4)):
            said = {"sample": index} if sample else {}
            with recorder.step(dataset=dataset, label=index % 3, **said):
                optimizer.zero_grad()
                model(images[index]).square().mean().backward()
                optimizer.step()
        recorder.query_set("test", images[:3], label=torch.tensor(labels))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    return record(folder / "a", 1), record(folder / "b", 2)


def best_samples(memory, row, k):
    """From the recorded keys alone, in float64."""
    queries = memory.query_set("test", "0").queries.astype(np.float64)
    scores = memory.keys("0").astype(np.float64) @ queries[row]
    order = np.lexsort((np.arange(len(scores)), -scores.astype(np.float32)))[:k]
    return list(dict.fromkeys(memory.slots(order, "sample")["sample"].tolist())), scores


def test_samples_are_matched_whatever_their_slots(dualform, runs):
    told = dualform("compare", *runs, "--layer", "0", "--query", "test/0,2", "-k", "6", "--json").json
    with dual.open(runs[0]) as first, dual.open(runs[1]) as second:
        assert not np.array_equal(
            first.slots(range(24), "sample")["sample"], second.slots(range(24), "sample")["sample"]
        )
        for own, row in zip(told["queries"], (0, 2), strict=True):
            expected = [best_samples(memory, row, 6)[0] for memory in (first, second)]
            for name, samples in zip("ab", expected, strict=True):
                ranked = {one["sample"]: one[name]["rank"] for one in own["samples"] if one[name] is not None}
                assert ranked == {sample: rank for rank, sample in enumerate(samples, 1)}
            assert own["shared"] == len(set(expected[0]) & set(expected[1]))
            assert all(one["label"] == one["sample"] % 3 and one["dataset"] == "mine" for one in own["samples"])
    assert told["score"] == "dot"


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"seed": 3, "sample": False}, "of the second memory has no sample."),
        ({"seed": 1, "labels": (2, 1, 0)}, "The query set 'test' has other labels in the second memory"),
        # Their samples would all be told apart by a name alone.
        ({"seed": 1, "dataset": None}, "no dataset in common: the first has mine, the second slots without one."),
        ({"seed": 1, "dataset": "other"}, "no dataset in common: the first has mine, the second other."),
    ],
    ids=["no samples", "other labels", "no dataset", "other dataset"],
)
def test_memories_that_cannot_be_matched_are_refused(dualform, runs, tmp_path, other, says):
    told = dualform(
        "compare", runs[0], record(tmp_path / "other", **other), "--layer", "0", "--query", "test/1", "--json"
    )
    assert told.code == 2
    assert says in told.json["error"]["message"]


def test_the_share_that_an_answer_stands_on_is_said_of_either_memory(dualform, runs, tmp_path, monkeypatch):
    scripted(monkeypatch, 1.0, 0.5)
    sampled = record(tmp_path / "sampled", 2, budget="1 GB")
    asked = ("compare", runs[0], sampled, "--layer", "0", "--query", "test/1", "-k", "3")
    with dual.open(sampled) as memory:
        share = memory.info().slots["sample"] / 24
    assert 0.5 <= share < 1
    assert dualform(*asked, "--json").json["share"] == {"a": 1.0, "b": share}
    said = dualform(*asked)
    assert "B is computed from a sample of " in said.out + said.err
    assert "A is computed" not in said.out + said.err
    assert "share" not in dualform("compare", *runs, *asked[3:], "--json").json


def test_a_bound_on_memory_is_that_of_the_folder_among_the_two(dualform, runs):
    asked = ("--layer", "0", "--query", "test/0", "-k", "6", "--json")
    with dual.open(runs[1]) as memory, Server(memory) as server:
        expected = dualform("compare", *runs, *asked).json["queries"]
        for one, other in ((runs[0], server.address), (server.address, runs[0])):
            assert dualform("compare", one, other, *asked, "--ram", "2 GB").code == 0
            told = dualform("compare", one, other, *asked, "--ram", "much")
            assert told.json["error"]["message"].startswith("--ram must be a number of bytes")
        assert dualform("compare", runs[0], server.address, *asked, "--ram", "2 GB").json["queries"] == expected
        told = dualform("compare", server.address, server.address, *asked, "--ram", "2 GB")
        assert "limits this process" in told.json["error"]["message"]
        told = dualform("compare", runs[0], server.address, *asked[:-1])
        assert "samples in both: " in told.out
        assert "rank in A" in told.out
    told = dualform("compare", *runs, *asked, "--ram", "50 MB")
    assert "--ram 50 MB is too small" in told.json["error"]["message"]
