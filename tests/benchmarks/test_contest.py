"""A small run end to end: the data, the peers that the tests have at hand, the sections that need no others."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks import harness, oracle, peers
from benchmarks.data import load, prepare
from benchmarks.harness import OURS, Cannot, Plan, measured
from benchmarks.peers import PEERS

from tests.cases import some

ALWAYS = ("FAISS search", "FAISS knn", "torch", "NumPy", "DuckDB")
"""The others are in an extra that the tests do without."""


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Plan:
    folder = tmp_path_factory.mktemp("bench")
    small = Plan(folder, True, slots=3000, width=16, growth=(1000, 2000), queries=(1, 3), repeats=1, patience=5.0)
    prepare(small)
    return small


@pytest.fixture
def only_those_at_hand(monkeypatch):
    """And nobody waits for another's threads to stop spinning."""
    monkeypatch.setattr(peers, "PEERS", {name: PEERS[name] for name in ALWAYS})
    monkeypatch.setattr(harness, "PAUSE", 0.0)


def test_the_memory_holds_half_of_each_dataset_and_two_slots_a_position(plan):
    data = load(plan)
    assert data.keys.shape == (3000, 16)
    assert data.mask("dataset").slots.tolist() == list(range(1500))
    assert data.groups("position").count == 1500
    assert data.groups("dataset", "label").count == 20
    assert 0.4 < data.mask("coin").stays.mean() < 0.6
    assert data.mask("sample").stays.any()
    assert (data.keys == 0).mean() > 0.3


@pytest.mark.parametrize("name", ALWAYS)
def test_peers_give_the_right_answers(plan, name):
    data = load(plan)
    peer = PEERS[name](data, plan.folder, 5.0)
    groups = data.groups("dataset", "label")
    masks = [None, *map(data.mask, ("coin", "dataset", "sample"))]
    for mask, right in zip(
        masks, oracle.best(data.keys, data.queries, 10, [m and m.stays for m in masks]), strict=True
    ):
        if name == "FAISS knn" and mask is not None:
            with pytest.raises(Cannot, match="no selector"):
                peer.top(data.queries, 10, mask)
            continue
        found = peer.top(data.queries, 10, mask)
        assert oracle.wrong_nearly(right, found, data.keys, data.queries, mask and mask.stays)[0] == ""
    if name.startswith("FAISS"):
        with pytest.raises(Cannot):
            peer.sums(data.queries, groups, absolute=False)
        return
    right = oracle.best_of_groups(data.keys, data.queries[:1], 7, groups)
    found = peer.top_of_groups(data.queries[0], 7, groups)
    assert oracle.wrong_nearly(right, found, data.keys, data.queries[:1].repeat(20, axis=0))[0] == ""
    sums = oracle.sums(data.keys, data.queries, [groups])[0]
    for absolute in (False, True):
        assert oracle.wrong_sums(sums, absolute, peer.sums(data.queries, groups, absolute), 1e-5) == ""
    peer.close()


@pytest.mark.parametrize(
    "name",
    ["topk", "filtered", "grouped", "sums", "weights", "contributions", "gradients", "growth"],
)
def test_sections_find_every_answer_right(plan, only_those_at_hand, name):
    section = measured(name, plan)
    assert section.rows
    for row in section.rows:
        assert row.ours.seconds is not None
        assert [cell.wrong for cell in row.cells.values()] == [""] * len(row.cells)
    json.dumps(section.to_json())


def test_a_wrong_answer_of_ours_is_found(plan, only_those_at_hand, monkeypatch):
    real = peers.dualform.open

    class Lies:
        """The second best slot first."""

        def __init__(self, path: Path, backend: str | None) -> None:
            self._engine = real(path, backend=backend)

        def topk(self, *question: object) -> object:
            hits = self._engine.topk(*question)
            hits.ids[:2] = hits.ids[1::-1].copy()
            return hits

        def __enter__(self) -> Lies:
            return self

        def __exit__(self, *_: object) -> None:
            self._engine.close()

    monkeypatch.setattr(peers.dualform, "open", Lies)
    for row in some(measured("topk", plan).rows):
        assert row.ours.wrong
        assert row.cells["NumPy"].wrong == ""


def test_a_peer_that_is_missing_or_breaks_is_said_to(plan, monkeypatch, tmp_path):
    def gone(*_: object) -> peers.Peer:
        raise ModuleNotFoundError("No module named 'gone'", name="gone")

    monkeypatch.setattr(peers, "PEERS", {"gone": gone, "NumPy": PEERS["NumPy"]})
    (tmp_path / "memory").symlink_to(plan.memory)
    np.save(tmp_path / "queries.npy", load(plan).queries)
    with peers.contest(Plan(tmp_path, queries=(1,), repeats=1)) as held:
        cells = held.ask("top", 1, {OURS: lambda: 1}, lambda peer: 2, lambda name, answer: ("", ""))
    assert cells["gone"].why_not == "gone is not installed"
    assert cells["NumPy"].seconds is not None


def test_a_peer_that_was_slow_for_fewer_queries_is_not_waited_for(plan, only_those_at_hand):
    def answered(queries: int) -> peers.Cell:
        return held.ask("top", queries, {OURS: lambda: 1}, lambda peer: time.sleep(0.01), lambda *_: ("", ""))["NumPy"]

    with peers.contest(replace(plan, patience=0.05)) as held:
        few, many = answered(2), answered(1000)
    assert few.seconds >= 0.01
    assert many == peers.Cell(why_not=f"not waited for: about {few.seconds * 500:.0f} s, by its time for fewer queries")


def test_reasons_name_no_folder_of_the_machine():
    assert peers.reason(OSError("cannot open /some/where/else now\nmore")) == "OSError: cannot open … now"
