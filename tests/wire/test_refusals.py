"""Messages that do not hold together are refused by name, never read as something else."""

from __future__ import annotations

import numpy as np
import pytest

from dualform.errors import BadInput, ServiceError
from dualform.questions import (
    Contribution,
    Distribution,
    GradientTopK,
    GroupSum,
    Inventory,
    MaskCancellation,
    NetworkWeights,
    Output,
    Placebo,
    PreviewLookup,
    QuerySetExamples,
    QuerySetLookup,
    SlotKeys,
    SlotLookup,
    TopK,
    Vectors,
)
from dualform.questions.arguments import KERNELS
from dualform_proto import arrays
from dualform_proto.calls import CALLS, call_of
from dualform_proto.codec import enum_names
from dualform_proto.v1 import dualform_pb2 as pb

EXACT = pb.Status(name=pb.STATUS_NAME_EXACT)
F32 = pb.ELEMENT_TYPE_FLOAT32
ONE = pb.Matrix(rows=1, cols=1, dtype=F32, data=bytes(4))


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (
            pb.Matrix(rows=2, cols=2, dtype=F32, data=b"x" * 15),
            "m holds 15 bytes where 4 numbers of type float32 take 16.",
        ),
        (pb.Matrix(rows=2, cols=2, dtype=F32, data=b""), "m holds 0 bytes where 4 numbers"),
        (pb.Matrix(rows=-2, cols=-2, dtype=F32, data=b"x" * 16), "m has -2 rows and -2 columns."),
        (pb.Matrix(rows=2**62, cols=2**62, dtype=F32), "m holds 0 bytes"),
        (pb.Matrix(rows=0, cols=2**62, dtype=F32), f"m has 0 rows and {2**62} columns."),
        (pb.Matrix(rows=2**62, cols=0, dtype=F32), f"m has {2**62} rows and 0 columns."),
        (pb.Matrix(rows=1, cols=1, dtype=pb.ELEMENT_TYPE_FLOAT64, data=b"x" * 8), "m is of element type 2, not 1"),
        (pb.Matrix(rows=1, cols=1, data=b"x" * 4), "m is of element type 0, not 1"),
        (pb.Matrix(rows=1, cols=1, dtype=99, data=b"x" * 4), "m is of element type 99, not 1"),
    ],
)
def test_a_matrix_whose_parts_do_not_fit(message, says):
    with pytest.raises(BadInput, match=says):
        arrays.decode_matrix(message, np.float32, "m")


@pytest.mark.parametrize(
    "column",
    [
        pb.Column(name="a", type=pb.ELEMENT_TYPE_INT64, data=b"x" * 8),
        pb.Column(name="a", type=pb.ELEMENT_TYPE_INT64, data=b"x" * 16, nulls=b"\1"),
        pb.Column(name="a", type=pb.ELEMENT_TYPE_TEXT, texts=["one"]),
        pb.Column(name="a", data=b"x" * 16),
    ],
    ids=["short", "nulls short", "texts short", "no type"],
)
def test_a_column_whose_parts_do_not_fit(column):
    with pytest.raises(BadInput, match="column 'a'"):
        arrays.decode_columns(pb.Columns(rows=2, columns=[column]))


def test_a_column_of_values_that_the_wire_lacks_is_told_how_to_cast():
    dates = np.array(["2020-01-01"], dtype="datetime64[D]")
    with pytest.raises(BadInput, match=r"column 'd' is of type datetime64\[D\].*CAST"):
        arrays.encode_columns({"d": dates})
    lists = np.empty(1, dtype=object)
    lists[0] = [1]
    with pytest.raises(BadInput, match=r"column 'l' holds a value of type list.*VARCHAR"):
        arrays.encode_columns({"l": lists})


def test_all_groups_in_answer_to_k_of_them_are_refused():
    question = GroupSum("l", Vectors(np.ones((1, 2))), ("label",), k=1)
    message = pb.GroupSumResponse(groups=pb.Columns(rows=0), sums=arrays.encode_matrix(np.ones((1, 0))))
    with pytest.raises(ServiceError, match="of an earlier version"):
        call_of(question).answer(question, message)


def test_a_score_without_a_number_travels_by_name_so_that_older_servers_refuse_it():
    for question in (
        TopK("l", QuerySetExamples("p"), score="gradient"),
        GroupSum("l", QuerySetExamples("p"), ("label",), score="gradient"),
    ):
        message = call_of(question).question.encode(question)
        assert (message.score, message.score_name) == (pb.SCORE_NAMED, "gradient")
        assert call_of(question).question.decode(message) == question


@pytest.mark.parametrize(
    "question",
    [
        TopK("\ud800", QuerySetExamples("p")),
        TopK("l", QuerySetExamples("p"), where="\ud800"),
        TopK("l", SlotKeys((2**70,))),
        TopK("l", QuerySetExamples("p", (1.5,))),
    ],
    ids=["layer", "where", "slot", "row"],
)
def test_a_question_that_no_message_can_hold(question):
    with pytest.raises(BadInput):
        CALLS[TopK].question.encode(question)
    for ids in ([1.5], [[1]], ["a"], [2**70], [None]):
        with pytest.raises(BadInput, match="ids must be a list of whole numbers"):
            SlotLookup(ids)


@pytest.mark.parametrize(
    ("asked", "told", "says"),
    [
        ({"kernel": "softmax"}, {}, "the server did not answer with the kernel "),
        ({"initial": False}, {}, "the server did not answer with the kernel "),
        ({"kernel": "softmax"}, {"kernel": pb.KERNEL_SOFTMAX, "temperature": 1.0}, "did not say over how many slots"),
    ],
    ids=["softmax", "without W_0", "no effective slots"],
)
def test_the_answer_of_a_server_that_knows_no_kernels_is_refused(asked, told, says):
    old = pb.OutputResponse(outputs=arrays.encode_matrix(np.ones((1, 1), np.float32)), status=EXACT, **told)
    with pytest.raises(ServiceError, match=says):
        call_of(question := Output("l", QuerySetExamples("p"), **asked)).answer(question, old)
    linear = Output("l", QuerySetExamples("p"))
    assert told or call_of(linear).answer(linear, old).values.tolist() == [[1.0]]
    assert tuple(enum_names(pb.Kernel.DESCRIPTOR)) == KERNELS


PNG = b"\x89PNG\r\n\x1a\n"
TWO = {"samples": bytes(16), "known": b"\1\1"}
NAMED = pb.Queries(query_set=pb.QuerySetExamples(query_set="p"))
WIDE = pb.Matrix(rows=2**60, cols=0, dtype=F32)
LAYER = pb.LayerGradients(layer="l", keys=ONE, errors=ONE, examples=bytes(8))
FILTERS = [pb.SpaceFilter(space="token", where=pb.Filter(sql=sql)) for sql in ("a = 1", "b = 1")]


def vectors(matrix):
    return pb.TopKRequest(layer="l", k=1, queries=pb.Queries(vectors=matrix))


def along(matrix):
    score = {"score": pb.SCORE_NAMED, "score_name": "contribution", "target": pb.Target(vectors=matrix)}
    return pb.TopKRequest(layer="l", k=1, queries=NAMED, **score)


def gradients(count, *layers):
    examples = pb.Examples(gradients=pb.ExampleGradients(count=count, layers=layers))
    return pb.GradientTopKRequest(k=1, examples=examples)


@pytest.mark.parametrize(
    ("kind", "message", "says"),
    [
        (
            SlotLookup,
            pb.SlotsRequest(ids=bytes(9)),
            r"^ids holds 9 bytes, no multiple of the 8 that one int64 takes\.$",
        ),
        (TopK, pb.TopKRequest(layer="l", k=1), "the question holds no queries"),
        (TopK, pb.TopKRequest(layer="l", queries=NAMED), "k must be at least 1, not 0"),
        (TopK, pb.TopKRequest(layer="l", k=1, queries=NAMED, score=9), "score is 9"),
        (TopK, vectors(arrays.encode_matrix(np.array([[np.nan]], np.float32))), "Query 0 contains NaN or infinity"),
        # Refused before they take memory: rows without width, and examples of which nothing is said.
        (TopK, vectors(WIDE), "queries are 0 numbers wide"),
        (TopK, along(WIDE), "target are 0 numbers wide"),
        (GradientTopK, gradients(1, pb.LayerGradients(keys=WIDE)), "are 0 numbers wide"),
        (GradientTopK, gradients(1, pb.LayerGradients(keys=ONE, errors=WIDE)), "are 0 numbers wide"),
        (GradientTopK, gradients(2**62, LAYER), "examples"),
        (GradientTopK, gradients(2**62), "examples"),
        (GradientTopK, gradients(1), "examples"),
        (GradientTopK, gradients(0, LAYER), "examples"),
        (GradientTopK, gradients(-1, LAYER), "examples"),
        (GradientTopK, gradients(1, LAYER, LAYER), "layer 'l' twice"),
        (GradientTopK, pb.GradientTopKRequest(k=1), "holds no examples"),
        (Output, pb.OutputRequest(queries=NAMED, kernel=7), r"^kernel is 7, which this version does not know\.$"),
        (
            NetworkWeights,
            pb.WeightsRequest(where=pb.Filters(by_space=pb.SpaceFilters(filters=FILTERS))),
            r"^where names a slot space twice\.$",
        ),
        (MaskCancellation, pb.CancellationRequest(), r"^cancellation needs where=\."),
        (PreviewLookup, pb.PreviewsRequest(samples=bytes(8 * 1025)), "at most 1,024 entries, not 1,025"),
    ],
)
def test_a_question_whose_parts_do_not_fit(kind, message, says):
    with pytest.raises(BadInput, match=says):
        CALLS[kind].question.decode(message)


ROWS = {"name": "q", "labels": bytes(8 * 3)}
CLASSES = arrays.encode_matrix(np.zeros((2, 3), np.int64))
CHANGES = arrays.encode_matrix(np.zeros((2, 2)))
COUNTS = arrays.encode_matrix(np.ones((1, 1), np.int64))
OUTPUTS = arrays.encode_matrix(np.ones((2, 1), np.float32))


def parameter(**given):
    return pb.WeightsResponse(parameters=[pb.Parameter(name="w", data=bytes(4), **given)])


@pytest.mark.parametrize(
    ("kind", "message", "says"),
    [
        (
            Contribution,
            pb.ContributionsResponse(initial=CHANGES, sums=arrays.encode_matrix(np.zeros((1, 2)))),
            r"sums are float64\[1, 2\] in place of \[0, 2\]",
        ),
        (
            Distribution,
            pb.DistributionResponse(scores=arrays.encode_matrix(np.zeros((2, 3), np.float32)), cumulative=CHANGES),
            r"cumulative are float64\[2, 2\] in place of \[2, 3\]",
        ),
        (Placebo, pb.PlaceboResponse(classes=arrays.encode_matrix(np.zeros((2, 2), np.int64))), r"classes are int64"),
        (
            Placebo,
            pb.PlaceboResponse(classes=CLASSES, margin=bytes(16), changes=CHANGES, random=2),
            r"changes are float64\[2, 2\] in place of \[2, 3\]",
        ),
        (Placebo, pb.PlaceboResponse(classes=CLASSES, margin=bytes(16), random=-1), "there are -1 random sets"),
        (
            QuerySetLookup,
            pb.QuerySetResponse(**ROWS, outputs=arrays.encode_matrix(np.zeros((2, 1), np.float32))),
            "query set 'q' has labels and outputs of 2 and 3 rows",
        ),
        (
            QuerySetLookup,
            pb.QuerySetResponse(
                **ROWS,
                summary=pb.OutputSummary(
                    largest=arrays.encode_matrix(np.full((1, 1), 5)),
                    values=arrays.encode_matrix(np.zeros((1, 1), np.float32)),
                    label=bytes(4),
                    logsumexp=bytes(4),
                    width=5,
                ),
            ),
            "names outputs beyond the 5",
        ),
        (
            Inventory,
            pb.InfoResponse(layers=[pb.LayerInfo(status=EXACT, patches=pb.Patches(size=[1]))]),
            "sides that do not fit together",
        ),
        (Inventory, pb.InfoResponse(slots=[pb.Count(name="s"), pb.Count(name="s")]), "slots hold name 's' twice"),
        (TopK, pb.TopKResponse(ids=bytes(16), scores=bytes(4), counts=COUNTS), "ids holds 16 bytes where 1 numbers"),
        (TopK, pb.TopKResponse(ids=bytes(8), scores=bytes(8), counts=COUNTS), "scores holds 8 bytes where 1 numbers"),
        (TopK, pb.TopKResponse(counts=arrays.encode_matrix(-np.ones((1, 1), np.int64))), "counts"),
        (GroupSum, pb.GroupSumResponse(groups=pb.Columns(rows=2)), "2 groups have keys of another number"),
        (
            GroupSum,
            pb.GroupSumResponse(sums=arrays.encode_matrix(np.ones((1, 2)))),
            r"sums are float64\[1, 2\] where there are 0 groups\.",
        ),
        (
            GroupSum,
            pb.GroupSumResponse(sums=arrays.encode_matrix(np.ones((1, 1))), numbers=COUNTS),
            r"numbers are int64\[1, 1\] of 0 groups",
        ),
        (
            Output,
            pb.OutputResponse(outputs=OUTPUTS, effective_slots=bytes(8)),
            r"^effective_slots holds 8 bytes where 2 numbers",
        ),
        (NetworkWeights, parameter(shape=[2], dtype=F32), r"^parameter 'w' holds 4 bytes where 2 numbers"),
        (NetworkWeights, parameter(shape=[-1, -1], dtype=F32), r"'w' is of the shape \[-1, -1\]"),
        (NetworkWeights, parameter(shape=[1]), "^parameter 'w' is of element type 0, which this version"),
        (
            PreviewLookup,
            pb.PreviewsResponse(kind="images", **TWO, images=[PNG, b"<svg onload=alert(1)>"]),
            "an image is no PNG",
        ),
        (
            PreviewLookup,
            pb.PreviewsResponse(kind="images", **TWO, images=[PNG]),
            "2 samples of kind images have 1 images",
        ),
        (
            PreviewLookup,
            pb.PreviewsResponse(kind="texts", **TWO, images=[PNG, PNG], texts=["", ""]),
            "kind texts have 2 images",
        ),
        (PreviewLookup, pb.PreviewsResponse(kind="html", **TWO), "a preview set is of kind 'html'"),
        (PreviewLookup, pb.PreviewsResponse(kind="texts", samples=bytes(16), known=b"\1"), "known holds 1 bytes"),
        (PreviewLookup, pb.PreviewsResponse(kind="table", **TWO, columns=pb.Columns(rows=1)), "2 samples have 1 rows"),
        (
            PreviewLookup,
            pb.PreviewsResponse(
                kind="texts",
                **TWO,
                texts=["", ""],
                offsets=pb.Offsets(counts=bytes(8) + b"\2" + bytes(7), places=bytes(8)),
            ),
            "offsets of 2 texts have 2 numbers",
        ),
        (
            PreviewLookup,
            pb.PreviewsResponse(
                kind="texts", **TWO, texts=["", ""], offsets=pb.Offsets(counts=b"\xff" * 8 + b"\1" + bytes(7))
            ),
            "offsets of 2 texts have 0 numbers",
        ),
        (
            PreviewLookup,
            pb.PreviewsResponse(
                kind="texts", **TWO, texts=["", ""], offsets=pb.Offsets(counts=bytes(16), firsts=bytes(8))
            ),
            "firsts holds 8 bytes",
        ),
    ],
)
def test_an_answer_whose_parts_do_not_fit(kind, message, says):
    if "status" in message.DESCRIPTOR.fields_by_name:
        message.status.CopyFrom(EXACT)
    with pytest.raises(BadInput, match=says):
        CALLS[kind].result.decode(message)


def test_a_status_that_is_not_given_is_never_exact():
    with pytest.raises(BadInput, match=r"^status is 0, which this version does not know\.$"):
        CALLS[Output].result.decode(pb.OutputResponse(outputs=OUTPUTS))


def test_booleans_of_another_byte_are_read_as_true():
    column = pb.Column(name="a", type=pb.ELEMENT_TYPE_BOOL, data=b"\x00\x02")
    assert arrays.decode_columns(pb.Columns(rows=2, columns=[column]))["a"].tolist() == [False, True]


def test_what_others_looked_like_is_no_answer():
    question = PreviewLookup(np.array([1, 2]), "mnist")
    message = pb.PreviewsResponse(kind="texts", **TWO, texts=["", ""])
    with pytest.raises(ServiceError, match="what other samples looked like"):
        call_of(question).answer(question, message)
