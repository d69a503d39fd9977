"""A bit that flips, or an end that is cut off, in any file of memories of each kind, what is derived from them too.

An error names the file, or every answer has the bits of before. Of a journal that no commit followed, whole steps are
left.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping
from itertools import cycle, product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import DualformError
from dualform.store.files import durable_files
from dualform.store.maintenance.check import check_memory
from tests.damage import flipped
from tests.record.faulty_disk import STEPS, Training, WatchedDisk, answers, steps_of
from tests.record.rank_threads import ROWS, Fleet, data
from tests.reliability import report, rounds, soaking
from tests.trainings import take_steps

SEED = 35
KINDS = ("ended", "cut off", "of digests", "resumed", "of two ranks", "deleted in")
SQL_EVERY = 8
"""SQL is answered in a process of its own, which takes longer than all others: in the short form of one kind."""


def recorded(path: Path, kind: str) -> None:
    """A memory of a kind, with what is derived from it."""
    if kind == "cut off":
        training = Training(flushed=(2,))

        def copy() -> None:
            if training.stepped == STEPS - 1:  # three steps of it are in the journal
                shutil.copytree(path.with_name("going on"), path)

        with WatchedDisk(path.with_name("going on")).used():
            training.record(path.with_name("going on"), copy)
    elif kind == "of two ranks":
        Fleet(path).run(_rank, quiet=True)
    else:
        training = Training()
        training.record(path, keys=kind != "of digests")
        if kind == "resumed":
            training.record(path, resume=True)
        if kind == "deleted in":
            dualform.delete(path, "sample = 3")


def _rank(rank: int, model: Any, optimizer: Any, recorder: Any) -> None:
    take_steps(
        recorder,
        optimizer,
        (data(rank, step) for step in range(4)),
        lambda x, y: cross_entropy(model(x), y),
        label=lambda x, y: y,
        sample=np.arange(ROWS),
    )


def questions(memory: Any, sql: bool) -> Mapping[str, Callable[[], Any]]:
    """By name, what is asked, and answered as something that compares by its bits."""
    found: dict[str, Callable[[], Any]] = {
        "info": lambda: repr(memory.info()),
        "verify": lambda: repr(memory.verify().reconstructions),
    }
    slots = memory.info().slots["sample"]
    for layer in memory.info().layers:
        name, query = layer.name, np.linspace(-1, 1, 2 * layer.d_in, dtype=np.float32).reshape(2, -1)
        for score in ("dot", "abs", "cosine"):
            found[f"topk {name} {score}"] = lambda n=name, q=query, s=score: _bits(
                memory.topk(n, q, k=7, score=s, where="label < 2")
            )
        found[f"topk by {name}"] = lambda n=name, q=query: _bits(memory.topk(n, q, k=2, by="label"))
        found[f"sums {name}"] = lambda n=name, q=query: _bits(memory.group_sum(n, q, by=["label"]))
        found[f"output {name}"] = lambda n=name, q=query: memory.output(n, q, where="label = 1", allow_inexact=True)
    found["weights"] = lambda: _arrays(memory.weights("label = 1", allow_inexact=True).arrays)
    found["weights early"] = lambda: _arrays(memory.weights(at_step=1, allow_inexact=True).arrays)
    found["slots"] = lambda: {name: own.tolist() for name, own in memory.slots(range(slots)).items()}
    for query_set in memory.info().query_sets:
        found[f"query set {query_set.name}"] = lambda p=query_set: [
            _arrays({"queries": memory.query_set(p.name, layer).queries}) for layer in p.layers
        ]
    if sql:
        for table in ("slots", "steps", "factors", "watch"):
            found[f"sql {table}"] = lambda t=table: {
                n: own.tolist() for n, own in memory.sql(f"SELECT * FROM {t}").items()
            }
    return found


def _bits(answer: Any) -> Any:
    numbers = (
        (answer.ids.tolist(), answer.flat_scores.tobytes())
        if hasattr(answer, "ids")
        else (answer.sums.tobytes(), answer.counts.tolist())
    )
    return answer.groups, *numbers


def _arrays(arrays: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: np.asarray(own).tobytes() for name, own in arrays.items()}


def asked(path: Path, sql: bool) -> dict[str, Any]:
    """By question, its answer, or the error that is its answer; also what `check` finds."""
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found["check"] = _or_error(lambda: check_memory(path))
        memory = _or_error(lambda: dualform.open(path, backend="int8"))
        if isinstance(memory, DualformError):
            return found | {"open": memory}
        with memory:
            listed = _or_error(lambda: questions(memory, sql))
            if isinstance(listed, DualformError):
                return found | {"info": listed}
            for name, question in listed.items():
                answer = _or_error(question)
                if name.startswith("output") and not isinstance(answer, DualformError):
                    answer = np.asarray(answer).tobytes()
                found[name] = answer
    return found


def _or_error(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except DualformError as error:
        return error


WAYS = ("flipped", "cut short")
SHORT = list(zip(("ended", "cut off", "of digests", "deleted in"), cycle(WAYS), strict=False))
CASES = list(product(KINDS, WAYS)) if soaking() else SHORT


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "how"), CASES)
def test_what_was_altered_is_named_or_without_effect(tmp_path, kind, how):
    torch.set_num_threads(1)
    sound = tmp_path / "sound"
    recorded(sound, kind)
    path = tmp_path / "m"
    shutil.copytree(sound, path)
    rng = np.random.default_rng([SEED, KINDS.index(kind), how == "flipped"])
    count = rounds(3, -(-1000 // len(KINDS)))
    with mock.patch.object(durable_files, "LEAST_BYTES", 0):
        sql = soaking() or kind == KINDS[0]
        before = [asked(path, False), asked(path, sql)][1]  # the second time with what was derived the first time
        assert before["check"] == []
        files = {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file() and file.stat().st_size}
        assert any(durable_files.is_derived(file.name) for file in files) or kind == "of digests"
        named = left = shorter = 0
        for number in range(count):
            file = list(files)[rng.integers(len(files))]
            content, bit = files[file], int(rng.integers(8 * len(files[file])))
            file.write_bytes(flipped(content, bit) if how == "flipped" else content[: bit // 8])
            after = asked(path, sql and number % SQL_EVERY == 0)
            told = {n: a for n, a in after.items() if _says(a, before.get(n), file)}
            where = f"{kind}: {file.relative_to(path)}, bit {bit} {how}"
            if file.name.startswith("journal-") and "open" not in told and "check" not in told:
                _whole_steps(sound, path, where)
                shorter += 1
                _restore(path, files)
                continue
            for name, answer in told.items():
                whose = path if file.name in ("memory.json", "shard.json") else file
                assert str(whose) in _text(answer), f"{where}: {name} says {_text(answer)}"
            same = {name: answer for name, answer in after.items() if name not in told}
            differ = [name for name, answer in same.items() if not _equal(answer, before[name])]
            assert differ == [], where
            named, left = named + bool(told), left + (not told)
            _restore(path, files)
    report(
        f"a memory {kind}: a bit {how}" if how == "flipped" else f"a memory {kind}: a file cut short",
        seed=SEED,
        count=count,
        outcome=f"{named} refused by name, {left} without effect on any answer"
        + (f", {shorter} of the journal that left whole steps" if shorter else ""),
    )


def _restore(path: Path, files: Mapping[Path, bytes]) -> None:
    """Everything as it was, also what was derived anew, or removed for it."""
    for file in path.rglob("*"):
        if file.is_file() and file not in files:
            file.unlink()
    for file, content in files.items():
        if not file.exists() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def _says(answer: Any, before: Any, file: Path) -> bool:
    """Whether that is an error, a problem that `check` found, or a file that is named, and was not before."""
    if isinstance(answer, str):
        return str(file) in answer
    if isinstance(answer, DualformError):
        return not (isinstance(before, DualformError) and str(before) == str(answer))
    return isinstance(answer, list) and bool(answer) and answer != before and all(isinstance(a, str) for a in answer)


def _text(answer: Any) -> str:
    return " ".join(answer) if isinstance(answer, list) else str(answer)


def _equal(answer: Any, before: Any) -> bool:
    if isinstance(answer, DualformError):
        return str(answer) == str(before)
    return bool(answer == before)


def _whole_steps(sound: Path, path: Path, where: str) -> None:
    steps = steps_of(path)
    assert 2 <= steps <= steps_of(sound), where
    assert answers(path, steps) == answers(sound, steps), where
