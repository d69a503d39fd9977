"""Plain programs beside an ablated output read what they need of keys and values, and no more."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
from benchmarks import product_process

from tests.contract.recorded import record


@pytest.fixture
def layer(tmp_path):
    """A layer's folder, with its number of slots and its files of keys."""
    (folder,) = record(tmp_path / "run").glob("shard-*/layers/2")
    values, keys = (sorted(folder.glob(name)) for name in ("values-*.npy", "keys-*.faiss"))
    rows = [len(np.load(file)) for file in values]
    return folder, sum(rows), keys


def test_a_bare_pass_reads_from_the_first_row_that_stays_to_the_last(tmp_path, layer, monkeypatch, capsys):
    folder, slots, keys = layer
    read, bare = [], product_process._read

    def counted(file, start, left, room):
        read.append((file.name, left))
        bare(file, start, left, room)
        assert start + left <= file.stat().st_size

    monkeypatch.setattr(product_process, "_read", counted)
    stays = np.zeros(slots, dtype=bool)
    stays[[1, 3]] = True
    np.save(tmp_path / "stays.npy", stays)
    product_process.main(folder, tmp_path / "stays.npy", "none")
    assert float(capsys.readouterr().out) > 0
    values = np.load(folder / "values-000000.npy")
    width = faiss.read_index(str(keys[0])).d
    assert read == [("values-000000.npy", 3 * 4 * values.shape[1]), (keys[0].name, 3 * 4 * width)]


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_products_of_the_rows_that_stay_are_made(tmp_path, layer, kind, capsys):
    folder, slots, keys = layer
    np.save(tmp_path / "stays.npy", np.arange(slots) % 3 > 0)
    width = faiss.read_index(str(keys[0])).d
    np.save(tmp_path / "query.npy", np.ones((1, width), np.float32))
    product_process.main(folder, tmp_path / "stays.npy", kind)
    product_process.main(folder, tmp_path / "stays.npy", kind, tmp_path / "query.npy")
    assert len([float(line) for line in capsys.readouterr().out.split()]) == 2
