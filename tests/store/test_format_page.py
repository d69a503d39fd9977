"""What docs/format.md and docs/sql-schema.md say is so."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from docs.site.lead_figure import quick_start
from PIL import Image

import dualform
from dualform import PreviewSet
from dualform.store.batch import Factor, RoundingGradient
from dualform.store.layer import Sampling
from dualform.store.manifest import FORMAT, Manifest
from dualform.store.sources import FORMATS
from tests.cases import some
from tests.store.small_memory import (
    OTHERS,
    SETTINGS,
    TOKENS,
    append_all,
    batches_of,
    expected,
    open_writer,
    other_values,
    token_batch,
    write,
)
from tests.store.sources import twins

SETTINGS_OF_SGD = {"momentum", "dampening", "weight_decay", "nesterov", "maximize"}
PAGE = Path(__file__).parents[2] / "docs" / "format.md"
SCHEMA = PAGE.with_name("sql-schema.md")


def blocks(page: Path = PAGE) -> list[str]:
    """The page's Python."""
    found = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert not any("dualform" in code for code in found)
    return found


@pytest.fixture
def executed(monkeypatch):
    """Runs one of the page's programs in a folder, with these names, and returns all that it has."""

    def of(number: int, folder: Path, layer: str = "layer-0", **names: Any) -> dict[str, Any]:
        monkeypatch.chdir(folder)
        exec(blocks()[number].replace("layer-0", layer), names)
        return names

    return of


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    """A folder in which somebody has run the README's quick start."""
    folder = tmp_path_factory.mktemp("digits")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        quick_start()["memory"].close()
    return folder


def test_the_page_is_of_this_format():
    assert PAGE.read_text().startswith(f"# A memory on disk: format {FORMAT}\n")


def test_a_few_lines_find_the_slots_that_a_query_attends_to(digits, executed, capsys):
    names = executed(0, digits)
    duckdb.sql("DETACH run")
    with dualform.open("runs/digits") as memory:
        assert names["slots"][0].tolist() == memory.topk("head", "test/0", k=5).ids.tolist()
    assert capsys.readouterr().out.splitlines()[:4] == PAGE.read_text().split("```text\n")[1].splitlines()[:4]


def test_plain_duckdb_reads_the_tables(digits, monkeypatch, capsys):
    monkeypatch.chdir(digits)
    attach, join = blocks(SCHEMA)
    exec(attach, {})
    assert capsys.readouterr().out.strip() == SCHEMA.read_text().split("```text\n")[1].partition("```")[0].strip()
    exec(join, {"duckdb": duckdb})
    duckdb.sql("DETACH run")
    assert len(capsys.readouterr().out.splitlines()) == 11


@pytest.mark.parametrize("table", ["slots", "steps", "labels"])
def test_the_page_of_the_schema_has_every_column_and_type(digits, table):
    part = SCHEMA.read_text().partition(f"\n## {table}\n")[2].partition("\n## ")[0]
    said = re.findall(r"^\| `(\w+)` \| ([A-Z]+) \|", part, re.M) or re.findall(r"`(\w+)` \(([A-Z]+)\)", part)
    with duckdb.connect(str(digits / "runs/digits/shard-00000/slots.duckdb"), read_only=True) as tables:
        there = [row[:2] for row in tables.sql(f"DESCRIBE {table}").fetchall()]
    assert said == there[: len(said)]
    assert {name for name, _ in there[len(said) :]} <= (SETTINGS_OF_SGD if table == "steps" else set())


@pytest.mark.parametrize("repeats", [True, False])
def test_the_page_reads_a_memory_without_dualform(tmp_path, executed, repeats):
    write(tmp_path / "RUN", [9, 8, 7])
    whole = expected(batches_of([9, 8, 7]), (Manifest.read(tmp_path / "RUN").layers[0 if repeats else 1],))
    (layer,) = whole.keys
    names = executed(1, tmp_path, layer)
    threes = [slot for slot, label in zip(whole.columns["slot"], whole.columns["label"], strict=True) if label == 3]
    assert threes
    assert names["threes"].tolist() == threes
    assert names["mine"].tobytes() == whole.keys[layer][threes].tobytes()


def test_the_page_reads_values_of_every_type(tmp_path, executed):
    given = [twins.batch(step) for step in range(3)]
    append_all(twins.writer(tmp_path / "RUN"), given).close()
    names = executed(1, tmp_path, "mixed-rows")
    for layer in ("half-repeats", "half16", "mixed", "mixed16", "conv"):
        wanted = np.concatenate([one.layers[layer][0].values for one in given])
        assert names["stacked"](layer, "values").tobytes() == wanted.tobytes()


def test_the_page_reads_every_key_source(tmp_path, executed):
    given = [twins.batch(step) for step in (0, 3)]
    append_all(twins.writer(tmp_path / "memory"), given).close()
    names = executed(2, tmp_path, np=np)
    geometry = {layer.name: layer.geometry for layer in Manifest.read(tmp_path / "memory").layers}
    halved = {"half": ("bfloat16",), "half16": ("float16",)}
    arguments = halved | {"numbers": ("row_numbers", twins.TOKENS), "conv": ("patches", geometry["conv"])}
    arguments |= {"counts": ("row_counts", twins.TOKENS)}
    for layer, (source, *more) in some(arguments.items()):
        (file,) = (tmp_path / "memory" / "shard-00000" / "layers" / layer).glob("keys-000000*.npy")
        wanted = np.concatenate([one.layers[f"{layer}-rows"][0].keys for one in given])
        assert names[f"from_{source}"](file, *more).tobytes() == wanted.tobytes()


def test_the_page_reads_what_no_slot_explains(tmp_path, executed):
    write(tmp_path / "RUN", [9, 8, 7, 6])
    tables = duckdb.connect(tmp_path / "RUN" / "shard-00000" / "slots.duckdb", read_only=True)
    names = executed(3, tmp_path, np=np, Path=Path, tables=tables, shard=Path("RUN/shard-00000"))
    for at_step in (1, 2, 3):
        for name, own in other_values(at_step).items():
            assert np.array_equal(names["others_at"](at_step)[name], own)


def test_the_page_reads_what_samples_looked_like(tmp_path, executed):
    write(tmp_path / "RUN", [9])
    images = np.random.default_rng(0).integers(0, 256, (20, 3, 4), dtype=np.uint8)
    PreviewSet.images(images[::-1], samples=np.arange(20)[::-1]).store(tmp_path / "RUN", "mnist")
    names = executed(-1, tmp_path)
    with Image.open(io.BytesIO(names["png"])) as image:
        assert np.array_equal(np.asarray(image), images[17])


def test_the_page_names_every_key_source():
    rows = re.findall(r"^\| `([a-z0-9 ]+)` \| (?:`\.\w+`|none) \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(FORMATS)


def test_the_page_names_every_table_and_column(tmp_path):
    writer = open_writer(tmp_path / "memory", layers=TOKENS, others=OTHERS, sampling=Sampling("samples", 0, 1))
    one = token_batch(np.random.default_rng(0), 0, 2)
    alone = RoundingGradient(np.arange(2, dtype=np.int32), np.array([1e-9, 0.0]))
    factors = (*one.logs[0].factors, Factor("every.bias", 0, 1.0, 0.0, alone=alone))
    writer.append(replace(one, logs=[replace(one.logs[0], factors=factors)], random_states={"cpu": b"state"}))
    writer.close()
    found = re.findall(r"^\| `([\w<>]+)`(?: \(view\))? \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    described = {name: text for name, text in found if name not in FORMATS}
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
