"""What samples looked like is stored before, during and after a training, which comes out as without it."""

from __future__ import annotations

import errno
import io
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import dualform
from dualform import PreviewSet
from dualform.errors import AlreadyExists, BadInput, Damaged, Locked, NotAMemory, NotFound, RecordingError
from dualform.store.maintenance.check import check_memory, leftovers
from dualform.store.maintenance.copying import copy_memory, repair
from tests.damage import flip
from tests.record.faulty_disk import FailingDisk, WatchedDisk
from tests.record.resumed_training import Training
from tests.trainings import learn

IMAGES = np.random.default_rng(0).integers(0, 256, (20, 4, 5), dtype=np.uint8)
WORDS = [f"passage {number}" for number in range(20)]
FILE = Path("gallery", "a", "samples-000000.arrow")


class Small:
    """A training of five steps, whose recorder may be told more at each."""

    def __init__(self, path: Path, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(20, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.recorder = dualform.Recorder(self.model, self.optimizer, path, quiet=True, **options)
        self.inputs = torch.from_numpy(IMAGES).float() / 255

    def step(self, dataset: str | None = "a") -> None:
        index = torch.randint(20, (4,))
        with self.recorder.step(dataset=dataset, label=index % 3, sample=index):
            learn(self.optimizer, cross_entropy(self.model(self.inputs[index]), index % 3))

    def run(self, before: Any = None, during: Any = None) -> nn.Module:
        with self.recorder as recorder:
            if before is not None:
                before(recorder)
            for number in range(5):
                self.step()
                if number == 2 and during is not None:
                    during(recorder)
        return self.model


def of_images(recorder: dualform.Recorder) -> None:
    recorder.previews("a", PreviewSet.images(IMAGES))


def pixels(found: dualform.Previews, place: int = 0) -> np.ndarray:
    image = found[place].image
    assert image is not None
    return np.asarray(Image.open(io.BytesIO(image)))


def test_a_recorder_stores_what_samples_looked_like(tmp_path):
    Small(tmp_path / "m").run(before=of_images)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().previews == {"a": "images"}
        slots = memory.slots(memory.topk("1", IMAGES[3].reshape(1, -1) / 255, 5))
        found = memory.previews(slots["sample"], "a")
        for place, sample in enumerate(slots["sample"].tolist()):
            assert np.array_equal(pixels(found, place), IMAGES[sample])
    assert check_memory(tmp_path / "m") == []
    assert not list((tmp_path / "m").rglob("*.tmp"))


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> Any:
        return torch.rand(4, 5), number


def rows_of(path: Path) -> dict[str, bytes]:
    """Keys, values and weights, file by file."""
    found = [file for file in path.rglob("*") if file.suffix in (".faiss", ".npy", ".safetensors")]
    return {str(file.relative_to(path)): file.read_bytes() for file in found}


def said_of(path: Path) -> list[Any]:
    with dualform.open(path) as memory:
        hits = memory.topk("1", IMAGES[:3].reshape(3, -1) / 255, 30)
        rows = [memory.slots(own).records() for own in hits.slots]
        sums = memory.group_sum("1", IMAGES[:3].reshape(3, -1) / 255, by="label").sums.tolist()
        return [hits.scores[0].tolist(), rows, sums, memory.info().steps, memory.verify()["1"].exact]


@pytest.mark.parametrize(("when", "steps"), [("before", 1), ("last", 3)])
def test_a_preview_set_leaves_keys_values_and_answers_as_they_are_without(tmp_path, when, steps):
    plain = Small(tmp_path / "plain")
    with plain.recorder:
        for _ in range(steps):
            plain.step()
    shown = Small(tmp_path / "shown")
    with shown.recorder as recorder:
        if when == "before":
            of_images(recorder)
        for number in range(steps):
            shown.step()
            if (when, number) == ("last", steps - 1):
                of_images(recorder)
    assert rows_of(tmp_path / "shown") == rows_of(tmp_path / "plain")
    assert said_of(tmp_path / "shown") == said_of(tmp_path / "plain")
    assert check_memory(tmp_path / "shown") == []


def test_a_preview_set_alone_makes_no_memory(tmp_path):
    training = Small(tmp_path / "m")
    with pytest.warns(RuntimeWarning, match="Nothing was recorded in"), training.recorder as own:
        of_images(own)
    assert not (tmp_path / "m").exists()


def test_steps_before_a_preview_set_are_on_disk_while_it_is_encoded(tmp_path):
    """It may take longer than rows otherwise wait."""
    seen = []

    class Looking(Noisy):
        def __getitem__(self, number: int) -> Any:
            if (tmp_path / "m" / "memory.json").exists():
                with dualform.open(tmp_path / "m") as memory:
                    seen.append(memory.info().steps)
            return super().__getitem__(number)

    training = Small(tmp_path / "m")
    with training.recorder as recorder:
        for _ in range(3):
            training.step()
        recorder.previews("a", PreviewSet.images(Looking()))
    assert seen[-1] == 3


def test_a_preview_set_of_samples_without_a_dataset(tmp_path):
    training = Small(tmp_path / "m")
    with training.recorder as recorder:
        training.step(dataset=None)
        recorder.previews(None, PreviewSet.texts(WORDS))
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().previews == {"": "texts"}
        assert memory.previews([3]).texts == memory.previews([3], "").texts == ("passage 3",)


def test_one_preview_set_a_dataset(tmp_path):
    training = Small(tmp_path / "m")
    with training.recorder as recorder:
        of_images(recorder)
        with pytest.raises(BadInput, match="Dataset 'a' already has a preview set"):
            of_images(recorder)
        training.step()
        with pytest.raises(BadInput, match="A preview set of dataset 'a' already exists"):
            of_images(recorder)
        training.step()
    assert dualform.open(tmp_path / "m").info().steps == 2


def test_a_preview_set_that_cannot_be_stored_does_not_end_a_training(tmp_path):
    bad = [IMAGES[0], IMAGES[1].astype(float)]
    training = Small(tmp_path / "m")
    with training.recorder as recorder:
        recorder.previews("a", PreviewSet.images(bad))
        with pytest.warns(RuntimeWarning, match="the preview set of 'a' was not stored: image 1 has dtype float64"):
            training.step()
        with pytest.raises(BadInput, match="image 1 has dtype float64"):
            recorder.previews("a", PreviewSet.images(bad))
        training.step()
        of_images(recorder)
    with dualform.open(tmp_path / "m") as memory:
        assert (memory.info().steps, memory.info().previews) == (2, {"a": "images"})


def test_what_is_no_preview_set_is_refused(tmp_path):
    training = Small(tmp_path / "m")
    with pytest.raises(RecordingError, match="outside `with recorder`"):
        of_images(training.recorder)
    with training.recorder as recorder:
        training.step()
        with pytest.raises(
            BadInput,
            match=r"previews must be a dualform\.PreviewSet, not ndarray\. Make one with "
            r"dualform\.PreviewSet\.images\(…\), \.texts\(…\) or \.table\(…\)\.",
        ):
            recorder.previews("a", IMAGES)
        with pytest.raises(BadInput, match="dataset must be a name, not 3"):
            recorder.previews(3, PreviewSet.images(IMAGES))
        with pytest.raises(BadInput, match="more than 255 bytes"):
            recorder.previews("a" * 256, PreviewSet.images(IMAGES))


def test_a_query_set_shows_its_examples(tmp_path):
    training = Small(tmp_path / "m")
    with training.recorder as recorder:
        training.step()
        recorder.query_set("test", training.inputs[:6], torch.arange(6), previews=PreviewSet.images(IMAGES[:6]))
        with pytest.raises(BadInput, match="the preview set has 20 samples for 6 examples of the query set"):
            recorder.query_set("other", training.inputs[:6], previews=PreviewSet.images(IMAGES))
        with pytest.raises(BadInput, match=r"previews must be a dualform\.PreviewSet, not ndarray"):
            recorder.query_set("other", training.inputs[:6], previews=IMAGES)
        recorder.query_set("other", training.inputs[:6])
    with dualform.open(tmp_path / "m") as memory:
        assert {query_set.name: query_set.previews for query_set in memory.info().query_sets} == {
            "test": "images",
            "other": "",
        }
        assert np.array_equal(pixels(memory.previews([5, 99], query_set="test")), IMAGES[5])
        with pytest.raises(
            NotFound, match=r"Query set 'other' was recorded without previews\. Query sets with previews: test\."
        ):
            memory.previews([1], query_set="other")
    flip(tmp_path / "m" / "probes" / "test" / "samples-000000.arrow", 600)
    with dualform.open(tmp_path / "m") as memory, pytest.raises(Damaged, match=r"probes/test/samples-000000\.arrow"):
        memory.previews([5], query_set="test")


def test_a_budget_holds_with_a_preview_set(tmp_path):
    noise = np.random.default_rng(1).integers(0, 256, (64, 512, 512), dtype=np.uint8)
    training = Small(tmp_path / "m", budget="24 MB")
    with training.recorder as recorder:
        training.step()
        with pytest.raises(BadInput, match="that are left of the budget"):
            recorder.previews("large", PreviewSet.images(np.concatenate([noise, noise])))
        recorder.previews("small", PreviewSet.images(noise[:8]))
        with pytest.raises(BadInput, match="that are left of the budget"):
            recorder.query_set("p", training.inputs[:4], previews=PreviewSet.images(noise.reshape(4, 2048, 2048)))
        training.step()
    assert sum(path.stat().st_size for path in (tmp_path / "m").rglob("*") if path.is_file()) <= 24e6
    assert dualform.open(tmp_path / "m").info().previews == {"small": "images"}
    assert check_memory(tmp_path / "m") == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "m"
    Small(path).run()
    return path


class TestFinished:
    @pytest.fixture
    def path(self, finished: Path, tmp_path: Path) -> Path:
        return shutil.copytree(finished, tmp_path / "m")

    def test_a_preview_set_is_stored_later(self, path):
        memory = dualform.open(path)
        with pytest.raises(NotFound, match=r"There is no preview set for dataset 'a'\. Preview sets: none\."):
            memory.previews([1], "a")
        PreviewSet.images(IMAGES).store(path, "a")
        assert memory.refresh()
        assert np.array_equal(pixels(memory.previews([1], "a")), IMAGES[1])
        assert memory.verify()["1"].exact
        assert check_memory(path) == []

    def test_names_that_differ_in_case_alone_share_no_file(self, path):
        """Where a file system tells them not apart, both lie in one folder."""
        PreviewSet.texts(["small"]).store(path, "a")
        PreviewSet.texts(["large"]).store(path, "A")
        memory = dualform.open(path)
        assert [memory.previews([0], name).texts for name in ("a", "A")] == [("small",), ("large",)]
        assert [path.name for path in path.glob("gallery/*/*")] != ["samples-000000.arrow"] * 2

    def test_one_that_cannot_be_stored_leaves_the_memory_as_it_was(self, path):
        before = (path / "memory.json").read_bytes()
        with pytest.raises(BadInput, match="image 1"):
            PreviewSet.images([IMAGES[0], IMAGES[1].astype(float)]).store(path, "a")
        assert (path / "memory.json").read_bytes() == before
        assert not list(path.rglob("samples-*"))
        with pytest.raises(NotAMemory):
            PreviewSet.images(IMAGES).store(path / "shard-00000", "a")

    def test_a_copy_has_it(self, path):
        PreviewSet.images(IMAGES).store(path, "a")
        copy_memory(path, path.with_name("copy"))
        assert np.array_equal(pixels(dualform.open(path.with_name("copy")).previews([7], "a")), IMAGES[7])

    @pytest.mark.parametrize("how", ["altered", "missing"])
    def test_a_damaged_one_is_named_and_never_shown(self, path, how):
        PreviewSet.images(IMAGES).store(path, "a")
        content = (path / FILE).read_bytes()
        opened = dualform.open(path)
        opened.previews([1], "a")
        if how == "missing":
            (path / FILE).unlink()
        else:
            flip(path / FILE, len(content) // 2)
        with pytest.raises(Damaged, match=r"gallery/a/samples-000000\.arrow"):
            opened.previews([1], "a")  # which had looked at it before
        with pytest.raises(Damaged, match=r"gallery/a/samples-000000\.arrow"):
            dualform.open(path).previews([1], "a")
        assert "gallery/a/samples-000000.arrow" in check_memory(path)[0]
        with pytest.raises(Damaged, match=r"gallery/a/samples-000000\.arrow"):
            copy_memory(path, path.with_name("copy"))

    @pytest.mark.parametrize("of", ["a dataset", "a query set"])
    def test_a_repair_drops_a_damaged_one_and_nothing_else(self, tmp_path, of):
        training = Small(tmp_path / "m")
        with training.recorder as recorder:
            of_images(recorder)
            training.step()
            recorder.query_set("test", training.inputs[:2], previews=PreviewSet.texts(WORDS[:2]))
        file = FILE if of == "a dataset" else Path("probes", "test", "samples-000000.arrow")
        flip(tmp_path / "m" / file, 700)
        said, _ = repair(tmp_path / "m", tmp_path / "whole")
        whose = "dataset 'a'" if of == "a dataset" else "the query set 'test'"
        assert said == [f"The preview set of {whose} was dropped: {file.as_posix()} is damaged."]
        with dualform.open(tmp_path / "whole") as memory:
            info = memory.info()
            assert not info.recording
            assert memory.verify()["1"].exact
            assert (info.previews, info.query_sets[0].previews) == (
                ({}, "texts") if of == "a dataset" else ({"a": "images"}, "")
            )
        assert check_memory(tmp_path / "whole") == []

    def test_none_is_stored_while_a_training_records(self, tmp_path):
        training = Small(tmp_path / "m")
        with training.recorder:
            training.step()
            with pytest.raises(Locked, match="is being recorded by"):
                PreviewSet.images(IMAGES).store(tmp_path / "m", "a")
        PreviewSet.images(IMAGES).store(tmp_path / "m", "a")

    def test_a_disk_that_fails_at_any_act_once_or_for_good_leaves_a_whole_memory(self, path):
        PreviewSet.texts(["before"]).store(path, "a")
        with WatchedDisk(path).used() as disk:
            PreviewSet.texts(["again"]).store(path, "a", replace=True)
        acts = disk.done
        assert {"open", "write", "fsync", "rename"} <= {operation for operation, _ in acts}
        tried = ["again"]
        for number in range(0, len(acts), 3):
            for_good = bool(number % 2)
            tried.append(f"at {number}")
            failing = FailingDisk(path, number, errno.ENOSPC, for_good)
            with failing.used(), suppress(OSError):
                PreviewSet.texts(tried[-1:]).store(path, "a", replace=True)
            assert failing.failed is not None
            assert check_memory(path) == []
            assert dualform.open(path).previews([0], "a").texts[0] in tried
            assert not list(path.glob("gallery/a/*.tmp")) or for_good
        PreviewSet.texts(["at last"]).store(path, "a", replace=True)
        assert dualform.open(path).previews([0], "a").texts == ("at last",)


def test_of_a_resumed_training_the_last_run_shows(tmp_path):
    """Its script stores the same preview set again."""
    path = tmp_path / "run"
    Training().run(path, 6, saved=(4,), checkpoint=tmp_path / "checkpoint.pt")
    PreviewSet.texts(["first"]).store(path, "odd")
    PreviewSet.texts(["alone"]).store(path, "even")
    training = Training()
    training.load(tmp_path / "checkpoint.pt")
    with training.recorder(path, resume=True) as recorder:
        recorder.previews("odd", PreviewSet.texts(["second"]))
        training.step(recorder)
    with dualform.open(path) as memory:
        assert memory.info().previews == {"odd": "texts", "even": "texts"}
        assert memory.previews([0], "odd").texts == ("second",)
        assert memory.previews([0], "even").texts == ("alone",)
        with pytest.raises(AlreadyExists, match="run-00001"):
            PreviewSet.texts(["third"]).store(path, "odd")
        PreviewSet.texts(["third"]).store(path, "odd", replace=True)
        PreviewSet.texts(["later"]).store(path, "even", replace=True)
        memory.refresh()
        assert [memory.previews([0], name).texts for name in ("odd", "even")] == [("third",), ("later",)]
    assert check_memory(path) == []
    assert leftovers(path) == []


def test_a_rerun_takes_a_script_that_stores_preview_sets(tmp_path):
    Small(tmp_path / "m", keys=False).run(before=of_images)
    stored = (tmp_path / "m" / FILE).read_bytes()
    again = Small(tmp_path / "unused")
    question = dualform.TopK("1", np.ones((1, 20), np.float32))
    again.recorder = dualform.Rerun(again.model, again.optimizer, tmp_path / "m", [question])
    again.run(before=of_images)
    assert len(again.recorder.answers()[0]) == 1
    assert (tmp_path / "m" / FILE).read_bytes() == stored
    assert check_memory(tmp_path / "m") == []


def test_many_questions_check_a_preview_set_once(tmp_path):
    Small(tmp_path / "m").run(before=of_images)
    with dualform.open(tmp_path / "m") as memory:
        for _ in range(3):
            memory.previews([1, 2], "a")
        counts = memory.counts()
        assert (counts.derived_made, counts.derived_found) == (1, 2)
