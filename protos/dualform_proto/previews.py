"""What samples looked like <-> `PreviewsRequest` and `PreviewsResponse`. Raises BadInput for lengths that do not fit.

What is taken for an image begins as a PNG does, whoever sent it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Previews
from dualform.answers.previews import IMAGES, KINDS, PNG, TABLE, TEXTS
from dualform.errors import BadInput, ServiceError
from dualform.questions import PreviewLookup
from dualform_proto.arguments import encode_optional_text
from dualform_proto.columns import decode_columns, encode_columns
from dualform_proto.matrix import decode_numbers, encode_numbers
from dualform_proto.scan import decode_scan, encode_scan
from dualform_proto.v1 import dualform_pb2 as pb


def encode_preview_lookup(question: PreviewLookup) -> pb.PreviewsRequest:
    message = pb.PreviewsRequest(samples=encode_numbers(question.samples))
    if question.dataset is not None:
        message.dataset = encode_optional_text(question.dataset, "dataset") or ""
    if question.query_set is not None:
        message.query_set = encode_optional_text(question.query_set, "query_set") or ""
    return message


def decode_preview_lookup(message: pb.PreviewsRequest) -> PreviewLookup:
    return PreviewLookup(
        decode_numbers(message.samples, np.int64, "samples"),
        message.dataset if message.HasField("dataset") else None,
        message.query_set if message.HasField("query_set") else None,
    )


def encode_previews(found: Previews) -> pb.PreviewsResponse:
    message = pb.PreviewsResponse(
        kind=found.kind,
        samples=encode_numbers(found.samples),
        known=encode_numbers(found.known),
        images=[b"" if image is None else image for image in found.images],
        texts=["" if text is None else text for text in found.texts],
        scan=encode_scan(found.scan),
    )
    if found.offsets is not None:
        message.offsets.counts = encode_numbers(np.array([len(own) for own in found.offsets], dtype=np.int64))
        message.offsets.places = b"".join(encode_numbers(own) for own in found.offsets)
        if found.firsts is not None:
            message.offsets.firsts = encode_numbers(found.firsts)
    if found.kind == TABLE:
        message.columns.CopyFrom(encode_columns(found.columns))
        message.columns.rows = len(found)
    if found.scale is not None:
        message.scale.least, message.scale.greatest = found.scale
    return message


def decode_previews(message: pb.PreviewsResponse) -> Previews:
    samples = decode_numbers(message.samples, np.int64, "samples")
    known = decode_numbers(message.known, np.bool_, "known", len(samples))
    if message.kind not in KINDS:
        raise BadInput(f"a preview set is of kind {message.kind!r}, which this version does not know.")
    images = _spread(list(message.images), known, IMAGES, message.kind)
    if not all(image.startswith(PNG) for image in images if image is not None):
        raise BadInput("an image is no PNG.")
    if message.columns.rows != (len(samples) if message.kind == TABLE else 0):
        raise BadInput(f"{len(samples)} samples have {message.columns.rows} rows.")
    return Previews(
        samples=samples,
        kind=message.kind,
        known=known,
        images=images,
        texts=_spread(list(message.texts), known, TEXTS, message.kind),
        offsets=_offsets(message.offsets, len(samples)) if message.HasField("offsets") else None,
        firsts=_firsts(message.offsets, len(samples)) if message.offsets.firsts else None,
        columns=decode_columns(message.columns),
        scale=(message.scale.least, message.scale.greatest) if message.HasField("scale") else None,
        scan=decode_scan(message.scan),
    )


def check_previews(question: PreviewLookup, found: Previews) -> None:
    """Raises ServiceError where an answer is of other samples than were asked for."""
    if not np.array_equal(question.samples, found.samples):
        raise ServiceError("the server answered with what other samples looked like.")


def _spread(values: list[Any], known: NDArray[np.bool_], kind: str, given: str) -> tuple[Any, ...]:
    """None in the place of each sample that is not known."""
    if len(values) != (len(known) if kind == given else 0):
        raise BadInput(f"{len(known)} samples of kind {given} have {len(values)} {kind}.")
    return tuple(value if own else None for value, own in zip(values, known.tolist(), strict=False))


def _firsts(message: pb.Offsets, count: int) -> NDArray[np.int64]:
    return decode_numbers(message.firsts, np.int64, "firsts", count)


def _offsets(message: pb.Offsets, count: int) -> tuple[NDArray[np.int32], ...]:
    counts = decode_numbers(message.counts, np.int64, "counts", count)
    places = decode_numbers(message.places, np.int32, "places").reshape(-1)
    if (counts < 0).any() or (counts > len(places)).any() or 2 * int(counts.sum()) != len(places):
        raise BadInput(f"offsets of {count} texts have {len(places)} numbers.")
    ends = np.cumsum(counts).tolist()
    pairs = places.reshape(-1, 2)
    return tuple(pairs[start:stop] for start, stop in zip([0, *ends], ends, strict=False))
