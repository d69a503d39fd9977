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
    with pytest.raises(BadInput, match="token must be printable ASCII"):
        ServiceConfig(token=token)


@pytest.mark.parametrize("name", ["max_concurrent", "max_small", "request_bytes", "answer_bytes", "calls"])
@pytest.mark.parametrize("count", [0, -1, 2.5, float("nan")])
def test_what_is_counted_is_a_whole_number_above_0(name, count):
    with pytest.raises(BadInput, match=f"^{name} must be a whole number above 0, not {count}."):
        ServiceConfig(**{name: count})


@pytest.mark.parametrize("name", ["token_rate", "message_seconds", "write_seconds", "deadline", "follow"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_bounds_must_bound_something(name, value):
    with pytest.raises(BadInput, match=f"^{name} must be a finite number above 0, not {value}."):
        ServiceConfig(**{name: value})


def test_grace_may_be_none():
    assert ServiceConfig(grace=0).grace == 0
    with pytest.raises(BadInput, match=r"^grace must be a finite number .*, not -1\."):
        ServiceConfig(grace=-1)


def test_the_token_is_not_shown():
    assert "secret" not in repr(ServiceConfig(token="secret"))
