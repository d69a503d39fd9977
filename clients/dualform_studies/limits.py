"""The costs that the paper names in section 6 and appendix D, put to the test: `dualform study limits`.

The paper's network is recorded on scikit-learn's digits at three lengths, so that no dataset is needed. What else
recording and asking cost is in `benchmarks/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from dualform import GroupSum, GroupSums, Hits, Recorder, Rerun, TopK, Vectors
from dualform.query.engine import Engine, open_memory
from dualform.questions import QuerySetExamples
from dualform_studies.assignment import Assignment, or_silent
from dualform_studies.claims import Beside, Claim, judge
from dualform_studies.images.datasets import digits
from dualform_studies.images.training import Recipe, build_network, epochs, layer_names, train
from dualform_studies.recorded_memory import stored_queries
from dualform_studies.report import Page, Report, bytes_on_disk, check_free, percent

K, REPEATS, RERAN = 10, 5, 20
LENGTHS = {"short": 4, "middle": 2, "long": 1}
"""Folders of the trainings, and by what the updates of the longest are divided."""
_FIRST, _EVERY = QuerySetExamples("test-digits", (0,)), QuerySetExamples("test-digits")
QUESTIONS: Mapping[str, Callable[[str], TopK | GroupSum]] = {
    "ten best slots": lambda layer: TopK(layer, _FIRST, K, score="abs"),
    "absolute weights summed over each label": lambda layer: GroupSum(layer, _FIRST, ("label",), score="abs"),
    "signed weights summed over each label": lambda layer: GroupSum(layer, _FIRST, ("label",)),
}
"""To a layer, about the attention weights of one test image."""


def run_limits(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Record `steps` updates (200 if None), half and a quarter of them, and judge the claims; the report is in
    `out/report`. Raises AlreadyExists if `out` holds something, and MissingPackage without scikit-learn.
    """
    out, seed, start = assignment.out, assignment.first_seed, perf_counter()
    check_free(out)
    whole = (recipe or Recipe(steps=200)).with_steps(assignment.steps)
    lengths = {name: whole.with_steps(max(1, whole.steps // part)) for name, part in LENGTHS.items()}
    layers, measured = layer_names(whole.widths(digits())), list[Report]()
    for name, own in lengths.items():
        or_silent(assignment.progress)("measuring what it costs", len(measured), len(lengths))
        measured.append(_measure(own, seed, out / name, layers))
    for one, seconds in zip(measured, _scoring_seconds([out / name for name in lengths], layers), strict=True):
        one["scoring_seconds"] = seconds
    report: Report = {
        "study": "limits",
        "command": assignment.command("limits"),
        "seed": seed,
        "recipe": whole.in_words(),
        "measured": measured,
        "rerun": _compare_rerun(lengths["short"], seed, out / "short", out / "reran", layers),
    }
    report["claims"] = [claim.plain() for claim in limits_claims(report)]
    words = f"{300e9 * 12_000 * 4 / 1e15:.1f} PB (300,000,000,000 slots, keys of 12,000 numbers of 4 bytes)"
    report["beside_paper"] = [Beside("keys of one layer of GPT-3", words, "14 PB").plain()]
    report["seconds"] = {"all": perf_counter() - start}
    Page(out, "Potentials and limits (section 6 and appendix D)").write(report)
    return report


def _train(
    recipe: Recipe, seed: int, make: Callable[..., Recorder | None] = lambda *_: None, **given: Any
) -> Recorder | None:
    """Train on the digits, recorded by what `make` returns, if anything, with the test images as a query set."""
    dataset = digits()
    network = build_network(recipe.widths(dataset), seed)
    optimizer = recipe.optimizer(network)
    recorder = make(network, optimizer, **given)
    with recorder or nullcontext():
        train(network, optimizer, epochs(dataset, recipe, seed), recipe.clip, recorder=recorder)
        if recorder is not None:
            images = torch.from_numpy(dataset.inputs(dataset.test))
            recorder.query_set(dataset.query_set, images, label=dataset.test.labels)
    return recorder


def _measure(recipe: Recipe, seed: int, folder: Path, layers: Sequence[str]) -> Report:
    """Bytes, the seconds of a training that is not recorded, and those of questions to a memory just opened."""
    start = perf_counter()
    _train(recipe, seed)
    plain = perf_counter() - start
    _train(recipe, seed, Recorder, path=folder, quiet=True)
    # Questions leave codes beside the keys, so the size is taken before them.
    size, cold = sum(map(bytes_on_disk, folder.rglob("layers"))), {}
    for name, question in QUESTIONS.items():
        start = perf_counter()
        with open_memory(folder) as memory:
            for layer in layers:
                memory.ask(question(layer))
        cold[name] = perf_counter() - start
    return {"slots": recipe.steps * recipe.batch, "bytes": size, "plain_seconds": plain, "cold_seconds": cold}


def _scoring_seconds(folders: Sequence[Path], layers: Sequence[str]) -> list[float]:
    """For each memory, the least seconds in which its slots are scored for all test images, warm.

    The memories take turns, so that other work on the machine meets all of them alike.
    """

    def seconds(memory: Engine) -> float:
        start = perf_counter()
        for layer in layers:
            memory.ask(TopK(layer, _EVERY, K, score="abs"))
        return perf_counter() - start

    with ExitStack() as stack:
        memories = [stack.enter_context(open_memory(folder)) for folder in folders]
        turns = [[seconds(memory) for memory in memories] for _ in range(1 + REPEATS)]
    return [min(taken) for taken in zip(*turns[1:], strict=True)]


def _compare_rerun(recipe: Recipe, seed: int, stored: Path, folder: Path, layers: Sequence[str]) -> Report:
    """How many answers of the training run again without stored keys equal those of the stored memory, bit for bit."""
    _train(recipe, seed, Recorder, path=folder, keys=False, values=False, quiet=True)
    questions: list[TopK | GroupSum] = []
    with open_memory(stored) as memory:
        for layer in layers:
            asked = Vectors(stored_queries(memory, "test-digits", layer)[:RERAN])
            questions += [TopK(layer, asked, K), GroupSum(layer, asked, ("label",))]
        expected = [_bits(memory.ask(question)) for question in questions]
    rerun = _train(recipe, seed, Rerun, path=folder, questions=questions)
    assert isinstance(rerun, Rerun)
    found = [_bits(answer) for answer in rerun.answers()]
    return {"questions": len(questions), "same": sum(map(bytes.__eq__, expected, found))}


def _bits(answer: object) -> bytes:
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
