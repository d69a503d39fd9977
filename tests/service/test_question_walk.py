"""CONTRIBUTING's walk of a question is the way that one takes: what runs is on it, and what is on it runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dualform
from dualform_client import Client
from dualform_service.server import Server
from tests.store import small_memory
from tests.walk import Trace, walk

MOST_STOPS = 16
WALK = walk("A question's way")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files that run, on the client's side and the server's, between the client's method and its answer."""
    path: Path = tmp_path_factory.mktemp("walk") / "run"
    small_memory.write(path, [20, 20])
    with (
        Trace() as trace,
        dualform.open(path, backend="int8") as engine,
        Server(engine) as server,
        Client(server.address) as client,
    ):
        trace.on = True
        # Of a text that no other test has had read: what was read is kept.
        hits = client.topk("layer-0", np.ones(6), k=2, where="label < 7 AND label > -471100")
        trace.on = False
    assert len(hits.slots[0]) == 2
    assert hits.scan.slots_matching < hits.scan.slots_scanned == 40
    return trace.ran


def test_everything_that_runs_is_a_stop_or_beside_the_way(ran):
    assert WALK.unnamed(ran) == []


def test_every_stop_runs(ran):
    assert [file for file in WALK.stops if file not in ran] == []


def test_the_stops_are_few_and_none_stands_beside_the_way():
    assert 10 < len(WALK.stops) <= MOST_STOPS
    assert len({*WALK.stops, *WALK.beside}) == len(WALK.stops) + len(WALK.beside)


def test_both_sides_are_traced(ran):
    assert {"dualform_client/client.py", "dualform_service/servicer.py", "query/engine.py"} <= ran


@pytest.mark.parametrize("file", [WALK.stops[7], "query/cache.py"])
def test_a_file_that_no_line_names_is_found(ran, file):
    assert WALK._replace(
        stops=[one for one in WALK.stops if one != file], beside=[one for one in WALK.beside if one != file]
    ).unnamed(ran) == [file]
