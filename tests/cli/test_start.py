"""What a command loads before it answers; dualform token and what keeps dualform mcp from starting."""

from __future__ import annotations

import gc
import json
import stat
import subprocess
import sys

import pytest

import dualform_client.cli  # noqa: F401 (its file main.py)
from dualform.store.files import startup
from dualform_service.auth import read_tokens

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


def test_a_process_that_ends_at_once_has_written_all_it_says(folder, tmp_path):
    command = [sys.executable, "-m", "dualform_client.cli", "topk", str(folder), "--query", "test", "--json"]
    with open(tmp_path / "said", "w") as said:  # a file, which Python writes to block by block
        assert subprocess.run([*command, "--layer", "2", "-k", "20"], stdout=said).returncode == 0
    assert json.loads((tmp_path / "said").read_text())["hits"]


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


def test_adds_lines_to_a_file_that_only_its_owner_may_read(dualform, tmp_path):
    file = tmp_path / "tokens"
    alice = dualform("token", "alice", "--file", str(file)).out.strip()
    file.write_text(file.read_text().rstrip("\n"))
    bob = json.loads(dualform("token", "bob", "--scopes", "read,sql", "--file", str(file), "--json").out)
    told = dualform("token", "carol")
    assert told.err.startswith("for the server's token file: carol read sha256:")
    assert told.out.strip() not in told.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    tokens = read_tokens(file)
    assert tokens.names == ("alice", "bob")
    assert tokens.caller([("authorization", f"Bearer {alice}")]).scopes == {"read"}
    assert tokens.caller([("authorization", f"Bearer {bob['token']}")]).scopes == {"read", "sql"}


def test_what_cannot_be_added_is_refused_and_changes_nothing(dualform, tmp_path):
    file, bare = tmp_path / "tokens", tmp_path / "bare"
    dualform("token", "alice", "--file", str(file))
    before = file.read_bytes()
    bare.write_text("a-token-as-it-is-in-a-file\n")
    bare.chmod(0o600)
    for arguments, says in [
        (("alice", "--file", str(file)), "already has a token for alice"),
        (("bob", "--file", str(bare)), "holds a bare token"),
        (("bob", "--file", str(tmp_path / "no" / "such")), "cannot be written: No such file or directory"),
        (("two words",), "'two words' cannot name a token"),
        (("bob", "--scopes", "everything"), "Unknown scope 'everything'"),
    ]:
        told = dualform("token", *arguments)
        assert (told.code, told.out) == (2, "")
        assert says in told.err
    assert file.read_bytes() == before


def test_a_target_that_is_none_is_said_before_anything_is_spoken(dualform, tmp_path):
    told = dualform("mcp", tmp_path / "nix", "--json")
    assert told.json["error"]["code"] == "not_a_memory"


LINES = {
    "half of a surrogate pair": (r'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"\ud800"}}', 3),
    "half of one in its id": (r'{"jsonrpc":"2.0","id":"\ud800","method":"tools/list"}', None),
    "no JSON": ("not JSON", None),
    "no message": ('{"jsonrpc":"2.0","id":"four"}', "four"),
    "a list": ("[]", None),
}


def test_every_line_gets_a_reply(folder):
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    first = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
    last = '{"jsonrpc":"2.0","id":9,"method":"tools/list"}'
    with subprocess.Popen(
        [sys.executable, "-m", "dualform_client.cli", "mcp", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            said = []
            ready = '{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
            for line in (first, *(line for line, _ in LINES.values()), last):
                process.stdin.write(f"{ready if line == last else ''}{line}\n".encode())
                process.stdin.flush()
                said.append(json.loads(process.stdout.readline()))
        finally:
            process.stdin.close()
            process.wait(60)
    assert [own["id"] for own in said] == [0, *(number for _, number in LINES.values()), 9]
    assert [own["error"]["code"] for own in said[1:-1]] == [-32700] * len(LINES)
    assert said[-1]["result"]["tools"]
