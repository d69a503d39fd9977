from __future__ import annotations

from pathlib import Path

import pytest

from dualform.errors import BadInput
from dualform_service.config import ServiceConfig


def test_listens_on_loopback_unless_told_otherwise():
    assert ServiceConfig().listen.loopback


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "192.168.1.1:1", "example.com:1"])
@pytest.mark.parametrize("given", [{}, {"token": "t"}, {"certificate": Path("c"), "key": Path("k")}])
def test_an_address_that_others_reach_needs_tls_and_a_token(address, given):
    with pytest.raises(BadInput, match="can be reached from other machines, which needs both TLS and a token"):
        ServiceConfig(address, **given)


def test_an_address_that_others_reach_is_served_with_both():
    ServiceConfig("0.0.0.0:1", token="t", certificate=Path("c"), key=Path("k"))


@pytest.mark.parametrize("given", [{"certificate": Path("c")}, {"key": Path("k")}])
def test_half_a_pair_of_tls_files_is_refused(given):
    with pytest.raises(BadInput, match="TLS needs a certificate and its key, and only one was given"):
        ServiceConfig(**given)


@pytest.mark.parametrize("token", ["", "ü", "a\nb"])
def test_a_token_that_no_header_can_carry_is_refused(token):
    with pytest.raises(BadInput, match="the token is empty or holds characters"):
        ServiceConfig(token=token)


@pytest.mark.parametrize(
    "name", ["max_concurrent", "request_bytes", "answer_bytes", "message_seconds", "calls", "deadline"]
)
def test_bounds_must_bound_something(name):
    with pytest.raises(BadInput, match=f"{name} is 0. It must be above 0."):
        ServiceConfig(**{name: 0})


def test_the_token_is_not_shown():
    assert "secret" not in repr(ServiceConfig(token="secret"))
