"""An error is a message, a hint and an exit code, never a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dualform import errors
from tests.store.small_memory import write

TOPK = ("topk", "T", "--layer", "fc", "--query", "test")


def test_without_json_two_lines_on_stderr(dualform, address, engine):
    engine.error = errors.BadMask("no slot column 'labl'.", hint="Columns: slot, label.")
    told = dualform("topk", address, "--layer", "fc", "--query", "test")
    assert told == (2, "", "error: No slot column 'labl'.\nhint: Columns: slot, label.\n")


def test_names_of_a_memory_in_an_error_do_not_steer_the_terminal(dualform, address, engine):
    engine.error = errors.NotFound("no slot column 'x'.", hint="Columns: \x1b]0;owned\x07, a\x1b[2J.")
    told = dualform("topk", address, "--layer", "fc", "--query", "test")
    assert told.err == "error: No slot column 'x'.\nhint: Columns: �]0;owned�, a�[2J.\n"


def test_with_json_one_object_on_stdout(dualform, address, engine):
    engine.error = errors.BadMask("no slot column 'labl'.", hint="Columns: slot, label.")
    told = dualform("topk", address, "--layer", "fc", "--query", "test", "--json")
    assert told.code == 2
    assert told.err == ""
    error = told.json["error"]
    assert len(error.pop("request_id")) == 16
    assert error == {"code": "bad_mask", "message": "No slot column 'labl'.", "hint": "Columns: slot, label."}


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
        ("127.0.0.1:1", 1, "No server answers at 127.0.0.1:1"),
    ],
)
def test_a_target_that_is_none(dualform, target, code, says):
    told = dualform("info", target, "--json")
    assert told.code == code
    assert says in told.json["error"]["message"]
    assert told.json["error"]["hint"] or target == __file__


def test_a_folder_that_is_no_memory(dualform, tmp_path):
    assert dualform("info", tmp_path, "--json").json["error"]["code"] == "not_a_memory"
    assert dualform("check", tmp_path, "--json").json["error"]["code"] == "not_a_memory"
    assert dualform("serve", tmp_path, "--address", "127.0.0.1:0", "--json").json["error"]["code"] == "not_a_memory"


@pytest.mark.parametrize(
    "arguments",
    [("nix",), ("topk",), ("topk", "x"), ("info", "x", "--nix"), ("output", "x", "--at-step", "y")],
    ids=lambda arguments: " ".join(arguments),
)
def test_wrong_usage(dualform, arguments):
    told = dualform(*arguments)
    assert told.code == 2
    assert told.out == ""
    assert told.err.startswith("error: ")
    error = dualform(*arguments, "--json")
    assert error.code == 2
    assert error.json["error"]["code"] == "usage"
    assert error.json["error"]["hint"].startswith("Try 'dualform")


def test_an_empty_name_to_group_by(dualform):
    told = dualform("group-sum", "127.0.0.1:1", "--layer", "l", "--query", "test", "--by", "label,", "--json")
    assert told.json["error"]["message"] == "--by 'label,' holds an empty name."


def test_an_unforeseen_error_tells_how_to_see_more(dualform, monkeypatch, address):
    monkeypatch.setattr("dualform_client.cli.inspect.asdict", lambda told: 1 / 0)
    told = dualform("info", address, "--json")
    assert told.code == 1
    assert told.err == ""
    assert told.json["error"]["code"] == "internal"
    assert "DUALFORM_TRACEBACK=1" in told.json["error"]["hint"]
    monkeypatch.setenv("DUALFORM_TRACEBACK", "1")
    assert "ZeroDivisionError" in dualform("info", address, "--json").err


def test_an_interruption_is_no_failure_of_ours(dualform, monkeypatch, address):
    def interrupt(told):
        raise KeyboardInterrupt

    monkeypatch.setattr("dualform_client.cli.inspect.asdict", interrupt)
    assert dualform("info", address, "--json").code == 130


def test_a_missing_package_names_its_extra(dualform, monkeypatch, folder, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    told = dualform("weights", folder, "--out", tmp_path / "w.safetensors", "--json")
    assert told.json["error"]["code"] == "missing_package"
    assert "pip install 'dualform[" in told.json["error"]["hint"]


def test_bytes_that_are_no_text(dualform, address):
    told = dualform("topk", address, "--layer", "\udcff", "--query", "test", "--json")
    assert told.code == 2
    assert "no valid text" in told.json["error"]["message"]


@pytest.mark.parametrize(
    ("asked", "first"),
    [("sql {} 'SELECT * FROM range(100000)'", "100,000 rows · first 1,000 "), ("info {}", "")],
    ids=["sql", "info"],
)
def test_a_reader_that_has_enough_is_no_error(folder, asked, first):
    command = f"{sys.executable} -m dualform_client.cli {asked.format(folder)} | head -n 1"
    told = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert told.stdout.startswith(first)
    assert told.stdout.count("\n") == 1
    assert told.stderr == ""


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("info {} >&-", 0, ""),
        ("info {} 2>&-", 0, ""),
        ("check {} >&- 2>&-", 0, ""),
        ("info {}-gone >&-", 1, "error: There is no folder"),
        ("info {}-gone --json >&-", 1, ""),
        ("info {} | true", 1, ""),
        ("info {}-gone --json | true", 1, "error: There is no folder"),
        ("info {}-gone 2>/dev/full", 1, ""),
        ("info {} >/dev/full", 1, "error: No space left on device"),
        ("info {} --json >/dev/full", 1, "error: No space left on device"),
        ("check {} >/dev/full", 1, "error: No space left on device"),
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
    assert "10 MB are too few" in told.err
    assert "hint: Give at least " in told.err
    told = dualform("topk", str(tmp_path / "run"), "--layer", "layer-1", "--query", "test/1", "--ram", "2 GB")
    assert told.code == 0


@pytest.mark.parametrize(
    ("command", "file"),
    [(("weights", "--out"), "/nonexistent/x"), (("explore", "--item", "test/0", "--export"), "/nonexistent/x.html")],
    ids=["weights", "explore"],
)
def test_a_file_in_a_folder_that_is_not_there_is_one_clear_line(folder, command, file):
    name, *options = command
    asked = [sys.executable, "-m", "dualform_client.cli", name, str(folder), *options, file]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
    told = f"error: There is no folder /nonexistent.\nhint: Make the folder first, or give another {options[-1]}.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)
