"""What answering took <-> `Scan` messages."""

from __future__ import annotations

from dataclasses import asdict

from dualform.answers import Scan
from dualform_proto.v1 import dualform_pb2 as pb


def encode_scan(scan: Scan) -> pb.Scan:
    fields = asdict(scan)
    if scan.share == 1:
        del fields["share"]
    return pb.Scan(**fields)


def decode_scan(message: pb.Scan) -> Scan:
    return Scan(
        snapshot=message.snapshot,
        slots_scanned=message.slots_scanned,
        slots_matching=message.slots_matching,
        backend=message.backend,
        seconds=message.seconds,
        share=message.share if message.HasField("share") else 1.0,
        missing=tuple(message.missing),
    )
