"""Settings of `dualform serve`: flags override variables, variables the file, and errors say which of them is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from dualform.errors import BadInput
from dualform_service.settings import (
    BYTES,
    COUNT,
    FILE,
    LOG,
    NUMBER,
    PREFIX,
    SECONDS,
    SETTINGS,
    TEXT,
    YES_NO,
    ServiceConfig,
    options,
    service_config,
)

SECRET = "hunter2-hunter2"
GIVEN = {
    TEXT: ("[::1]:7", "[::1]:7"),
    COUNT: ("7", 7),
    NUMBER: ("1.5", 1.5),
    SECONDS: ("7.5", 7.5),
    BYTES: ("7 MiB", 7 * 2**20),
    YES_NO: ("true", True),
    LOG: ("json", "json"),
}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in os.environ:
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)


def read(*flags, text=None, tmp_path=None):
    """The values of a command line, with this text in the file of --config."""
    if text is not None:
        (tmp_path / "serve.toml").write_text(text)
        flags = ("--config", str(tmp_path / "serve.toml"), *flags)
    return click.Command("serve", params=options()).make_context("serve", list(flags), auto_envvar_prefix=PREFIX).params


def config(*flags, **more):
    values = read(*flags, **more)
    del values["config"]
    return service_config(values)


def test_no_settings_give_the_service_config_of_embedded_servers():
    assert config() == ServiceConfig()


@pytest.mark.parametrize("one", SETTINGS, ids=lambda one: one.name)
def test_flag_variable_and_file_are_read_alike(one, tmp_path, monkeypatch):
    file = tmp_path / "a file"
    file.write_text("x")
    said, value = {**GIVEN, FILE: (str(file), file)}[one.kind]
    flags = [one.flag] if one.kind is YES_NO else [one.flag, said]
    assert value != one.default
    assert read(*flags)[one.name] == value
    assert read(text=f"{one.name} = '{said}'", tmp_path=tmp_path)[one.name] == value
    monkeypatch.setenv(one.variable, said)
    assert read()[one.name] == value


def test_a_file_may_hold_numbers_and_truths(tmp_path):
    values = read(text="max_small = 9\ndeadline = 3\nram = '1000'\nsql = true", tmp_path=tmp_path)
    assert [values[name] for name in ("max_small", "deadline", "ram", "sql")] == [9, 3.0, 1000, True]


def test_flags_override_variables_and_these_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("DUALFORM_SERVE_MAX_SMALL", "2")
    monkeypatch.setenv("DUALFORM_SERVE_DEADLINE", "2")
    monkeypatch.setenv("DUALFORM_SERVE_RAM", "")
    monkeypatch.setenv("DUALFORM_SERVE_OF_OLD", "")
    text = "max_small = 1\ndeadline = 1\nmax_concurrent = 1\nram = 1000"
    values = read("--max-small", "3", text=text, tmp_path=tmp_path)
    assert [values[name] for name in ("max_small", "deadline", "max_concurrent", "ram")] == [3, 2.0, 1, 1000]


@pytest.mark.parametrize(
    ("flags", "variable", "text", "message"),
    [
        ("--max-concurrent=many", "", "", "--max-concurrent must be a whole number above 0."),
        ("--log=xml", "", "", "--log must be text or json."),
        ("--address=", "", "", "--address must not be empty."),
        ("", "DEADLINE=-1", "", "DUALFORM_SERVE_DEADLINE must be a number above 0."),
        ("", "MAX_SMAL=1", "", "Unknown variable DUALFORM_SERVE_MAX_SMAL. Did you mean DUALFORM_SERVE_MAX_SMALL?"),
        ("", "", "tls_cert = 'missing'", "tls_cert in {file} must name a file that can be read."),
        ("", "", "max_small = 2.5", "max_small in {file} must be a whole number above 0."),
        ("", "", "max_small = true", "max_small in {file} must be a whole number above 0."),
        ("", "", "ray = ['x']", "ray in {file} must be a single value."),
        ("", "", "adress = 'x'", "Unknown setting 'adress' in {file}. Did you mean address?"),
        (
            "",
            "",
            "address = ",
            "The settings file {file} is not valid TOML (at end of document).",
        ),
        ("--ray=auto --ram=9", "", "", "--ram limits one process, but --ray starts several."),
    ],
)
def test_an_error_says_what_is_wrong_and_where(flags, variable, text, message, tmp_path, monkeypatch):
    if variable:
        monkeypatch.setenv(*f"DUALFORM_SERVE_{variable}".split("="))
    with pytest.raises(BadInput) as told:
        config(*flags.split(), text=text, tmp_path=tmp_path)
    assert str(told.value).startswith(message.format(file=tmp_path / "serve.toml"))


@pytest.mark.parametrize(
    "text",
    [
        *(f"{one.name} = '{SECRET}'" for one in SETTINGS if one.kind is not TEXT),
        f"token = '{SECRET}'",
        f"token = {SECRET}",
        f"[token]\nvalue = '{SECRET}'",
        f"max_small = ['{SECRET}']",
    ],
)
def test_a_secret_in_the_wrong_place_is_not_shown(text, tmp_path):
    with pytest.raises(BadInput) as told:
        config(text=text, tmp_path=tmp_path)
    assert SECRET not in f"{told.value}{told.value.__cause__!r}"


@pytest.mark.parametrize("data", [None, b"\xff"])
def test_a_file_that_cannot_be_read_is_named(data, tmp_path):
    file = tmp_path / "serve.toml"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(BadInput, match=r"The settings file .*serve\.toml"):
        read("--config", str(file))


FILES = {"certificate": Path("c"), "key": Path("k")}


@pytest.mark.parametrize("name", ["address", "metrics"])
@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "192.168.1.1:1", "example.com:1"])
def test_an_address_that_others_reach_needs_tls_and_a_token(name, address):
    for given in ({}, {"token": "t"}, {"token_file": Path("t")}, FILES):
        with pytest.raises(BadInput, match="can be reached from other machines, which needs both TLS") as refused:
            ServiceConfig(**{"address": "127.0.0.1:0", name: address}, **given)
        assert refused.value.field == name
    for token in ({"token": "secret"}, {"token_file": Path("t")}):
        assert "secret" not in repr(ServiceConfig(**{name: address}, **token, **FILES))
    assert ServiceConfig().listen.loopback


@pytest.mark.parametrize(
    ("given", "says"),
    [
        *(({name: count}, f"^{name} must be a whole number above 0, not {count}.")
          for name in ("max_concurrent", "max_small", "request_bytes", "answer_bytes", "calls")
          for count in (0, 2.5, float("nan"))),
        *(({name: value}, f"^{name} must be a finite number above 0, not {value}.")
          for name in ("token_rate", "message_seconds", "write_seconds", "deadline", "follow")
          for value in (0, -1, float("nan"), float("inf"))),
        ({"grace": -1}, r"^grace must be a finite number .*, not -1\."),
        ({"certificate": Path("c")}, "TLS needs a certificate and its key, and only one was given"),
        ({"key": Path("k")}, "TLS needs a certificate and its key, and only one was given"),
        ({"client_authority": Path("ca.pem")}, "the server has no certificate"),
        *(({"token": token}, "token must be printable ASCII") for token in ("", "ü", "a\nb")),
        ({"token": "t", "token_file": Path("t")}, "token and token_file cannot be combined"),
    ],
)  # fmt: skip
def test_what_bounds_nothing_or_cannot_be_meant_is_refused(given, says):
    with pytest.raises(BadInput, match=says):
        ServiceConfig(**given)
    assert ServiceConfig(grace=0).grace == 0
