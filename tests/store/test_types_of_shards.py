"""A column to which the processes of one training gave values of several types reads as one column of one type."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dualform.errors import BadInput
from dualform.query.engine import Engine
from dualform.query.score.backends import choose
from dualform.store.maintenance.check import check_memory
from dualform.store.reading.snapshot import Snapshot
from tests.store.small_memory import TOKENS, open_writer, token_batch

ROWS = 3
INTEGERS, FLOATS = np.array([1, -2, 2**53]), np.array([1.5, 1.0, np.nan])
TEXTS, BOOLEANS = np.array(["1", None, "ü"], dtype=object), np.array([True, False, True])


def opened(path, *columns) -> Engine:
    """A memory of a step of one shard for each of `columns`, which are said of samples as `said`."""
    writers = [open_writer(path, TOKENS, shard_number=number, shards=len(columns)) for number in range(len(columns))]
    for number, (writer, column) in enumerate(zip(writers, columns, strict=True)):
        batch = token_batch(np.random.default_rng(number), 0, ROWS)
        call, *others = batch.extents
        tokens = {} if column is None else {"spoken": np.repeat(column, 4)}
        said = {} if column is None else {"said": column}
        batch = replace(batch, samples=batch.samples | said, extents=[replace(call, columns=tokens), *others])
        writer.append(replace(batch, unknown=(batch.unknown or {}) | dict.fromkeys(said)))
    for writer in reversed(writers):
        writer.close()
    return Engine(Snapshot.open(path), choose("numpy"))


def test_integers_and_floats_are_floats(tmp_path):
    with opened(tmp_path / "m", INTEGERS, FLOATS) as engine:
        assert engine.info().columns["token"]["said"] == "DOUBLE"
        memory = engine._view.snapshot
        regular = np.flatnonzero(memory.column("token", "call") == 0)
        wanted = np.repeat(np.concatenate([INTEGERS, FLOATS]).astype(float), 4)
        for name in ("said", "spoken"):
            column = memory.column("token", name)[regular]
            assert not np.ma.is_masked(column)
            assert np.ma.getdata(column).tobytes() == wanted.tobytes(), name
            some = memory.space("token").at(regular[[1, 5, 13]], [name])[name].to_pylist()
            assert some == wanted[[1, 5, 13]].tolist()
        query = np.ones((1, 4), np.float32)
        where = "said = 1 AND call = 0"  # an integer of the first shard, and a float of the second
        found = engine.topk("every", query, k=99, where=where).slots[0]
        assert sorted(found.tolist()) == sorted(regular[wanted == 1].tolist())
        assert set(engine.group_sum("every", query, by="spoken").groups) >= {(1.0,), (1.5,), (-2.0,), (2.0**53,)}


@pytest.mark.parametrize("first", [INTEGERS, FLOATS, BOOLEANS], ids=["integers", "floats", "booleans"])
def test_what_has_no_number_in_common_is_text(first, tmp_path):
    with opened(tmp_path / "m", first, TEXTS, None) as engine:
        assert engine.info().columns["token"]["said"] == "VARCHAR"
        memory = engine._view.snapshot
        regular = np.flatnonzero(memory.column("token", "call") == 0)
        wanted = [None if text is None else str(text) for text in TEXTS for _ in range(4)] + [None] * 4 * ROWS
        for name in ("said", "spoken"):
            read = memory.column("token", name)[regular].tolist()
            assert read[4 * ROWS :] == wanted
            own = [first.dtype.type(text == "true" if first is BOOLEANS else text) for text in read[: 4 * ROWS]]
            assert np.array(own).tobytes() == np.repeat(first, 4).tobytes()  # the text says all of the value
        query = np.ones((1, 4), np.float32)
        assert check_memory(tmp_path / "m") == []
        found = engine.topk("every", query, k=99, where="spoken = 'ü'").slots[0]
        assert sorted(found.tolist()) == regular[[i for i, text in enumerate(read) if text == "ü"]].tolist()


def test_booleans_and_integers_are_text(tmp_path):
    with opened(tmp_path / "m", INTEGERS, BOOLEANS) as engine:
        assert engine.info().columns["token"]["said"] == "VARCHAR"
        groups = engine.group_sum("every", np.ones((1, 4), np.float32), by="spoken").groups
        assert {("1",), ("-2",), ("true",), ("false",)} <= set(groups)


def test_integers_that_no_float_holds_are_refused_and_the_others_stay(tmp_path):
    said = "has integers beyond 2**53 in one shard and floats in another"
    with opened(tmp_path / "m", np.array([2**53 + 1, 2, 3]), FLOATS) as engine:
        with pytest.raises(BadInput, match=re.escape(f"column 'said' {said}")):
            engine.topk("every", np.ones((1, 4), np.float32), k=1, where="said = 2")
        assert len(engine.topk("every", np.ones((1, 4), np.float32), k=1, where="sample >= 0").slots[0]) == 1
    assert sorted(re.findall("'([^']*)' " + re.escape(said), " ".join(check_memory(tmp_path / "m")))) == [
        "said",
        "spoken",
    ]
