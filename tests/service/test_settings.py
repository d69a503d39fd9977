"""Settings of `dualform serve`: where each may come from, who goes before whom, and what is said of those at fault."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dualform.errors import BadInput
from dualform_service.config import BadSettings, ServiceConfig
from dualform_service.settings import SETTINGS
from dualform_service.settings_sources import read_settings

SECRET = "hunter2-hunter2"
GIVEN = {
    "text": "[::1]:7",
    "whole number": "7",
    "number": "1.5",
    "seconds": "7.5",
    "bytes": "7 MiB",
    "yes or no": "true",
}
TAKEN = {"text": "[::1]:7", "whole number": 7, "number": 1.5, "seconds": 7.5, "bytes": 7 * 2**20, "yes or no": True}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in os.environ:
        if name.startswith("DUALFORM_SERVE_"):
            monkeypatch.delenv(name)


def settings(text=None, tmp_path=None, **flags):
    if text is None:
        return read_settings(flags, os.environ, None)
    file = tmp_path / "serve.toml"
    file.write_text(text)
    return read_settings(flags, os.environ, file)


def faults_of(found):
    with pytest.raises(BadInput) as told:
        found.config()
    return BadSettings.each(told.value)


def test_nothing_given_is_the_service_config_of_embedded_servers():
    assert settings().config() == ServiceConfig()
    assert settings().values["ram"] is None


@pytest.mark.parametrize("one", SETTINGS, ids=lambda one: one.name)
def test_each_setting_is_taken_from_flag_environment_and_file_alike(one, tmp_path, monkeypatch):
    (tmp_path / "a file").write_text("x")
    given = GIVEN | {"file": str(tmp_path / "a file")}
    said, taken = given[one.kind], (TAKEN | {"file": tmp_path / "a file"})[one.kind]
    if one.choices:
        said = taken = next(choice for choice in one.choices if choice != one.default)
    assert taken != one.default
    assert settings(**{one.name: said}).values[one.name] == taken
    assert settings(f"{one.name} = '{said}'", tmp_path).values[one.name] == taken
    monkeypatch.setenv(one.variable, said)
    assert settings().values[one.name] == taken


def test_a_file_may_hold_numbers_as_such(tmp_path):
    values = settings("max_small = 9\ndeadline = 3\nrequest_bytes = 1000\nram = '1000'", tmp_path).values
    assert (values["max_small"], values["deadline"]) == (9, 3.0)
    assert (values["request_bytes"], values["ram"]) == (1000, 1000)


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("DUALFORM_SERVE_MAX_SMALL", "2")
    monkeypatch.setenv("DUALFORM_SERVE_DEADLINE", "2")
    config = settings("max_small = 1\ndeadline = 1\nmax_concurrent = 1", tmp_path, max_small="3").config()
    assert (config.max_small, config.deadline, config.max_concurrent) == (3, 2.0, 1)


def test_an_empty_variable_is_none(monkeypatch):
    monkeypatch.setenv("DUALFORM_SERVE_RAM", "")
    monkeypatch.setenv("DUALFORM_SERVE_OF_OLD", "")
    assert settings().values["ram"] is None
    assert settings().faults == ()


def test_all_that_is_wrong_is_said_at_once_with_where_it_stands(tmp_path, monkeypatch):
    monkeypatch.setenv("DUALFORM_SERVE_DEADLINE", "-1")
    monkeypatch.setenv("DUALFORM_SERVE_MAX_SMAL", "1")
    text = f"tls_cert = '{tmp_path}/missing.pem'\nadress = 'x'\nrequest_bytes = '3 MX'"
    found = settings(text, tmp_path, max_concurrent="many", address="0.0.0.0:1")
    faults = faults_of(found)
    assert [str(fault) for fault in faults] == [
        "Unknown variable DUALFORM_SERVE_MAX_SMAL. Did you mean DUALFORM_SERVE_MAX_SMALL?",
        f"Unknown setting 'adress' in {tmp_path}/serve.toml. Did you mean address?",
        f"tls_cert in {tmp_path}/serve.toml must name a file that can be read.",
        "--max-concurrent must be a whole number above 0.",
        "DUALFORM_SERVE_DEADLINE must be a number above 0.",
        f"request_bytes in {tmp_path}/serve.toml must be a number of bytes above 0, or a text with a unit, such as "
        '"2 GB".',
        "TLS needs a certificate and its key, and only one was given. Give both --tls-cert and --tls-key.",
        "0.0.0.0:1 can be reached from other machines, which needs both TLS and a token. "
        "Give --tls-cert, --tls-key and --token-file, or listen on 127.0.0.1.",
    ]


@pytest.mark.parametrize("wrong", ["nan", "inf", "0", "true", "1.5.2"])
def test_numbers_that_bound_nothing_are_refused(wrong, tmp_path):
    (fault,) = faults_of(settings(f"deadline = {wrong}" if wrong != "1.5.2" else "deadline = '1.5.2'", tmp_path))
    assert fault.field == "deadline"


def test_what_is_none_of_the_choices_is_refused():
    (fault,) = faults_of(settings(log="xml"))
    assert str(fault) == "--log must be text or json."


def test_one_bound_does_not_bound_several_processes():
    (fault,) = faults_of(settings(ray="auto", ram="2 GB"))
    assert "--ram limits one process, but --ray starts several." in str(fault)


def test_a_token_file_that_cannot_be_used_is_one_fault_among_others(tmp_path):
    (tmp_path / "token").write_text("")
    told = faults_of(settings(token_file=str(tmp_path / "token"), max_small="0"))
    assert [fault.field for fault in told] == ["max_small", "token_file"]


@pytest.mark.parametrize(
    "text",
    [
        *(f"{one.name} = '{SECRET}'" for one in SETTINGS if one.kind != "text"),
        f"token = '{SECRET}'",
        f"{SECRET}",
        f"token = {SECRET}",
        f"[token]\nvalue = '{SECRET}'",
        f"max_small = ['{SECRET}']",
    ],
)
def test_what_was_put_in_the_wrong_place_is_not_shown(text, tmp_path):
    with pytest.raises(BadInput) as told:
        settings(text, tmp_path).config()
    assert SECRET not in str(told.value)
    assert SECRET not in repr(told.value.__cause__)


@pytest.mark.parametrize("data", [None, b"\xff", b"address = "])
def test_a_file_that_is_none_is_said(data, tmp_path):
    file = tmp_path / "serve.toml"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(BadInput, match=r"The settings file .*serve\.toml"):
        read_settings({}, os.environ, file)


def test_what_is_at_fault_in_a_config_is_said_at_once():
    with pytest.raises(BadSettings) as told:
        ServiceConfig("0.0.0.0", max_small=0, token="", key=Path("k"))
    assert [fault.field for fault in told.value.faults] == ["max_small", "certificate", "token", "address"]
