"""What a question may take is known before it is worked on, and an asker that goes away stops the work."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dualform import kernels
from dualform.errors import BadInput, BadMask, Cancelled, EmptyMask
from dualform.query import groups
from dualform.query.bounds import QuestionBounds
from dualform.query.score.canonical import score_pairs
from dualform.query.search import top_k
from dualform.query.sums import group_sum
from dualform.query.view import Cache
from dualform.query.where import mask
from dualform.questions import Distribution, GroupSum, NetworkWeights, Output, SlotKeys, SlotLookup, TopK, Vectors
from tests.query import arrays

SLOTS, WIDTH, OUTPUTS = 600, 4, 3
SMALL = QuestionBounds(answer_bytes=1000)
MASKS = QuestionBounds(where_bytes=2000, where_nodes=100, patterns=3, pattern_letters=20)


@pytest.fixture(scope="module")
def engine():
    made = arrays.memory(
        {"fc": np.ones((SLOTS, WIDTH), np.float32)},
        {"label": [slot % 3 for slot in range(SLOTS)], "note": [f"n{slot % 50}" for slot in range(SLOTS)]},
        types={"note": "VARCHAR"},
        values={"fc": np.ones((SLOTS, OUTPUTS), np.float32)},
        initial={"fc.weight": np.ones((OUTPUTS, WIDTH), np.float32), "fc.bias": np.ones(OUTPUTS, np.float32)},
    )
    return arrays.engine(made)


def queries(count):
    return Vectors(np.ones((count, WIDTH), np.float32))


def sums_of(count):
    return GroupSum("fc", queries(count), by=("label",))


@pytest.mark.parametrize(
    ("question", "says"),
    [
        # 12 bytes a hit and 8 for their number.
        (lambda n: TopK("fc", queries(n), k=2), 1000 // 32),
        (lambda n: TopK("fc", queries(n), k=2, by=("label",)), 1000 // (3 * 32)),
        # More than the mask leaves are no more hits.
        (lambda n: TopK("fc", queries(n), k=2**62, where="slot < 5"), 1000 // 68),
        # 12 bytes a rank, the sum of all scores, and the effective slots.
        (lambda n: Distribution("fc", queries(n), "slot < 5"), 1000 // 76),
        (lambda n: Output("fc", queries(n)), 1000 // (4 * OUTPUTS)),
        (lambda n: Output("fc", queries(n), kernel="softmax"), 1000 // (4 * OUTPUTS + 8)),
        (lambda n: SlotLookup(np.zeros(n, np.int64)), None),
    ],
    ids=["topk", "topk by", "all that are left", "distribution", "output", "softmax", "slots"],
)
def test_what_fits_is_answered_and_one_query_more_refused_with_what_would_fit(engine, question, says):
    with pytest.raises(BadInput, match=r"The answer would take .* MiB; the server's limit is .*\.") as refused:
        engine.ask(question(16 if says == 10 else 100), bounds=SMALL)
    most = int(refused.value.hint.split("at most ")[1].split()[0])
    assert says in (None, most)
    answer = engine.ask(question(most), bounds=SMALL)
    with pytest.raises(BadInput, match="The answer would take"):
        engine.ask(question(most + 1), bounds=SMALL)
    assert getattr(answer, "nbytes", 0) <= SMALL.answer_bytes
    engine.ask(question(most + 1))


def test_sums_hold_what_was_counted(engine):
    most = 1000 // (8 * 3) - 1
    assert engine.ask(sums_of(most), bounds=SMALL).sums.nbytes + 3 * 8 <= 1000
    with pytest.raises(BadInput, match="by=label makes more than 2 groups, the most that fit into an answer"):
        engine.ask(sums_of(most + 1), bounds=SMALL)
    assert engine.ask(sums_of(10_000)).sums.shape == (10_000, 3)


@pytest.mark.parametrize("question", [GroupSum("fc", queries(50), ("slot",)), TopK("fc", queries(50), by=("slot",))])
def test_groups_are_refused_while_they_are_counted(engine, monkeypatch, question):
    named = []
    monkeypatch.setattr(groups.Groups, "of", lambda *own: named.append(own))
    monkeypatch.setattr(top_k, "top_k", named.append)
    monkeypatch.setattr(group_sum, "group_sum", named.append)
    with pytest.raises(BadInput, match="by=slot makes more than"):
        engine.ask(question, bounds=SMALL)
    assert named == []


def test_groups_that_were_kept_are_refused_too(engine):
    for _ in range(2):
        with pytest.raises(BadInput, match="by=note makes more than"):
            engine.ask(GroupSum("fc", queries(50), ("note",)), bounds=SMALL)
        engine.ask(GroupSum("fc", queries(50), ("note",)))


def test_queries_named_by_number_are_counted_before_they_are_read(engine):
    assert engine.ask(TopK("fc", SlotKeys((0,) * 62), k=1), bounds=QuestionBounds(answer_bytes=1300)).counts.shape == (
        62,
        1,
    )
    with pytest.raises(BadInput, match=r"63 queries of 4 numbers take 0\.0 MiB") as refused:
        engine.ask(TopK("fc", SlotKeys((0,) * 63), k=1), bounds=SMALL)
    assert refused.value.hint == "Pass at most 62 queries at a time."


def test_weights_that_do_not_fit_are_refused_before_any_is_rebuilt(engine):
    least = 4 * OUTPUTS * (WIDTH + 1)
    with pytest.raises(BadInput, match="The answer would take"):
        engine.ask(NetworkWeights(), bounds=QuestionBounds(answer_bytes=least - 1))


def test_no_more_than_eight_columns_are_grouped_by():
    eight = tuple("abcdefgh")
    assert GroupSum("fc", queries(1), eight).by == eight
    with pytest.raises(BadInput, match="by names 9 columns; at most 8 are allowed"):
        GroupSum("fc", queries(1), (*eight, "i"))
    with pytest.raises(BadInput, match="by names a column twice"):
        TopK("fc", queries(1), by=("label", "label"))


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("slot IN (" + ", ".join(["100"] * 500) + ")", "where must be at most 2,000 bytes long"),
        ("note = '" + "ü" * 1500 + "'", "where must be at most 2,000 bytes long"),
        ("slot IN (" + ", ".join(["1"] * 200) + ")", "where must have at most 100 parts, not 206."),
        (" OR ".join(["note LIKE 'a%'"] * 4), "where must have at most 3 patterns, not 4."),
        ("note LIKE '%" + "a" * 20 + "'", "A pattern in where must be at most 20 letters long, not 21"),
        ("regexp_matches(note, note)", "A regular expression in where must be a constant."),
        ("note SIMILAR TO 'a' || 'b'", "A regular expression in where must be a constant."),
        ("regexp_matches(note, '((m?){20}){20}')", "The regular expressions in where must have at most 4096 states."),
        (r"regexp_matches(note, '(\pL?){80}')", "The regular expressions in where must have at most 4096 states."),
    ],
)
def test_masks_of_strangers_are_bounded(engine, where, says):
    engine.ask(TopK("fc", queries(1), where=f"slot = 0 OR {where}"))
    with pytest.raises(BadMask, match=says) as refused:
        engine.ask(TopK("fc", queries(1), where=f"slot = 0 OR {where}"), bounds=MASKS)
    bytes_alone = "dualform.open reads up to 262,144 characters."
    assert ("2,000 bytes" in says) == refused.value.hint.endswith(bytes_alone)
    assert refused.value.hint.endswith((bytes_alone, "dualform.open on the folder has no such limit."))
    assert refused.value.field == "where"


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (("note = ?", "x" * 2000), "where must be at most 2,000 bytes long"),
        (("note = ? OR note = ?", "ü" * 500, "é" * 500), "where must be at most 2,000 bytes long"),
        (("note LIKE ?", "%" + "a" * 20), "A pattern in where must be at most 20 letters long, not 21"),
        (("regexp_matches(note, ?)", "((m?){20}){20}"), "The regular expressions in where must have at most 4096"),
        (("regexp_matches(note, ?)", None), "A regular expression in where must be a constant."),
        (("note LIKE ?" + " OR note LIKE ?" * 3, *"abcd"), "where must have at most 3 patterns, not 4."),
    ],
    ids=["a text", "two texts", "a pattern", "a regular expression", "no pattern", "patterns"],
)
def test_bound_values_count_as_if_they_were_written(engine, where, says):
    where = f"slot = 0 OR {where[0]}", *where[1:]
    engine.ask(TopK("fc", queries(1), where=where))
    with pytest.raises(BadMask, match=says) as refused:
        engine.ask(TopK("fc", queries(1), where=where), bounds=MASKS)
    assert refused.value.field == "where"


def test_bound_values_within_the_bounds_are_answered(engine):
    where = "regexp_matches(note, ?) AND note LIKE $2", "^n[1-4]{1,2}$", "%1"
    assert engine.ask(TopK("fc", queries(1), SLOTS, where), bounds=MASKS).ids.size == 5 * SLOTS // 50
    most = 2000 - len("slot = 0 OR note = ?")
    assert engine.ask(TopK("fc", queries(1), where=("slot = 0 OR note = ?", "x" * most)), bounds=MASKS).ids == [0]
    with pytest.raises(BadMask, match="2,000 bytes"):
        engine.ask(TopK("fc", queries(1), where=("slot = 0 OR note = ?", "x" * (most + 1))), bounds=MASKS)


def test_all_masks_of_a_question_are_bounded(engine):
    long = "slot IN (" + ", ".join(["1"] * 200) + ")"
    for question in (NetworkWeights(long), NetworkWeights({"sample": long}), Output("fc", queries(1), long)):
        with pytest.raises(BadMask, match="parts, not 202"):
            engine.ask(question, bounds=MASKS)


QUERY = Vectors(np.ones((1, 4), dtype=np.float32))
QUESTIONS = [
    TopK("fc", QUERY),
    TopK("fc", QUERY, by=("label",)),
    GroupSum("fc", QUERY, by=("label",)),
    GroupSum("fc", QUERY, by=("label",), score="abs"),
    TopK("fc", QUERY, score="cosine"),
    GroupSum("fc", QUERY, by=("label",), score="cosine"),
    Distribution("fc", QUERY),
    Distribution("fc", QUERY, score="cosine"),
    Output("fc", QUERY),
    Output("fc", QUERY, kernel="softmax"),
    Output("fc", QUERY, initial=False),
]


def made_engine():
    made = arrays.memory(
        {"fc": np.ones((50, 4), np.float32)},
        {"label": [slot % 3 for slot in range(50)]},
        values={"fc": np.ones((50, 2), np.float32)},
        initial={"fc.weight": np.ones((2, 4), np.float32), "fc.bias": np.ones(2, np.float32)},
    )
    return arrays.engine(made)


NAMES = [
    "topk",
    "topk by",
    "signed sums",
    "absolute sums",
    "topk by cosine",
    "sums of cosines",
    "distribution",
    "distribution of cosines",
    "output",
    "softmax",
    "slots alone",
]


@pytest.mark.parametrize("question", QUESTIONS, ids=NAMES)
def test_a_question_stops_at_any_moment_and_can_be_asked_again(question):
    asked = made_engine()
    for moment in range(4):
        checks = iter([False] * moment + [True] * 100)
        try:
            asked.ask(question, cancelled=lambda checks=checks: next(checks))
        except Cancelled:
            continue
        break
    else:
        moment = 4
    assert moment > 0
    asked.ask(question)
    with pytest.raises(Cancelled, match="the question was given up before its answer was ready"):
        asked.ask(question, cancelled=lambda: True)


@pytest.mark.parametrize("where", ["label <> 1", "slot <> 1"], ids=["of samples", "of slots"])
def test_a_mask_is_given_up_between_blocks_of_slots(monkeypatch, where):
    monkeypatch.setattr(mask, "_CHUNK", 10)
    evaluated, evaluate = [], mask._evaluate
    monkeypatch.setattr(mask, "_evaluate", lambda *own: evaluated.append(1) or evaluate(*own))
    asked = made_engine()
    with pytest.raises(Cancelled):
        asked.ask(TopK("fc", QUERY, where=where), cancelled=lambda: len(evaluated) == 2)
    assert len(evaluated) == 2
    assert asked.ask(TopK("fc", QUERY, where=where)).scan.slots_matching in (33, 49)
    assert len(evaluated) == 2 + 5


@pytest.mark.parametrize("by", ["label", "slot", "dataset"])
def test_groups_are_given_up_between_blocks_of_slots(monkeypatch, by):
    monkeypatch.setattr(groups, "_BLOCK", 10)
    checks, ranked, asked = [], [], made_engine()
    monkeypatch.setattr(groups, "dense", lambda *own: ranked.append(own))
    with pytest.raises(Cancelled):
        asked.ask(GroupSum("fc", QUERY, by=(by,)), cancelled=lambda: checks.append(1) or len(checks) == 7)
    assert ranked == []


def test_who_waits_for_what_another_makes_may_give_up_alone():
    cache, made, go = Cache(1000), threading.Event(), threading.Event()

    def make():
        made.set()
        assert go.wait(60)
        return 1

    def gone():
        raise Cancelled("gone")

    found = []
    maker = threading.Thread(target=lambda: found.append(cache.get("a", make)))
    maker.start()
    assert made.wait(60)
    with pytest.raises(Cancelled):
        cache.get("a", lambda: 2, gone)
    go.set()
    maker.join(60)
    assert found == [1]
    assert cache.get("a", lambda: 2, gone) == 1


def test_a_memory_without_slots_says_so():
    empty = arrays.engine(arrays.memory({"fc": np.ones((0, 4), np.float32)}, {"label": []}))
    with pytest.raises(EmptyMask, match="This memory does not contain any slots yet"):
        empty.ask(QUESTIONS[0])
    assert empty.info().slots == {"sample": 0}


def test_rows_are_given_up_between_the_files_that_they_are_read_from():
    matrix = np.ones((40, 4), np.float32)
    keys, rows, looks = arrays.keys_of(matrix, 10), np.arange(40), list[int]()
    scores = score_pairs(keys, rows, np.zeros(40, np.int64), QUERY.rows, lambda: looks.append(1))
    assert scores.tolist() == [4.0] * 40
    assert len(looks) >= len(keys.sources) == 4 or kernels.library() is None
