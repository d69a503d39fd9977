"""Sums that are kept beside keys: the same answers with them, without them, and whatever became of them."""

from __future__ import annotations

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
from dualform.answers import Scan
from dualform.query import groups
from dualform.query.search import codes
from dualform.query.sums import key_sums
from dualform.query.weights import cancellation, slot_products
from dualform.store.files import durable_files
from dualform_client.cli.main import main
from tests.damage import damaged, flip, rewrite_derived
from tests.wire.values import same

QUERY_SET = "test"
QUESTIONS = [
    ("group_sum", ("2", QUERY_SET), {"by": "label"}),
    ("group_sum", ("2", QUERY_SET), {"by": ("dataset", "label"), "where": "step > 1", "score": "abs"}),
    ("group_sum", ("2", QUERY_SET), {"by": "label", "score": "cosine"}),
    ("group_sum", ("2", QUERY_SET), {"by": ("dataset", "label"), "score": "abs"}),
    ("topk", ("2", QUERY_SET), {"by": ("label", "dataset"), "k": 2}),
    ("output", ("2", QUERY_SET), {}),
    ("output", ("2", QUERY_SET), {"where": "label <> 2"}),
    ("output", ("0", QUERY_SET), {"where": "label <> 2", "at_step": 4}),
    ("cancellation", ("dataset = 'first'",), {}),
]


@pytest.fixture(scope="module")
def plain(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(small_run, tmp_path_factory.mktemp("sums") / "plain"))


@pytest.fixture
def run(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(durable_files, "LEAST_BYTES", 0)
    return Path(shutil.copytree(plain, tmp_path / "run"))


@pytest.fixture(scope="module")
def expected(plain: Path) -> list[Any]:
    return answers(plain)


@pytest.fixture
def derived_run(run: Path, expected: list[Any]) -> Path:
    assert same(answers(run), expected)
    return run


def files(run: Path) -> list[Path]:
    return sorted(run.rglob("*.sum"))


def answers(run: Path) -> list[Any]:
    with dualform.open(run) as memory:
        return list(_answers(memory))


def _answers(memory: Any) -> Iterator[Any]:
    for method, arguments, rest in QUESTIONS:
        yield replace(getattr(memory, method)(*arguments, **rest), scan=Scan())


def test_a_process_that_finds_sums_makes_none(derived_run, expected, monkeypatch):
    for module, maker in ((key_sums, "key_sums"), (slot_products, "add_products"), (cancellation, "_summed")):
        monkeypatch.setattr(module, maker, lambda *given: pytest.fail("a sum was made again"))
    assert same(answers(derived_run), expected)


def test_groups_of_all_slots_are_kept_with_what_they_are_named_after(derived_run, expected, monkeypatch):
    monkeypatch.setattr(groups, "group", lambda *given: pytest.fail("a column was read"))
    with dualform.open(derived_run) as memory:
        assert same(replace(memory.group_sum("2", QUERY_SET, by="label"), scan=Scan()), expected[0])


def test_groups_of_a_memory_that_grows_are_those_of_its_moment(tmp_path, monkeypatch):
    monkeypatch.setattr(durable_files, "LEAST_BYTES", 0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = dualform.Recorder(model, optimizer, tmp_path / "run", layers=["*"], quiet=True)
    counted = []
    with recorder:
        for label in range(3):
            with recorder.step(label=[label] * 4):
                model(torch.ones(4, 3)).sum().backward()
                optimizer.step()
            recorder.flush()
            with dualform.open(tmp_path / "run") as memory:
                counted.append(memory.group_sum("", np.ones((1, 3), np.float32), by="label").counts.tolist())
    with dualform.open(tmp_path / "run") as memory:
        counted.append(memory.group_sum("", np.ones((1, 3), np.float32), by="label").counts.tolist())
    assert counted == [[4], [4, 4], [4, 4, 4], [4, 4, 4]]


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_sum_is_never_believed(derived_run, expected, data):
    before = {file: file.read_bytes() for file in files(derived_run)}
    for file, content in before.items():
        file.write_bytes(data.draw(damaged(content)))
    assert same(answers(derived_run), expected)
    for file, content in before.items():
        file.write_bytes(content)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_structure_that_does_not_fit_is_made_again_though_its_checksums_are_right(derived_run, expected, data):
    file = data.draw(st.sampled_from(files(derived_run)))
    before = file.read_bytes()

    def change(said, parts):
        number = data.draw(st.integers(0, len(parts) - 1))
        match data.draw(st.sampled_from(["cut", "grow", "drop", "none", "size", "text", "swap"])):
            case "cut":
                parts[number] = parts[number][: data.draw(st.integers(0, max(0, len(parts[number]) - 1)))]
            case "grow":
                parts[number] += bytes(data.draw(st.integers(1, 99)))
            case "drop":
                del parts[number]
            case "none":
                parts.clear()
            case "size":
                said["sizes"][number] = data.draw(st.sampled_from([-1, 1 << 60, 0.5, None, "8", [1]]))
            case "text":
                parts[number] = data.draw(st.sampled_from([b"[1, 2]", b"[[", b"[" * 99999, b"{}", b'[[[]], [["a"]]]']))
            case "swap":
                parts.reverse()

    rewrite_derived(file, change)
    if len(file.read_bytes()) != len(before):  # else it is one that nobody can tell, which check removes
        assert same(answers(derived_run), expected)
    file.write_bytes(before)


def test_check_removes_sums_which_nobody_can_compare(derived_run, expected, monkeypatch):
    for file in files(derived_run):
        rewrite_derived(file, lambda said, parts: parts.__setitem__(0, bytes(len(parts[0]))))
    assert not same(answers(derived_run), expected)
    monkeypatch.setattr(codes, "remove", lambda path: (_ for _ in ()).throw(PermissionError(1, "denied")))
    with dualform.open(derived_run) as memory:
        said = codes.check_derived(memory._view.snapshot)
    assert said == [f"{file} cannot be checked. Remove it: denied." for file in files(derived_run)]
    monkeypatch.undo()
    assert main(["check", str(derived_run)]) == 0
    assert files(derived_run) == []
    assert same(answers(derived_run), expected)


def test_sums_under_one_anothers_names_are_not_taken(derived_run, expected):
    found = files(derived_run)
    for file in found:
        file.rename(file.with_suffix(".moved"))
    for file, other in zip(found, [*found[1:], found[0]], strict=True):
        shutil.copy(file.with_suffix(".moved"), other)
    assert same(answers(derived_run), expected)


def test_verify_reads_the_record_itself(derived_run, monkeypatch):
    before = files(derived_run)
    with dualform.open(derived_run) as memory:
        memory.output("2", QUERY_SET)  # by the sum of all slots, which was kept
        monkeypatch.setattr(groups.StoredArrays, "read", lambda *given: pytest.fail("a kept sum was read"))
        certified = memory.verify()
        monkeypatch.undo()
        for keys in derived_run.rglob("layers/2/keys-*.faiss"):
            flip(keys)
    assert certified["2"].reconstruction_error < 1e-3
    assert files(derived_run) == before
    with dualform.open(derived_run) as memory, pytest.raises(dualform.DualformError, match="was altered"):
        memory.verify()


def test_deletion_takes_sums_along(derived_run):
    dualform.delete(derived_run, "step = 4")
    assert files(derived_run) == []


def test_the_oldest_sums_make_room(run, monkeypatch):
    monkeypatch.setattr(groups, "MOST_BYTES", 2000)
    with dualform.open(run) as memory:
        for step in range(1, 6):
            memory.group_sum("2", QUERY_SET, by=("dataset", "label"), where=f"step <> {step}")
            assert sum(file.stat().st_size for file in files(run)) <= 2000 + 1000  # and a header
    assert 0 < len(files(run)) < 5
    assert np.array_equal(*(memory.group_sum("2", QUERY_SET, by="label").sums for _ in range(2)))


def test_sums_of_patches_that_another_convolution_took_of_the_same_images_are_not_read(tmp_path, monkeypatch):
    """A memory is copied over another one, whose sums stay."""
    monkeypatch.setattr(durable_files, "LEAST_BYTES", 0)
    images, query = torch.randn(6, 1, 5, 5, generator=torch.Generator().manual_seed(0)), np.ones((1, 9), np.float32)

    def ask(folder):
        with dualform.open(folder) as memory:
            return memory.group_sum("0", query, by="label").sums.tolist()

    for apart in (1, 2):
        model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=apart, dilation=apart), nn.Flatten(), nn.Linear(50, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder = dualform.Recorder(model, optimizer, tmp_path / str(apart), quiet=True)
        with recorder, recorder.step(label=[0, 1, 2] * 2):
            model(images).sum().backward()
            optimizer.step()
    shutil.copytree(tmp_path / "2", tmp_path / "copy")
    before = ask(tmp_path / "1")
    assert files(tmp_path / "1")
    shutil.copytree(tmp_path / "2", tmp_path / "1", dirs_exist_ok=True)
    assert ask(tmp_path / "1") == ask(tmp_path / "copy") != before
