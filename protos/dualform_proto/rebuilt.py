"""Questions about what is rebuilt from the record, and their answers <-> messages.

Decoding builds the value, which checks itself, and checks every length. Raises BadInput.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Cancellation, Concentration, Outputs, Weights
from dualform.errors import BadInput, ServiceError
from dualform.questions import MaskCancellation, NetworkWeights, Output
from dualform_proto.arguments import encode_optional_int64, encode_optional_text
from dualform_proto.filters import decode_filter, decode_filters, encode_filter, encode_filters
from dualform_proto.matrix import (
    WIRE_TYPES,
    decode_matrix,
    decode_numbers,
    element_type,
    encode_matrix,
    encode_numbers,
)
from dualform_proto.queries import decode_queries, encode_queries
from dualform_proto.scan import decode_scan, encode_scan
from dualform_proto.status import decode_status, encode_status
from dualform_proto.v1 import dualform_pb2 as pb

KERNELS: dict[str, pb.Kernel.ValueType] = {"linear": pb.KERNEL_LINEAR, "softmax": pb.KERNEL_SOFTMAX}
_KERNEL_NAMES: dict[int, str] = {pb.KERNEL_UNSPECIFIED: "linear", **{value: name for name, value in KERNELS.items()}}


def encode_output(question: Output) -> pb.OutputRequest:
    return pb.OutputRequest(
        layer=encode_optional_text(question.layer, "layer"),
        queries=encode_queries(question.queries),
        where=encode_filter(question.where),
        at_step=encode_optional_int64(question.at_step, "at_step"),
        allow_inexact=question.allow_inexact,
        kernel=KERNELS[question.kernel],
        temperature=question.temperature,
        without_initial=not question.initial,
    )


def decode_output(message: pb.OutputRequest) -> Output:
    return Output(
        layer=message.layer if message.HasField("layer") else None,
        queries=decode_queries(message.queries),
        where=decode_filter(message),
        at_step=message.at_step if message.HasField("at_step") else None,
        allow_inexact=message.allow_inexact,
        kernel=_decode_kernel(message),
        temperature=message.temperature if message.HasField("temperature") else None,
        initial=not message.without_initial,
    )


def encode_outputs(outputs: Outputs) -> pb.OutputResponse:
    return pb.OutputResponse(
        outputs=encode_matrix(outputs.values.astype(np.float32, copy=False)),
        scan=encode_scan(outputs.scan),
        space=outputs.space,
        status=encode_status(outputs.status),
        unrecorded_change=outputs.unrecorded_change,
        kernel=KERNELS[outputs.kernel],
        temperature=outputs.temperature,
        without_initial=not outputs.initial,
        effective_slots=None if outputs.effective_slots is None else encode_numbers(outputs.effective_slots),
    )


def decode_outputs(message: pb.OutputResponse) -> Outputs:
    values, effective = decode_matrix(message.outputs, np.float32, "outputs"), None
    if message.HasField("effective_slots"):
        effective = decode_numbers(message.effective_slots, np.float64, "effective_slots", len(values))
    return Outputs(
        values=values,
        space=message.space,
        status=decode_status(message.status),
        unrecorded_change=message.unrecorded_change,
        scan=decode_scan(message.scan),
        kernel=_decode_kernel(message),
        temperature=message.temperature if message.HasField("temperature") else None,
        initial=not message.without_initial,
        effective_slots=effective,
    )


def check_outputs(question: Output, outputs: Outputs) -> None:
    """Raises ServiceError where the server answered another question, as one that knows no kernels does, or a part."""
    asked = (question.kernel, question.temperature, question.initial)
    if (outputs.kernel, outputs.temperature, outputs.initial) != asked:
        left_out = "" if question.initial else " without the initial weights"
        raise ServiceError(
            f"the server did not answer with the kernel {question.kernel!r}{left_out}.",
            hint="It runs an older version of dualform: upgrade it, or ask the memory's folder.",
            field="kernel",
        )
    if question.kernel == "softmax" and outputs.effective_slots is None:
        raise ServiceError(
            "the server did not say over how many slots the softmax is spread.",
            hint="It does not keep to dualform.v1: ask the memory's folder.",
            field="kernel",
        )


def _decode_kernel(message: pb.OutputRequest | pb.OutputResponse) -> str:
    if message.kernel not in _KERNEL_NAMES:
        raise BadInput(f"kernel is {message.kernel}, which this version does not know.", field="kernel")
    return _KERNEL_NAMES[message.kernel]


def encode_weights(question: NetworkWeights) -> pb.WeightsRequest:
    return pb.WeightsRequest(
        where=encode_filters(question.where),
        at_step=encode_optional_int64(question.at_step, "at_step"),
        allow_inexact=question.allow_inexact,
    )


def decode_weights(message: pb.WeightsRequest) -> NetworkWeights:
    return NetworkWeights(
        where=decode_filters(message.where),
        at_step=message.at_step if message.HasField("at_step") else None,
        allow_inexact=message.allow_inexact,
    )


def encode_weights_answer(weights: Weights) -> pb.WeightsResponse:
    return pb.WeightsResponse(
        parameters=[_encode_parameter(name, array) for name, array in weights.arrays.items()],
        layers=[
            pb.LayerRecord(
                layer=layer, status=encode_status(status), unrecorded_change=weights.unrecorded_change[layer]
            )
            for layer, status in weights.statuses.items()
        ],
        not_recorded=weights.not_recorded,
        kept=[pb.Count(name=space, count=count) for space, count in weights.kept.items()],
        scan=encode_scan(weights.scan),
        others=weights.others,
        without_end=not weights.ended,
    )


def decode_weights_answer(message: pb.WeightsResponse) -> Weights:
    return Weights(
        arrays={parameter.name: _decode_parameter(parameter) for parameter in message.parameters},
        statuses={record.layer: decode_status(record.status) for record in message.layers},
        unrecorded_change={record.layer: record.unrecorded_change for record in message.layers},
        not_recorded=tuple(message.not_recorded),
        kept={count.name: count.count for count in message.kept},
        scan=decode_scan(message.scan),
        others=tuple(message.others),
        ended=not message.without_end,
    )


def _encode_parameter(name: str, array: NDArray[Any]) -> pb.Parameter:
    dtype = element_type(array.dtype, f"parameter {name!r}", "Ask the memory's folder.")
    return pb.Parameter(name=name, shape=array.shape, dtype=dtype, data=encode_numbers(array))


def _decode_parameter(message: pb.Parameter) -> NDArray[Any]:
    field = f"parameter {message.name!r}"
    if message.dtype not in WIRE_TYPES:
        raise BadInput(f"{field} is of element type {message.dtype}, which this version does not know.")
    shape = tuple(message.shape)
    if any(length < 0 for length in shape):
        raise BadInput(f"{field} is of the shape {list(shape)}.")
    return decode_numbers(message.data, WIRE_TYPES[message.dtype], field, prod(shape)).reshape(shape)


def encode_cancellation(question: MaskCancellation) -> pb.CancellationRequest:
    return pb.CancellationRequest(
        where=encode_filters(question.where),
        at_step=encode_optional_int64(question.at_step, "at_step"),
        layer=encode_optional_text(question.layer, "layer"),
        allow_inexact=question.allow_inexact,
    )


def decode_cancellation(message: pb.CancellationRequest) -> MaskCancellation:
    return MaskCancellation(
        where=decode_filters(message.where) or "",
        at_step=message.at_step if message.HasField("at_step") else None,
        layer=message.layer if message.HasField("layer") else None,
        allow_inexact=message.allow_inexact,
    )


def encode_cancellation_answer(cancellation: Cancellation) -> pb.CancellationResponse:
    figures = [pb.Figure(layer=layer, figure=figure) for layer, figure in cancellation.items()]
    concentrations = [
        pb.Concentration(layer=layer, share=one.share, greatest=one.greatest)
        for layer, one in cancellation.concentrations.items()
    ]
    return pb.CancellationResponse(figures=figures, scan=encode_scan(cancellation.scan), concentrations=concentrations)


def decode_cancellation_answer(message: pb.CancellationResponse) -> Cancellation:
    return Cancellation(
        {one.layer: one.figure for one in message.figures},
        decode_scan(message.scan),
        {one.layer: Concentration(one.share, one.greatest) for one in message.concentrations},
    )
