"""A language study from its training to its page; aesop.py and wikitext2.py say what is particular to each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np
import torch

from dualform.errors import BadInput
from dualform.query.engine import open_memory
from dualform_studies.assignment import Assignment
from dualform_studies.pages.folder import (
    Report,
    bytes_on_disk,
    check_free,
    report_folder,
    study_of,
    write_report,
)
from dualform_studies.progress import Progress
from dualform_studies.text.attention import Attention, Question, prepare
from dualform_studies.text.corpora import Corpus, load_corpus
from dualform_studies.text.estimate import dry_run
from dualform_studies.text.figures import draw_attention
from dualform_studies.text.findings import beside_paper, findings
from dualform_studies.text.network import LanguageModel
from dualform_studies.text.page import language_page
from dualform_studies.text.perplexity import foretell
from dualform_studies.text.prompts import Prompt, own_prompts, paper_prompts
from dualform_studies.text.published import PublishedTable
from dualform_studies.text.recipe import Recipe, choose_preset
from dualform_studies.text.resumed import check_same, read_report
from dualform_studies.text.runs import Task
from dualform_studies.text.tokens import Vocabulary


@dataclass(frozen=True)
class LanguageStudy:
    name: str
    corpus: str
    title: str
    presets: Mapping[str, Recipe]
    """The first is what is run where none is named."""
    tables: Sequence[PublishedTable]


def run_language_study(study: LanguageStudy, assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train, record, ask and draw; the memory is `out` itself, the page and report.json lie in `out/report`.

    Where `out` holds this study already, prompts that are given are asked of it and added to its page. Raises
    AlreadyExists where it holds anything else, BadInput for a prompt without a token, and what `load_corpus` raises.
    """
    own_prompts(assignment.prompts)
    again = bool(assignment.prompts) and not assignment.dry_run and study_of(assignment.out) == study.name
    if not again and not assignment.dry_run:
        check_free(assignment.out)
    if again:
        recipe = Recipe(**read_report(assignment.out)["recipe"])
    recipe = (recipe or choose_preset(study.presets, assignment.preset)).with_steps(assignment.steps)
    task = _task(load_corpus(study.corpus, assignment.data), recipe, assignment.seed, assignment.progress)
    if again:
        return _add_prompts(study, assignment, task)
    prompts = [*paper_prompts(task.corpus, study.tables), *own_prompts(assignment.prompts)]
    if assignment.dry_run:
        return dry_run(study.name, task, prompts)
    return _run(study, assignment, task, prompts)


def _task(corpus: Corpus, recipe: Recipe, seed: int, progress: Progress | None) -> Task:
    vocabulary = Vocabulary(corpus.train, corpus.unit)
    test = vocabulary.encode(corpus.test)
    if len(test) < 2:
        raise BadInput(
            f"the test text of {corpus.name} holds {len(test)} {corpus.unit}s: nothing can be foretold.",
            hint="Fetch the file anew.",
            field="data",
        )
    return Task(corpus, vocabulary, vocabulary.encode(corpus.train), test, recipe, seed, progress)


def _check_room(out: Path, recipe: Recipe) -> None:
    """Raise BadInput where the keys would fill the disk: found out before the training, not after hours of it."""
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    needed, free = 4 * recipe.slots * recipe.d_in, disk_usage(there).free
    if needed > free:
        raise BadInput(
            f"the keys would take {needed / 1e9:,.0f} GB, and {free / 1e9:,.0f} GB are free.",
            hint="Give --replay, which stores none, fewer --steps, or another --out; --dry-run tells slots and time.",
            field="out",
        )


def _run(study: LanguageStudy, assignment: Assignment, task: Task, prompts: Sequence[Prompt]) -> Report:
    out = assignment.out
    if not assignment.replay:
        _check_room(out, task.recipe)
    plain, plain_seconds = task.run_plain()
    network, recorded_seconds = task.record(out, keys=not assignment.replay)
    measured = {"recorded": foretell(network, task.test.ids), "plain": foretell(plain, task.test.ids)}
    report: Report = {
        "study": study.name,
        "command": assignment.command(study.name),
        "title": study.title,
        "seed": task.seed,
        "preset": assignment.preset or next(iter(study.presets)),
        "recipe": asdict(task.recipe),
        "replay": assignment.replay,
        "corpus": _corpus(task),
        "slots": task.recipe.slots,
        "disk_bytes": bytes_on_disk(out),
        "perplexity": {name: found.perplexity for name, found in measured.items()},
        "bits": {name: found.bits_per_token for name, found in measured.items()},
        "unharmed": _same_weights(network, plain),
        "prompts": [],
    }
    report["seconds"] = {"training": plain_seconds, "recorded_training": recorded_seconds}
    # From here on the memory can be asked: nothing that goes wrong with asking should cost the training.
    write_report(out, report)
    way = task.replay if assignment.replay else task.ask_stored
    report["seconds"]["training_again" if assignment.replay else "asking"] = _ask(
        out, report, task, network, prompts, lambda questions: way(out, questions)
    )
    report["beside_paper"] = beside_paper(report["prompts"])
    language_page(out, report).write(report)
    return report


def _add_prompts(study: LanguageStudy, assignment: Assignment, task: Task) -> Report:
    """Ask a finished run about more prompts, and write its page anew; with the paper's, where it was stopped before."""
    out = assignment.out
    report = read_report(out)
    check_same(report, assignment, _digest(task))
    there = {prompt["name"] for prompt in report["prompts"]}
    first = 1 + sum(name.startswith("prompt-") for name in there)
    prompts = [prompt for prompt in paper_prompts(task.corpus, study.tables) if prompt.name not in there]
    prompts += own_prompts(assignment.prompts, first)
    seconds = _ask(out, report, task, task.recorded_network(out), prompts, lambda asked: task.ask_stored(out, asked))
    report["seconds"]["asking"] = seconds + report["seconds"].get("asking", 0.0)
    language_page(out, report).write(report)
    return report


def _ask(
    out: Path,
    report: Report,
    task: Task,
    network: LanguageModel,
    prompts: Sequence[Prompt],
    answering: Callable[[Sequence[Question]], tuple[list[Any], float]],
) -> float:
    """Ask about prompts, draw their figures and add what they led to; the seconds that answering took."""
    asking = prepare(network, task.vocabulary, prompts)
    answers, seconds = answering(asking.questions())
    attention = Attention(*answers)
    folder = report_folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "queries.npy", asking.queries)
    with open_memory(out) as memory:
        report["prompts"] += findings(asking, attention, memory, task.corpus, task.train)
    for number, prompt in enumerate(prompts):
        draw_attention(folder / f"{prompt.name}-attention.png", asking, attention, number, task.corpus.unit)
    return seconds


def _corpus(task: Task) -> Report:
    return {
        "name": task.corpus.name,
        "unit": task.corpus.unit,
        "trained_on": task.corpus.train_split,
        "note": task.corpus.note,
        "train_tokens": len(task.train),
        "test_tokens": len(task.test),
        "vocabulary": len(task.vocabulary),
        "unknown": float((task.test.ids == 0).mean()),
        "times_read": task.recipe.slots / (len(task.train) - 1),
        "digest": _digest(task),
    }


def _digest(task: Task) -> str:
    """Of the training text, so that passages are never cut from another."""
    return hashlib.sha256(task.corpus.train.encode("utf-8")).hexdigest()


def _same_weights(one: LanguageModel, other: LanguageModel) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)
