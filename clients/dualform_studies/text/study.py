"""The studies `aesop` and `wikitext2`, from training to page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import disk_usage
from time import perf_counter
from typing import Any

import numpy as np

from dualform.errors import BadInput
from dualform_studies.assignment import Assignment, Progress
from dualform_studies.recorded_memory import open_recorded
from dualform_studies.report import Report, bytes_on_disk, check_free, report_folder, study_of, write_report
from dualform_studies.text.attention import Attention, Question, Questions, Standard, prepare, read_by
from dualform_studies.text.corpora import Corpus, Vocabulary, load_corpus
from dualform_studies.text.course import course_of, draw_course
from dualform_studies.text.observations import (
    Sample,
    asked_of,
    beside_paper,
    claims_of,
    findings,
    prevalence_of,
    samples_of,
    standards_of,
)
from dualform_studies.text.page import describe_corpus, digest_of, draw_attention, dry_run, language_page, same_weights
from dualform_studies.text.prompts import AESOP, WIKITEXT2, Prompt, PublishedTable, own_prompts, paper_prompts
from dualform_studies.text.runs import Task, check_same, read_report
from dualform_studies.text.training import (
    CheckpointTaker,
    LanguageModel,
    Recipe,
    Surprise,
    choose_preset,
    chunks_of_a_pass,
    foretell,
    updates_to_stop_at,
)


@dataclass(frozen=True)
class LanguageStudy:
    name: str
    corpus: str
    title: str
    presets: Mapping[str, Recipe]
    """The first is what is run where none is named; "paper" has the paper's sizes."""
    tables: Sequence[PublishedTable]
    paper: Mapping[str, tuple[str, str]]
    """Figures of the paper by their names in `beside_paper`: what its text says, and what its code has. It was not run
    again: figures stand there "(by the code)", or follow from them and from the texts, "(inferred)"."""


def run_language_study(study: LanguageStudy, assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train, record, ask and draw; the memory is `out` itself, the page and report.json lie in `out/report`.

    Where `out` holds this study already, prompts that are given are asked of it and added to its page. Raises
    AlreadyExists where it holds anything else, BadInput for a prompt without a token or with a character that the text
    does not have, and what `load_corpus` raises.
    """
    own_prompts(assignment.prompts)
    again = bool(assignment.prompts) and not assignment.dry_run and study_of(assignment.out) == study.name
    if not again and not assignment.dry_run:
        check_free(assignment.out)
    if again:
        recipe = Recipe(**read_report(assignment.out)["recipe"])
    recipe = (recipe or choose_preset(study.presets, assignment.preset)).with_steps(assignment.steps)
    task = _task(load_corpus(study.corpus, assignment.data), recipe, assignment.first_seed, assignment.progress)
    if again:
        return _add_prompts(study, assignment, task)
    prompts = [*_paper_prompts(study, task), *own_prompts(assignment.prompts)]
    read_by(task.vocabulary, prompts)
    standards = standards_of(prompts, task)
    compared = [at for at, prompt in enumerate(prompts) if prompt.published and standards[prompt.name].comparable]
    if assignment.dry_run:
        return dry_run(study.name, task, prompts, compared, asked_of(samples_of(prompts, standards, task)))
    return _run(study, assignment, task, prompts, standards, compared)


def _task(corpus: Corpus, recipe: Recipe, seed: int, progress: Progress | None) -> Task:
    vocabulary = Vocabulary(corpus.whole, corpus.unit)
    test = vocabulary.encode(corpus.test)
    if len(test) < 2:
        raise BadInput(
            f"the test text of {corpus.name} has {len(test)} {corpus.unit}s, too few to predict any.",
            hint="Fetch the file again.",
            field="data",
        )
    task = Task(corpus, vocabulary, vocabulary.encode(corpus.train), test, recipe, seed, progress)
    chunks_of_a_pass(len(task.train), recipe)  # refuses a text that is too short
    return task


def _paper_prompts(study: LanguageStudy, task: Task) -> list[Prompt]:
    return paper_prompts({"train": task.train, "test": task.test}, study.tables)


def _check_room(out: Path, recipe: Recipe) -> None:
    """Raise BadInput where the keys would fill the disk: found out before the training, not after hours of it."""
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    needed, free = 4 * recipe.slots * recipe.d_in, disk_usage(there).free
    if needed > free:
        raise BadInput(
            f"the keys need {needed / 1e9:,.0f} GB, but {free / 1e9:,.0f} GB are free.",
            hint="Pass --rerun, which does not store them, fewer --steps, or another --out.",
            field="out",
        )


def _run(
    study: LanguageStudy,
    assignment: Assignment,
    task: Task,
    prompts: Sequence[Prompt],
    standards: Mapping[str, Standard],
    compared: Sequence[int],
) -> Report:
    """The training: plain and recorded, or, where it is run again, recorded and then run again for the answers."""
    out, recipe, start = assignment.out, task.recipe, perf_counter()
    if not assignment.rerun:
        _check_room(out, recipe)
    measured: dict[str, Surprise] = {}
    seconds: dict[str, float] = {}
    plain: LanguageModel | None = None
    if not assignment.rerun:
        plain, seconds["training"] = task.run_plain()
        measured["plain"] = foretell(plain, task.test.ids, recipe.batch)
    of_a_pass = task.of_a_pass
    read = read_by(task.vocabulary, [prompts[number] for number in compared])
    taker = CheckpointTaker(updates_to_stop_at(recipe.steps, of_a_pass), read, task.test, recipe.batch)
    network, seconds["recorded_training"] = task.record(out, keys=not assignment.rerun, watch=taker)
    measured["recorded"] = foretell(network, task.test.ids, recipe.batch)
    report: Report = {
        "study": study.name,
        "command": assignment.command(study.name),
        "title": study.title,
        "seed": task.seed,
        "preset": assignment.preset or next(iter(study.presets)),
        "recipe": asdict(recipe),
        "updates_of_the_paper": study.presets["paper"].steps,
        "rerun": assignment.rerun,
        "corpus": describe_corpus(task),
        "slots": recipe.slots,
        "disk_bytes": bytes_on_disk(out),
        "perplexity": {name: found.perplexity for name, found in measured.items()},
        "bits": {name: found.bits_per_token for name, found in measured.items()},
        "unharmed": None if plain is None else same_weights(network, plain),
        "prompts": [],
        "course": [],
        "prevalence": [],
        "seconds": seconds,
    }
    # From here on the memory can be asked: nothing that goes wrong with asking should cost the training.
    write_report(out, report)
    samples = samples_of(prompts, standards, task)
    before = taker.taken[:-1] if compared else ()
    asking = prepare(network, task.vocabulary, prompts, compared, before, asked_of(samples))
    way = task.rerun if assignment.rerun else task.ask_stored
    attention, took = _ask(out, report, task, asking, standards, samples, way)
    seconds["training_again" if assignment.rerun else "asking"] = took
    report["course"] = course_of(asking, attention, standards, taker.taken, of_a_pass)
    seconds["all"] = perf_counter() - start
    return _write(study, out, report)


def _add_prompts(study: LanguageStudy, assignment: Assignment, task: Task) -> Report:
    """Ask a finished run about more prompts, and write its page anew; with the paper's, where it was stopped before."""
    out = assignment.out
    report = read_report(out)
    check_same(report, assignment, digest_of(task))
    there = {prompt["name"] for prompt in report["prompts"]}
    first = 1 + sum(name.startswith("prompt-") for name in there)
    prompts = [prompt for prompt in _paper_prompts(study, task) if prompt.name not in there]
    prompts += own_prompts(assignment.prompts, first)
    standards = standards_of(prompts, task)
    samples = samples_of(prompts, standards, task)
    asking = prepare(task.recorded_network(out), task.vocabulary, prompts, others=asked_of(samples))
    _, seconds = _ask(out, report, task, asking, standards, samples, task.ask_stored)
    report["seconds"]["asking"] = seconds + report["seconds"].get("asking", 0.0)
    return _write(study, out, report)


def _ask(
    out: Path,
    report: Report,
    task: Task,
    asking: Questions,
    standards: Mapping[str, Standard],
    samples: Sequence[Sample],
    answering: Callable[[Path, Sequence[Question]], tuple[list[Any], float]],
) -> tuple[Attention, float]:
    """Ask about prompts, draw their figures and add what they led to; the seconds that answering took."""
    questions = asking.questions()
    answers, seconds = answering(out, list(questions.values()))
    attention = Attention.of(asking, dict(zip(questions, answers, strict=True)))
    folder = report_folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "queries.npy", asking.queries)
    with open_recorded(out, ram=None) as memory:
        report["prompts"] += findings(asking, attention, memory, task, standards)
    report["prevalence"] += prevalence_of(samples, attention)
    for number, prompt in enumerate(asking.prompts):
        path = folder / f"{prompt.name}-attention.png"
        draw_attention(path, asking, attention, number, task.corpus.unit, standards.get(prompt.name))
    return attention, seconds


def _write(study: LanguageStudy, out: Path, report: Report) -> Report:
    """The page and report.json, with what follows from the answers."""
    claims = claims_of(report)
    report["claims"] = [claim.plain() for claim in claims]
    report["beside_paper"] = beside_paper(report, study.paper)
    if report["course"]:
        draw_course(report_folder(out) / "course.png", report["course"])
    language_page(out, report, claims).write(report)
    return report


_STUDY = LanguageStudy(
    name="aesop",
    corpus="aesop",
    title="A character-level language model of Aesop's Fables (section 5.5, Tables 3 to 5)",
    presets={
        # A quarter of the paper's units, and whole passes: tokens read once more than the rest would lead for that
        # alone. The keys take 5.7 GB.
        "laptop": Recipe(embedding=64, projection=256, hidden=256, lr=3e-3, clip=1.0, batch=64, steps=24 * 18),
        "paper": Recipe(embedding=64, projection=1024, hidden=1024, lr=1e-3, clip=1.0, batch=64, steps=5000),
    },
    tables=AESOP,
    paper={
        "tokens of the training text": ("about 185,000 in the book", "119,933 (inferred)"),
        "tokens that a pass reads": ("", "115,200 (inferred)"),
        "different tokens": ("107", ""),
        "units of the LSTM": ("1,024", "1,024 (by the code)"),
        "streams of so many tokens a step": ("", "64 of 100 (by the code)"),
        "updates": ("", "5,000 (by the code)"),
    },
)


def run_aesop(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train on the fables, and ask with Tables 3 to 5 of the paper; see `run_language_study`."""
    return run_language_study(_STUDY, assignment, recipe)


_WIKITEXT2_STUDY = LanguageStudy(
    name="wikitext2",
    corpus="wikitext-2",
    title="A word-level language model of WikiText-2 (section 5.5, Tables 2, 6 and 7)",
    presets={
        # The paper's network; fewer updates, of smaller batches, as one core can take them. On the valid split the
        # steps are 3 whole passes: tokens read once more than the rest would lead for that alone.
        "laptop": Recipe(
            embedding=200, projection=0, hidden=200, lr=3e-3, clip=0.3, batch=20, unroll=50, steps=3 * 217, dropout=0.5
        ),
        "paper": Recipe(
            embedding=200, projection=0, hidden=200, lr=3e-3, clip=0.3, batch=128, steps=10_000, dropout=0.5
        ),
    },
    tables=WIKITEXT2,
    paper={
        "tokens of the training text": ("about 2 M", "2,088,628 (inferred)"),
        "tokens that a pass reads": ("", "2,086,400 (inferred)"),
        "different tokens": ("33 K", "33,278 (inferred)"),
        "units of the LSTM": ("200", "200 (by the code)"),
        "streams of so many tokens a step": ("", "128 of 100 (by the code)"),
        "updates": ("", "10,000 (by the code)"),
    },
)


def run_wikitext2(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train on the train split, the valid split where that is absent, and ask with Tables 2, 6 and 7 of the paper; see
    `run_language_study`.
    """
    return run_language_study(_WIKITEXT2_STUDY, assignment, recipe)
