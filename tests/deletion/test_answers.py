"""What a memory answers once samples were deleted: as masked before, and at the end as trained. Whenever deletion is
cut off, or meets a training that is resumed, the memory is whole: the old or the new one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.deletion import delete
from dualform.deletion.delete import planned_deletion
from dualform.errors import BadInput, Damaged, EmptyMask, Inexact, Locked, NotFound, RecordingError
from dualform.query.engine import Engine
from dualform.record.batches import StepWriter
from dualform.store.maintenance.check import check_memory, what_is_wrong
from dualform.store.reading.runs import opened
from dualform.store.reading.snapshot import Snapshot
from tests.cases import some
from tests.deletion.test_rewrite import write
from tests.query.trained import STEPS, Trained, train
from tests.record.resumed_training import ROWS, Training
from tests.store.small_memory import batches_of
from tests.trainings import record_steps, take_steps

FIRST, GONE = 10, (80, 133, 197, 198)
"""The first step that has one of the samples that go: a step has eight."""
WHERE, OTHERS = f"sample IN {GONE}", f"sample NOT IN {GONE}"


@pytest.fixture(scope="module")
def sgd(tmp_path_factory) -> Trained:
    """Under SGD with momentum, decay and Nesterov's, with its answers before, and then deleted from."""
    path = tmp_path_factory.mktemp("deleted") / "run"
    trained = train(path, weight_decay=1e-2, nesterov=True)
    trained.before = answers(trained.engine, OTHERS)
    trained.told = dualform.delete(path, WHERE)
    trained.engine = dualform.open(path)
    return trained


def answers(engine: Engine, where: str | None) -> list[np.ndarray]:
    """Scores, groups, keys and values, of all layers; slots by what they are, for they are numbered anew."""
    found = []
    for layer in engine.info().layers:
        queries = np.random.default_rng(0).normal(size=(3, layer.d_in)).astype(np.float32)
        hits = engine.topk(layer.name, queries, k=7, where=where)
        names = [engine.slots(slots, layer.space)["sample"] for slots in hits.slots]
        sums = engine.group_sum(layer.name, queries, by="label", where=where)
        found += [*hits.scores, *map(np.asarray, names), sums.sums, sums.counts]
    return found


def test_scores_and_sums_are_those_that_a_mask_gave(sgd):
    for before, after in some(zip(sgd.before, answers(sgd.engine, None), strict=True)):
        assert before.tobytes() == after.tobytes()


def test_weights_at_the_end_still_add_up(sgd):
    for layer, one in sgd.engine.verify().items():
        assert one.exact
        assert one.reconstruction_error < 2e-6
        assert one.reason.startswith("4 of its slots were deleted"), layer
    weights = sgd.engine.weights()
    for name, own in sgd.model.state_dict().items():
        assert torch.allclose(weights[name], own, rtol=0, atol=2e-6)
    assert all(share > 0 for share in weights.unrecorded_change.values())
    assert sgd.told.summed == ("0", "2", "4")
    assert not sgd.told.scores_only


def test_their_sum_stands_whatever_a_mask_leaves(sgd, tmp_path):
    """Under any mask the weights are those of the same mask before, and what the deleted slots brought."""
    whole = train(tmp_path / "whole", weight_decay=1e-2, nesterov=True).engine
    brought = {name: own - whole.weights(OTHERS).arrays[name] for name, own in whole.weights().arrays.items()}
    before, after = whole.weights(f"label = 1 AND {OTHERS}").arrays, sgd.engine.weights("label = 1").arrays
    for name, own in some(brought.items()):
        assert np.abs(own).max() > 1e-4
        assert np.allclose(after[name], before[name] + own, rtol=0, atol=2e-6)
    queries = np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)
    every, stays, left = (
        engine.contributions("4", queries, "label", where)
        for engine, where in ((whole, None), (whole, OTHERS), (sgd.engine, None))
    )
    assert left.groups == stays.groups
    np.testing.assert_allclose(left.sums, stays.sums, atol=1e-12)
    np.testing.assert_allclose(left.unrecorded_change, (every.sums - stays.sums).sum(1), atol=1e-12)
    np.testing.assert_allclose(left.initial, every.initial, atol=1e-12)


def test_steps_before_the_first_are_as_they_were_and_those_after_are_refused(sgd):
    weights = sgd.engine.weights(at_step=FIRST)
    for name, own in sgd.history[FIRST].items():
        assert torch.allclose(weights[name], own, rtol=0, atol=2e-6)
    assert weights.unrecorded_change == dict.fromkeys(weights.unrecorded_change, 0.0)
    query = np.ones((1, 5), np.float32)
    for at_step in (FIRST + 1, STEPS - 1):
        with pytest.raises(Inexact, match=f"known as of the end alone, once {STEPS} steps were taken") as refused:
            sgd.engine.output("0", query, at_step=at_step)
        assert f"at_step={FIRST} or less" in refused.value.hint
        found = sgd.engine.output("0", query, at_step=at_step, allow_inexact=True)
        assert (found.status.name, found.status.since) == ("approximate", FIRST)


def test_deleting_again_adds_up(sgd, tmp_path):
    train(tmp_path / "run", weight_decay=1e-2, nesterov=True)
    for gone in ("sample = 198", "sample IN (80, 133, 197)"):
        dualform.delete(tmp_path / "run", gone)
    once, parts = sgd.engine, dualform.open(tmp_path / "run")
    assert len(list((tmp_path / "run" / "weights").glob("forgotten-*"))) == 1
    for name, own in once.weights("label <> 1").arrays.items():
        assert np.allclose(parts.weights("label <> 1").arrays[name], own, rtol=0, atol=1e-6)
    assert parts.verify()["0"].reason == once.verify()["0"].reason


def test_a_run_behind_takes_the_sum_on(tmp_path):
    """With its buffer: the run behind goes on with the momentum that the deleted slots left."""
    torch.manual_seed(3)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, dampening=0.2)
    for number, path in enumerate((tmp_path / "a", tmp_path / "b")):
        record_steps(
            dualform.Recorder(model, optimizer, path, quiet=True),
            optimizer,
            6,
            lambda step: cross_entropy(model(torch.randn(5, 4)), torch.randint(3, (5,))),
            sample=lambda step, number=number: np.arange(5) + 5 * step + 100 * number,
        )
    dualform.delete(tmp_path / "a", "sample IN (3, 4, 28, 29)")
    both = dualform.open([tmp_path / "a", tmp_path / "b"])
    assert both.verify()[""].reconstruction_error < 1e-6
    assert both.info().layers[0].status.exact
    with pytest.raises(Inexact, match="once 6 steps were taken"):
        both.weights(at_step=5)
    assert both.weights(at_step=6).unrecorded_change[""] > 0
    dualform.delete(tmp_path / "b", "sample IN (101, 129)")
    both = dualform.open([tmp_path / "a", tmp_path / "b"])
    assert both.verify()[""].reconstruction_error < 1e-6


def test_a_resumed_training_deletes_in_all_of_its_runs(tmp_path):
    """SGD and AdamW, a run that another one replaced, and rows behind the moment from which the training went on."""
    path, file = tmp_path / "run", tmp_path / "checkpoint.pt"
    Training().run(path, until=7, saved=(4,), checkpoint=file)
    for until in (6, 9):
        again = Training()
        again.load(file)
        again.run(path, until, resume=4)
    engine = dualform.open(path)
    model, before = again.model, answers(engine, "sample NOT IN (2, 5, 9)")
    rows = sum(len(set(range(step, step + ROWS)) & {2, 5, 9}) for step in range(9))
    with pytest.raises(EmptyMask):
        dualform.delete(path, "sample = 99")
    assert (path / "run-00001").exists()
    told = dualform.delete(path, "sample IN (2, 5, 9)")
    engine = dualform.open(path)
    assert told.removed == ("run-00001",)
    assert told.samples == rows
    assert (told.summed, told.scores_only) == (("0",), ("3",))
    assert sorted(own.name for own in path.iterdir() if own.name.startswith("run-")) == ["run-00002-1"]
    assert [run.others.moments for run in opened(path).runs] == [[], []]
    assert (told.span, told.others[0]) == (9, "1.bias")
    assert [[mark.step for mark in run.manifest.marks] for run in opened(path).runs] == [[4], [5]]  # where each ends
    for one, other in zip(before, answers(engine, None), strict=True):
        assert one.tobytes() == other.tobytes()
    reconstructions = engine.verify()
    assert reconstructions["0"].exact
    assert reconstructions["0"].reconstruction_error < 1e-5
    assert reconstructions["3"].status.name == "scores only"
    query = np.ones((1, 5), np.float32)
    with torch.no_grad():
        assert np.allclose(engine.output("0", query), model[0](torch.ones(1, 5)), rtol=0, atol=1e-5)
    assert check_memory(path) == []
    again = Training()
    again.load(file)
    with pytest.raises(RecordingError, match=r"samples were deleted"):
        again.run(path, 12, resume=True)


def test_a_layer_that_had_none_of_them_stays_as_it_was(tmp_path):
    """Under AdamW and autocast: its products are still rounded as they were."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"theirs": nn.Linear(4, 3), "others": nn.Linear(4, 3)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss(step: int) -> torch.Tensor:
        layer, y = model["others" if step % 2 else "theirs"], torch.randint(3, (6,))
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(layer(torch.randn(6, 4)).float(), y)

    recorder = dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True)
    record_steps(recorder, optimizer, 10, loss, sample=lambda step: np.arange(6) + 6 * step)
    engine = dualform.open(tmp_path / "run")
    queries = np.ones((2, 4), np.float32)
    before, reconstruction = engine.output("others", queries, where="step > 2"), engine.verify()["others"]
    first = engine.weights(at_step=2)
    assert opened(tmp_path / "run").table("products").num_rows == 10
    told = dualform.delete(tmp_path / "run", "sample IN (13, 24, 25)")
    assert told.scores_only == ("theirs",)
    engine = dualform.open(tmp_path / "run")
    assert engine.output("others", queries, where="step > 2").values.tobytes() == before.values.tobytes()
    assert engine.verify()["others"] == reconstruction
    assert engine.verify()["theirs"].status.name == "scores only"
    assert all(torch.equal(own, first[name]) for name, own in engine.weights(at_step=2).items())
    with pytest.raises(Inexact, match="3 of its slots were deleted, the first of step 2, and AdamW's updates"):
        engine.weights()
    with pytest.raises(Inexact):
        engine.output("theirs", queries, allow_inexact=True)


class _Patches(nn.Module):
    """Feature maps, row numbers and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.maps = nn.Conv2d(1, 3, 2)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight
        self.last = nn.Linear(3 * 6, 7)

    def forward(self, image: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(word)).mean(1) + self.last(torch.tanh(self.maps(image)).flatten(1))


def test_maps_row_numbers_and_halved_keys(tmp_path):
    torch.manual_seed(0)
    model = _Patches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    images, words = torch.randn(9, 1, 3, 4), torch.randint(7, (9, 5))

    def loss(chosen: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model(images[chosen], words[chosen]).float(), chosen % 7)

    with dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True) as recorder:
        take_steps(
            recorder,
            optimizer,
            (torch.randperm(9)[:4] for _ in range(6)),
            loss,
            label=lambda chosen: chosen % 7,
            sample=lambda chosen: chosen,
        )
        recorder.query_set("theirs", {"image": images[:2], "word": words[:2]})
        recorder.query_set("others", {"image": images[2:4], "word": words[2:4]})
    engine = dualform.open(tmp_path / "run")
    before = answers(engine, "sample <> 0")
    reconstructions = {name: one.reconstruction_error for name, one in engine.verify().items()}
    told = dualform.delete(tmp_path / "run", "sample = 0")
    engine = dualform.open(tmp_path / "run")
    for one, other in zip(before, answers(engine, None), strict=True):
        assert one.tobytes() == other.tobytes()
    for name, one in engine.verify().items():
        assert one.reconstruction_error == pytest.approx(reconstructions[name], abs=1e-7)
    assert (told.query_sets, told.unsure) == (("theirs",), ("others",))
    with pytest.raises(NotFound):
        engine.query_set("theirs")
    assert engine.query_set("others").outputs is not None
    assert not (tmp_path / "run" / "probes" / "theirs").exists()


def test_a_memory_without_keys_keeps_no_digest_and_is_not_run_again(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = dualform.Recorder(model, optimizer, tmp_path / "run", keys=False, quiet=True)
    record_steps(
        recorder,
        optimizer,
        3,
        lambda step: model(torch.randn(4, 4)).square().mean(),
        sample=lambda step: np.arange(4) + step,
    )
    told = planned_deletion(tmp_path / "run", "sample = 1")
    assert told == dualform.delete(tmp_path / "run", "sample = 1")
    assert (told.samples, told.summed, told.scores_only) == (2, (), ())
    assert opened(tmp_path / "run").table("digests").num_rows == 0
    with pytest.raises(BadInput, match="a rerun would bring them back"):
        dualform.Rerun(model, optimizer, tmp_path / "run", [dualform.TopK("", np.ones((1, 4), np.float32))])


def test_a_recording_that_was_cut_off_adds_up_to_where_it_came(tmp_path):
    """There is no end to hold the sum against: its size is not known, and the weights are all the same."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    recorder = dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True)
    with recorder:
        take_steps(
            recorder,
            optimizer,
            5,
            lambda step: model(torch.randn(4, 4)).square().mean(),
            sample=lambda step: np.arange(4) + 4 * step,
        )
        recorder.flush()
        shutil.copytree(tmp_path / "run", tmp_path / "cut off")
        before = dualform.open(tmp_path / "cut off").weights(allow_inexact=True)
    dualform.delete(tmp_path / "cut off", "sample IN (2, 9)", cut_off=True)
    after = dualform.open(tmp_path / "cut off").weights(allow_inexact=True)
    assert np.isnan(after.unrecorded_change[""])
    for name, own in before.arrays.items():
        assert np.allclose(after.arrays[name], own, rtol=0, atol=1e-7)


@pytest.fixture(scope="module")
def unsure(tmp_path_factory):
    """A memory with columns that are NaN in places."""
    path = tmp_path_factory.mktemp("nan") / "m"
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record_steps(
        dualform.Recorder(model, optimizer, path, quiet=True),
        optimizer,
        2,
        lambda step: model(torch.randn(6, 4)).square().mean(),
        conf=[0.95, 0.2, float("nan"), 0.1, 0.99, None],
        low=[0.0, 0.0, 0.0, float("nan"), 0.0, 0.0],
        label=[0, 1, 2, 3, 4, 5],
    )
    return path


@pytest.mark.parametrize(
    ("where", "few", "every"),
    [
        ("NOT conf < 0.9", 2, 6),
        ("conf > 0.9 OR low > 0.9", 4, 8),
        ("conf > 0.9 OR low > 0.9 OR isnan(low)", 2, 8),
    ],
)
def test_what_only_nan_picks_is_not_deleted_unasked(unsure, where, few, every):
    """SQL takes NaN for more than any number: `conf > 0.9` picks the samples whose conf is NaN, too."""
    for make in (planned_deletion, dualform.delete):
        only = f"where matches {few} of {every} samples only because (conf|conf, low) is NaN"
        with pytest.raises(BadInput, match=only) as refused:
            make(unsure, where)
    keep, take = refused.value.hint.removeprefix("To keep them, write ")[:-1].split(". To delete them, write ")
    assert planned_deletion(unsure, keep).samples == every - few
    assert planned_deletion(unsure, take).samples == every


def test_what_a_mask_says_of_nan_is_done(unsure, tmp_path):
    for where, gone in (
        ("(conf > 0.9) OR (isnan(conf))", 6),
        ("isnan(conf)", 2),
        ("conf > 0.9 AND label = 0", 2),
        ("conf IS NULL", 2),
    ):
        assert planned_deletion(unsure, where).samples == gone
    shutil.copytree(unsure, tmp_path / "m")
    assert dualform.delete(tmp_path / "m", "(conf > 0.9) AND NOT (isnan(conf))").samples == 4
    with dualform.open(tmp_path / "m") as memory:
        assert memory.slots(range(8))["label"].tolist() == [1, 2, 3, 5] * 2


BELOW = "sample < 6"


class Killed(BaseException):
    """The process ends."""


def samples(path: Path) -> list[int]:
    return Snapshot.open(path).column("sample", "sample").tolist()


def test_killed_at_any_moment_it_is_one_or_the_other(tmp_path, monkeypatch):
    """At every file that is renamed into place, and at every piece of the old memory that is removed."""
    batches = batches_of([5, 5])
    write(tmp_path / "whole", batches)
    old = samples(tmp_path / "whole")
    new = [sample for sample in old if sample >= 6]
    assert new
    assert len(new) < len(old)
    seen = set()
    for last in range(100):
        path, left = tmp_path / f"at {last}", [last]
        shutil.copytree(tmp_path / "whole", path)
        with monkeypatch.context() as patch:
            _end_after(patch, left)
            try:
                dualform.delete(path, BELOW)
                break
            except Killed:
                pass
        found = samples(path)
        assert found in (old, new), last
        assert what_is_wrong(path) == []
        seen.add(found == new)
        path.joinpath("weights", "best.safetensors").write_bytes(b"somebody's own")
        if found == new:
            assert "may hold deleted samples" in check_memory(path)[0]
        elif last % 8:
            continue
        with suppress(EmptyMask):
            dualform.delete(path, BELOW)
        assert samples(path) == new
        assert check_memory(path) == []
        assert path.joinpath("weights", "best.safetensors").exists()
        assert sorted(own.name for own in path.iterdir() if own.name.startswith("shard-")) == ["shard-00000-1"]
    assert seen == {True, False}


def _end_after(patch: pytest.MonkeyPatch, left: list[int]) -> None:
    """End the process after so many renames and removals, or in the middle of the next one."""

    def ending(module, name):
        real = getattr(module, name)

        def counted(*arguments, **named):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*arguments, **named)

        patch.setattr(module, name, counted)

    ending(os, "replace")
    ending(delete, "remove_leftovers")
    patch.setattr(delete, "_remove", lambda made: None)  # nobody is left to clean up


def test_where_the_new_memory_is_not_sound_the_old_one_stays(tmp_path, monkeypatch):
    write(tmp_path / "memory", batches_of([5, 5]))
    before = {file: file.read_bytes() for file in (tmp_path / "memory").rglob("*") if file.is_file()}
    monkeypatch.setattr(delete, "what_is_wrong", lambda path: ["made up"])
    with pytest.raises(
        Damaged, match="The memory without these samples did not pass its check, so the old one was kept:"
    ):
        dualform.delete(tmp_path / "memory", BELOW)
    after = {file: file.read_bytes() for file in (tmp_path / "memory").rglob("*") if file.is_file()}
    assert after == before


def test_two_at_once_are_refused(tmp_path):
    write(tmp_path / "memory", batches_of([5]))
    handle = os.open(tmp_path / "memory", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(Locked, match="another process deletes"):
        dualform.delete(tmp_path / "memory", BELOW)
    os.close(handle)


@pytest.mark.parametrize("asked", [False, True])
def test_a_memory_that_was_open_meanwhile_says_so(tmp_path, asked):
    write(tmp_path / "memory", batches_of([5, 5]))
    with dualform.open(tmp_path / "memory") as memory:
        if asked:
            memory.topk("layer-1", np.ones((1, 5), np.float32), k=1)
        dualform.delete(tmp_path / "memory", BELOW)
        with pytest.raises(Damaged, match=r"were deleted since it was opened\. Open it again\."):
            memory.slots([0])
        with pytest.raises(Damaged, match=r"were deleted since it was opened\. Open it again\."):
            memory.keys("layer-0", [0])
        (tmp_path / "memory" / "shard-00000-1" / "slots.duckdb").unlink()
        with pytest.raises(Damaged, match="were deleted since it was opened"):
            memory.values("layer-0", [0])


def saved(folder: Path) -> Training:
    """A training of six steps, as loaded from its checkpoint after four."""
    Training().run(folder / "run", 6, saved=(4,), checkpoint=folder / "checkpoint.pt")
    training = Training()
    training.load(folder / "checkpoint.pt")
    return training


def test_a_run_does_not_begin_where_samples_were_deleted_since_its_recorder_was_made(tmp_path):
    training, path = saved(tmp_path), tmp_path / "run"
    recorder = training.recorder(path, resume=True)
    dualform.delete(path, "sample = 8")
    with pytest.raises(RecordingError, match=r"samples were deleted"), recorder:
        training.step(recorder)
    assert not list(path.glob("run-*"))
    assert check_memory(path) == []
    assert dualform.open(path).verify()["0"].exact


def test_nothing_is_deleted_while_a_run_is_put_on_disk(tmp_path, monkeypatch):
    training, path, real = saved(tmp_path), tmp_path / "run", StepWriter.begin

    def begin(*arguments):
        real(*arguments)
        with pytest.raises(Locked, match="or starts to record into it"):
            dualform.delete(path, "sample = 3")

    monkeypatch.setattr(StepWriter, "begin", begin)
    training.run(path, 8, resume=True)
    assert check_memory(path) == []
    memory = dualform.open(path)
    assert memory.info().steps == 8
    assert memory.verify()["0"].exact
