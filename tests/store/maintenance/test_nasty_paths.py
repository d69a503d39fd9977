"""A memory is kept, asked, served and deleted in a folder of any name; names that DuckDB cannot write are refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dualform as dual
from dualform.errors import BadInput
from dualform.store.maintenance.check import check_memory
from dualform_client.cli.main import main
from dualform_service.server import Server
from tests.store.small_memory import write
from tests.trainings import learn

NAMES = [
    '-dash/ it\'s "x"; 100% %41 sta*r a[b] #1 {a} $HOME ünï 学 new\nline',
    "md:run/sqlite:run/~run/s3://b/:memory:",
]
"""Names that are quoted alike, and such as mean another place to DuckDB or to a shell."""
UNWRITABLE = ["what?", "back\\slash", os.fsdecode(b"latin-\xfc")]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_folder_may_have_any_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, [5, 6, 7])
    with dual.open(path) as memory:
        assert len(memory.topk("layer-0", np.ones((1, 6)), k=3, where="label < 9").ids) == 3
        assert memory.sql("SELECT count(*) AS n FROM slots")["n"].tolist() == [18]
        assert memory.slots([0], "sample")["step"].tolist() == [0]
        assert memory.query_set("test", "layer-0").queries.shape == (12, 6)
    assert dual.delete(path, "step = 0").samples == 5
    assert check_memory(path) == []


def test_commands_and_servers_take_such_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "md:it's sta*r"
    write(Path(name), [5, 6, 7])
    for command in (["info", "--", name], ["sql", "--", name, "SELECT 1 AS a"], ["check", "--", name]):
        assert main(command) == 0
    with dual.connect(name) as memory, Server(memory) as server, dual.connect(server.address) as client:
        assert client.info().slots == {"sample": 18}


def train(path: Path, then: Callable[[], None] = lambda: None) -> None:
    """Two steps of two slots, and what is done between them."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dual.Recorder(model, optimizer, path, quiet=True) as recorder:
        for after in (then, lambda: None):
            with recorder.step(label=1):
                learn(optimizer, model(torch.ones(2, 3)).sum())
            recorder.flush()
            after()


def test_a_folder_is_where_it_was_when_it_was_named(tmp_path, monkeypatch):
    """Whatever folder the process works in from then on."""
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    train(Path("run"), then=lambda: os.chdir(tmp_path))
    monkeypatch.chdir(tmp_path / "a")
    with dual.open("run") as memory, dual.open([Path("run")]) as runs:
        monkeypatch.chdir(tmp_path)
        for own in (memory, runs):
            assert len(own.topk("", np.ones((1, 3)), k=9).ids) == 4
            assert own.sql("SELECT count(*) AS n FROM slots")["n"].tolist() == [4]
            assert not own.refresh()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
@pytest.mark.parametrize("name", UNWRITABLE, ids=ascii)
def test_what_cannot_be_written_is_refused_before_anything_is(name, tmp_path):
    with pytest.raises(BadInput, match="Rename the folder"):
        train(tmp_path / name / "run")
    assert list(tmp_path.iterdir()) == []
    # Where a memory was moved there, it is read if DuckDB can, and not written.
    write(tmp_path / "memory", [5, 6])
    (tmp_path / "memory").rename(tmp_path / name)
    before = {file: file.read_bytes() for file in (tmp_path / name).rglob("*") if file.is_file()}
    if name == "what?":
        with dual.open(tmp_path / name) as memory:
            assert memory.sql("SELECT count(*) AS n FROM slots")["n"].tolist() == [11]
    else:
        with pytest.raises(BadInput, match="Rename the folder"):
            dual.open(tmp_path / name)
    with pytest.raises(BadInput, match="Rename the folder"):
        dual.delete(tmp_path / name, "step = 0")
    assert {file: file.read_bytes() for file in (tmp_path / name).rglob("*") if file.is_file()} == before


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_a_link_does_not_help(tmp_path):
    """DuckDB follows it."""
    (tmp_path / "what?").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "what?")
    with pytest.raises(BadInput, match="Rename the folder"):
        train(tmp_path / "link" / "run")
    assert list((tmp_path / "what?").iterdir()) == []
