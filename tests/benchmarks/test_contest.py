"""A small run end to end: the data, the peers that the tests have at hand, the sections that need no others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import contest, oracle
from benchmarks.data import load, prepare
from benchmarks.peers import PEERS, make
from benchmarks.plan import Plan
from benchmarks.result import OURS
from benchmarks.sections import run
from benchmarks.sections.growth import steepest
from benchmarks.timing import Cannot

ALWAYS = ("FAISS search", "FAISS knn", "torch", "NumPy", "DuckDB")
"""The others are in an extra that the tests do without."""


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Plan:
    folder = tmp_path_factory.mktemp("bench")
    small = Plan(folder, True, None, None, slots=3000, width=16, queries=(1, 3), repeats=1, patience=5.0)
    prepare(small)
    return small


@pytest.fixture
def only_those_at_hand(monkeypatch):
    monkeypatch.setattr(contest, "PEERS", {name: PEERS[name] for name in ALWAYS})


def test_a_plan_survives_its_file(plan, tmp_path):
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan


def test_the_memory_holds_half_of_each_dataset_and_two_slots_a_position(plan):
    data = load(plan)
    assert data.keys.shape == (3000, 16)
    assert data.half.slots.tolist() == list(range(1500))
    assert data.groups("position").count == 1500
    assert data.groups("dataset", "label").count == 20
    assert 0.4 < data.coin.stays.mean() < 0.6
    assert data.tiny.stays.any()
    assert (data.keys == 0).mean() > 0.3


@pytest.mark.parametrize("name", ALWAYS)
def test_peers_give_the_right_answers(plan, name):
    data = load(plan)
    peer = make(name)
    peer.build(data, plan.folder, 5.0)
    groups = data.groups("dataset", "label")
    members = [groups.numbers == group for group in range(groups.count)]
    masks = [None, data.coin, data.half, data.tiny]
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
    each = oracle.best(data.keys, data.queries[:1], 7, members)
    right = oracle.Best([one.slots[0] for one in each], [one.scores[0] for one in each], each[0].tolerance.repeat(20))
    found = peer.top_of_groups(data.queries[0], 7, groups)
    assert oracle.wrong_nearly(right, found, data.keys, data.queries[:1].repeat(20, axis=0))[0] == ""
    sums = oracle.sums(data.keys, data.queries, [groups])[0]
    for absolute in (False, True):
        assert oracle.wrong_sums(sums, absolute, peer.sums(data.queries, groups, absolute), 1e-5) == ""
    peer.close()


@pytest.mark.parametrize("name", ["topk", "filtered", "grouped", "sums", "canonical", "forms"])
def test_sections_find_every_answer_right(plan, only_those_at_hand, name):
    section = run(name, plan)
    assert section.rows
    for row in section.rows:
        assert row.ours.seconds is not None
        assert [cell.wrong for cell in row.cells.values()] == [""] * len(row.cells)
    json.dumps(section.to_json())


def test_a_wrong_answer_of_ours_is_found(plan, only_those_at_hand, monkeypatch):
    real = contest.dualform.open

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

    monkeypatch.setattr(contest.dualform, "open", Lies)
    for row in run("topk", plan).rows:
        assert row.ours.wrong
        assert row.cells["NumPy"].wrong == ""


def test_a_peer_that_is_missing_or_breaks_is_said_to(plan, monkeypatch, tmp_path):
    monkeypatch.setitem(PEERS, "gone", ("benchmarks.peers.gone", "Gone", "gone"))
    monkeypatch.setattr(contest, "PEERS", {name: PEERS[name] for name in ("gone", "NumPy")})
    (tmp_path / "memory").symlink_to(plan.memory)
    np.save(tmp_path / "queries.npy", load(plan).queries)
    with contest.contest(Plan(tmp_path, queries=(1,), repeats=1)) as held:
        cells = held.ask("top", 1, {OURS: lambda: 1}, lambda peer: 2, lambda name, answer: ("", ""))
    assert cells["gone"].why_not == "benchmarks.peers.gone is not installed"
    assert cells["NumPy"].seconds is not None


def test_reasons_name_no_folder_of_the_machine():
    assert contest.reason(OSError("cannot open /some/where/else now\nmore")) == "OSError: cannot open … now"


def test_growth_is_the_steepest_pair_of_sizes():
    assert steepest({100: 1.0, 200: 2.0, 400: 4.0}) == pytest.approx(1.0)
    assert steepest({100: 2.0, 200: 2.0, 400: 4.8}) == pytest.approx(1.2)
    assert steepest({100: 1.0, 200: 1.5, 400: 2.0}) < 1
