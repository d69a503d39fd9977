"""Actors of a real Ray behind the front."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import dualform
from dualform.errors import Cancelled, Unavailable
from dualform.query.shards.engines import open_front
from dualform.query.shards.shards import ShardQuestion
from dualform_client import Client
from dualform_service.server import Server
from dualform_service.shards import Fleet, ray_answerers
from tests.query.shards.memories import write
from tests.service.shards.test_fleet import Endless

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'dualform[ray]'")
pytestmark = pytest.mark.filterwarnings("ignore")
SIZES = [[3, 4, 2], [2, 2, 4]]
SECONDS = 10.0
"""For a share: where other tests run, too, a process that works may be late by seconds."""
QUERIES = np.random.default_rng(1).normal(size=(2, 5)).astype(np.float32)


def test_actors_answer_as_one_engine_and_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    write(tmp_path / "memory", SIZES)
    launch = ray_answerers(
        tmp_path / "memory", "local", "numpy", questions=1, num_cpus=2, object_store_memory=80_000_000
    )
    started, launched = {}, []

    def watched(number):
        launched.append(number)
        started[number] = launch(number)
        return started[number]

    try:
        memory, names = dualform.open(tmp_path / "memory", backend="numpy"), ["a", "b"]
        with memory as one, Fleet(watched, lambda: names, SECONDS) as fleet:
            front = open_front(tmp_path / "memory", fleet, "numpy")
            expected = one.topk("plain", QUERIES, 5)
            _answered(front, expected)
            _given_up_in_the_midst(fleet, front, tmp_path / "begun")
            assert _answered(front, expected) < SECONDS  # an actor that works on would be replaced
            assert list(launched) == [0, 1]
            with Server(front, "127.0.0.1:0") as server, Client(server.address) as client:
                sums, own = (each.group_sum("plain", QUERIES, by="label") for each in (client, one))
                assert sums.sums.tobytes() == own.sums.tobytes()
                out, own = (
                    each.output("plain", QUERIES, where="label > 1", allow_inexact=True) for each in (client, one)
                )
                assert out.values.tobytes() == own.values.tobytes()
                for number, blow in ((0, signal.SIGKILL), (1, signal.SIGSTOP)):
                    actor = started[number]._actor
                    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), blow)
                    began = time.monotonic()
                    with pytest.raises(Unavailable, match="ab"[number]):
                        client.topk("plain", QUERIES, 5)
                    named = time.monotonic() - began
                    assert named < SECONDS + 5
                    assert _answered(front, expected) < 30
    finally:
        ray.shutdown()


def _given_up_in_the_midst(fleet, front, begun):
    def gone():
        if begun.exists():
            raise Cancelled("gone")

    with pytest.raises(Cancelled):
        fleet(ShardQuestion(Endless(begun), front._view.snapshot.moment), [0, 1], gone)


def _answered(front, expected) -> float:
    """Seconds until there is an answer, the right one."""
    began = time.monotonic()
    while True:
        try:
            found = front.topk("plain", QUERIES, 5)
        except Unavailable:
            assert time.monotonic() - began < 60
            continue
        assert found.flat_scores.tobytes() == expected.flat_scores.tobytes()
        return time.monotonic() - began
