"""The server in front of shards serves it as it serves one engine; what is missing crosses the wire."""

from __future__ import annotations

import numpy as np
import pytest

import dualform
from dualform.errors import Unavailable
from dualform_client import Client
from dualform_service.server import Server
from tests.query.shards.in_process import front_of
from tests.query.shards.memories import write

QUERIES = np.random.default_rng(1).normal(size=(2, 5)).astype(np.float32)


def test_answers_and_missing_shards_cross_the_wire(tmp_path):
    write(tmp_path / "memory", [[3, 4, 2], [2, 2, 4]])
    front, shards = front_of(tmp_path / "memory")
    with (
        dualform.open(tmp_path / "memory", backend="numpy") as one,
        Server(front, "127.0.0.1:0") as server,
        Client(server.address) as client,
    ):
        found, expected = (each.topk("plain", QUERIES, 4, by="label") for each in (client, one))
        assert (found.ids.tobytes(), found.flat_scores.tobytes()) == (
            expected.ids.tobytes(),
            expected.flat_scores.tobytes(),
        )
        assert found.scan.missing == ()
        shards.dead = {1}
        with pytest.raises(Unavailable, match="shard-00001 did not answer"):
            client.topk("plain", QUERIES, 4)
        assert client.topk("plain", QUERIES, 4, allow_partial=True).scan.missing == ("shard-00001",)
        assert client.group_sum("plain", QUERIES, "label", allow_partial=True).scan.missing == ("shard-00001",)
    front.close()
