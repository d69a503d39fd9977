"""Trainings with and without the recorder, and the networks that benchmarks train.

Shapes: B examples of a step, L tokens of a text.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from benchmarks.harness import OURS, Cell, Plan, Section, Target, apart, cores, resident, turns
from dualform import Recorder
from dualform_studies.images.datasets import Dataset, load_dataset
from dualform_studies.images.training import Recipe, build_network, train_part

GROUPS = 10
"""Labels of examples, of which masks leave half."""
WORDS, TOKENS = 512, 64
GPT_STEPS, TOY_STEPS, PERCEPTRON_STEPS, CHECKPOINTED_STEPS = 60, 150, 800, 40
"""Enough that opening and closing a record is a small part of the training."""
_WARM_UP = 6
"""Steps: torch's first ones allocate, and the first recorder of a process loads what it needs."""

Batch: TypeAlias = tuple[Tensor, Tensor, Mapping[str, Any]]
"""Inputs, targets, and the arguments of the recorder's step."""


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    recorder: Recorder | None = None,
    seen: Callable[[], None] = lambda: None,
) -> None:
    """Train, recorded if there is a recorder, until its record is durable; `seen` is called after every step."""
    with recorder or nullcontext():
        for inputs, targets, said in batches:
            with nullcontext() if recorder is None else recorder.step(**said):
                update(model, optimizer, inputs, targets)
            seen()


def update(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(cross_entropy(model(inputs).flatten(0, -2), targets.flatten()))
    optimizer.step()


def train_adamw(
    model: nn.Module, batches: Iterable[Batch], memory: Path | None = None, seen: Callable[[], None] = lambda: None
) -> None:
    """Under AdamW, recorded into `memory` where there is one."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    train(model, optimizer, batches, None if memory is None else Recorder(model, optimizer, memory, quiet=True), seen)


class Transformer(nn.Module):
    """A language model of torch's own encoder layers, which have no biases: attention's moves its keys' by rounding."""

    def __init__(self, width: int = 256, layers: int = 2, checkpointed: bool = False) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True, bias=False)
            for _ in range(layers)
        )
        self.checkpointed = checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, mask, use_reentrant=False) if self.checkpointed else layer(x, mask)
        logits: Tensor = self.head(x)
        return logits


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, GROUPS))


def small_perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, GROUPS))


def vectors(steps: int, width: int = 784, count: int = 256) -> Iterator[Batch]:
    """float32[B, width] and int64[B], normal numbers."""
    drawn, said = torch.Generator().manual_seed(0), {"label": torch.arange(count) % GROUPS}
    for _ in range(steps):
        yield torch.randn(count, width, generator=drawn), torch.randint(0, GROUPS, (count,), generator=drawn), said


def texts(steps: int, count: int = 16) -> Iterator[Batch]:
    """int64[B, L] and the words that follow."""
    drawn, said = torch.Generator().manual_seed(0), {"label": torch.arange(count) % GROUPS}
    for _ in range(steps):
        tokens = torch.randint(0, WORDS, (count, TOKENS + 1), generator=drawn)
        yield tokens[:, :-1], tokens[:, 1:], said


# ---- Trainings that are measured

Kind: TypeAlias = Literal["unrecorded", "values", "keys"]
"""Without the recorder; with keys and values; with only keys."""
Measured: TypeAlias = dict[str, dict[str, dict[str, float]]]
"""By training and kind, seconds and steps of one process."""


@dataclass(frozen=True)
class Training:
    steps: int
    run: Callable[[Path | None, bool, int], None]
    """Takes the memory to record into or None, whether values are recorded, and the steps."""
    kinds: tuple[Kind, ...] = ("unrecorded", "values")


def trainings(data: Path | None, steps: int, share: float = 1.0) -> dict[str, Training]:
    """The trainings of the section on recording, by name, and the checkpointed one for profiles.

    `data` has MNIST and Fashion-MNIST; without it the study's training is left out, which takes `steps` updates on
    each of them. Of the others' steps a `share` is taken.
    """

    def generated(steps: int, make: Callable[[], nn.Module], batches: Callable[[int], Iterator[Batch]]) -> Training:
        return Training(round(share * steps), lambda memory, _, count: train_adamw(make(), batches(count), memory))

    found: dict[str, Training] = {}
    if data is not None:
        pair = load_dataset("mnist", data), load_dataset("fashion-mnist", data)
        found["study"] = Training(2 * steps, partial(_study, pair), ("unrecorded", "values", "keys"))
    eight = partial(texts, count=8)
    return found | {
        "gpt": generated(GPT_STEPS, partial(Transformer, 256, 4), eight),
        "toy": generated(TOY_STEPS, partial(Transformer, 32, 2), eight),
        "mlp": generated(PERCEPTRON_STEPS, small_perceptron, partial(vectors, width=64, count=32)),
        "checkpointed": generated(CHECKPOINTED_STEPS, partial(Transformer, checkpointed=True), texts),
    }


def _study(pair: tuple[Dataset, Dataset], memory: Path | None, values: bool, steps: int) -> None:
    """The continual study's training: half of the steps on each dataset."""
    recipe = Recipe().with_steps(steps // 2)
    network = build_network(recipe.widths(pair[0]), 0)
    optimizer = recipe.optimizer(network)
    recorder = None if memory is None else Recorder(network, optimizer, memory, values=values, quiet=True)
    with recorder or nullcontext():
        for part, dataset in enumerate(pair):
            train_part(network, optimizer, dataset, recipe, seed=0, part=part, recorder=recorder)


def measure_all(found: Mapping[str, Training], folder: Path, threads: int, *, backwards: bool) -> Measured:
    """Each training in each of its kinds, in the opposite order where `backwards`, for a process of its own.

    Seconds are from the recorder's opening until the record is durable.
    """
    torch.set_num_threads(threads)
    measured: Measured = {}
    memory = folder / "memory"
    for name, training in found.items():
        for at, kind in enumerate(training.kinds[::-1] if backwards else training.kinds):
            torch.manual_seed(0)
            if at == 0:
                for warming in (None, memory):
                    training.run(warming, True, _WARM_UP)
                shutil.rmtree(memory)
            gc.collect()  # of what was imported, which takes longer than many steps and comes once
            began = perf_counter()
            training.run(None if kind == "unrecorded" else memory, kind == "values", training.steps)
            figures = {"seconds": perf_counter() - began, "steps": float(training.steps)}
            shutil.rmtree(memory, ignore_errors=True)
            measured.setdefault(name, {})[kind] = figures
    return measured


# ---- Sections

BOTH = "keys and values recorded"
WHOLE = {
    ("study", "values"): (f"training, {BOTH}", Target("at most", 1.15)),
    ("study", "keys"): ("training, only keys recorded", Target("at most", 1.05)),
    ("gpt", "values"): (
        f"training of a small GPT (4 blocks, d = 256), {BOTH}",
        Target("at most", 1.3),
    ),
}
"""By training and kind, the question and its target."""
SMALL = {
    "toy": "what recording adds to a step of a toy transformer (2 blocks, d = 32)",
    "mlp": "what recording adds to a step of a tiny MLP (64-32-10)",
}
SAME_STEP = "the same step, unrecorded"


def recording(plan: Plan, section: Section) -> None:
    """On one thread, on two and on four, in a process of its own for each number and repeat.

    The numbers take turns, and so do the kinds within a process, in the opposite order every second time: what slows
    the machine for a while falls on all of them.
    """
    folder, repeats = plan.folder / "recording", 2 if plan.quick else 3
    folder.mkdir()
    measured: dict[int, list[Measured]] = {threads: [] for threads in plan.threads}
    for repeat in range(repeats):
        for threads in plan.threads if repeat % 2 == 0 else plan.threads[::-1]:
            found = apart(_measure, plan, folder, threads, repeat % 2 == 1, OMP_NUM_THREADS=str(threads))
            measured[threads].append(found)
    compare_trainings(section, measured)
    if plan.images is None:
        why = "needs MNIST and Fashion-MNIST: name their folder with --data, or set DUALFORM_DATA"
        for (name, _), (question, target) in WHOLE.items():
            if name == "study":
                section.alone(question, Cell(why_not=why), target)
    section.notes.append(
        f"Whole trainings, from the recorder's opening until its record is durable, {repeats} of each kind by turns: "
        "a time is the median, a ratio that of the repeats' own ratios, with the least and the greatest of them. Torch "
        "is held to so many threads (OMP_NUM_THREADS), and the recorder's writer has its own; more threads than cores "
        "wait for each other. The training is the continual study's; the GPT and the toy transformer take 512 tokens a "
        "step, the MLP 32 rows, under AdamW."
    )


def _measure(plan: Plan, folder: Path, threads: int, backwards: bool) -> Measured:
    found = trainings(plan.images, plan.steps, 0.3 if plan.quick else 1.0)
    del found["checkpointed"]
    return measure_all(found, folder, threads, backwards=backwards)


def compare_trainings(section: Section, measured: dict[int, list[Measured]]) -> None:
    """Rows by question, and of each by threads: ratios of whole trainings, and what a step of small ones takes more."""
    for (name, kind), (question, target) in WHOLE.items():
        for threads, found in measured.items():
            if name not in found[0]:
                continue
            ours, plain = ([one[name][which]["seconds"] for one in found] for which in (kind, "unrecorded"))
            ratios = [a / b for a, b in zip(ours, plain, strict=True)]
            section.compare(
                f"{question}, {round(found[0][name][kind]['steps']):,} steps, {_on(threads)}",
                {OURS: Cell.of(ours, worst=max(ours))},
                "the same training, unrecorded",
                target,
                seconds=median(plain),
                ratio=median(ratios),
                ratios=(min(ratios), max(ratios)),
            )
    for name, question in SMALL.items():
        for threads, found in measured.items():
            steps = [{kind: one["seconds"] / one["steps"] for kind, one in all_[name].items()} for all_ in found]
            added = [one["values"] - one["unrecorded"] for one in steps]
            cells, plain_step = {OURS: Cell.of(added, worst=max(added))}, median(one["unrecorded"] for one in steps)
            # Of small networks the ratio says little.
            section.compare(f"{question}, {_on(threads)}", cells, SAME_STEP, seconds=plain_step, ratio=None)


def _on(threads: int) -> str:
    on = "1 thread" if threads == 1 else f"{threads} threads"
    return f"{on} on {cores()} cores" if threads > cores() else on


def checkpointing(plan: Plan, section: Section) -> None:
    steps, warm_up = 10 if plan.quick else 40, 3

    def steps_of(checkpointed: bool, memory: Path | None) -> list[float]:
        """Seconds of every step of one training."""
        ends: list[float] = []
        train_adamw(
            Transformer(checkpointed=checkpointed),
            texts(steps + warm_up),
            memory,
            lambda: ends.append(perf_counter()),
        )
        if memory:
            shutil.rmtree(memory)
        return [after - before for before, after in pairwise(ends[warm_up - 1 :])]

    for name, checkpointed, target in (
        ("checkpointed", True, Target("at most", 1.3)),
        ("not checkpointed", False, None),
    ):
        kinds = {"unrecorded": None, "recorded": plan.folder / "checkpointing"}
        found = turns({kind: partial(steps_of, checkpointed, memory) for kind, memory in kinds.items()}, plan.few)
        unrecorded, recorded = (Cell.of(list(chain(*own))) for own in found.values())
        question = f"a step of a transformer under AdamW, {name}, {BOTH}"
        section.compare(question, {OURS: recorded}, SAME_STEP, target, seconds=unrecorded.seconds)
    section.notes.append(
        f"Two layers of width 256, 1,024 tokens a step. Medians over single steps, without the first {warm_up} of "
        "each training; trainings with the recorder and without take turns. Torch keeps no activations of a "
        "checkpointed layer, so that its second forward pass is part of both."
    )


ROWS, SAMPLES = 4, 4096
"""Of a batch of the long training, and of its data."""


def long_training(plan: Plan, section: Section) -> None:
    """Neither the steps of a long training nor its process may grow."""
    steps, window = (4_000, 500) if plan.quick else (100_000, 5_000)
    ends, seconds, held = [perf_counter()], list[float](), list[float]()
    drawn = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(SAMPLES, 64, generator=drawn), torch.randint(0, GROUPS, (SAMPLES,), generator=drawn)

    def batches() -> Iterator[Batch]:
        for _ in range(steps):
            chosen = torch.randint(0, SAMPLES, (ROWS,), generator=drawn)
            yield inputs[chosen], labels[chosen], {"label": labels[chosen], "sample": chosen}

    def seen() -> None:
        ends.append(perf_counter())
        if len(ends) > window:
            seconds.append(median(after - before for before, after in pairwise(ends)))
            held.append(resident()["VmRSS"])
            ends[:] = [perf_counter()]

    torch.set_num_threads(1)
    train_adamw(small_perceptron(), batches(), plan.folder / "long_training", seen)
    named, grown = f"{steps:,} steps of {ROWS} rows", 0.3e-3
    section.compare(
        f"growth of a step's time, {named}: a step of the last {window:,}",
        {OURS: Cell(seconds[-1], min(seconds), len(seconds))},
        f"a step of the first {window:,}, and 0.3 ms",
        Target("at most", 1),
        seconds=seconds[0] + grown,
    )
    section.alone(
        f"growth of memory, {named}: most resident where a window of {window:,} ends, after the first",
        Cell(bytes=max(held) - held[0]),
        Target("at most", 64e6, "bytes"),
    )
    section.notes.append(
        f"Two linear layers under AdamW, keys and values recorded, one thread of torch; samples are drawn from "
        f"{SAMPLES:,}. Seconds are medians over windows of {window:,} steps; resident memory is of where one ends: "
        "what a commit takes and lets go again, every few thousand steps, comes on top."
    )
