"""What a shell completes, asked as click asks it: layers, query sets, their rows, columns, studies. It never fails."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time

import pytest
from click.shell_completion import ShellComplete

from dualform import open as open_memory
from dualform_client.cli import help as suggestions
from dualform_client.cli.main import COMMANDS, dualform as group
from dualform_service.server import Server
from dualform_studies.studies import STUDIES
from dualform_studies.study_names import STUDY_NAMES


def completed(*words: object) -> list[str]:
    """What the last word may become; a word of the shell's own, as a folder, by its kind."""
    *before, incomplete = map(str, words)
    items = ShellComplete(group, {}, "dualform", "_DUALFORM_COMPLETE").get_completions(before, incomplete)
    return [item.value if item.type == "plain" else f"<{item.type}>" for item in items]


@pytest.fixture(scope="module")
def targets(folder):
    with open_memory(folder) as memory, Server(memory) as server:
        yield {"folder": folder, "server": server.address}


@pytest.mark.parametrize("kind", ["folder", "server"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["topk", "T", "--layer", ""], ["0", "2"]),
        (["topk", "T", "--layer", "0,"], ["0,2"]),
        (["output", "T", "--layer", "2"], ["2"]),
        (["topk", "T", "--query", ""], ["test/", "traced/"]),
        (["topk", "T", "--query", "te"], [f"test/{row}" for row in range(7)]),
        (["group-sum", "T", "--query", "test/"], [f"test/{row}" for row in range(7)]),
        (["contributions", "T", "--layer", "2", "--query", "traced/4"], ["traced/4"]),
        (["topk", "T", "--query", "test/9"], []),
        (["topk", "T", "--query", "./q"], ["<file>"]),
        (["group-sum", "T", "--by", "da"], ["dataset"]),
        (["group-sum", "T", "--layer", "2", "--by", "label,s"], ["label,slot", "label,step", "label,sample"]),
        (["group-sum", "T", "--by", "label,label"], []),
        (["compare", "T", "T", "--layer", ""], ["0", "2"]),
        (["topk", "T", "--sc"], ["--score"]),
    ],
    ids=lambda words: " ".join(words) if words and words[0] in COMMANDS else "",
)
def test_a_memory_completes_what_it_is_asked_by(targets, kind, words, expected):
    found = completed(*[targets[kind] if word == "T" else word for word in words])
    assert found == expected


def test_folders_are_completed_by_the_shell(folder):
    for command in ("topk", "info", "check", "copy", "delete", "serve", "compare", "sql"):
        assert completed(command, "runs/") == ["<dir>"], command
    assert completed("delete", folder, "--query-set", "te") == ["test"]


def test_studies_are_completed_and_each_has_its_line():
    assert completed("study", "") == list(STUDY_NAMES) == [*STUDIES]
    assert completed("study", "single") == ["single", "single-variants"]


@pytest.mark.parametrize(
    "words", [["topk", "T", "--layer", ""], ["group-sum", "--by", ""], ["topk", "T", "--query", "x/"]]
)
def test_where_there_is_no_memory_nothing_is_completed_and_nothing_raised(tmp_path, words, capfd):
    (tmp_path / "file").write_text("no memory")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "memory.json").write_text("{")
    for target in ("nothing", "host:port", "127.0.0.1:1", tmp_path, tmp_path / "file", tmp_path / "damaged", "\udcff"):
        assert completed(*[target if word == "T" else word for word in words]) == []
    assert capfd.readouterr().err == ""


def test_a_server_that_does_not_answer_at_once_completes_nothing():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        before = time.monotonic()
        assert completed("topk", f"127.0.0.1:{silent.getsockname()[1]}", "--layer", "") == []
        assert time.monotonic() - before < 10 * suggestions.SERVER_SECONDS


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_the_lines_for_a_shell(dualform, shell):
    told = dualform("completion", shell)
    assert told.code == 0
    assert told.err == ""
    assert f"_DUALFORM_COMPLETE={shell}_complete" in told.out
    assert dualform("completion", shell, "--json").json["script"].strip() == told.out.strip()
    assert dualform("completion", "csh").code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_bash_completes_by_the_lines_that_it_is_given(folder, tmp_path):
    (tmp_path / "dualform").write_text(f'#!/bin/sh\nexec {sys.executable} -m dualform_client.cli "$@"\n')
    (tmp_path / "dualform").chmod(0o755)
    script = f"""
        eval "$(dualform completion bash)"
        COMP_WORDS=(dualform topk {folder} --query tra) COMP_CWORD=4
        _dualform_completion dualform
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert told.stderr == ""
    assert told.stdout.split() == [f"traced/{row}" for row in range(5)]


def test_study_without_a_name_lists_the_studies(dualform):
    told = dualform("study")
    assert told.code == 0
    lines = told.out.splitlines()
    for name, line in STUDY_NAMES.items():
        assert [shown for shown in lines if shown.startswith(f"{name} ") and line in shown], name
    assert dualform("study", "--json").json == {"studies": STUDY_NAMES}
    told = dualform("study", "continual")
    assert (told.code, told.err.splitlines()[0]) == (2, "error: Missing option '--out'.")
