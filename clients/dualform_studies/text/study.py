"""The studies `aesop` and `wikitext2`: a configuration for each, and the course that they share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import disk_usage
from time import perf_counter
from typing import Any

import numpy as np

from dualform.errors import AlreadyExists, BadInput, NotFound
from dualform_studies.assignment import Assignment, Progress
from dualform_studies.claims import Beside
from dualform_studies.report import (
    Cell,
    Page,
    Report,
    Table,
    bytes_on_disk,
    check_free,
    report_folder,
    study_of,
    write_report,
)
from dualform_studies.text.corpora import Corpus, Vocabulary, load_corpus
from dualform_studies.text.observations import Inquiry, claims_of, ranks_in_words
from dualform_studies.text.prompts import (
    Passage,
    PublishedTable,
    own_prompts,
    paper_prompt,
    published_tables,
)
from dualform_studies.text.training import LanguageModel, Recipe, Task, chunks_of_a_pass


@dataclass(frozen=True)
class LanguageStudy:
    name: str
    corpus: str
    title: str
    presets: Mapping[str, Recipe]
    """The first is what is run where none is named; "paper" has the paper's sizes."""
    tables: Sequence[PublishedTable]
    paper: Mapping[str, tuple[str, str]]
    """Figures of the paper by their names in `_beside_paper`: what its text says, and what its code has. It was not run
    again: figures stand there "(by the code)", or follow from them and from the texts, "(inferred)"."""


def run_language_study(study: LanguageStudy, assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train, record and ask; the memory is `out` itself, the page and report.json lie in `out/report`.

    If `out` holds this study already, prompts that are given are asked of it and added to its page, and those of the
    paper if the run was stopped before it asked them. Raises AlreadyExists if it holds anything else, BadInput for a
    prompt without a token or with a character that the text does not have, and what `load_corpus` raises.
    """
    own_prompts(assignment.prompts)
    out, start = assignment.out, perf_counter()
    again = bool(assignment.prompts) and not assignment.dry_run and study_of(out) == study.name
    report: Report = {"prompts": []}
    if again:
        report = json.loads((report_folder(out) / "report.json").read_text(encoding="utf-8"))
        recipe = Recipe(**report["recipe"])
    elif not assignment.dry_run:
        check_free(out)
    preset = assignment.preset or next(iter(study.presets))
    if recipe is None and preset not in study.presets:
        hint = f"Presets: {', '.join(study.presets)}."
        raise NotFound(f"there is no preset {preset!r}.", hint=hint, field="preset")
    recipe = (recipe or study.presets[preset]).with_steps(assignment.steps)
    task = _task(load_corpus(study.corpus, assignment.data), recipe, assignment.first_seed, assignment.progress)
    if again:
        check_same(report, assignment, _digest_of(task))
    there = {prompt["name"] for prompt in report["prompts"]}
    texts = {"train": task.train, "test": task.test}
    prompts = [paper_prompt(texts[table.origin], table) for table in study.tables]
    prompts = [prompt for prompt in prompts if prompt.name not in there]
    prompts += own_prompts(assignment.prompts, 1 + sum(name.startswith("prompt-") for name in there))
    inquiry = Inquiry.of(prompts, task)
    if assignment.dry_run:
        return dry_run(study.name, task, inquiry)
    if again:
        network = task.recorded_network(out)
    else:
        network, report = _record(study, assignment, task, preset)
    asked = perf_counter()
    queries, questions = inquiry.questions(network)
    answers = (task.rerun if assignment.rerun else task.ask_stored)(out, questions)
    np.save(report_folder(out) / "queries.npy", queries)
    found, prevalence = inquiry.findings(task, *answers)
    report["prompts"] += found
    report["prevalence"] += prevalence
    report["seconds"]["asking"] = perf_counter() - asked + report["seconds"].get("asking", 0.0)
    if not again:
        report["seconds"]["all"] = perf_counter() - start
    return _write(study, out, report)


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


def _record(study: LanguageStudy, assignment: Assignment, task: Task, preset: str) -> tuple[LanguageModel, Report]:
    """The trained network, and the report so far."""
    out, recipe = assignment.out, task.recipe
    if not assignment.rerun:
        _check_room(out, recipe)
    network, seconds = task.record(out, keys=not assignment.rerun)
    report: Report = {
        "study": study.name,
        "command": assignment.command(study.name),
        "title": study.title,
        "seed": task.seed,
        "preset": preset,
        "recipe": asdict(recipe),
        "rerun": assignment.rerun,
        "corpus": _describe(task),
        "slots": recipe.slots,
        "disk_bytes": bytes_on_disk(out),
        "prompts": [],
        "prevalence": [],
        "seconds": {"recorded_training": seconds},
    }
    # From here on the memory can be asked: nothing that goes wrong with asking should cost the training.
    write_report(out, report)
    return network, report


def _describe(task: Task) -> Report:
    recipe, steps = task.recipe, chunks_of_a_pass(len(task.train), task.recipe)
    return {
        "name": task.corpus.name,
        "unit": task.corpus.unit,
        "trained_on": task.corpus.train_split,
        "note": task.corpus.note,
        "train_tokens": len(task.train),
        "test_tokens": len(task.test),
        "vocabulary": len(task.vocabulary),
        "tokens_of_a_pass": steps * recipe.batch * recipe.unroll,
        "tokens_read": min(steps, recipe.steps) * recipe.batch * recipe.unroll,
        "passes": recipe.steps / steps,
        "digest": _digest_of(task),
    }


def _digest_of(task: Task) -> str:
    """Of the training text and the tokens' numbers, so that passages are never cut from another."""
    parts = (task.corpus.train, *task.vocabulary.words)
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()


def check_same(report: Report, assignment: Assignment, digest: str) -> None:
    """Raises AlreadyExists where the assignment asks for another training than the one that is there, and BadInput
    where that one stored no keys or was fed another text than the one with this digest.
    """
    wanted: dict[str, tuple[Any, Any]] = {
        "seed": (assignment.seed, report["seed"]),
        "preset": (assignment.preset, report["preset"]),
        "steps": (assignment.steps, report["recipe"]["steps"]),
    }
    for name, (asked, there) in wanted.items():
        if asked not in (None, there):
            raise AlreadyExists(
                f"{assignment.out} contains a run with {name} {there}, not {asked}.",
                hint=f"Pass another folder with --out, or leave out --{name} to ask this run.",
            )
    if report["rerun"] or assignment.rerun:
        raise BadInput(
            f"{assignment.out} already contains a run, and --rerun trains again.",
            hint="Pass another folder with --out, and all prompts at once."
            if report["rerun"]
            else "This run stored its keys: leave out --rerun.",
            field="rerun",
        )
    if digest != report["corpus"]["digest"]:
        raise BadInput(
            f"the run in {assignment.out} was trained on another text than that in the data folder.",
            hint="Pass the data folder that it was trained from with --data.",
            field="data",
        )


def _write(study: LanguageStudy, out: Path, report: Report) -> Report:
    """The page and report.json, with what follows from the answers."""
    report["claims"] = [claim.plain() for claim in claims_of(report)]
    report["beside_paper"] = [row.plain() for row in _beside_paper(report, study.paper)]
    corpus, recipe = report["corpus"], report["recipe"]
    page = Page(out, report["title"])
    page.paragraph(
        f"A {corpus['unit']}-level language model of one LSTM layer with {recipe['hidden']:,} units, trained on "
        f"{corpus['trained_on']} ({corpus['train_tokens']:,} {corpus['unit']}s) for {recipe['steps']:,} updates, which "
        f"are {corpus['passes']:.1f} passes. Preset `{report['preset']}`, seed {report['seed']}. Attention weights are "
        "those of the LSTM's one linear transformation, whose key is the state before a token and the token's input; "
        "the query is that of the last of 100 tokens read from a state of zeros. The absolute values of all weights "
        "that go to the same training token position are summed, as in the paper's code."
    )
    if corpus["note"]:
        page.paragraph(corpus["note"])
    for prompt in report["prompts"]:
        _show_prompt(page, prompt, report)
    page.write(report)
    return report


def _show_prompt(page: Page, prompt: Report, report: Report) -> None:
    """The training passages attended to most, beside those of the paper's table where the prompt has one."""
    caption = f"The training passages attended to most by the marked {report['corpus']['unit']}"
    columns = ["", "training passage", "from", "summed weight"]
    rows: list[list[Cell]] = [["query", Passage(**prompt["query"]).marked(), "", None]]
    rows += [
        [str(rank), Passage(**entry["passage"]).marked(), entry["title"], entry["sum"]]
        for rank, entry in enumerate(prompt["passages"], start=1)
    ]
    if prompt["table"] is not None:
        caption += f", beside those of Table {prompt['table']} of the paper, in which it sees {prompt['remark']}"
        columns += ["the paper's passage", "from", f"its rank here, of {report['corpus']['tokens_read']:,}"]
        published: list[list[Cell]] = [
            [Passage(**entry["passage"]).marked(), entry["title"], entry["rank_here"]] for entry in prompt["published"]
        ]
        nothing: list[Cell] = ["", "", None]
        beside = [nothing, *published] + [nothing] * len(rows)
        rows = [row + other for row, other in zip(rows, beside, strict=False)]
    caption += "."
    if unmarked := prompt.get("unmarked"):
        caption += f" The text of the paper at hand lost the marks of {', '.join(unmarked)}."
    page.table(f"{prompt['name']}-passages", caption, columns, rows)


def _beside_paper(report: Report, paper: Mapping[str, tuple[str, str]]) -> list[Beside]:
    """Figures of the recipe and of the outcome beside those of the paper's text and of its code (`Beside`).

    `paper` has those of the paper by their names here, each a pair of what its text and what its code says.
    """
    corpus, recipe = report["corpus"], report["recipe"]
    ours = {
        "tokens of the training text": f"{corpus['train_tokens']:,}",
        "tokens that a pass reads": f"{corpus['tokens_of_a_pass']:,}",
        "different tokens": f"{corpus['vocabulary']:,}",
        "units of the LSTM": f"{recipe['hidden']:,}",
        "streams of so many tokens a step": f"{recipe['batch']} of {recipe['unroll']}",
        "updates": f"{recipe['steps']:,}",
    }
    rows = [Beside(what, value, *paper.get(what, ("", ""))) for what, value in ours.items()]
    for prompt in report["prompts"]:
        shown = [row for row in prompt["published"] if row["leads"]]
        if any(row["rank_here"] is not None for row in shown):
            what = f"ranks of the passages of Table {prompt['table']}"
            rows.append(Beside(what, ranks_in_words(shown), text="1, 2, 3"))
    return rows


_WARM_UP, _TIMED = 2, 8
"""Steps: the first of a process are slow, as threads start and memory is mapped."""
_SLOT_BYTES, _DIGEST_BYTES = 12, 48
"""Of a slot's columns in DuckDB, compressed, and of a step's digests, about."""
_PRODUCT_SECONDS = 1e-9
"""For one number of a key and one of a query, about, on one core."""


def dry_run(study: str, task: Task, inquiry: Inquiry) -> Report:
    """Slots, bytes and seconds of both ways; nothing is written. Some steps are timed, the rest is arithmetic."""
    recipe, queries, step = task.recipe, inquiry.scored, 0.0
    for steps in (_WARM_UP, _TIMED):
        network, optimizer = task.begin()
        start = perf_counter()
        task.update(network, optimizer, steps)
        step = (perf_counter() - start) / steps
    numbers = recipe.slots * recipe.d_in
    table = _SLOT_BYTES * recipe.slots + 2 * sum(4 * value.numel() for value in network.state_dict().values())
    training, answering = recipe.steps * step, _PRODUCT_SECONDS * numbers * queries
    report: Report = {
        "study": study,
        "seed": task.seed,
        "dry_run": True,
        "slots": recipe.slots,
        "key_width": recipe.d_in,
        "queries": queries,
        "step_seconds": step,
        "stored": {"bytes": 4 * numbers + table, "seconds": training + answering},
        "rerun": {"bytes": _DIGEST_BYTES * recipe.steps + table, "seconds": 2 * training + answering},
    }
    ways = {"stored": "keys stored", "rerun": "--rerun: no keys stored, trained twice"}
    estimate = Table(
        "estimate",
        f"{study}: {recipe.slots:,} slots with keys of {recipe.d_in:,} numbers, {queries:,} questions. A step takes "
        f"{step:.3g} s here.",
        ["way", "slots", "disk (GB)", "time (minutes)"],
        [
            [words, recipe.slots, round(report[way]["bytes"] / 1e9, 3), round(report[way]["seconds"] / 60, 1)]
            for way, words in ways.items()
        ],
    )
    report["tables"] = [estimate.plain()]
    return report


AESOP = LanguageStudy(
    name="aesop",
    corpus="aesop",
    title="A character-level language model of Aesop's Fables (section 5.5, Tables 3 to 5)",
    presets={
        # A quarter of the paper's units, and whole passes: tokens read once more than the rest would lead for that
        # alone. The keys take 5.7 GB.
        "laptop": Recipe(embedding=64, projection=256, hidden=256, lr=3e-3, clip=1.0, batch=64, steps=24 * 18),
        "paper": Recipe(embedding=64, projection=1024, hidden=1024, lr=1e-3, clip=1.0, batch=64, steps=5000),
    },
    tables=published_tables("aesop"),
    paper={
        "tokens of the training text": ("about 185,000 in the book", "119,933 (inferred)"),
        "tokens that a pass reads": ("", "115,200 (inferred)"),
        "different tokens": ("107", ""),
        "units of the LSTM": ("1,024", "1,024 (by the code)"),
        "streams of so many tokens a step": ("", "64 of 100 (by the code)"),
        "updates": ("", "5,000 (by the code)"),
    },
)


WIKITEXT2 = LanguageStudy(
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
    tables=published_tables("wikitext2"),
    paper={
        "tokens of the training text": ("about 2 M", "2,088,628 (inferred)"),
        "tokens that a pass reads": ("", "2,086,400 (inferred)"),
        "different tokens": ("33 K", "33,278 (inferred)"),
        "units of the LSTM": ("200", "200 (by the code)"),
        "streams of so many tokens a step": ("", "128 of 100 (by the code)"),
        "updates": ("", "10,000 (by the code)"),
    },
)
