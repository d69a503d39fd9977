"""A new type of what users say of samples is a line in the table of types, and over the wire a line in its table."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import BadInput
from dualform.store import tables
from dualform.store.maintenance import check
from dualform.store.tables import Kind, running_digest
from dualform_client import Client
from dualform_proto import arrays
from dualform_service.config import ServiceConfig
from dualform_service.server import Server
from tests.trainings import record_steps

DAYS = np.array([f"2024-01-0{1 + row % 3}T12:00:00" for row in range(8)], dtype="datetime64[s]")
TIMES = [datetime(2024, 1, 1, 12), datetime(2024, 1, 2, 12), datetime(2024, 1, 3, 12)]
TYPE = 1000
"""A number that the wire has for no type."""


DIGESTS = [
    (pa.array([1, None, 3], pa.int64()), "b302b3068dad1e1b7ec8f2154298a207"),
    (pa.array([1, 2], pa.int32()), "599b02504dfb4d74959bc01b3f923d03"),
    (pa.array([0.5, None]), "e4453d490b6719aae39a1efe55f49ab1"),
    (pa.array([True, None]), "ebf03ca80db3821677d412fbd2106035"),
    (pa.array([], pa.int64()), "94a941c6c3b9aef8d9371d14a0a138b6"),
    (pa.array([[1], [2, 3]], pa.list_(pa.int64())), "46c9ba95d5275b84c6aa3ddc76401f08"),
]
"""As memories have them that were written before other types were added."""


@pytest.fixture
def timestamps(monkeypatch):
    kind = Kind(pa.timestamp("us"), np.dtype("datetime64[us]"), "M", "timestamps")
    monkeypatch.setitem(tables.KINDS, "TIMESTAMP", kind)


@pytest.fixture
def path(tmp_path, timestamps):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m"),
        optimizer,
        (DAYS if step else np.ma.MaskedArray(DAYS, mask=np.arange(8) == 7) for step in range(4)),
        lambda seen: cross_entropy(model(torch.randn(8, 3)), torch.arange(8) % 2),
        seen=lambda seen: seen,
    )
    return tmp_path / "m"


def test_a_line_in_the_table_is_all_that_a_memory_needs(path):
    assert check.check_memory(path) == []
    with dualform.open(path) as memory:
        assert memory.info().columns["sample"]["seen"] == "TIMESTAMP"
        sums = memory.group_sum("", np.ones(3, np.float32), by="seen")
        assert sums.groups == ((TIMES[0],), (TIMES[1],), (TIMES[2],), (None,))
        assert sums.counts.tolist() == [12, 11, 8, 1]
        later = memory.topk("", np.ones(3, np.float32), k=40, where="seen > CAST('2024-01-01 13:00:00' AS TIMESTAMP)")
        assert len(later.slots[0]) == 19
        assert {row["seen"] for row in memory.slots(later).records()} == set(TIMES[1:])
        (row,) = memory.sql("SELECT count(*) AS slots, max(seen) AS last FROM slots WHERE seen IS NOT NULL").records()
        assert (row["slots"], row["last"]) == (31, str(TIMES[2]))


def test_what_the_wire_does_not_carry_is_refused_by_name(path):
    with (
        dualform.open(path) as engine,
        Server(engine, ServiceConfig("127.0.0.1:0", sql=True)) as server,
        Client(server.address) as client,
    ):
        hits = client.topk("", np.ones(3, np.float32), k=2)
        for ask in (
            lambda: client.group_sum("", np.ones(3, np.float32), by="seen"),
            lambda: client.topk("", np.ones(3, np.float32), k=1, by=("step", "seen")),
            lambda: client.slots(hits),
        ):
            with pytest.raises(BadInput, match=r"column 'seen' .* type datetime.*, which the wire does not carry"):
                ask()
        (row,) = client.sql("SELECT max(seen) AS last FROM slots").records()
        assert row["last"] == str(TIMES[2])


def test_a_line_in_the_wires_table_carries_it(path, monkeypatch):
    dtype = np.dtype("<M8[us]")
    monkeypatch.setitem(arrays.WIRE_TYPES, TYPE, dtype)
    monkeypatch.setitem(arrays.ELEMENT_TYPES, dtype, TYPE)
    with (
        dualform.open(path) as engine,
        Server(engine, ServiceConfig("127.0.0.1:0", sql=True)) as server,
        Client(server.address) as client,
    ):
        for memory in (engine, client):
            sums = memory.group_sum("", np.ones(3, np.float32), by=("seen",))
            assert sums.groups == ((TIMES[0],), (TIMES[1],), (TIMES[2],), (None,))
            best = memory.topk("", np.ones(3, np.float32), k=1, by=("seen",))
            assert best.groups == sums.groups
        hits = engine.topk("", np.ones(3, np.float32), k=32)
        assert client.slots(hits).records() == engine.slots(hits).records()


def test_hints_name_the_types_of_the_table(tmp_path, timestamps):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(BadInput) as refused,
        dualform.Recorder(model, optimizer, tmp_path / "m") as recorder,
        recorder.step(odd=np.zeros(8, dtype=complex)),
    ):
        pass
    assert refused.value.hint == "A column holds integers, floats, booleans, texts or timestamps."


@pytest.mark.parametrize("values", [[1, 2.5, None], [True, None], [True, 2], ["a", None], [None, None]])
def test_groups_come_back_as_they_went(values):
    message = arrays.encode_groups(("by",), [(value,) for value in values])
    assert arrays.decode_groups(message) == (("by",), tuple((value,) for value in values))


@pytest.mark.parametrize(("column", "digest"), DIGESTS)
def test_digests_are_what_they_were(column, digest):
    assert running_digest("", column) == digest


@pytest.mark.parametrize("keys", [True, False])
def test_single_tokens_have_columns_of_the_new_type(tmp_path, timestamps, keys):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m", keys=keys),
        optimizer,
        2,
        lambda _: cross_entropy(model(torch.randn(2, 4, 3)).reshape(8, 2), torch.arange(8) % 2),
        seen=DAYS.reshape(2, 4),
    )
    assert check.check_memory(tmp_path / "m") == []
    with dualform.open(tmp_path / "m") as memory:
        seen = [row["seen"] for row in memory.slots(range(16)).records()]
    assert seen == DAYS.astype("datetime64[us]").tolist() * 2
