"""What docs/format.md says is so."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import numpy as np
import pytest

from dualform.store.manifest import FORMAT, Manifest
from tests.store.small_memory import SETTINGS, TOKENS, batches_of, expected, open_writer, token_batch, write

PAGE = Path(__file__).parents[2] / "docs" / "format.md"


def test_the_page_is_of_this_format():
    assert PAGE.read_text().startswith(f"# A memory on disk: format {FORMAT}\n")


@pytest.mark.parametrize("repeats", [True, False])
def test_the_page_reads_a_memory_without_dualform(tmp_path, monkeypatch, repeats):
    write(tmp_path / "RUN", [9, 8, 7])
    whole = expected(batches_of([9, 8, 7]), (Manifest.read(tmp_path / "RUN").layers[0 if repeats else 1],))
    (layer,) = whole.keys
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert "dualform" not in code
    monkeypatch.chdir(tmp_path)
    names: dict[str, np.ndarray] = {}
    exec(code.replace("layer-0", layer), names)
    threes = [slot for slot, label in zip(whole.columns["slot"], whole.columns["label"], strict=True) if label == 3]
    assert threes
    assert names["threes"].tolist() == threes
    assert names["mine"].tobytes() == whole.keys[layer][threes].tobytes()


def test_the_page_names_every_table_and_column(tmp_path):
    writer = open_writer(tmp_path / "memory", layers=TOKENS)
    writer.append(token_batch(np.random.default_rng(0), 0, 2))
    writer.close()
    described = dict(re.findall(r"^\| `([\w<>]+)`(?: \(view\))? \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    types = Manifest.read(tmp_path / "memory").tables()
    assert {name.replace("<space>", "token") for name in described} - {"slots", "token", "commits"} == set(types)
    user = {"weight", "seen", "token"} | SETTINGS.keys() - {"lr"}
    with duckdb.connect(tmp_path / "memory" / "shard-00000" / "slots.duckdb", read_only=True) as tables:
        for name, text in described.items():
            there = tables.sql(f'SELECT * FROM "{name.replace("<space>", "token")}"').columns if "<" not in name else []
            if name == "extents_<space>":
                there = tables.sql("SELECT * FROM extents_token").columns
            first = re.match(r"`([\w, ]+)`", text)
            said = first.group(1).split(", ") if first else []
            assert said == [column for column in there if column not in user]
