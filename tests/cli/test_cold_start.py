"""What a command loads before it answers."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import pytest

import dualform_client.cli  # noqa: F401 (its file main.py)
from dualform.store.files import startup

ASK = """
import sys
from dualform_client.cli import main
sys.argv = ["dualform", *sys.argv[1:]]
code = main()
spared = {"grpc", "pandas", "torch", "faiss", "rich"}
spared |= {"dualform.rules", "dualform.query.network", "dualform_client.cli.studies"}
print(spared & set(sys.modules), code, file=sys.stderr)
"""


def test_asking_a_folder_for_scores_loads_no_grpc_no_pandas_and_no_statuses(folder):
    command = ["topk", str(folder), "--layer", "2", "--query", "test/1", "--where", "label <> 1"]
    asked = subprocess.run([sys.executable, "-c", ASK, *command, "--json"], capture_output=True, text=True)
    assert asked.stderr.splitlines()[-1:] == ["set() 0"]
    assert '"hits"' in asked.stdout


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["topk", "RUN", "--layer", "2", "--query", "test/1"], (["2"], ["test"], True)),
        (["topk", "--layer=0,2", "-k", "3", "RUN", "--query=test"], (["0,2", "0", "2"], ["test"], True)),
        (["topk", "RUN", "--layer"], ([], [], True)),
        (["group-sum", "RUN", "--layer", "2", "--query", "test/1:3"], (["2"], ["test"], False)),
        (["topk", "localhost:1", "--layer", "2"], None),
    ],
)
def test_files_of_the_question_are_read_ahead(folder, monkeypatch, words, wanted):
    asked = []

    def ahead(folder, layers, query_sets, *, codes):
        asked.append((folder, layers, query_sets, codes))

    monkeypatch.setattr(startup, "read_ahead", ahead)
    sys.modules["dualform_client.cli.main"]._read_ahead([str(folder) if word == "RUN" else word for word in words])
    assert asked == ([] if wanted is None else [(str(folder), *wanted)])


@pytest.mark.parametrize(("layer", "code"), [("2", 0), ("none", 2)])
def test_a_process_that_ends_at_once_has_written_all_it_says(folder, tmp_path, layer, code):
    command = [sys.executable, "-m", "dualform_client.cli", "topk", str(folder), "--json"]
    with open(tmp_path / "said", "w") as said:  # a file, which Python writes to block by block
        asked = subprocess.run([*command, "--layer", layer, "--query", "test", "-k", "20"], stdout=said)
    text = (tmp_path / "said").read_text()
    assert asked.returncode == code
    assert set(json.loads(text)) >= ({"hits"} if code == 0 else {"error"})


def test_a_servers_pools_of_memory_are_bounded_before_its_first_thread_begins(monkeypatch):
    """A thread keeps the pool that it was given, and what is free there serves few others."""
    cli, done = sys.modules["dualform_client.cli.main"], list[str]()
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(gc, "set_threshold", lambda objects: None)
    monkeypatch.setattr(startup, "bound_arenas", lambda: done.append("bounded"))
    monkeypatch.setattr(cli, "_read_ahead", lambda given: done.append("read ahead"))
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: done.append(f"switches every {seconds} s"))
    cli.prepare(["serve", "runs/demo"])
    cli.prepare(["info", "runs/demo"])
    assert done == ["bounded", "switches every 0.0005 s", "read ahead", "read ahead"]
