"""Messages that do not hold together are refused by name, never read as something else."""

from __future__ import annotations

import numpy as np
import pytest

from dualform.errors import BadInput, ServiceError
from dualform.questions import (
    Contribution,
    Distribution,
    GradientSum,
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
from dualform_proto.messages import QUERIES
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


def test_bytes_that_are_no_whole_number_of_numbers():
    with pytest.raises(BadInput, match=r"^ids holds 9 bytes, no multiple of the 8 that one int64 takes\.$"):
        CALLS[SlotLookup].decode_question(pb.SlotsRequest(ids=b"x" * 9))


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


def test_hits_of_another_number_than_their_counts():
    ones = arrays.encode_matrix(np.ones((1, 1), np.int64))
    with pytest.raises(BadInput, match="ids holds 16 bytes where 1 numbers"):
        CALLS[TopK].decode_answer(pb.TopKResponse(ids=b"x" * 16, scores=b"x" * 4, counts=ones))
    with pytest.raises(BadInput, match="scores holds 8 bytes where 1 numbers"):
        CALLS[TopK].decode_answer(pb.TopKResponse(ids=b"x" * 8, scores=b"x" * 8, counts=ones))
    negative = arrays.encode_matrix(-np.ones((1, 1), np.int64))
    with pytest.raises(BadInput, match="counts"):
        CALLS[TopK].decode_answer(pb.TopKResponse(counts=negative))


def test_sums_of_another_number_than_their_groups():
    message = pb.GroupSumResponse(sums=arrays.encode_matrix(np.ones((1, 2))))
    with pytest.raises(BadInput, match=r"sums are float64\[1, 2\] where there are 0 groups\."):
        CALLS[GroupSum].decode_answer(message)


def test_groups_without_keys():
    with pytest.raises(BadInput, match="2 groups have keys of another number"):
        arrays.decode_groups(pb.Columns(rows=2))


def test_a_question_without_queries():
    with pytest.raises(BadInput, match="the question holds no queries"):
        CALLS[TopK].decode_question(pb.TopKRequest(layer="l", k=1))


def test_queries_without_width_are_refused_before_they_take_memory():
    with pytest.raises(BadInput, match="queries are 0 numbers wide"):
        QUERIES.decode(pb.Queries(vectors=pb.Matrix(rows=2**60, cols=0, dtype=F32)))


def test_directions_and_gradients_without_width_are_refused_before_they_take_memory():
    wide = pb.Matrix(rows=2**60, cols=0, dtype=F32)
    asked = pb.TopKRequest(
        layer="l", k=1, queries=pb.Queries(query_set=pb.QuerySetExamples(query_set="p")), score=pb.SCORE_NAMED,
        score_name="contribution", target=pb.Target(vectors=wide),
    )  # fmt: skip
    with pytest.raises(BadInput, match="target are 0 numbers wide"):
        CALLS[TopK].decode_question(asked)
    for own in (pb.LayerGradients(keys=wide), pb.LayerGradients(keys=ONE, errors=wide)):
        with pytest.raises(BadInput, match="are 0 numbers wide"):
            CALLS[GradientTopK].decode_question(pb.GradientTopKRequest(k=1, examples=examples_of(1, [own])))


def examples_of(count, layers):
    return pb.Examples(gradients=pb.ExampleGradients(count=count, layers=layers))


def test_a_question_about_gradients_without_examples():
    with pytest.raises(BadInput, match="holds no examples"):
        CALLS[GradientTopK].decode_question(pb.GradientTopKRequest(k=1))


def test_examples_that_nothing_is_said_of_are_refused_before_they_take_memory():
    rows = np.zeros(1, np.int64).tobytes()
    one = pb.LayerGradients(layer="l", keys=ONE, errors=ONE, examples=rows)
    for count, layers in ((2**62, [one]), (2**62, []), (1, []), (0, [one]), (-1, [one])):
        with pytest.raises(BadInput, match="examples"):
            CALLS[GradientSum].decode_question(pb.GradientSumRequest(by=["label"], examples=examples_of(count, layers)))
    with pytest.raises(BadInput, match="layer 'l' twice"):
        CALLS[GradientTopK].decode_question(pb.GradientTopKRequest(k=1, examples=examples_of(1, [one, one])))


def test_sums_whose_groups_are_not_there():
    message = pb.GroupSumResponse(
        sums=arrays.encode_matrix(np.ones((1, 1))), numbers=arrays.encode_matrix(np.ones((1, 1), np.int64))
    )
    with pytest.raises(BadInput, match=r"numbers are int64\[1, 1\] of 0 groups"):
        CALLS[GroupSum].decode_answer(message)


def test_all_groups_in_answer_to_k_of_them_are_refused():
    question = GroupSum("l", Vectors(np.ones((1, 2))), ("label",), k=1)
    message = pb.GroupSumResponse(groups=pb.Columns(rows=0), sums=arrays.encode_matrix(np.ones((1, 0))))
    with pytest.raises(ServiceError, match="of an earlier version"):
        call_of(question).answer(question, message)


def test_queries_that_are_not_finite():
    message = pb.Queries(vectors=arrays.encode_matrix(np.array([[np.nan]], np.float32)))
    with pytest.raises(BadInput, match="Query 0 contains NaN or infinity"):
        QUERIES.decode(message)


def test_a_score_that_is_not_given_is_signed_and_an_unknown_one_is_refused():
    queries = pb.Queries(query_set=pb.QuerySetExamples(query_set="p"))
    assert CALLS[TopK].decode_question(pb.TopKRequest(layer="l", k=1, queries=queries)).score == "dot"
    with pytest.raises(BadInput, match="score is 9"):
        CALLS[TopK].decode_question(pb.TopKRequest(layer="l", k=1, queries=queries, score=9))


def test_a_score_without_a_number_travels_by_name_so_that_older_servers_refuse_it():
    for question in (
        TopK("l", QuerySetExamples("p"), score="gradient"),
        GroupSum("l", QuerySetExamples("p"), ("label",), score="gradient"),
    ):
        message = call_of(question).encode_question(question)
        assert (message.score, message.score_name) == (pb.SCORE_NAMED, "gradient")
        assert call_of(question).decode_question(message) == question


def test_k_that_is_not_given():
    with pytest.raises(BadInput, match="k must be at least 1, not 0"):
        CALLS[TopK].decode_question(
            pb.TopKRequest(layer="l", queries=pb.Queries(query_set=pb.QuerySetExamples(query_set="p")))
        )


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
        CALLS[TopK].encode_question(question)


@pytest.mark.parametrize("ids", [[1.5], [[1]], ["a"], [2**70], [None]])
def test_ids_that_are_no_whole_numbers(ids):
    with pytest.raises(BadInput, match="ids must be a list of whole numbers"):
        SlotLookup(ids)


def test_a_kernel_that_this_version_does_not_know():
    with pytest.raises(BadInput, match=r"^kernel is 7, which this version does not know\.$"):
        CALLS[Output].decode_question(pb.OutputRequest(queries=pb.Queries(slots=pb.SlotKeys(slots=[1])), kernel=7))


@pytest.mark.parametrize("asked", [{"kernel": "softmax"}, {"initial": False}], ids=["softmax", "without W_0"])
def test_the_answer_of_a_server_that_knows_no_kernels_is_refused(asked):
    question, status = Output("l", QuerySetExamples("p"), **asked), pb.Status(name=pb.STATUS_NAME_EXACT)
    old = pb.OutputResponse(outputs=arrays.encode_matrix(np.ones((1, 1), np.float32)), status=status)
    with pytest.raises(ServiceError, match=r"^the server did not answer with the kernel ") as refused:
        call_of(question).answer(question, old)
    assert refused.value.hint == "It runs an older version of dualform: upgrade it, or ask the memory's folder."
    linear = Output("l", QuerySetExamples("p"))
    assert call_of(linear).answer(linear, old).values.tolist() == [[1.0]]


def test_a_softmax_without_effective_slots_is_refused():
    answer = pb.OutputResponse(
        outputs=arrays.encode_matrix(np.ones((1, 1), np.float32)),
        status=pb.Status(name=pb.STATUS_NAME_EXACT),
        kernel=pb.KERNEL_SOFTMAX,
        temperature=1.0,
    )
    question = Output("l", QuerySetExamples("p"), kernel="softmax")
    with pytest.raises(ServiceError, match=r"^the server did not say over how many slots the softmax is spread\."):
        call_of(question).answer(question, answer)


def test_the_wire_has_a_number_for_each_kernel():
    assert tuple(enum_names(pb.Kernel.DESCRIPTOR)) == KERNELS


ROWS = {"name": "q", "labels": bytes(8 * 3)}
CLASSES = arrays.encode_matrix(np.zeros((2, 3), np.int64))
CHANGES = arrays.encode_matrix(np.zeros((2, 2)))


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
    ],
)
def test_an_answer_whose_parts_do_not_fit(kind, message, says):
    if "status" in message.DESCRIPTOR.fields_by_name:
        message.status.CopyFrom(EXACT)
    with pytest.raises(BadInput, match=says):
        CALLS[kind].decode_answer(message)


def test_as_many_effective_slots_as_queries():
    status = pb.Status(name=pb.STATUS_NAME_EXACT)
    outputs = arrays.encode_matrix(np.ones((2, 1), np.float32))
    with pytest.raises(BadInput, match=r"^effective_slots holds 8 bytes where 2 numbers"):
        CALLS[Output].decode_answer(pb.OutputResponse(outputs=outputs, status=status, effective_slots=bytes(8)))


def test_a_status_that_is_not_given_is_never_exact():
    with pytest.raises(BadInput, match=r"^status is 0, which this version does not know\.$"):
        CALLS[Output].decode_answer(pb.OutputResponse(outputs=arrays.encode_matrix(np.ones((1, 1), np.float32))))


@pytest.mark.parametrize(
    ("parameter", "says"),
    [
        (pb.Parameter(name="w", shape=[2], dtype=F32, data=b"x" * 4), r"^parameter 'w' holds 4 bytes where 2 numbers"),
        (
            pb.Parameter(name="w", shape=[-1, -1], dtype=F32, data=b"x" * 4),
            r"'w' is of the shape \[-1, -1\]",
        ),
        (pb.Parameter(name="w", shape=[1], data=b"x" * 4), "^parameter 'w' is of element type 0, which this version"),
    ],
    ids=["length", "shape", "type"],
)
def test_a_parameter_whose_parts_do_not_fit(parameter, says):
    with pytest.raises(BadInput, match=says):
        CALLS[NetworkWeights].decode_answer(pb.WeightsResponse(parameters=[parameter]))


def test_two_masks_of_one_space():
    filters = [pb.SpaceFilter(space="token", where=pb.Filter(sql=sql)) for sql in ("a = 1", "b = 1")]
    request = pb.WeightsRequest(where=pb.Filters(by_space=pb.SpaceFilters(filters=filters)))
    with pytest.raises(BadInput, match=r"^where names a slot space twice\.$"):
        CALLS[NetworkWeights].decode_question(request)


def test_cancellation_without_a_mask():
    with pytest.raises(BadInput, match=r"^cancellation needs where=\."):
        CALLS[MaskCancellation].decode_question(pb.CancellationRequest())


def test_booleans_of_another_byte_are_read_as_true():
    column = pb.Column(name="a", type=pb.ELEMENT_TYPE_BOOL, data=b"\x00\x02")
    assert arrays.decode_columns(pb.Columns(rows=2, columns=[column]))["a"].tolist() == [False, True]


def test_vectors_travel_as_float32():
    message = QUERIES.encode(Vectors(np.ones((1, 2))))
    assert message.vectors.dtype == F32


PNG = b"\x89PNG\r\n\x1a\n"
TWO = {"samples": bytes(16), "known": b"\1\1"}


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (pb.PreviewsResponse(kind="images", **TWO, images=[PNG, b"<svg onload=alert(1)>"]), "an image is no PNG"),
        (pb.PreviewsResponse(kind="images", **TWO, images=[PNG]), "2 samples of kind images have 1 images"),
        (pb.PreviewsResponse(kind="texts", **TWO, images=[PNG, PNG], texts=["", ""]), "kind texts have 2 images"),
        (pb.PreviewsResponse(kind="html", **TWO), "a preview set is of kind 'html'"),
        (pb.PreviewsResponse(kind="texts", samples=bytes(16), known=b"\1"), "known holds 1 bytes"),
        (pb.PreviewsResponse(kind="table", **TWO, columns=pb.Columns(rows=1)), "2 samples have 1 rows"),
        (
            pb.PreviewsResponse(
                kind="texts",
                **TWO,
                texts=["", ""],
                offsets=pb.Offsets(counts=bytes(8) + b"\2" + bytes(7), places=bytes(8)),
            ),
            "offsets of 2 texts have 2 numbers",
        ),
        (
            pb.PreviewsResponse(
                kind="texts", **TWO, texts=["", ""], offsets=pb.Offsets(counts=b"\xff" * 8 + b"\1" + bytes(7))
            ),
            "offsets of 2 texts have 0 numbers",
        ),
        (
            pb.PreviewsResponse(
                kind="texts", **TWO, texts=["", ""], offsets=pb.Offsets(counts=bytes(16), firsts=bytes(8))
            ),
            "firsts holds 8 bytes",
        ),
    ],
)
def test_previews_whose_parts_do_not_fit(message, says):
    with pytest.raises(BadInput, match=says):
        CALLS[PreviewLookup].decode_answer(message)


def test_what_others_looked_like_is_no_answer():
    question = PreviewLookup(np.array([1, 2]), "mnist")
    message = pb.PreviewsResponse(kind="texts", **TWO, texts=["", ""])
    with pytest.raises(ServiceError, match="what other samples looked like"):
        call_of(question).answer(question, message)


def test_too_many_samples_and_both_of_dataset_and_query_set():
    with pytest.raises(BadInput, match="samples must have at most 1,024 entries, not 1,025"):
        CALLS[PreviewLookup].decode_question(pb.PreviewsRequest(samples=bytes(8 * 1025)))
    with pytest.raises(BadInput, match="dataset and query_set cannot be combined"):
        PreviewLookup(np.array([1]), "mnist", "test")
    with pytest.raises(BadInput, match="query_set must be a name, not 3"):
        PreviewLookup(np.array([1]), query_set=3)  # type: ignore[arg-type]
