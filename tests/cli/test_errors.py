"""An error is a message, a hint and an exit code, never a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dualform import errors

TOPK = ("topk", "T", "--layer", "fc", "--query", "test")


def test_without_json_two_lines_on_stderr(dualform, address, engine):
    engine.error = errors.BadMask("no slot column 'labl'.", hint="Columns: slot, label.")
    told = dualform("topk", address, "--layer", "fc", "--query", "test")
    assert told == (2, "", "error: no slot column 'labl'.\nhint: Columns: slot, label.\n")


def test_with_json_one_object_on_stdout(dualform, address, engine):
    engine.error = errors.BadMask("no slot column 'labl'.", hint="Columns: slot, label.")
    told = dualform("topk", address, "--layer", "fc", "--query", "test", "--json")
    assert told.code == 2
    assert told.err == ""
    assert told.json == {
        "error": {"code": "bad_mask", "message": "no slot column 'labl'.", "hint": "Columns: slot, label."}
    }


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
    told = dualform("sums", "127.0.0.1:1", "--layer", "l", "--query", "test", "--by", "label,", "--json")
    assert told.json["error"]["message"] == "--by 'label,' holds an empty name."


def test_an_unforeseen_error_tells_how_to_see_more(dualform, monkeypatch, address):
    monkeypatch.setattr("dualform_client.cli.look.asdict", lambda told: 1 / 0)
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

    monkeypatch.setattr("dualform_client.cli.look.asdict", interrupt)
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


def test_a_reader_that_has_enough_is_no_error(folder):
    command = f"{sys.executable} -m dualform_client.cli sql {folder} 'SELECT * FROM range(100000)' | head -n 1"
    told = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert told.stdout.startswith("100000 rows, the first 1000 ")
    assert told.stderr == ""


@pytest.mark.parametrize("content", [None, "", "\n", "ü"])
def test_a_token_file_without_a_token(dualform, tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    told = dualform("info", "127.0.0.1:1", "--token-file", file, "--json")
    assert told.code == 2
    assert f"The token file {file} " in told.json["error"]["message"]
