"""An error is a message, a hint and an exit code, never a traceback."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from unittest.mock import Mock

import pytest

from dualform import errors
from tests.store.small_memory import write

TOPK = ("topk", "T", "--layer", "fc", "--query", "test")


def test_without_json_two_lines_on_stderr_that_steer_no_terminal(dualform, address, engine):
    engine.error = errors.NotFound("no slot column 'x'.", hint="Columns: \x1b]0;owned\x07, a\x1b[2J.")
    told = dualform("topk", address, "--layer", "fc", "--query", "test")
    assert told == (2, "", "error: No slot column 'x'.\nhint: Columns: �]0;owned�, a�[2J.\n")
    engine.error = errors.NotFound(
        "there is no layer 'h.1'.", hint=f"Layers: {', '.join(f'h.{n}.q' for n in range(20))}."
    )
    listed = ", ".join(f"h.{n}.q" for n in range(8))
    hint = f"hint: Did you mean h.1.q? Layers: {listed} and 12 more."
    assert dualform("info", address).err == f"error: There is no layer 'h.1'.\n{hint}\n"


def test_with_json_one_object_on_stdout(dualform, address, engine):
    engine.error = errors.BadMask("no slot column 'labl'.", hint="Columns: slot, label.")
    told = dualform("topk", address, "--layer", "fc", "--query", "test", "--json")
    assert told.code == 2
    assert told.err == ""
    error = told.json["error"]
    assert len(error.pop("request_id")) == 16
    hint = "Did you mean label? Columns: slot, label."
    assert error == {"code": "bad_mask", "message": "No slot column 'labl'.", "hint": hint}


def test_what_a_server_failed_on_is_told_with_its_request_as_the_log_names_it(dualform, address, engine, caplog):
    engine.error = KeyError("x")
    told = dualform("info", address)
    (own,) = (record.args[1] for record in caplog.records if record.msg == "%s failed, request %s")
    hint = f"hint: The server's log says why, under the request {own}."
    assert told == (1, "", f"error: The server failed on this question.\n{hint}\n")
    assert dualform("info", "127.0.0.1:1").err.count("request") == 0


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.BadInput, 2),
        (errors.EmptyMask, 2),
        (errors.NotFound, 2),
        (errors.Inexact, 1),
        (errors.Damaged, 1),
        (errors.Overloaded, 1),
        (errors.TimedOut, 1),
    ],
)
def test_exit_codes(dualform, address, engine, kind, code):
    engine.error = kind("wrong")
    told = dualform("info", address, "--json")
    assert told.code == code
    assert told.json["error"]["code"] == kind.code


@pytest.mark.parametrize(
    ("target", "code", "says"),
    [
        ("nothing", 2, "'nothing' is neither a folder nor host:port."),
        ("./nothing", 1, "There is no folder nothing."),
        ("run.s", 1, "There is no folder run.s."),
        ("host:port", 2, "'host:port' is neither a folder nor host:port."),
        (__file__, 1, "is a file; a memory is a folder."),
        ("127.0.0.1:1", 1, "Cannot connect to 127.0.0.1:1 (connection refused)."),
    ],
)
def test_a_target_that_is_none(dualform, target, code, says):
    told = dualform("info", target, "--json")
    assert told.code == code
    assert says in told.json["error"]["message"]
    assert told.json["error"]["hint"] or target == __file__


def test_an_unforeseen_error_tells_how_to_see_more(dualform, monkeypatch, address):
    monkeypatch.setattr("dualform_client.cli.inspection.asdict", lambda told: 1 / 0)
    told = dualform("info", address, "--json")
    assert told.code == 1
    assert told.err == ""
    assert told.json["error"]["code"] == "internal"
    assert "DUALFORM_TRACEBACK=1" in told.json["error"]["hint"]
    monkeypatch.setenv("DUALFORM_TRACEBACK", "1")
    assert "ZeroDivisionError" in dualform("info", address, "--json").err
    interrupted = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("dualform_client.cli.inspection.asdict", interrupted)
    assert dualform("info", address, "--json").code == 130, "an interruption is no failure of ours"


@pytest.mark.parametrize(
    ("package", "command", "says"),
    [
        ("safetensors.torch", ("weights", "--out", "w.safetensors"), "the package safetensors is not installed;"),
        ("mcp", ("mcp",), "The package mcp is not installed; the extra [mcp] brings it."),
    ],
)
def test_a_missing_package_names_its_extra(dualform, monkeypatch, folder, tmp_path, package, command, says):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    told = dualform(command[0], folder, *command[1:], "--json")
    assert (told.code, told.json["error"]["code"]) == (1, "missing_package")
    assert told.json["error"]["message"].startswith(says)
    assert "pip install 'dualform[" in told.json["error"]["hint"]


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("check {} >&- 2>&-", 0, ""),
        ("info {}-gone --json >&-", 1, ""),
        ("sql {} 'SELECT * FROM range(100000)' | head -n 1", 1, ""),
        ("info {} --json >/dev/full", 1, "error: No space left on device"),
    ],
)
def test_streams_that_are_closed_or_take_no_more_end_in_no_traceback(folder, command, code, says):
    shell = f"{sys.executable} -m dualform_client.cli {command.format(folder)}; exit ${{PIPESTATUS[0]}}"
    told = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=False)
    assert told.stderr.startswith(says)
    assert "\n" not in told.stderr.partition("\nhint: ")[0].rstrip("\n")
    assert bool(told.stderr) == bool(says)
    assert told.returncode == code


@pytest.mark.parametrize("content", [None, "", "\n", "ü"])
def test_a_token_file_without_a_token(dualform, tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    told = dualform("info", "127.0.0.1:1", "--token-file", file, "--json")
    assert told.code == 2
    assert f"The token file {file} " in told.json["error"]["message"]


def test_too_little_memory_for_a_folder_says_how_much_is_needed(dualform, tmp_path):
    write(tmp_path / "run", [5, 4])
    told = dualform("topk", str(tmp_path / "run"), "--layer", "layer-1", "--query", "test/1", "--ram", "10 MB")
    assert told.code == 2
    assert "10 MB is too small" in told.err
    assert "hint: Pass at least --ram " in told.err
    told = dualform("topk", str(tmp_path / "run"), "--layer", "layer-1", "--query", "test/1", "--ram", "2 GB")
    assert told.code == 0


def test_a_file_in_a_folder_that_is_not_there_is_one_clear_line(dualform, folder):
    told = "error: There is no folder /nonexistent.\nhint: Make the folder first, or give another --export.\n"
    assert dualform("explore", folder, "--item", "test/0", "--export", "/nonexistent/x.html") == (1, "", told)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            "topk RUN --layer 2 --query test/1 -k 0",
            "Invalid value for '-k': 0 is not in the range x>=1.",
            "Try 'dualform topk --help'.",
        ),
        (
            "topk RUN --layer 2 --query test/1 --score foo",
            "Invalid value for '--score': 'foo' is not one of 'dot', 'abs', 'cosine', 'gradient', 'contribution'.",
            "Try 'dualform topk --help'.",
        ),
        (
            "topk RUN --layer 2 --query test/1 --at-step 3",
            "--at-step needs --target.",
            "Give --target N, an output's number.",
        ),
        (
            "group-sum RUN --query test --by label,",
            "--by 'label,' holds an empty name.",
            "Write --by COL or --by COL,COL.",
        ),
        (
            "topk RUN --layer 2 --query test/1 --target x",
            "--target must be N or N-M, not 'x'.",
            "Give the number of an output, or 3-8 for output 3 less output 8.",
        ),
        ("topk RUN --layer 22 --query test/1", "There is no layer '22'.", "Did you mean 2? Layers: 0, 2."),
        (
            "topk RUN --layer 2 --query tests/1",
            "There is no query set 'tests'.",
            "Did you mean test? Query sets: test, traced.",
        ),
        (
            "output RUN --layer 2 --query test/1 --at-step 99",
            "--at-step must be at most 6, the number of recorded steps, not 99.",
            "Pass 0 (the initial network) to 6 (the end).",
        ),
        (
            "output RUN --layer 2 --query test/1 --temperature 2",
            "--temperature cannot be used with --kernel linear.",
            "Pass --kernel softmax.",
        ),
        (
            "topk RUN --layer 2 --query test/1 --score gradient",
            "Query set 'test' was recorded without a loss, so it has no gradients.",
            "Record it with a loss.",
        ),
        ("sql RUN 'SELECT labl FROM slots'", "Unknown column 'labl'.", "Names like it: label"),
        (
            "sql RUN 'DELETE FROM slots'",
            "Only SELECT is answered, not DELETE: SQL cannot change a memory.",
            "To remove samples, use dualform delete.",
        ),
        ("info RUNS", "RUNS is not a dualform memory (no memory.json).", "Pass the folder that a Recorder wrote."),
        ("info RUNS/rum", "There is no folder RUNS/rum.", "Did you mean RUNS/run?"),
        (
            "info 127.0.0.1:1",
            "Cannot connect to 127.0.0.1:1 (connection refused).",
            "Start one: dualform serve RUN --address 127.0.0.1:1",
        ),
        (
            "info 192.0.2.1:1 --token-file TOKEN",
            "The token would travel to 192.0.2.1:1 for all to read.",
            "Connect by TLS: --tls or --tls-ca FILE.",
        ),
    ],
    ids=lambda value: value if " " in value and value.split()[0].islower() else "",
)
def test_an_error_says_what_is_wrong_and_what_to_type(dualform, folder, tmp_path, words, message, hint):
    (tmp_path / "token").write_text("a-token")
    places = {"RUNS": folder.parent, "RUN": folder, "TOKEN": tmp_path / "token"}

    def placed(text):
        return re.sub(r"\b(RUNS|RUN|TOKEN)\b(?! --address)", lambda found: str(places[found[1]]), text)

    told = dualform(*shlex.split(placed(words)), "--json").json["error"]
    assert (told["message"], told["hint"].partition(",")[0] if "Names like" in hint else told["hint"]) == (
        placed(message),
        placed(hint),
    )
