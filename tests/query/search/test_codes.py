"""Codes that are kept beside keys: the same answers with them, without them, and whatever became of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import nn

import dualform
from dualform import kernels
from dualform.answers import Scan
from dualform.query.score.canonical import norms
from dualform.query.search import codes as codes_file
from dualform.query.search.codes import StoredCodes, quantise_source
from dualform.store.files import durable_files
from dualform.store.reading.stored_layers import SomeColumns
from dualform_client.cli.main import main
from tests.cases import some
from tests.damage import damaged, rewrite_derived
from tests.trainings import learn, record_steps
from tests.wire.values import same

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="the loops are not compiled")
WIDTH, HIDDEN, ROWS, STEPS = 24, 20, 32, 9
QUERIES = {"0": np.random.default_rng(1).normal(size=(3, WIDTH)).astype(np.float32)}
QUERIES["2"] = QUERIES["0"][:, :HIDDEN]
QUESTIONS = [
    ("topk", {"k": 4}),
    ("topk", {"k": 3, "where": "label <> 1"}),
    ("topk", {"k": 2, "by": "label", "score": "abs"}),
    ("topk", {"k": 5, "score": "cosine"}),
    ("group_sum", {"by": "label"}),
    ("group_sum", {"by": "label", "score": "abs", "where": "step > 2"}),
    ("output", {"where": "label <> 2"}),
]


class Training:
    """A recorder with what it records."""

    def __init__(self, path: Path) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.recorder = dualform.Recorder(self.model, self.optimizer, path)

    def go_on(self, steps: int) -> None:
        """A segment every three steps."""
        for step in range(steps):
            x, y = torch.randn(ROWS, WIDTH), torch.randint(3, (ROWS,))
            with self.recorder.step(label=y):
                learn(self.optimizer, nn.functional.cross_entropy(self.model(x), y))
            if step % 3 == 2:
                self.recorder.flush()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A memory beside which nothing is kept."""
    path = tmp_path_factory.mktemp("codes") / "plain"
    training = Training(path)
    with training.recorder:
        training.go_on(STEPS)
    return path


def keep_all(patch: pytest.MonkeyPatch) -> None:
    """Codes of small segments are kept, too, in several blocks."""
    patch.setattr(durable_files, "LEAST_BYTES", 0)
    patch.setattr(codes_file, "_BLOCK_BYTES", 2000)


@pytest.fixture
def worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_all(monkeypatch)


@pytest.fixture
def run(plain: Path, tmp_path: Path, worth_it: None) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "run"))


@pytest.fixture(scope="module")
def asked(plain: Path) -> Path:
    """A memory beside which codes are kept."""
    path = Path(shutil.copytree(plain, plain.parent / "asked"))
    with pytest.MonkeyPatch.context() as patch, dualform.open(path, backend="int8") as memory:
        keep_all(patch)
        for layer, queries in QUERIES.items():
            memory.topk(layer, queries, k=3)
    assert len(files(path)) == 2 * STEPS // 3
    return path


@pytest.fixture
def derived_run(asked: Path, tmp_path: Path, worth_it: None) -> Path:
    return Path(shutil.copytree(asked, tmp_path / "derived"))


def files(run: Path) -> list[Path]:
    return sorted(run.rglob("*.codes"))


def answers(run: Path) -> list[Any]:
    """Every question of a process, twice: the first time codes pass by, the second time they are held."""
    with dualform.open(run, backend="int8") as memory:
        return [list(_answers(memory)) for _ in range(2)]


def bare(answer: Any) -> Any:
    """Without what it took to find it."""
    return replace(answer, scan=Scan())


def _answers(memory: Any) -> Iterator[Any]:
    for layer, queries in QUERIES.items():
        for method, rest in QUESTIONS:
            yield bare(getattr(memory, method)(layer, queries, **rest))


@pytest.fixture(scope="module")
def expected(plain: Path) -> list[Any]:
    with dualform.open(plain, backend="numpy") as memory:
        return [list(_answers(memory)) for _ in range(2)]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        for own, known in zip(one, other, strict=True):
            assert same(own, known)


def test_a_process_that_finds_codes_makes_none_and_answers_the_same(derived_run, expected, monkeypatch):
    monkeypatch.setattr(codes_file, "quantise_source", lambda source: pytest.fail("codes were made again"))
    assert_same(answers(derived_run), expected)


def test_what_is_stored_is_what_would_be_made(derived_run):
    with dualform.open(derived_run) as memory:
        for source in some(memory._view.snapshot.sources["0", "keys"]):
            stored, made = StoredCodes.open(source), quantise_source(source)
            assert stored.blocks > 1
            assert np.array_equal(stored.norms(), norms(source.read(0, source.rows)))
            whole = stored.whole()
            assert np.array_equal(whole.codes, made.codes)
            assert np.array_equal(whole.numbers, made.numbers)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_never_believed_and_is_made_again(derived_run, expected, data):
    before = {file: file.read_bytes() for file in files(derived_run)}
    altered = {file: data.draw(damaged(content)) for file, content in before.items()}
    for file, content in altered.items():
        file.write_bytes(content)
    with dualform.open(derived_run, backend="int8") as memory:
        for number in range(2):
            for layer, own in (("0", expected[0][0]), ("2", expected[0][len(QUESTIONS)])):
                assert same(bare(memory.topk(layer, QUERIES[layer], k=4)), own), (number, layer)
    # Bytes between two parts are nobody's; all others make the file anew.
    assert all(file.read_bytes() in (before[file], altered[file]) for file in before)
    with dualform.open(derived_run) as memory:
        sources = [own for (_, kind), parts in memory._view.snapshot.sources.items() if kind == "keys" for own in parts]
        assert all(StoredCodes.open(own).whole() for own in sources)
    for file, content in before.items():
        file.write_bytes(content)


CHANGES = {
    "no parts": lambda said, parts: parts.clear(),
    "a part less": lambda said, parts: parts.pop(),
    "a part cut": lambda said, parts: parts.__setitem__(1, parts[1][:-16]),
    "2^60 bytes": lambda said, parts: said["sizes"].__setitem__(1, 1 << 60),
    "fewer than no bytes": lambda said, parts: said["sizes"].__setitem__(0, -1),
    "no list": lambda said, parts: said.update(sizes="none"),
    "norms cut": lambda said, parts: parts.__setitem__(0, parts[0][:-8]),
    "norms that are NaN": lambda said, parts: parts.__setitem__(0, np.full(len(parts[0]) // 8, np.nan).tobytes()),
}


@pytest.mark.parametrize("changes", [[*CHANGES.values()][:4], [*CHANGES.values()][4:]], ids=["parts", "numbers"])
def test_what_does_not_fit_its_keys_is_made_again_though_its_checksums_are_right(derived_run, expected, changes):
    for file, change in zip(files(derived_run), [*changes, *changes[:2]], strict=True):
        rewrite_derived(file, change)
    assert_same(answers(derived_run), expected)
    assert_same(answers(derived_run), expected)


MADE_UP = (
    lambda said, parts: parts.__setitem__(0, bytes(len(parts[0]))),
    lambda said, parts: parts.__setitem__(0, parts[0][::-1]),
    lambda said, parts: parts.__setitem__(1, bytes(len(parts[1]))),
    lambda said, parts: parts.__setitem__(slice(1, 3), parts[2:0:-1]),
    CHANGES["a part cut"],
)
"""Norms and codes of nothing and of other rows."""


def test_check_removes_codes_that_are_not_of_their_keys(derived_run, expected, capsys):
    assert main(["check", str(derived_run)]) == 0
    *altered, other = files(derived_run)
    for file, change in zip(altered, MADE_UP, strict=True):
        rewrite_derived(file, change)
    capsys.readouterr()
    assert main(["check", str(derived_run)]) == 1
    removed = [f"{file} did not fit its keys. It was removed, and is made again when needed." for file in altered]
    assert sorted(capsys.readouterr().out.splitlines()) == sorted([*removed, "5 problems"])
    assert files(derived_run) == [other]
    assert main(["check", str(derived_run)]) == 0
    assert_same(answers(derived_run), expected)


def test_codes_of_keys_of_any_size_fit_them(tmp_path, worth_it, capsys):
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(70, WIDTH)).astype(np.float32)
    rows[::7] *= 1e30
    rows[9, 0], rows[11], rows[13] = -3e37, 0.0, 1e-40
    model = nn.Linear(WIDTH, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "run", layers=["*"], quiet=True),
        optimizer,
        1,
        lambda _: model(torch.from_numpy(rows)).sum(),
    )
    with dualform.open(tmp_path / "run", backend="int8") as memory:
        memory.topk("", rows[1:2], k=3)
    assert files(tmp_path / "run")
    assert main(["check", str(tmp_path / "run")]) == 0


def test_a_pipe_in_place_of_codes_holds_nobody_up(derived_run, expected):
    for file in files(derived_run):
        file.unlink()
        os.mkfifo(file)
    assert_same(answers(derived_run), expected)


def test_the_file_of_another_segment_is_none(derived_run, expected):
    first, second, *_ = files(derived_run)
    content = first.read_bytes()
    shutil.copy(second, first)
    assert_same(answers(derived_run), expected)
    assert first.read_bytes() == content


def test_where_nothing_can_be_written_nothing_is_kept(run, expected, monkeypatch):
    for keys in run.rglob("keys-*"):
        keys.with_name(keys.name + ".codes.tmp").mkdir()  # no file can be opened under this name
    assert_same(answers(run), expected)
    assert files(run) == []


def test_a_disk_that_is_nearly_full_is_not_filled(run, expected, monkeypatch):
    usage = shutil._ntuple_diskusage(100 << 30, 96 << 30, 4 << 30)
    monkeypatch.setattr(durable_files.shutil, "disk_usage", lambda path: usage)
    assert_same(answers(run), expected)
    assert files(run) == []


def test_small_segments_have_no_files(plain, expected):
    assert_same(answers(plain), expected)
    assert files(plain) == []


def test_a_part_of_the_columns_is_not_taken_for_all(derived_run):
    with dualform.open(derived_run) as memory:
        source = memory._view.snapshot.sources["0", "keys"][0]
        assert StoredCodes.open(source) is not None
        assert StoredCodes.open(SomeColumns(source, 0, WIDTH)) is None


def test_deletion_takes_the_codes_of_what_was_deleted_along(derived_run):
    dualform.delete(derived_run, "step = 4")
    assert files(derived_run) == []
    found = answers(derived_run)
    assert len(files(derived_run)) > 0
    for file in files(derived_run):
        file.unlink()
    assert_same(answers(derived_run), found)
