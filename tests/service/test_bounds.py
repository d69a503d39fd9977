"""A server answers no question whose answer it could not send, and does not begin to work on it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dualform.errors import BadInput, BadMask
from dualform.store.files.ram_budget import resident_bytes
from dualform_client import Client
from dualform_service.server import Server
from tests.query import arrays

SLOTS, WIDTH = 20_000, 4
QUERIES = np.ones((13_000, WIDTH), np.float32)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    keys = np.random.default_rng(0).standard_normal((SLOTS, WIDTH)).astype(np.float32)
    memory = arrays.engine(arrays.memory({"fc": keys}, {"label": [slot % 3 for slot in range(SLOTS)]}))
    with Server(memory) as server, Client(server.address) as client:
        client.topk("fc", QUERIES[:1])
        yield client


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (lambda client: client.group_sum("fc", QUERIES, by="slot"), "by=slot makes more than"),
        (lambda client: client.topk("fc", QUERIES, by="slot"), "by=slot makes more than"),
        (lambda client: client.topk("fc", QUERIES, k=SLOTS), "The answer would take 2975.6 MiB"),
    ],
    ids=["sums by slot", "best by slot", "all slots"],
)
def test_what_does_not_fit_takes_no_room(client, asked, says):
    before = resident_bytes()
    with pytest.raises(BadInput, match=says):
        asked(client)
    assert resident_bytes() - before < 200e6  # gigabytes, where it was worked on


def test_masks_are_bounded_on_a_server(client):
    with pytest.raises(BadMask, match="where must be at most 65,536 bytes long"):
        client.topk("fc", QUERIES[:1], where="label IN (" + "1, " * 30_000 + "1)")
    with pytest.raises(BadMask, match="where must have at most 16 patterns, not 17"):
        client.topk("fc", QUERIES[:1], where=" OR ".join(["dataset LIKE 'm%'"] * 17))
    listed = ", ".join(map(str, range(9_000)))
    assert client.topk("fc", QUERIES[:1], where=f"slot IN ({listed})").scan.slots_matching == 9_000
