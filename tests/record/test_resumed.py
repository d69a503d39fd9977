"""A training that is resumed from its checkpoint, in its memory's folder, has the record of one that never stopped."""

from __future__ import annotations

import shutil
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import AlreadyExists, BadInput, Damaged, RecordingError
from dualform.store.maintenance.check import check_memory
from dualform.store.maintenance.copying import copy_memory
from dualform.store.manifest import Manifest
from tests.record.listed import rows_of
from tests.record.resumed_training import ROWS, Training, batch
from tests.trainings import learn, record_steps

STEPS = 15


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder, training = tmp_path_factory.mktemp("whole") / "m", Training()
    training.run(folder, STEPS, saved=(7, 10))
    with dualform.open(folder) as memory:
        yield memory


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Killed behind step 9, resumed after 7, killed behind step 13, and resumed after 10: folder and training."""
    folder = tmp_path_factory.mktemp("killed")
    training = Training()
    for number, (until, moment) in enumerate(((9, 7), (13, 10))):
        with training.recorder(folder / f"{number}", resume=True) as recorder:
            while training.done < until:
                training.step(recorder)
                if training.done == moment:
                    recorder.flush()
                    training.save(folder / "checkpoint")
            put_on_disk(recorder, training.done - 1)
            shutil.copytree(folder / f"{number}", folder / f"{number + 1}")
        training = Training()
        training.load(folder / "checkpoint")
    assert training.done == 10
    training.run(folder / "2", STEPS, resume=True)
    return folder / "2", training


def put_on_disk(recorder, step):
    """What a flush would, but for the mark, so that more of it is there than the checkpoint has."""
    recording = recorder._controller.session
    recording.updates.finish(step)
    recording.writer.put_logs()
    recording.writer.sink.flush()


@pytest.fixture(scope="module")
def resumed(killed):
    with dualform.open(killed[0]) as memory:
        yield memory


def test_tables_are_those_of_one_recording(whole, resumed):
    for table in ("steps", "parameter_groups", "factors", "defects"):
        assert rows_of(whole.path, table) == rows_of(resumed.path, table), table
    one, other = (memory.slots(range(STEPS * ROWS)).arrays for memory in (whole, resumed))
    for name, column in one.items():
        assert column.tolist() == other[name].tolist(), name
    assert other["run"].tolist() == np.repeat([0, 1, 2], [7 * ROWS, 3 * ROWS, 5 * ROWS]).tolist()
    told = resumed.info()
    assert (told.steps, told.slots, told.recording, told.cut_off) == (STEPS, {"sample": STEPS * ROWS}, False, "")


def test_keys_values_and_answers_are_those_of_one_recording(whole, resumed):
    slots = np.arange(STEPS * ROWS)
    for layer, width in (("0", 5), ("3", 6)):
        assert np.array_equal(whole.keys(layer, slots), resumed.keys(layer, slots))
        assert np.array_equal(whole.values(layer, slots), resumed.values(layer, slots))
        queries = np.random.default_rng(0).standard_normal((3, width)).astype(np.float32)
        one, other = (memory.topk(layer, queries, k=9, where="label <> 1") for memory in (whole, resumed))
        assert one.ids.tolist() == other.ids.tolist()
        assert one.flat_scores.tobytes() == other.flat_scores.tobytes()
        one, other = (memory.group_sum(layer, queries, by="step") for memory in (whole, resumed))
        assert (one.groups, one.sums.tobytes()) == (other.groups, other.sums.tobytes())


def test_weights_and_statuses_are_those_of_one_recording(whole, resumed, killed):
    for arguments in ({}, {"where": "label <> 1"}, *({"at_step": step} for step in (3, 7, 8, 10, 12))):
        one, other = (memory.weights(**arguments) for memory in (whole, resumed))
        assert all(torch.equal(own, other[name]) for name, own in one.items()), arguments
    for name, own in killed[1].model.state_dict().items():
        assert torch.allclose(own.float(), resumed.weights()[name].float(), atol=1e-6), name
    one, other = whole.verify(), resumed.verify()
    for name, reconstruction in one.items():
        assert other[name].exact, other[name]
        # The sums of runs are added up run by run: float64's last bit of a weight is 1e-9 of what the record misses.
        assert other[name].reconstruction_error == pytest.approx(reconstruction.reconstruction_error, rel=1e-8)
        assert reconstruction.reconstruction_error < 1e-5


def test_the_folder_is_sound(killed):
    assert check_memory(killed[0]) == []
    first = Manifest.read(killed[0])
    assert [(run.folder, run.first_step) for run in first.runs] == [("run-00001", 7), ("run-00002", 10)]
    assert [mark.step for mark in first.marks] == [7]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder with what a kill leaves behind step 6 of a training that was flushed after 2 and 4 steps, and with its
    checkpoints.
    """
    training, folder = Training(), tmp_path_factory.mktemp("stopped")
    with training.recorder(folder / "live") as recorder:
        for moment in (2, 4, 5, 6):
            while training.done < moment:
                training.step(recorder)
            if moment != 5:
                recorder.flush()
            training.save(folder / f"after-{moment}")
        shutil.copytree(folder / "live", folder / "m")
    manifest = Manifest.read(folder / "m")
    manifest.marks = [mark for mark in manifest.marks if mark.step != 6]
    manifest.write(folder / "m")
    return folder


@pytest.fixture
def left(stopped, tmp_path):
    return Path(shutil.copytree(stopped, tmp_path / "stopped"), "m")


def resume(folder: Path, checkpoint: str | None, resume=True, until: int = 8, optimizers: bool = True) -> None:
    training = Training()
    if checkpoint is not None:
        training.load(folder.parent / checkpoint, optimizers)
    training.run(folder, until, resume=resume)


def test_a_checkpoint_of_another_moment_is_refused_and_nothing_is_lost(left):
    before = (left / "memory.json").read_bytes()
    with pytest.raises(
        RecordingError, match=r"differs from what it was when the recorder of .* was flushed, after 2, 4 steps"
    ) as own:
        resume(left, "after-5")
    assert "For a later checkpoint, record into" in own.value.hint
    with pytest.raises(RecordingError, match="differs from what it was"):
        resume(left, None)  # no checkpoint was loaded at all
    with pytest.raises(RecordingError, match=r"after 4 steps of .* but the state of the optimizer is not"):
        resume(left, "after-4", optimizers=False)
    with pytest.raises(RecordingError, match="differs from what it was"):
        resume(left, "after-4", resume=2)
    with pytest.raises(RecordingError, match="cannot be resumed after 3 steps") as own:
        resume(left, "after-4", resume=3)
    assert "after 2, 4 steps" in own.value.hint
    with pytest.raises(BadInput, match="resume must be True, False or a number of steps, not 0"):
        resume(left, "after-4", resume=0)
    assert (left / "memory.json").read_bytes() == before
    with dualform.open(left) as memory:
        assert memory.info().steps == 6


def test_an_earlier_checkpoint_takes_the_place_of_what_was_recorded_behind_it(left):
    resume(left, "after-4")
    resume(left, "after-2", resume=2, until=5)
    with dualform.open(left) as memory:
        assert memory.info().steps == 5
        assert [row["step"] for row in rows_of(left, "steps")] == list(range(5))
        assert all(reconstruction.exact for reconstruction in memory.verify().values())
    assert [(run.folder, run.first_step) for run in Manifest.read(left).runs] == [("run-00002", 2)]


def test_a_reader_follows_a_training_that_is_resumed(left):
    with dualform.open(left) as memory:
        assert memory.info().steps == 6
        resume(left, "after-4")
        memory.refresh()
        assert (memory.info().steps, memory.info().cut_off) == (8, "")


def test_a_run_that_was_begun_and_not_named_is_none(left):
    """Killed between the two: its folder stays, and the next run has another."""
    shutil.copytree(left, left / "run-00001")
    resume(left, "after-4")
    assert [run.folder for run in Manifest.read(left).runs] == ["run-00002"]
    with dualform.open(left) as memory:
        assert memory.info().steps == 8


def test_a_run_that_did_not_begin_as_the_mark_says_is_graded_off(left):
    resume(left, "after-4")
    manifest = Manifest.read(left)
    manifest.marks = [mark for mark in manifest.marks if mark.step != 4]
    manifest.write(left)
    with dualform.open(left) as memory:
        found = memory.verify()["0"]
        assert not found.exact
        assert "was cut off, so the weights that it ended with are not known" in found.reason


def test_a_shard_that_ends_before_the_mark_is_named(left):
    manifest = Manifest.read(left)
    (mark,) = [mark for mark in manifest.marks if mark.step == 4]
    manifest.marks = [type(mark)(9, mark.weights, mark.buffers, mark.updates)]
    manifest.write(left)
    with pytest.raises(Damaged, match="shard-00000 ends after step 5, but the training was resumed after step 8"):
        resume(left, "after-4")


def test_what_was_done_to_the_weights_behind_a_mark_is_no_part_of_the_memory(tmp_path):
    """As where averaged weights are swapped in before the recorder leaves, and training goes on from the checkpoint."""
    training = Training()
    with training.recorder(tmp_path / "m") as recorder:
        for _ in range(3):
            training.step(recorder)
        recorder.flush()
        training.save(tmp_path / "after-3")
        with torch.no_grad():
            training.model[0].weight.mul_(0.5)
    with dualform.open(tmp_path / "m") as memory:
        assert not memory.verify()["0"].exact
    resume(tmp_path / "m", "after-3", until=6)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == 6
        assert all(reconstruction.exact for reconstruction in memory.verify().values())
        assert rows_of(tmp_path / "m", "defects") == []


@pytest.mark.parametrize("further", [False, True], ids=["the first run", "a further run"])
def test_a_process_that_still_records_is_told_that_another_one_went_on(tmp_path, further):
    training = Training()
    if further:
        training.run(tmp_path / "m", 2)
    until = training.done + 4

    def train():
        with training.recorder(tmp_path / "m", resume=further) as recorder:
            for _ in range(2):
                training.step(recorder)
            recorder.flush()
            training.save(tmp_path / "after")
            resume(tmp_path / "m", "after", until=until)
            training.step(recorder)
            recorder.flush()

    with pytest.raises(AlreadyExists, match="another one resumed the training"):
        train()
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == until
        assert all(reconstruction.exact for reconstruction in memory.verify().values())


class Late(nn.Module):
    """Its second layer is called from step 4 on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x, number):
        h = self.first(x)
        return h if number < 4 else self.second(torch.tanh(h))


@pytest.mark.parametrize("moment", [3, 5])
def test_layers_that_join_late_join_before_or_behind_the_seam(tmp_path, moment):
    model = Late()
    for start, until in ((0, moment), (moment, 7)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        record_steps(
            dualform.Recorder(model, optimizer, tmp_path / "m", resume=True, quiet=True),
            optimizer,
            range(start, until),
            lambda number: model(batch(number)[0], number).square().mean(),
        )
    with dualform.open(tmp_path / "m") as memory:
        assert memory.verify()["first"].exact
        found = memory.topk("second", np.ones((1, 5), np.float32), k=99)
        assert sorted(memory.slots(found.slots[0], "sample")["step"].tolist()) == [
            n for n in (4, 5, 6) for _ in range(4)
        ]
        assert (memory.verify()["second"].exact, memory.verify()["second"].reason) == (True, "")


def test_where_nothing_was_recorded_yet_a_memory_begins(tmp_path):
    training = Training()
    training.run(tmp_path / "m", 2, resume=True)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == 2
        assert "run" not in memory.info().columns["sample"]
    with pytest.raises(RecordingError, match="cannot be resumed after 1 steps"):
        training.run(tmp_path / "m", 3, resume=1)


def test_a_query_set_that_was_taken_behind_the_checkpoint_is_no_part_of_the_memory(tmp_path):
    queries = torch.randn(3, 5, generator=torch.Generator().manual_seed(9))
    first = Training()
    with first.recorder(tmp_path / "m") as recorder:
        while first.done < 4:
            first.step(recorder)
        recorder.flush()
        first.save(tmp_path / "checkpoint")
        recorder.query_set("at-the-checkpoint", queries)
        first.step(recorder)
        recorder.query_set("behind-it", queries)
    second = Training()
    second.load(tmp_path / "checkpoint")
    with second.recorder(tmp_path / "m", resume=True) as recorder:
        second.step(recorder)
        assert query_sets(tmp_path / "m") == ["at-the-checkpoint"]
        recorder.query_set("behind-it", queries)
    copy_memory(tmp_path / "m", tmp_path / "copy")
    second.model.eval()
    for folder in ("m", "copy"):
        assert query_sets(tmp_path / folder) == ["at-the-checkpoint", "behind-it"]
        with dualform.open(tmp_path / folder) as memory:
            outputs = memory.query_set("behind-it", "3").outputs
            assert outputs.tobytes() == second.model(queries).detach().numpy().tobytes()


def query_sets(path):
    with dualform.open(path) as memory:
        return sorted(query_set.name for query_set in memory.info().query_sets)


def test_a_copy_of_a_training_that_was_resumed_twice_is_resumed_at_once(tmp_path):
    def record(folder, until, checkpoint, saved=()):
        training = Training()
        if checkpoint is not None:
            training.load(tmp_path / f"checkpoint-{checkpoint}")
        with training.recorder(folder, resume=checkpoint is not None) as recorder:
            while training.done < until:
                training.step(recorder)
                if training.done in saved:
                    recorder.flush()
                    training.save(tmp_path / f"checkpoint-{training.done}")

    record(tmp_path / "m", 6, None, saved=(2, 4))
    record(tmp_path / "m", 6, 4)  # run-00001
    record(tmp_path / "m", 6, 2, saved=(4,))  # run-00002, which takes the place of run-00001
    copy_memory(tmp_path / "m", tmp_path / "copy")
    record(tmp_path / "copy", 8, 4)
    with dualform.open(tmp_path / "copy") as memory:
        assert memory.info().steps == 8


class Scored:
    """Two layers trained by plain SGD, and what the test itself sees of every slot."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02)
        self.seen = []
        """Of each step, by layer, inputs and error signals."""

    def steps(self, recorder, count):
        for _ in range(count):
            number = len(self.seen)
            x, y = torch.randn(8, 12, generator=torch.Generator().manual_seed(number)), torch.arange(8) % 3
            with recorder.step(label=y):
                first = self.model[0](x)
                hidden = first.tanh()
                last = self.model[2](hidden)
                self.optimizer.zero_grad()
                errors = [signal.retain_grad() or signal for signal in (first, last)]
                self.loss(last, y).sum().backward()
                self.optimizer.step()
            inputs, signals = (x, hidden.detach()), [signal.grad for signal in errors]
            self.seen.append({n: (k.double(), e.double()) for n, k, e in zip("02", inputs, signals, strict=True)})

    @staticmethod
    def loss(output, labels):
        return nn.functional.cross_entropy(output, labels, reduction="none")

    def slots(self, layer):
        """float64 keys and error signals of all slots that count."""
        return [torch.cat(own).numpy() for own in zip(*(step[layer] for step in self.seen), strict=True)]


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """By number of lost steps, the folder and the training of one that is killed so late; each is made once."""
    return cache(lambda lost: killed_twice(tmp_path_factory.mktemp("scored"), lost))


def killed_twice(folder, lost):
    """Each time so many steps after its checkpoint, and resumed from it; the folder and the training."""
    training = Scored()
    for run in range(3):
        place = folder / f"{run}"
        with dualform.Recorder(training.model, training.optimizer, place, resume=run > 0, quiet=True) as recorder:
            training.steps(recorder, 5)
            recorder.flush()
            if run == 2:
                break
            saved, seen = {name: own.clone() for name, own in training.model.state_dict().items()}, training.seen[:]
            training.steps(recorder, lost)
            put_on_disk(recorder, len(training.seen) - 1)
            shutil.copytree(place, folder / f"{run + 1}")
        training.model.load_state_dict(saved)
        training.seen = seen
    return place, training


SCORES = ["dot", "abs", "cosine", "contribution", "vectors", "gradient"]


@pytest.mark.parametrize(("lost", "backend"), [(2, "torch"), (40, "int8"), (40, "faiss")])
def test_scores_after_a_kill_are_those_of_the_slots_that_count(scored, lost, backend):
    folder, training = scored(lost)
    with dualform.open(folder, backend=backend) as memory:
        assert memory.info().slots == {"sample": 15 * 8}
        for score, layer in product(SCORES, ["0", "2"]):
            check_scores(memory, training, score, layer)


def check_scores(memory, training, score, layer):
    output = {"0": 2, "2": 1}[layer]
    generator = torch.Generator().manual_seed(9)
    keys, errors = training.slots(layer)
    queries = torch.randn(4, keys.shape[1], generator=generator).numpy()
    directions = torch.randn(4, errors.shape[1], generator=generator).numpy()
    named, expected = {"score": score}, queries.astype(float) @ keys.T
    if score == "abs":
        expected = np.abs(expected)
    elif score == "cosine":
        expected /= np.linalg.norm(queries.astype(float), axis=1)[:, None] * np.linalg.norm(keys, axis=1)
    elif score == "contribution":
        named["target"] = output
        expected *= -0.02 * errors[:, output]
    elif score == "vectors":
        named = {"score": "contribution", "target": directions}
        expected *= -0.02 * (directions.astype(float) @ errors.T)
    elif score == "gradient":
        inputs = torch.randn(4, 12, generator=generator)
        queries = memory.gradients(training.model, inputs, torch.arange(4) % 3, Scored.loss)
        own = queries.layers[layer]
        expected = (own.keys.astype(float) @ keys.T + 1) * (own.errors.astype(float) @ errors.T)
    step, label = np.repeat(np.arange(15), 8), np.arange(120) % 8 % 3
    for where, stays in ((None, step >= 0), ("step <> 6 AND label <> 1", (step != 6) & (label != 1))):
        hits = memory.topk(layer, queries, 5, where, **named)
        best = np.argsort(np.where(stays, -expected, np.inf), axis=1)[:, :5]
        assert np.array_equal(np.stack(hits.slots), best)
        right = np.take_along_axis(expected, best, axis=1)
        np.testing.assert_allclose(np.stack(hits.scores), right, rtol=1e-4, atol=1e-7)
        sums = memory.group_sum(layer, queries, by="step", where=where, **named)
        groups = np.unique(step[stays])
        assert [group for (group,) in sums.groups] == groups.tolist()
        right = np.stack([(expected * stays)[:, step == group].sum(axis=1) for group in groups], axis=1)
        np.testing.assert_allclose(sums.sums, right, rtol=1e-4, atol=1e-6)


def test_a_moment_before_the_weights_moved_is_that_of_every_training_that_begins_with_them(tmp_path):
    """What was recorded before it brought nothing, so that the record of whoever goes on from it adds up."""

    def train(seed, rates, **options):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        generator = torch.Generator().manual_seed(seed)
        with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True, **options) as recorder:
            for rate in rates:
                optimizer.param_groups[0]["lr"] = rate
                with recorder.step(sample=torch.arange(3) + 100 * seed):
                    learn(optimizer, model(torch.randn(3, 4, generator=generator)).square().sum())
                recorder.flush()
        return model

    train(1, [0.0, 0.1])
    model = train(2, [0.1, 0.1], resume=True)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.slots(range(9))["sample"].tolist() == [100, 101, 102, 200, 201, 202, 200, 201, 202]
        assert memory.coefficients("", range(3)).tolist() == [0.0] * 3
        assert all(reconstruction.exact for reconstruction in memory.verify().values())
        np.testing.assert_allclose(memory.weights()["weight"], model.weight.detach(), atol=1e-6)
