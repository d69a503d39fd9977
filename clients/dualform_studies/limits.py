"""The costs that the paper names in section 6 and appendix D, put to the test: `dualform study limits`.

The paper's network is recorded on scikit-learn's digits at three lengths, so that no dataset is needed. What else
recording and asking cost is in `benchmarks/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from math import inf
from pathlib import Path
from time import perf_counter

import torch
from torch import nn

import dualform
from dualform import GroupSum, GroupSums, Hits, Recorder, Rerun, TopK, Vectors
from dualform.query.engine import Engine, open_memory
from dualform_studies.assignment import Assignment, or_silent
from dualform_studies.claims import Beside, Claim, judge
from dualform_studies.images.datasets import digits
from dualform_studies.images.training import Recipe, build_network, epochs, layer_names, train as take_updates
from dualform_studies.report import Page, Report, bytes_on_disk, check_free, percent

Make = Callable[[nn.Module, torch.optim.Optimizer], Recorder]
Ask = Callable[[Engine, str], object]

QUERY_SET, K, REPEATS, RERAN = "test-digits", 10, 5, 20
LENGTHS = {"short": 4, "middle": 2, "long": 1}
"""Folders of the trainings, and by what the updates of the longest are divided."""
QUESTIONS: dict[str, Ask] = {
    "ten best slots": lambda memory, layer: memory.topk(layer, f"{QUERY_SET}/0", k=K, score="abs"),
    "absolute weights summed over each label": lambda memory, layer: memory.group_sum(
        layer, f"{QUERY_SET}/0", by="label", score="abs"
    ),
    "signed weights summed over each label": lambda memory, layer: memory.group_sum(
        layer, f"{QUERY_SET}/0", by="label"
    ),
}
"""About the attention weights of one test image."""


def run_limits(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Record `steps` updates (200 if None), half and a quarter of them, and judge the claims; the report is in
    `out/report`. Raises AlreadyExists where `out` holds something, and MissingPackage without scikit-learn.
    """
    out, seed, start = assignment.out, assignment.first_seed, perf_counter()
    check_free(out)
    whole = (recipe or Recipe(steps=200)).with_steps(assignment.steps)
    lengths = {name: whole.with_steps(max(1, whole.steps // part)) for name, part in LENGTHS.items()}
    measured = []
    for done, (name, own) in enumerate(lengths.items()):
        or_silent(assignment.progress)("measuring what it costs", done, len(lengths))
        measured.append(_measure(own, seed, out / name))
    layers = layer_names(whole.widths(digits()))
    for one, seconds in zip(measured, _scoring_seconds([out / name for name in lengths], layers), strict=True):
        one["scoring_seconds"] = seconds
    report: Report = {
        "study": "limits",
        "command": assignment.command("limits"),
        "seed": seed,
        "recipe": whole.in_words(),
        "measured": measured,
        "rerun": _compare_rerun(lengths["short"], seed, out / "short", out / "reran"),
    }
    report["claims"] = [claim.plain() for claim in limits_claims(report)]
    size = 300e9 * 12_000 * 4
    words = f"{size / 1e15:.1f} PB (300,000,000,000 slots, keys of 12,000 numbers of 4 bytes)"
    report["beside_paper"] = [Beside("keys of one layer of GPT-3", words, "14 PB").plain()]
    report["seconds"] = {"all": perf_counter() - start}
    page = Page(out, "Potentials and limits (section 6 and appendix D)")
    page.write(report)
    return report


def train(recipe: Recipe, seed: int, make: Make | None = None) -> Recorder | None:
    """Train on the digits, recorded by what `make` returns, with the test images as a query set."""
    dataset = digits()
    network = build_network(recipe.widths(dataset), seed)
    optimizer = recipe.optimizer(network)
    recorder = None if make is None else make(network, optimizer)
    with recorder or nullcontext():
        take_updates(network, optimizer, epochs(dataset, recipe, seed), recipe.clip, recorder=recorder)
        if recorder is not None:
            recorder.query_set(QUERY_SET, torch.from_numpy(dataset.inputs(dataset.test)), label=dataset.test.labels)
    return recorder


def _measure(recipe: Recipe, seed: int, folder: Path) -> Report:
    """Bytes, the seconds of a training that is not recorded, and those of questions to a memory just opened."""
    start = perf_counter()
    train(recipe, seed)
    plain = perf_counter() - start
    train(recipe, seed, lambda model, optimizer: Recorder(model, optimizer, folder, quiet=True))
    # Questions leave codes beside the keys, so the size is taken before them.
    size, cold = sum(map(bytes_on_disk, folder.rglob("layers"))), {}
    for name, ask in QUESTIONS.items():
        start = perf_counter()
        with open_memory(folder) as memory:
            _ask(memory, layer_names(recipe.widths(digits())), ask)
        cold[name] = perf_counter() - start
    return {
        "slots": recipe.steps * recipe.batch,
        "bytes": size,
        "plain_seconds": plain,
        "cold_seconds": cold,
    }


def _ask(memory: Engine, layers: tuple[str, ...], ask: Ask) -> float:
    """Seconds of one question to each layer."""
    start = perf_counter()
    for layer in layers:
        ask(memory, layer)
    return perf_counter() - start


def _scoring_seconds(folders: list[Path], layers: tuple[str, ...]) -> list[float]:
    """For each memory, the least seconds in which its slots are scored for all test images, warm.

    The memories take turns, so that other work on the machine meets all of them alike.
    """
    with ExitStack() as stack:
        memories = [stack.enter_context(open_memory(folder)) for folder in folders]
        turns = [[_ask(memory, layers, _best_of_all) for memory in memories] for _ in range(1 + REPEATS)]
    return [min(taken) for taken in zip(*turns[1:], strict=True)]


def _best_of_all(memory: Engine, layer: str) -> object:
    return memory.topk(layer, QUERY_SET, k=K, score="abs")


def _compare_rerun(recipe: Recipe, seed: int, stored: Path, folder: Path) -> Report:
    """How many answers of the training run again without stored keys equal those of the stored memory, bit for bit."""
    train(
        recipe, seed, lambda model, optimizer: Recorder(model, optimizer, folder, keys=False, values=False, quiet=True)
    )
    questions: list[TopK | GroupSum] = []
    with dualform.open(stored) as memory:
        for layer in layer_names(recipe.widths(digits())):
            queries = memory.query_set(QUERY_SET, layer).queries
            assert queries is not None, "the layer was named"
            asked = Vectors(queries[:RERAN])
            questions += [TopK(layer, asked, K), GroupSum(layer, asked, ("label",))]
        expected = [answer_bits(memory.ask(question)) for question in questions]
    rerun = train(recipe, seed, lambda model, optimizer: Rerun(model, optimizer, folder, questions))
    assert isinstance(rerun, Rerun)
    found = [answer_bits(answer) for answer in rerun.answers()]
    return {"questions": len(questions), "same": sum(map(bytes.__eq__, expected, found))}


def answer_bits(answer: object) -> bytes:
    """An answer's slots and scores, or its sums."""
    if isinstance(answer, Hits):
        return answer.ids.tobytes() + answer.flat_scores.tobytes()
    assert isinstance(answer, GroupSums)
    return answer.sums.tobytes()


def limits_claims(report: Report) -> Iterator[Claim]:
    measured, rerun = report["measured"], report["rerun"]
    slots = [one["slots"] for one in measured]
    if slots == sorted(set(slots)):
        sizes = _growth(slots, [one["bytes"] for one in measured])
        times = _growth(slots, [one["scoring_seconds"] for one in measured])
        yield judge(
            "limits.storage",
            _difference(*sizes),
            f"{_words(slots, [f'{one:,.0f} bytes' for one in sizes])}, of keys and values",
        )
        yield judge(
            "limits.time",
            _difference(*times),
            f"{_words(slots, [f'{1e6 * one:.3g} µs' for one in times])}, for the ten best slots of all test images at "
            "all layers",
        )
    cold, plain = measured[-1]["cold_seconds"], measured[-1]["plain_seconds"]
    name = max(cold, key=cold.__getitem__)
    yield judge(
        "limits.cold",
        cold[name] / plain,
        f"{percent(cold[name] / plain, '.3g')} of the time of the training without recording ({name}, the most "
        f"expensive question, asked once of {slots[-1]:,} slots)",
    )
    yield judge(
        "limits.rerun",
        rerun["same"] / rerun["questions"],
        f"{rerun['same']} of {rerun['questions']} answers equal to the last bit",
    )


def _growth(slots: list[int], amounts: list[float]) -> tuple[float, float]:
    """How much each slot adds, from the first length to the second and from the second to the third."""
    first, second = ((amounts[at + 1] - amounts[at]) / (slots[at + 1] - slots[at]) for at in range(2))
    return first, second


def _difference(first: float, second: float) -> float:
    """Relative; infinite where what should grow does not. Growth with the square would make it 1 here."""
    return abs(second / first - 1) if first > 0 else inf


def _words(slots: list[int], added: list[str]) -> str:
    first, second, third = (f"{own:,}" for own in slots)
    return f"{added[0]} for each slot from {first} to {second}, {added[1]} from {second} to {third}"
