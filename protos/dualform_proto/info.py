"""What a memory holds <-> `InfoResponse`. Mappings travel as lists, because maps of protobuf keep no order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dualform.answers import LayerInfo, MemoryInfo, Patches, QuerySetInfo
from dualform.errors import BadInput
from dualform_proto.status import decode_status, encode_status
from dualform_proto.v1 import dualform_pb2 as pb


def encode_info(info: MemoryInfo) -> pb.InfoResponse:
    return pb.InfoResponse(
        format=info.format,
        snapshot=info.snapshot,
        recording=info.recording,
        slots=_counts(info.slots),
        steps=info.steps,
        optimizer=info.optimizer,
        layers=[_layer(layer) for layer in info.layers],
        skipped=_remarks(info.skipped),
        datasets=_counts(info.datasets),
        columns=[pb.SpaceColumns(space=space, columns=_remarks(own)) for space, own in info.columns.items()],
        query_sets=[_query_set(query_set) for query_set in info.query_sets],
        cut_off=info.cut_off,
        final=_remarks(info.final),
        sampling=info.sampling,
        answered_by=info.answered_by,
        previews=_remarks(info.previews),
        output_layer=info.output_layer,
    )


def decode_info(message: pb.InfoResponse) -> MemoryInfo:
    return MemoryInfo(
        format=message.format,
        snapshot=message.snapshot,
        recording=message.recording,
        slots=_decode_counts(message.slots),
        steps=message.steps,
        optimizer=message.optimizer,
        layers=tuple(_decode_layer(layer) for layer in message.layers),
        skipped=_decode_remarks(message.skipped),
        datasets=_decode_counts(message.datasets),
        columns={own.space: _decode_remarks(own.columns) for own in message.columns},
        query_sets=tuple(_decode_query_set(query_set) for query_set in message.query_sets),
        cut_off=message.cut_off,
        final=_decode_remarks(message.final),
        sampling=message.sampling,
        answered_by=message.answered_by,
        previews=_decode_remarks(message.previews),
        output_layer=message.output_layer if message.HasField("output_layer") else None,
    )


def _layer(layer: LayerInfo) -> pb.LayerInfo:
    return pb.LayerInfo(
        name=layer.name,
        d_in=layer.d_in,
        d_out=layer.d_out,
        bias=layer.bias,
        space=layer.space,
        slots=layer.slots,
        distinct_keys=layer.distinct_keys,
        values=layer.values,
        exact=layer.exact,
        reason=layer.reason,
        status=encode_status(layer.status),
        views=layer.views,
        batch_dim=layer.batch_dim,
        patches=None if layer.patches is None else pb.Patches(**vars(layer.patches)),
    )


def _decode_layer(message: pb.LayerInfo) -> LayerInfo:
    return LayerInfo(
        name=message.name,
        d_in=message.d_in,
        d_out=message.d_out,
        bias=message.bias,
        space=message.space,
        slots=message.slots,
        distinct_keys=message.distinct_keys,
        values=message.values,
        status=decode_status(message.status),
        views=tuple(message.views),
        batch_dim=message.batch_dim,
        patches=_decode_patches(message.patches) if message.HasField("patches") else None,
    )


def _decode_patches(message: pb.Patches) -> Patches:
    parts = [message.size, message.kernel, message.stride, message.padding, message.dilation]
    sizes = [tuple(own) for own in parts]
    least = zip(sizes, (1, 1, 1, 0, 1), strict=True)
    if len({len(own) for own in sizes}) != 1 or any(number < low for own, low in least for number in own):
        raise BadInput("a convolution's patches have sides that do not fit together.")
    return Patches(*sizes)


def _query_set(query_set: QuerySetInfo) -> pb.QuerySetInfo:
    return pb.QuerySetInfo(
        name=query_set.name,
        rows=query_set.rows,
        layers=query_set.layers,
        previews=query_set.previews,
        examples=query_set.examples,
    )


def _decode_query_set(message: pb.QuerySetInfo) -> QuerySetInfo:
    examples = message.examples if message.HasField("examples") else None
    return QuerySetInfo(message.name, message.rows, tuple(message.layers), message.previews, examples)


def _counts(counts: Mapping[str, int]) -> list[pb.Count]:
    return [pb.Count(name=name, count=count) for name, count in counts.items()]


def _decode_counts(counts: Iterable[pb.Count]) -> dict[str, int]:
    return {count.name: count.count for count in counts}


def _remarks(remarks: Mapping[str, str]) -> list[pb.Remark]:
    return [pb.Remark(name=name, text=text) for name, text in remarks.items()]


def _decode_remarks(remarks: Iterable[pb.Remark]) -> dict[str, str]:
    return {remark.name: remark.text for remark in remarks}
