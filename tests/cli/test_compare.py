"""Two memories side by side: hits are matched by dataset and sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform as dual
from dualform_client.cli import ask
from dualform_service.server import Server
from tests.record.sampled_training import scripted
from tests.trainings import learn


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
                learn(optimizer, model(images[index]).square().mean())
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


def test_two_folders_share_one_bound(dualform, runs, monkeypatch):
    seen, best = [], ask._best

    def watched(memory, *arguments):
        seen.append(memory._budget)
        return best(memory, *arguments)

    monkeypatch.setattr(ask, "_best", watched)
    told = dualform("compare", *runs, "--layer", "0", "--query", "test/0", "-k", "3", "--ram", "1 GB")
    assert told.code == 0
    assert seen[0] is seen[1]
    assert 0 < seen[0].most_bytes <= 850_000_000
    told = dualform("compare", *runs, "--layer", "0", "--query", "test/0", "--ram", "50 MB", "--json")
    assert told.code == 2
    assert "--ram 50 MB is too small" in told.json["error"]["message"]


def test_the_table_over_a_folder_and_a_server(dualform, runs):
    with dual.open(runs[1]) as memory, Server(memory) as server:
        told = dualform("compare", runs[0], server.address, "--layer", "0", "--query", "test/1", "-k", "3")
    assert told.code == 0
    assert "samples in both: " in told.out
    assert "rank in A" in told.out


def test_without_samples_they_cannot_be_matched(dualform, runs, tmp_path):
    without = record(tmp_path / "c", 3, sample=False)
    told = dualform("compare", runs[0], without, "--layer", "0", "--query", "test/1", "--json")
    assert told.code == 2
    assert "of the second memory has no sample." in told.json["error"]["message"]


def test_another_query_set_of_the_same_name_is_refused(dualform, runs, tmp_path):
    other = record(tmp_path / "d", 1, labels=(2, 1, 0))
    told = dualform("compare", runs[0], other, "--layer", "0", "--query", "test/1", "--json")
    assert told.code == 2
    assert told.json["error"]["message"].startswith("The query set 'test' has other labels in the second memory")


@pytest.mark.parametrize(("dataset", "said"), [(None, "slots without one"), ("other", "other")])
def test_memories_without_a_dataset_in_common_are_refused(dualform, runs, tmp_path, dataset, said):
    """Their samples would all be told apart by a name alone."""
    told = dualform(
        "compare", runs[0], record(tmp_path / "e", 1, dataset=dataset), "--layer", "0", "--query", "test/1", "--json"
    )
    assert told.code == 2
    assert told.json["error"]["message"] == (
        f"The memories have no dataset in common: the first has mine, the second {said}."
    )


def test_memories_without_any_dataset_are_compared(dualform, tmp_path):
    paths = [record(tmp_path / name, 1, dataset=None) for name in "ab"]
    told = dualform("compare", *paths, "--layer", "0", "--query", "test/1", "-k", "3", "--json").json
    assert [own["shared"] for own in told["queries"]] == [len(told["queries"][0]["samples"])]


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
