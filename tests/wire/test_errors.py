"""Every error crosses the wire as it was raised, with class, message, hint and field; and what an address is."""

from __future__ import annotations

import grpc
import pytest

from dualform import errors
from dualform.errors import BadInput
from dualform_proto.address import is_served, parse_address
from dualform_proto.errors import DETAILS_KEY, STATUS_CODES, TEXT_BYTES, from_status, to_status

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DualformError)]


def across(error: errors.DualformError) -> errors.DualformError:
    status = to_status(error)
    return from_status(status.code, status.details, status.trailing_metadata, "here:1")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("field", ["", "where"])
def test_comes_back_as_it_was(kind, field):
    error = across(kind("What is wrong: é \n.", hint="What to do.", field=field))
    assert type(error) is kind
    assert (error.message, error.hint, error.field) == ("What is wrong: é \n.", "What to do.", field)
    assert set(STATUS_CODES) == set(ALL)


def test_a_class_of_later_versions_comes_back_as_its_base():
    class Later(errors.BadMask):
        code = "later"

    assert type(across(Later("new"))) is errors.BadMask


def test_long_texts_are_cut_and_still_come_back():
    error = across(errors.BadMask("ü" * 100_000, hint="h" * 100_000, field="where"))
    assert type(error) is errors.BadMask
    assert len(error.message.encode()) <= TEXT_BYTES
    assert error.message.startswith("üüü")
    assert error.message.endswith("…")


def test_texts_that_are_no_valid_unicode_still_travel():
    assert across(errors.BadMask("bad \ud800")).message == "bad ?"


@pytest.mark.parametrize(
    ("code", "details", "kind", "says"),
    [
        (grpc.StatusCode.UNAVAILABLE, "refused", errors.Unavailable, "Cannot connect to here:1 (refused)."),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", errors.TimedOut, "here:1 did not answer before the deadline."),
        (
            grpc.StatusCode.UNAVAILABLE,
            "Cancelling all calls",
            errors.Unavailable,
            "here:1 closed before it had answered.",
        ),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", errors.Unavailable, "here:1 closed before it had answered."),
        (grpc.StatusCode.CANCELLED, "Cancelled", errors.Unavailable, "here:1 closed before it had answered."),
        (grpc.StatusCode.CANCELLED, "Channel closed!", errors.Cancelled, "here:1 answered CANCELLED: Channel closed!"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "", errors.Overloaded, "here:1 takes no more questions at present."),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max", errors.BadInput, "A message to or from here:1"),
        (grpc.StatusCode.UNIMPLEMENTED, "", errors.ServiceError, "here:1 is a server, but does not speak dualform.v1"),
        (grpc.StatusCode.UNAUTHENTICATED, "no", errors.Unauthenticated, "here:1 answered UNAUTHENTICATED: no"),
        (grpc.StatusCode.UNKNOWN, "what", errors.ServiceError, "here:1 answered UNKNOWN: what"),
        (grpc.StatusCode.OUT_OF_RANGE, "what", errors.ServiceError, "here:1 answered OUT_OF_RANGE: what"),
    ],
)
def test_a_status_of_the_transport_is_read_by_its_code(code, details, kind, says):
    error = from_status(code, details, (), "here:1")
    assert type(error) is kind
    assert error.message.startswith(says)


@pytest.mark.parametrize("details", [b"", b"\xff\xff"])
def test_details_of_somebody_else_are_not_taken_for_ours(details):
    error = from_status(grpc.StatusCode.NOT_FOUND, "theirs", ((DETAILS_KEY, details),), "here:1")
    assert type(error) is errors.NotFound
    assert error.message == "here:1 answered NOT_FOUND: theirs"


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
    assert is_served(text)
    assert str(parse_address(text)) == text
    assert parse_address(text).loopback is loopback
