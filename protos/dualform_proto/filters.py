"""Filters <-> `Filter` and `Filters` messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualform.errors import BadInput
from dualform.questions import Filter, FilterOrFilters, Ids
from dualform_proto.arguments import encode_text
from dualform_proto.matrix import decode_numbers, encode_numbers
from dualform_proto.v1 import dualform_pb2 as pb


def encode_filter(where: str | Filter | None) -> pb.Filter | None:
    if where is None:
        return None
    if isinstance(where, str):
        return pb.Filter(sql=encode_text(where, "where"))
    return pb.Filter(sql=encode_text(where.sql, "where"), values=[_encode_value(value) for value in where.values])


def decode_filter(message: Any) -> str | Filter | None:
    """The filter of a request; None where it has none."""
    return _decode(message.where) if message.HasField("where") else None


def encode_filters(where: FilterOrFilters | None) -> pb.Filters | None:
    if where is None:
        return None
    if not isinstance(where, Mapping):
        return pb.Filters(all=encode_filter(where))
    filters = [
        pb.SpaceFilter(space=encode_text(space, "where"), where=encode_filter(own)) for space, own in where.items()
    ]
    return pb.Filters(by_space=pb.SpaceFilters(filters=filters))


def decode_filters(message: pb.Filters) -> FilterOrFilters | None:
    """Raises BadInput where two filters are of one space."""
    match message.WhichOneof("filters"):
        case "all":
            return _decode(message.all)
        case "by_space":
            found = {one.space: _decode(one.where) for one in message.by_space.filters}
            if len(found) < len(message.by_space.filters):
                raise BadInput("where names a slot space twice.", field="where")
            return found
    return None


def _decode(message: pb.Filter) -> str | Filter:
    return Filter(message.sql, tuple(map(_decode_value, message.values))) if message.values else message.sql


def _encode_value(value: bool | int | float | str | Ids | None) -> pb.FilterValue:
    match value:
        case bool():
            return pb.FilterValue(truth=value)
        case int():
            return pb.FilterValue(number=value)
        case float():
            return pb.FilterValue(real=value)
        case str():
            return pb.FilterValue(text=encode_text(value, "where"))
        case Ids(values) if isinstance(values, np.ndarray):
            return pb.FilterValue(ids=encode_numbers(values))
        case Ids(values):
            return pb.FilterValue(texts=pb.Texts(texts=[encode_text(text, "where") for text in values]))
    return pb.FilterValue()


def _decode_value(message: pb.FilterValue) -> bool | int | float | str | Ids | None:
    match message.WhichOneof("value"):
        case "truth":
            return message.truth
        case "number":
            return message.number
        case "real":
            return message.real
        case "text":
            return message.text
        case "ids":
            return Ids(decode_numbers(message.ids, np.int64, "where"))
        case "texts":
            return Ids(tuple(message.texts.texts))
    return None
