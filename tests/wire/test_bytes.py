"""Questions and answers are written byte by byte as version 0.2 wrote them, and defaults are read as it read them."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import numpy as np
import pytest
from google.protobuf.message import Message

from dualform.answers import Hits, OutputSummary, Placebos, Previews, QuerySet, Scan, Status
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
    Target,
    TopK,
    Vectors,
    Verification,
)
from dualform_proto.calls import CALLS
from dualform_proto.v1 import dualform_pb2 as pb
from tests.service.canned import INFO, SCAN, Canned

ROWS = Vectors(np.arange(6, dtype=np.float32).reshape(2, 3))
EXAMPLES = QuerySetExamples("test", (0, 1), (2, -1))
ONE = np.ones((2, 2), np.float32)
GRADIENTS = ExampleGradients(2, {"fc": LayerGradients(ONE, ONE, np.array([0, 1]))})
IDS = Filter("label = ? OR slot IN ? OR x = ? OR y IN ?", (1, Ids(np.arange(9)), None, Ids(("a", "b"))))
QUESTIONS = [
    Inventory(),
    TopK(None, ROWS, 3, IDS, ("label",), "abs", True, distinct=("sample",)),
    TopK("fc", SlotKeys((1, -5)), 3, "a < 1", score="contribution", target=Target(vectors=ROWS, at_step=3)),
    GroupSum("fc", EXAMPLES, ("label", "dataset"), Filter("a = ?", (2.5,)), "contribution", target=Target(3, 8)),
    GroupSum("fc", EXAMPLES, ("label",), k=3),
    Distribution("fc", EXAMPLES),
    GradientTopK((), GRADIENTS, 3, "label <> 1", ("sample",)),
    GradientSum(("fc", "out"), EXAMPLES, ("label",), k=2),
    Output("fc", EXAMPLES, "", 0, True, "softmax", 0.5, False),
    Contribution("fc", EXAMPLES, ("label",), Filter("a = ?", (True,)), 1),
    Placebo("fc", EXAMPLES, "label <> 1", 5),
    NetworkWeights({"sample": "slot < 5", "token": Filter("a = ?", ("x",))}, 1),
    NetworkWeights("label = 1", allow_inexact=True),
    MaskCancellation("label = 2", layer="fc"),
    SlotLookup(np.array([0, 3, 2])),
    SqlStatement("SELECT 'é'"),
    QuerySetLookup("test", "fc"),
    PreviewLookup(np.array([0, 3]), "mnist"),
    PreviewLookup(np.array([0]), query_set=""),
    Verification(),
]
OFF = Status("exact to bfloat16", 0.5, None, 7, "moved")
SUMMARY = OutputSummary(np.array([[3, 1]]), np.array([[2.0, 1.0]]), np.array([np.nan]), np.array([2.5]), 9)
PNG = b"\x89PNG\r\n\x1a\n"
TWO = np.array([4, 9])
PAIRS = np.array([[0, 1]], np.int32)
COLUMNS = {"a": np.ma.MaskedArray([1, 2], mask=[True, False]), "b": np.array(["x", None], dtype=object)}
ANSWERS = [
    (
        Placebo,
        Placebos(
            TWO,
            TWO,
            TWO,
            np.ones(2),
            np.ones((2, 2)),
            np.ones((2, 2), int),
            0,
            ("a",),
            "",
            1,
            2,
            "rows",
            None,
            OFF,
            "sample",
            SCAN,
        ),
    ),
    (QuerySetLookup, QuerySet("test", TWO, None, ONE, Scan(1, missing=("s",), share=0.5), 2, SUMMARY)),
    (PreviewLookup, Previews(TWO, "images", TWO > 5, (None, PNG), scale=(0.0, 2.5), scan=SCAN)),
    (PreviewLookup, Previews(TWO, "table", TWO > 5, columns=COLUMNS, scan=SCAN)),
    (
        PreviewLookup,
        Previews(
            TWO, "texts", TWO > 5, (), (None, "ab"), (np.zeros((0, 2), np.int32), np.array([[0, 1]], np.int32)), TWO
        ),
    ),
    (TopK, Hits(TWO.astype(np.int32), TWO.astype(np.float64), np.array([[1], [1]]), repeats=TWO, status=OFF)),
]
DIGESTS = {
    "Info": ("e3b0c44298fc1c14", "1762e3916972f49a"),
    "TopK": ("0a6f6133e42f0458", "b8ad9c96755c24c2"),
    "GroupSum": ("1c1657080578bf02", "9d74df0e9f0346a7"),
    "GradientTopK": ("0c8304913fb2c48d", "e5702c31233a0797"),
    "GradientSum": ("6ceb1662906f46f1", "bf79a8802936dee2"),
    "Output": ("ced49c57ba85bc48", "7c0957c0d9d00668"),
    "Contributions": ("7db4bc972da15a3a", "f1a2a492e0d177a6"),
    "Placebo": ("4218d56628691dd1", "8c507ad410c0c6fd"),
    "Weights": ("ae649e2d59b9f225", "f7713b85e557ccfa"),
    "Cancellation": ("6ea8307602cecf3f", "264304c8b528ee5e"),
    "Slots": ("626c1b0804a7ddbd", "db4d2e5addc3a8f2"),
    "Sql": ("f7ad1853df4b328c", "4c2d12ff597422a1"),
    "QuerySet": ("f984f70dd89e2950", "1c094403a9782c40"),
    "Verify": ("e3b0c44298fc1c14", "b4682761094d2fa1"),
    "Distribution": ("81ca1ed0f8ed0c3d", "f840740ab129d07c"),
    "Previews": ("3f01cda68c9f0386", "ccc9ffb35f3f61ef"),
}
"""Method -> of its questions and of its answers, written one after another."""


def digest(messages: Iterable[Message]) -> str:
    return sha256(b"".join(message.SerializeToString() for message in messages)).hexdigest()[:16]


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_messages_are_written_as_ever(kind):
    call, asked = CALLS[kind], [question for question in QUESTIONS if type(question) is kind]
    answers = [Canned().ask(question) for question in asked if kind is not Placebo]
    answers += [answer for own, answer in ANSWERS if own is kind]
    written = digest(map(call.question.encode, asked)), digest(map(call.result.encode, answers))
    assert written == DIGESTS[call.method]


def test_what_older_clients_leave_out_is_read_as_its_default():
    queries = pb.Queries(query_set=pb.QuerySetExamples(query_set="p"))
    question = CALLS[Distribution].question.decode(pb.DistributionRequest(queries=queries))
    assert question == Distribution(None, QuerySetExamples("p"))
    assert CALLS[SqlStatement].result.decode(pb.SqlResponse()).scan.share == 1.0


def test_readers_that_know_no_statuses_are_told_what_is_exact():
    (layer,) = CALLS[Inventory].result.encode(INFO).layers
    assert (layer.exact, layer.reason) == (INFO.layers[0].exact, INFO.layers[0].reason) == (True, "")
