"""Where the processor's time of a recorded training goes: `python -m benchmarks.recording_profile --training gpt`.

Processor time, not the clock's: it hardly moves with what else a machine does. Each part is told without what it calls
of the others.
"""

from __future__ import annotations

import functools
import gc
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import click
import torch

from benchmarks.document import table
from benchmarks.recording import Kind, Training, trainings
from dualform.record import batches, hooks, session, sink
from dualform.record.audit import pending, scale, updates, weights
from dualform.record.slots import slots, step_record
from dualform.record.taps import autograd, tap, watcher
from dualform.store import journal, shard
from dualform.store.files import durable_files
from dualform.store.writing import rows_writer, writer

PARTS: Sequence[tuple[str, Any, str]] = (
    ("training: a record begun and ended", session.RecordingSession, "__init__"),
    ("training: a record begun and ended", hooks.HookController, "close"),
    ("training: taps, forward and backward", tap._Hook, "__call__"),
    ("training: taps, forward and backward", tap._Before, "__call__"),
    ("training: taps, forward and backward", watcher, "_seen"),
    ("training: taps, forward and backward", autograd.Report, "__call__"),
    ("training: keys and error signals copied", step_record.Collector, "received"),
    ("training: slots along directions and of entries, and whether they are finite", pending.PendingGradients, "add"),
    ("training: gradients along directions", scale.GradientFactors, "measure"),
    ("training: weights looked at before an update", weights.ObservedWeights, "observe"),
    ("training: weights looked at after an update", weights.ObservedWeights, "updated"),
    ("training: the watch goes on", weights.ObservedWeights, "advance"),
    ("training: rest of an update", hooks.HookController, "_updating"),
    ("training: slots laid out", slots.SlotMaker, "slots_of"),
    ("training: finite, where nothing is measured", updates, "surely_finite"),
    ("training: rest of a step", session.RecordingSession, "_put"),
    ("training: rest of a step", hooks.HookController, "_begin_step"),
    ("training: rest of a step", hooks.HookController, "_end_step"),
    ("training: rest of a step", batches.StepWriter, "put"),
    ("training: parameters of no layer", batches.OtherValues, "look"),
    ("training: handed to the writer", sink.SinkThread, "put"),
    ("writer: rows into blocks, and their checksums", rows_writer.MatrixWriter, "append"),
    ("writer: repeated inputs", rows_writer.DistinctKeys, "rows_of"),
    ("writer: blocks to the disk", durable_files.DirectFile, "write"),
    ("writer: blocks to the disk", durable_files.DirectFile, "finish"),
    ("writer: DuckDB", shard, "create"),
    ("writer: DuckDB", shard, "evolve"),
    ("writer: DuckDB", shard, "append"),
    ("writer: journal", journal.JournalWriter, "append"),
    ("writer: rest", writer.Writer, "append"),
    ("writer: rest", writer.Writer, "tick"),
    ("writer: rest", writer.Writer, "commit"),
    ("writer: rest", writer.Writer, "__init__"),
    ("writer: rest", writer.Writer, "close"),
)
"""What a part is called, and a function of it."""
WHOLE, OWN = "whole", "training: its own work"
STUDY_STEPS = 600
LEAST = 0.005
"""Milliseconds of a step: parts that take less in every kind are left out."""


class Profile:
    """Processor seconds by part, of whatever thread runs it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._own = threading.local()

    def watched(self, part: str, function: Any) -> Any:
        @functools.wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            before = getattr(self._own, "inner", 0.0)
            self._own.inner, began = 0.0, time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                took, inner = time.thread_time() - began, self._own.inner
                self.seconds[part] += took - inner
                self._own.inner = before + took

        return run


@contextmanager
def profiled() -> Iterator[Profile]:
    """Every part is watched until the block ends."""
    profile = Profile()
    with ExitStack() as stack:
        for part, owner, name in PARTS:
            stack.enter_context(mock.patch.object(owner, name, profile.watched(part, getattr(owner, name))))
        yield profile


def measure(training: Training, kinds: Sequence[Kind], repeats: int, folder: Path) -> dict[str, dict[str, float]]:
    """By kind, milliseconds of a step by part, medians over repeats; "whole" is the process."""
    found: dict[str, dict[str, list[float]]] = {kind: defaultdict(list) for kind in kinds}
    training.run(None, False, 4)
    for repeat in range(repeats):
        for kind in kinds:
            memory = None if kind == "unrecorded" else folder / f"{kind}-{repeat}"
            gc.collect()  # of what was imported, which takes longer than many steps and comes once
            with profiled() as profile:
                began = time.process_time()
                training.run(memory, kind == "values", training.steps)
                whole = time.process_time() - began
            parts = {**{name: profile.seconds[name] for name, _, _ in PARTS}, WHOLE: whole}
            parts[OWN] = whole - sum(profile.seconds.values())
            for name, seconds in parts.items():
                found[kind][name].append(1e3 * seconds / training.steps)
    return {kind: {name: median(own) for name, own in parts.items()} for kind, parts in found.items()}


@click.command(help="Where the processor's time of a training goes while it is recorded.")
@click.option("--training", "name", type=click.Choice(["study", "gpt", "toy", "mlp", "checkpointed"]), default="study")
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="DUALFORM_DATA",
    help="A folder with MNIST and Fashion-MNIST, which the study's training needs.",
)
@click.option("--steps", type=int, help="Of the study, on each dataset. [600; of others, as benchmarked]")
@click.option("--repeats", default=3, help="Of each kind, by turns. [3]")
@click.option("--threads", default=1, help="Of torch. [1]")
def main(name: str, data: Path | None, steps: int | None, repeats: int, threads: int) -> None:
    torch.set_num_threads(threads)
    if name == "study" and data is None:
        raise click.UsageError("the study's training needs MNIST and Fashion-MNIST: name their folder with --data.")
    training = trainings(data if name == "study" else None, steps or STUDY_STEPS)[name]
    if steps and name != "study":
        training = replace(training, steps=steps)
    with tempfile.TemporaryDirectory(prefix="dualform-profile-") as folder:
        found = measure(training, training.kinds, repeats, Path(folder))
    click.echo(table(["ms of the processor a step", *found], list(_rows(found))))


def _rows(found: Mapping[str, Mapping[str, float]]) -> Iterator[list[str]]:
    """A line a part, and a column for each of `found`."""
    for part in dict.fromkeys([WHOLE, OWN, *(part for part, _, _ in PARTS)]):
        if part == WHOLE or any(own.get(part, 0.0) >= LEAST for own in found.values()):
            yield [part, *(f"{own.get(part, 0.0):.2f}" for own in found.values())]


if __name__ == "__main__":
    main()
