from __future__ import annotations

import pytest

from dualform.errors import BadInput
from dualform_proto.address import is_address, parse_address


@pytest.mark.parametrize("text", ["127.0.0.1:50051", "localhost:0", "[::1]:1", "a.b-c.example:65535"])
def test_addresses_read_back(text):
    assert is_address(text)
    assert str(parse_address(text)) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "::1:1", "host:port", "a/b:1", "host:65536", "a b:1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(BadInput, match=r"is no address\. Write host:port, for example 127\.0\.0\.1:50051\.$"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("192.168.0.1:1", False),
        ("localhost.example.com:1", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(text, loopback):
    assert parse_address(text).loopback is loopback
