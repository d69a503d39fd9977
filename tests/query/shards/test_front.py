"""A front over shards answers as one engine over the same shards, bit for bit."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

import dualform
from dualform.errors import BadInput, EmptyMask, Inexact, NotFound, Unavailable
from dualform.query.engine import Engine
from dualform.query.score.backends import choose
from dualform.query.shards.engines import ShardEngine
from dualform.query.shards.shards import (
    ShardQuestion,
    absolute_of,
    best_of,
    key_columns_of,
    key_sums_of,
    scores_of,
    slot_sum_of,
)
from dualform.query.sums import grouping, key_sums
from dualform.query.weights.slot_products import slot_sum
from dualform.query.where import mask
from dualform.query.where.mask import Source
from dualform.store.reading.runs import Runs, opened
from dualform.store.reading.snapshot import Part, shard_names
from tests.query.shards.in_process import front_of
from tests.query.shards.memories import SIZES, WIDTHS, queries, same, write
from tests.trainings import record_steps


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of sums that hold slots of several steps and shards, and are many."""
    monkeypatch.setattr(key_sums, "BLOCK", 7)


MASKS = [
    None,
    "label > 1",
    "sample <> 3",
    "dataset = 'first' AND step > 0",
    "slot % 2 = 0",
    "label IS NULL OR sample < 3",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("shards") / "memory"
    write(path, SIZES, spread=6)
    return path


@pytest.fixture(scope="module")
def engines(folder):
    """One engine over the memory, a front over its shards, and those."""
    one = dualform.open(folder, backend="numpy")
    front, shards = front_of(folder)
    yield one, front, shards
    one.close()
    front.close()


@pytest.fixture
def asked(engines):
    """What shards were asked, of this test alone."""
    _, front, shards = engines
    shards.asked.clear()
    front._view.cache.clear()
    yield shards.asked
    shards.dead.clear()


@st.composite
def memories(draw):
    steps = draw(st.integers(1, 5))
    rows = st.lists(st.integers(1, 6), min_size=steps, max_size=steps)
    return draw(st.lists(rows, min_size=1, max_size=4)), draw(st.integers(0, 99)), draw(st.sampled_from([0, 12, 40]))


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(memory=memories(), data=st.data())
def test_every_answer_has_the_bits_of_one_engine(memory, data, tmp_path_factory):
    sizes, seed, spread = memory
    path = tmp_path_factory.mktemp("generated") / "memory"
    write(path, sizes, seed, spread)
    written = opened(path)
    front, _ = front_of(written)
    with Engine(written, choose("numpy")) as one:
        for _ in range(2):
            layer = data.draw(st.sampled_from(list(WIDTHS)))
            own, where = queries(layer, 3, seed), data.draw(st.sampled_from(MASKS))
            by = data.draw(st.sampled_from(["label", ("dataset", "label"), "step", "sample"]))
            score = data.draw(st.sampled_from(["dot", "abs", "cosine"]))
            at_step = data.draw(st.integers(0, one.info().steps))
            _compared(one, front, lambda e: e.output(layer, own, where, at_step, allow_inexact=True))  # noqa: B023
            terms = {"by": by, "where": where, "at_step": at_step, "allow_inexact": True}
            _compared(one, front, lambda e: e.contributions(layer, own, **terms), _same_terms)  # noqa: B023
            if where is not None:
                _compared(one, front, lambda e: e.placebo(layer, own, where, 20, at_step, True), _same_terms)  # noqa: B023
            if layer == "grouped":
                layer, own = "grouped.1", own[:, 2:]
            k = data.draw(st.integers(1, 9))
            _compared(one, front, lambda e: e.topk(layer, own, k, where, None, score))  # noqa: B023
            _compared(one, front, lambda e: e.topk(layer, own, k, where, by, score))  # noqa: B023
            _compared(one, front, lambda e: e.distribution(layer, own, where, score))  # noqa: B023
            sums = "dot" if score == "abs" else score
            _compared(one, front, lambda e: e.group_sum(layer, own, by, where, sums))  # noqa: B023
            _compared(one, front, lambda e: e.group_sum(layer, own, by, where, "abs"), _close)  # noqa: B023
    shutil.rmtree(path)


def _compared(one, front, ask, alike=same):
    """Both answer alike, or both refuse alike."""
    try:
        expected = ask(one)
    except (NotFound, EmptyMask, BadInput) as error:
        with pytest.raises(type(error), match=r"."):
            ask(front)
        return
    alike(expected, ask(front))


def _same_terms(one, other):
    """Contributions, or placebos."""
    for name in ("groups", "siblings"):
        assert getattr(one, name, None) == getattr(other, name, None)
    for name in ("sums", "counts", "initial", "bias", "unrecorded_change", "residual", "changes", "outcomes"):
        own = [getattr(answer, name, np.empty(0)) for answer in (one, other)]
        assert own[0].tobytes() == own[1].tobytes(), name


def _close(one, other):
    assert one.groups == other.groups
    np.testing.assert_allclose(one.sums, other.sums, rtol=1e-6, atol=0)


def test_keys_are_asked_for_where_a_sum_may_be_rounded_and_nowhere_else(engines, asked, tmp_path):
    one, front, _ = engines
    same(*(engine.group_sum("plain", queries("plain"), by="label") for engine in (one, front)))
    assert asked
    assert {share for share, _ in asked} == {key_sums_of}
    write(tmp_path / "memory", [[4, 4, 4], [4, 4, 4]], spread=60)
    front, shards = front_of(tmp_path / "memory")
    with dualform.open(tmp_path / "memory", backend="numpy") as one:
        same(*(engine.group_sum("plain", queries("plain"), by="label") for engine in (one, front)))
    assert (key_columns_of, (0, 1)) in shards.asked


def test_with_very_many_groups_scores_are_added_in_order(engines, asked, monkeypatch):
    monkeypatch.setattr(grouping, "BUDGET", 0)
    for layer in ("plain", "repeated", "late"):
        for score in ("dot", "abs", "cosine"):
            own = [engine.group_sum(layer, queries(layer, 20), "step", "label > 0", score) for engine in engines[:2]]
            if score == "abs":  # the whole takes float64 products
                np.testing.assert_allclose(own[0].sums, own[1].sums, rtol=1e-13)
            else:
                same(*own)
    assert {share for share, _ in asked} == {scores_of}


def test_what_is_asked_of_shards_and_what_the_front_answers_alone(engines, asked):
    _, front, _ = engines
    own = queries("plain")
    split = {
        best_of: lambda: front.topk("plain", own, where="label > 1"),
        key_sums_of: lambda: front.group_sum("plain", own, by="label"),
        absolute_of: lambda: front.group_sum("plain", own, by="label", score="abs"),
        slot_sum_of: lambda: front.weights(where="label > 1", allow_inexact=True),
    }
    for share, ask in split.items():
        asked.clear()
        ask()
        assert share in {kind for kind, _ in asked}
    asked.clear()
    front.info(), front.slots([3, 1], "sample")
    front.group_sum("plain", own, by="label", score="cosine")
    front.output("plain", own, kernel="softmax", allow_inexact=True)
    assert {share for share, _ in asked} <= {slot_sum_of}  # of the weights that slots do not make


def test_only_shards_with_slots_are_asked(engines, asked):
    engines[1].topk("late", queries("late"))
    assert asked == [(best_of, (0, 1))]


def test_weights_are_the_sum_over_the_slots_of_all_shards(engines):
    one, _, _ = engines
    for layer in ("plain", "repeated", "late"):
        ids = np.sort(one.topk(layer, queries(layer, 1), k=999).ids)
        terms = one.coefficients(layer, ids)[:, None] * one.values(layer, ids).astype(np.float64)
        wanted = terms.T @ one.keys(layer, ids).astype(np.float64)
        found = one.output(layer, np.eye(WIDTHS[layer], dtype=np.float32), initial=False, allow_inexact=True, at_step=6)
        exact = slot_sum(one._view, one._view.snapshot.layer(layer), *whole(one, layer), 6, lambda: None)
        np.testing.assert_allclose(exact.weight, wanted, rtol=1e-12, atol=1e-13 * np.abs(terms).max())
        assert found.values.shape == wanted.T.shape


def whole(engine, layer):
    return [mask.selection(engine._view, engine._view.snapshot.layer(layer), None)]


def test_a_missing_shard_is_an_error_unless_a_partial_answer_is_asked_for(engines, asked):
    one, front, shards = engines
    own = queries("plain")
    theirs = shards.engines[1]._shard.rows.places("plain")
    rest = f"NOT (slot IN ({', '.join(map(str, theirs))}))"
    shards.dead = {1}
    for ask in (
        lambda engine, **more: engine.topk("plain", own, 4, **more),
        lambda engine, **more: engine.topk("plain", own, 4, by="label", **more),
        lambda engine, **more: engine.group_sum("plain", own, "label", **more),
    ):
        with pytest.raises(Unavailable, match="shard-00001 did not answer"):
            ask(front)
        partial, expected = ask(front, allow_partial=True), ask(one, where=rest)
        assert partial.scan.missing == ("shard-00001",)
        same(partial, expected)
    with pytest.raises(Unavailable, match="shard-00001"):
        front.output("plain", own, allow_inexact=True)
    shards.dead = set()
    entire = front.topk("plain", own, 4, allow_partial=True)
    assert entire.scan.missing == ()
    same(one.topk("plain", own, 4, allow_partial=True), entire)
    shards.dead = {0, 1, 2}
    with pytest.raises(Unavailable, match="shard-00000"):
        front.topk("plain", own, allow_partial=True)


def test_an_answerer_reads_no_other_shard(engines, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "memory")
    one, _, _ = engines
    memory = opened(tmp_path / "memory")
    for other in ("shard-00000", "shard-00002"):
        shutil.rmtree(tmp_path / "memory" / other / "layers")
    share = best_of, ("plain", Source(None), (), queries("plain"), 99, "dot")
    replies = [
        ShardEngine(memory, n, choose("numpy")).reply(ShardQuestion(*share, memory.moment), 60.0) for n in range(3)
    ]
    assert [reply.error is None for reply in replies] == [False, True, False]
    theirs = set(Part(memory, 1).places("plain").tolist())
    expected = one.topk("plain", queries("plain"), 99)
    for query, (entries, _) in enumerate(replies[1].answer.ranked):
        assert entries.tolist() == [slot for slot in expected.slots[query].tolist() if slot in theirs]
    assert "shard-00002" in str(replies[2].error)


def test_errors_are_those_of_one_engine(engines, asked):
    _, front, _ = engines
    for ask, error in (
        (lambda: front.topk("none", queries("plain")), "There is no layer"),
        (lambda: front.topk("plain", queries("late")), "queries must have 5 columns"),
        (lambda: front.topk("plain", queries("plain"), where="label > 99"), "matches none"),
        (lambda: front.group_sum("plain", queries("plain"), by="nothing"), "no slot column"),
        (lambda: front.topk("plain", queries("plain"), score="best"), "Unknown score 'best'"),
        (lambda: front.output("plain", queries("plain")), "cannot be reconstructed exactly"),
    ):
        with pytest.raises((ValueError, LookupError, Inexact), match=error):
            ask()
    assert {share for share, _ in asked} <= {slot_sum_of}  # which the last one's status asks for


def test_shards_that_see_another_moment_say_so(engines):
    _, front, shards = engines
    moment = front._view.snapshot.moment
    share = best_of, ("plain", Source(None), (), queries("plain"), 9, "dot")
    reply = shards.engines[0].reply(ShardQuestion(*share, moment._replace(frames=1)), 60.0)
    assert isinstance(reply.error, Unavailable)
    assert "moved on" in str(reply.error)


def test_no_two_shards_have_one_name(folder, tmp_path):
    write(tmp_path / folder.name, [[2, 3], [3, 1]])
    names = shard_names(Runs.of([folder, tmp_path / folder.name]))
    assert len(set(names)) == len(names) == 5
    assert shard_names(Runs.of([folder])) == ["shard-00000", "shard-00001", "shard-00002"]


def test_runs_of_a_training_that_was_resumed_have_their_shards_one_after_the_other(folder, tmp_path):
    write(tmp_path / "later", [[2, 3], [3, 1]], seed=3)
    runs = Runs.of([folder, tmp_path / "later"])
    front, shards = front_of(runs)
    assert [name.split("/")[-2:] for name in shards.names[-2:]] == [["later", "shard-00000"], ["later", "shard-00001"]]
    with Engine(runs, choose("numpy")) as one:
        for layer in ("plain", "repeated", "late"):
            same(*(engine.topk(layer, queries(layer), 9, "run = 1 OR step < 3") for engine in (one, front)))
            same(*(engine.group_sum(layer, queries(layer), ("run", "label")) for engine in (one, front)))
            same(*(engine.output(layer, queries(layer), allow_inexact=True) for engine in (one, front)))


def test_a_memory_that_was_cut_off_is_answered_up_to_the_step_that_all_shards_have(tmp_path):
    write(tmp_path / "memory", SIZES, finish=False)
    memory = opened(tmp_path / "memory")
    front, _ = front_of(memory)
    with Engine(memory, choose("numpy")) as one:
        assert one.info().recording
        for layer in ("plain", "repeated", "late"):
            same(*(engine.topk(layer, queries(layer), 9) for engine in (one, front)))
            same(*(engine.group_sum(layer, queries(layer), "label") for engine in (one, front)))
            same(*(engine.output(layer, queries(layer), allow_inexact=True) for engine in (one, front)))


TWO = [[2, 1, 2, 3, 1], [1, 2, 3, 1, 2]]


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "in journals alone"])
def test_shards_of_a_memory_that_was_recorded_anew_are_not_merged_with_those_of_before(tmp_path, commit):
    write(tmp_path / "memory", TWO, commit=commit)
    front, shards = front_of(tmp_path / "memory")
    front.topk("plain", queries("plain"))  # who has read its keys does not look into the files again
    shutil.rmtree(tmp_path / "memory")
    write(tmp_path / "memory", TWO, seed=9, commit=commit)  # as many commits, frames and steps
    shards.engines[1] = ShardEngine(opened(tmp_path / "memory"), 1, choose("numpy"))
    with pytest.raises(Unavailable, match="moved on"):
        front.topk("plain", queries("plain"))
    assert front.refresh()
    with dualform.open(tmp_path / "memory", backend="numpy") as one:
        same(*(engine.topk("plain", queries("plain")) for engine in (one, front)))


def test_a_layer_without_keys_is_refused_as_by_one_engine(tmp_path):
    layer = torch.nn.Linear(6, 4)
    optimizer = torch.optim.SGD(layer.parameters())
    record_steps(
        dualform.Recorder(layer, optimizer, tmp_path / "memory", keys=False),
        optimizer,
        1,
        lambda _: layer(torch.ones(5, 6)).sum(),
        label=torch.arange(5),
    )
    front, _ = front_of(tmp_path / "memory")
    own = np.ones((1, 6), np.float32)
    for ask in (
        lambda: front.topk("", own),
        lambda: front.group_sum("", own, "label"),
        lambda: front.group_sum("", own, "label", score="abs"),
    ):
        with pytest.raises(NotFound, match="keys=False"):
            ask()
