"""Outputs, weights and cancellation, rebuilt from the record <-> response messages. Decoding checks every length."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Cancellation, Outputs, Weights
from dualform.errors import BadInput
from dualform_proto.grade import decode_grade, encode_grade
from dualform_proto.matrix import (
    WIRE_TYPES,
    decode_matrix,
    decode_numbers,
    element_type,
    encode_matrix,
    encode_numbers,
)
from dualform_proto.scan import decode_scan, encode_scan
from dualform_proto.v1 import dualform_pb2 as pb


def encode_outputs(outputs: Outputs) -> pb.OutputResponse:
    return pb.OutputResponse(
        outputs=encode_matrix(outputs.values.astype(np.float32, copy=False)),
        scan=encode_scan(outputs.scan),
        space=outputs.space,
        grade=encode_grade(outputs.grade),
        standing=outputs.standing,
    )


def decode_outputs(message: pb.OutputResponse) -> Outputs:
    return Outputs(
        values=decode_matrix(message.outputs, np.float32, "outputs"),
        space=message.space,
        grade=decode_grade(message.grade),
        standing=message.standing,
        scan=decode_scan(message.scan),
    )


def encode_weights(weights: Weights) -> pb.WeightsResponse:
    return pb.WeightsResponse(
        parameters=[_encode_parameter(name, array) for name, array in weights.arrays.items()],
        layers=[
            pb.LayerRecord(layer=layer, grade=encode_grade(grade), standing=weights.standing[layer])
            for layer, grade in weights.grades.items()
        ],
        not_recorded=weights.not_recorded,
        kept=[pb.Count(name=space, count=count) for space, count in weights.kept.items()],
        scan=encode_scan(weights.scan),
    )


def decode_weights(message: pb.WeightsResponse) -> Weights:
    return Weights(
        arrays={parameter.name: _decode_parameter(parameter) for parameter in message.parameters},
        grades={record.layer: decode_grade(record.grade) for record in message.layers},
        standing={record.layer: record.standing for record in message.layers},
        not_recorded=tuple(message.not_recorded),
        kept={count.name: count.count for count in message.kept},
        scan=decode_scan(message.scan),
    )


def _encode_parameter(name: str, array: NDArray[Any]) -> pb.Parameter:
    dtype = element_type(array.dtype, f"parameter {name!r}")
    return pb.Parameter(name=name, shape=array.shape, dtype=dtype, data=encode_numbers(array))


def _decode_parameter(message: pb.Parameter) -> NDArray[Any]:
    field = f"parameter {message.name!r}"
    if message.dtype not in WIRE_TYPES:
        raise BadInput(f"{field} is of element type {message.dtype}, which this version does not know.")
    shape = tuple(message.shape)
    if any(length < 0 for length in shape):
        raise BadInput(f"{field} is of the shape {list(shape)}.")
    return decode_numbers(message.data, WIRE_TYPES[message.dtype], field, prod(shape)).reshape(shape)


def encode_cancellation(cancellation: Cancellation) -> pb.CancellationResponse:
    figures = [pb.Figure(layer=layer, figure=figure) for layer, figure in cancellation.items()]
    return pb.CancellationResponse(figures=figures, scan=encode_scan(cancellation.scan))


def decode_cancellation(message: pb.CancellationResponse) -> Cancellation:
    return Cancellation({one.layer: one.figure for one in message.figures}, decode_scan(message.scan))
