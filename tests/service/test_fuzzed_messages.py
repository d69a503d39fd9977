"""Messages that nobody would send: whatever comes, a server answers or refuses with a code of ours, says nothing of its
machine, and holds no more than before.
"""

from __future__ import annotations

import random
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from dualform.questions import (
    Contribution,
    Distribution,
    ExampleGradients,
    Filter,
    GradientSum,
    GradientTopK,
    GroupSum,
    Ids,
    Inventory,
    LayerGradients,
    MaskCancellation,
    NetworkWeights,
    Output,
    Placebo,
    PreviewLookup,
    QuerySetExamples,
    QuerySetLookup,
    SlotKeys,
    SlotLookup,
    SqlStatement,
    TopK,
    Vectors,
    Verification,
)
from dualform.store.files.ram_budget import resident_bytes
from dualform_client import Client
from dualform_proto.calls import CALLS
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.query import arrays
from tests.reliability import report, rounds

SEED, SLOTS, WIDTH = 29, 60, 4
QUERY = Vectors(np.ones((2, WIDTH), np.float32))
GRADIENTS = ExampleGradients(
    2, {"fc": LayerGradients(np.ones((3, WIDTH), np.float32), np.ones((3, 2), np.float32), np.array([0, 1, 1]))}
)
QUESTIONS = [
    Inventory(),
    TopK("fc", QUERY, 3, "label <> 1", ("label",), "abs"),
    TopK("fc", SlotKeys((1, 5)), 3, "dataset LIKE 'm%'"),
    TopK("fc", QuerySetExamples("test", (0, 1)), 2, score="cosine"),
    GroupSum("fc", QUERY, ("label", "dataset"), "slot < 50"),
    TopK("fc", QUERY, 3, score="contribution", target="0-1"),
    GroupSum("fc", QUERY, ("label",), score="contribution", target=np.ones((2, 2)), k=1),
    Distribution("fc", QUERY, "label <> 1", "abs"),
    Distribution("fc", QUERY, score="contribution", target="0-1", points=11),
    GradientTopK((), GRADIENTS, 3, "label <> 1"),
    GradientSum(("fc",), GRADIENTS, ("label",), "slot < 50", 2),
    Output("fc", QUERY, "label = 1", 1),
    Output("fc", QUERY, kernel="softmax", temperature=0.5),
    Contribution("fc", QUERY, ("label",), "slot < 50", 1),
    Placebo("fc", QUERY, "label <> 1", 5),
    TopK(None, QUERY, 3, Filter("label = ? OR slot IN ?", (1, Ids(np.arange(9)))), distinct=("sample",)),
    NetworkWeights("label = 1"),
    NetworkWeights({"sample": "slot < 5"}, 1),
    MaskCancellation("label = 2", layer="fc"),
    SlotLookup(np.array([0, 3, 59]), "sample"),
    SqlStatement("SELECT count(*) FROM slots"),
    QuerySetLookup("test", "fc"),
    PreviewLookup(np.array([0, 3]), "mnist"),
    PreviewLookup(np.array([0]), query_set="test"),
    Verification(),
]
EXPECTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.PERMISSION_DENIED,
}
"""INTERNAL, UNKNOWN and the like would be ours; DEADLINE_EXCEEDED a question that hangs."""
TELLING = ("Traceback", tempfile.gettempdir() + "/", "site-packages", str(Path(__file__).parents[2]))
NUMBERS = [b"\x00", b"\x7f", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\x80\x80\x80\x80\x80\x80\x80\x80\x40"]
"""As protobuf writes them: 0, 127, 2^32 - 1, -1, 2^62."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    memory = arrays.memory(
        {"fc": np.ones((SLOTS, WIDTH), np.float32)},
        {"label": [slot % 3 for slot in range(SLOTS)], "dataset": ["mnist"] * SLOTS},
        values={"fc": np.ones((SLOTS, 2), np.float32)},
        initial={"fc.weight": np.ones((2, WIDTH), np.float32), "fc.bias": np.ones(2, np.float32)},
    )
    with arrays.engine(memory) as engine, Server(engine, ServiceConfig("127.0.0.1:0", sql=True)) as server:
        yield server


def mutated(rng: random.Random, messages: list[bytes]) -> bytes:
    """One of the messages, changed in a few places; or bytes that are none."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(200))
    message = bytearray(rng.choice(messages))
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(message) + 1)
        match rng.randrange(6):
            case 0 if message:
                message[place % len(message)] ^= 1 << rng.randrange(8)
            case 1:
                del message[place : place + rng.randrange(8)]
            case 2:
                message[place:place] = rng.randbytes(rng.randrange(8))
            case 3:
                message[place : place + 1] = rng.choice(NUMBERS)
            case 4:
                other = rng.choice(messages)
                message[place:] = other[rng.randrange(len(other) + 1) :]
            case 5:
                message += message[place:]
    return bytes(message)


@pytest.mark.soak
@pytest.mark.parametrize("call", CALLS.values(), ids=[call.method for call in CALLS.values()])
def test_mutated_messages_are_answered_or_refused_by_codes_of_ours(server, call):
    rng, count = random.Random(f"{SEED} {call.method}"), rounds(40, 10_000)
    own = [CALLS[type(one)].question.encode(one).SerializeToString() for one in QUESTIONS if CALLS[type(one)] is call]
    every = [CALLS[type(one)].question.encode(one).SerializeToString() for one in QUESTIONS]
    codes, told = Counter[grpc.StatusCode](), list[str]()
    with grpc.insecure_channel(server.address) as channel:
        ask = channel.unary_unary(f"/dualform.v1.Memory/{call.method}")
        channel.unary_unary("/dualform.v1.Memory/Info")(b"", timeout=60)
        before = resident_bytes()
        for number in range(count):
            message = mutated(rng, own if number % 8 else every)
            try:
                ask(message, timeout=60)
                code = grpc.StatusCode.OK
            except grpc.RpcError as error:
                code = error.code()
                told += [error.details(), *(str(value) for _, value in error.trailing_metadata())]
            assert code in EXPECTED, (code, message, told[-3:])
            codes[code] += 1
    assert not [said for said in told for part in TELLING if part in said]
    assert resident_bytes() - before < 200e6
    outcome = ", ".join(f"{code.name} {codes[code]}" for code in sorted(codes, key=lambda code: code.name))
    report(f"mutated messages sent to {call.method}", seed=SEED, count=count, outcome=outcome)


@pytest.mark.soak
def test_bytes_that_are_no_http_are_shut_out(server):
    rng, count = random.Random(SEED), rounds(20, 2_000)
    host, _, port = server.address.rpartition(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    before = resident_bytes()
    for number in range(count):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall([b"", preface, preface + bytes(9)][number % 3] + rng.randbytes(rng.randrange(1, 5_000)))
    with Client(server.address) as client:
        assert client.info().slots == {"sample": SLOTS}
    assert resident_bytes() - before < 200e6
    report("connections of random bytes", seed=SEED, count=count, outcome="the server answers others")
