"""Every error crosses the wire as the class, message, hint and field that it was raised with."""

from __future__ import annotations

import grpc
import pytest

from dualform import errors
from dualform_proto.errors import DETAILS_KEY, STATUS_CODES, TEXT_BYTES, from_status, to_status

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DualformError)]


def across(error: errors.DualformError) -> errors.DualformError:
    status = to_status(error)
    return from_status(status.code, status.details, status.trailing_metadata, "here:1")


def test_the_table_holds_every_error():
    assert set(STATUS_CODES) == set(ALL)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("field", ["", "where"])
def test_comes_back_as_it_was(kind, field):
    error = across(kind("What is wrong: é \n.", hint="What to do.", field=field))
    assert type(error) is kind
    assert (error.message, error.hint, error.field) == ("What is wrong: é \n.", "What to do.", field)


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


def test_who_is_not_there_is_told_how_to_start():
    error = from_status(grpc.StatusCode.UNAVAILABLE, "", (), "here:1")
    assert error.hint == "Start one: dualform serve RUN --address here:1"


def test_details_of_somebody_else_are_not_taken_for_ours():
    error = from_status(grpc.StatusCode.NOT_FOUND, "theirs", ((DETAILS_KEY, b""),), "here:1")
    assert type(error) is errors.NotFound
    assert error.message == "here:1 answered NOT_FOUND: theirs"


def test_details_that_cannot_be_read_do_not_hide_the_error():
    error = from_status(grpc.StatusCode.NOT_FOUND, "theirs", ((DETAILS_KEY, b"\xff\xff"),), "here:1")
    assert type(error) is errors.NotFound
