"""The page of a language study, and the estimate before training.

What a language study will take, said before it trains: slots, bytes and seconds, with keys stored and by rerun.

Some steps of the training are timed; what recording and answering add is arithmetic.
Where keys are stored, the study trains once more, to compare the recorded training with a plain one; a rerun trains
twice as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

from dualform_studies.claims import Beside, Claim, beside_table, claims_table
from dualform_studies.figures import INK, MARKS, new_figure
from dualform_studies.report import Cell, Page, Report, Table, percent, report_folder
from dualform_studies.text.attention import BEST, Attention, Questions, Standard, best, prepare
from dualform_studies.text.corpora import Tokens
from dualform_studies.text.course import show_course
from dualform_studies.text.observations import PASSAGES, heading_of, is_most, passage_of, without_verdict
from dualform_studies.text.prompts import Passage, Prompt
from dualform_studies.text.runs import Task
from dualform_studies.text.training import Checkpoint, LanguageModel, reads_evenly, updates_to_stop_at


def describe_corpus(task: Task) -> Report:
    steps, recipe = task.of_a_pass, task.recipe
    lacking = float(task.vocabulary.lacks(task.test).mean())
    return {
        "name": task.corpus.name,
        "unit": task.corpus.unit,
        "trained_on": task.corpus.train_split,
        "note": task.corpus.note,
        "train_tokens": len(task.train),
        "test_tokens": len(task.test),
        "vocabulary": len(task.vocabulary),
        "unknown": float((task.test.ids == task.vocabulary.unknown).mean() - lacking),
        "lacking": lacking,
        "chunks_of_a_pass": steps,
        "tokens_of_a_pass": steps * recipe.batch * recipe.unroll,
        "tokens_read": min(steps, recipe.steps) * recipe.batch * recipe.unroll,
        "passes": recipe.steps / steps,
        "digest": digest_of(task),
    }


def digest_of(task: Task) -> str:
    """Of the training text and the tokens' numbers, so that passages are never cut from another."""
    parts = (task.corpus.train, *task.vocabulary.words)
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()


def same_weights(one: LanguageModel, other: LanguageModel) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


_BINS = 240
"""Stretches of the training text that a figure tells apart."""
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_SMOOTHED = 25
"""Steps that a line over training time is averaged over, at most."""
_GAP = 0.033
"""Between labels of one row, as a share of the panel's width."""
_ROOM = 0.22
"""Above and below the sums, for the labels, as a share of what the sums span."""


def draw_attention(
    path: Path, asking: Questions, attention: Attention, prompt: int, unit: str, standard: Standard | None = None
) -> Path:
    """Sums by training token position along the text, the best of them and the paper's passages marked; beside it, the
    mean weight by step."""
    sums = attention.by_position.sums[asking.last[prompt]]
    with new_figure(path, 2.7) as figure:
        along, over = figure.subplots(1, 2, width_ratios=(2.6, 1))
        _draw_bands(along, attention.positions, sums)
        leading = best(sums, PASSAGES)
        ranks = [str(rank) for rank in range(1, len(leading) + 1)]
        along.scatter(
            attention.positions[leading], sums[leading], s=20, marker=MARKS[1], color=INK[1], zorder=4,
            label=f"the {len(leading)} best, by rank",
        )  # fmt: skip
        _label(along, attention.positions[leading], sums[leading], ranks, INK[1], above=True)
        if standard is not None:
            _draw_published(along, attention.positions, sums, standard)
        along.margins(x=0.01)
        along.set_xlabel(f"training token position ({unit}s from the beginning of the text)")
        along.set_ylabel("sum of absolute attention\nweights by position")
        along.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1.2, handlelength=1.4)
        _draw_over_time(over, attention, prompt)
        for panel in (along, over):
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.xaxis.set_major_locator(MaxNLocator(6 if panel is along else 3))
            panel.yaxis.set_major_locator(MaxNLocator(5))
    return path


def _draw_bands(panel: Axes, positions: NDArray[np.int64], sums: NDArray[np.float64]) -> None:
    """How the sums are distributed in each stretch of the text."""
    starts, levels = quantiles(sums, _BINS, _LEVELS)
    places = np.append(positions[starts], positions[-1])
    levels = np.concatenate([levels, levels[:, -1:]], axis=1)
    low, lower, middle, upper, high = levels
    panel.fill_between(places, low, high, step="post", color=INK[0], alpha=0.25, linewidth=0, label="5 to 95 % of all")
    panel.fill_between(places, lower, upper, step="post", color=INK[0], alpha=0.5, linewidth=0, label="25 to 75 %")
    panel.plot(places, middle, drawstyle="steps-post", color="black", linewidth=0.6, label="median")
    span = (sums.max() - sums.min()) or 1.0
    panel.set_ylim(sums.min() - _ROOM * span, sums.max() + _ROOM * span)


def _draw_published(panel: Axes, positions: NDArray[np.int64], sums: NDArray[np.float64], standard: Standard) -> None:
    """The paper's passages, where they were read, under their signs."""
    read = [
        (int(np.searchsorted(positions, place)), row.sign)
        for place, row in zip(standard.places, standard.table.rows, strict=True)
        if place is not None and np.isin(place, positions)
    ]
    if not read:
        return
    at = np.array([index for index, _ in read])
    panel.scatter(
        positions[at], sums[at], s=24, marker=MARKS[2], color=INK[2], edgecolor="black", linewidth=0.4, zorder=5,
        label=f"passages of the paper's Table {standard.table.number}",
    )  # fmt: skip
    _label(panel, positions[at], sums[at], [sign for _, sign in read], "black", above=False)


def _label(
    panel: Axes,
    places: NDArray[np.int64],
    heights: NDArray[np.float64],
    words: Sequence[str],
    colour: str,
    *,
    above: bool,
) -> None:
    """Names of points in a row above or below all sums, each joined to its point by a thin line."""
    panel.margins(x=0.01)
    low, high = panel.get_xlim()
    columns = spread((places - low) / (high - low), _GAP)
    for place, height, column, word in zip(places, heights, columns, words, strict=True):
        panel.annotate(
            word,
            (place, height),
            xytext=(column, 0.95 if above else 0.05),
            textcoords="axes fraction",
            ha="center",
            va="center",
            fontsize=7.5,
            color=colour,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": colour, "shrinkA": 1, "shrinkB": 2},
        )


def _draw_over_time(panel: Axes, attention: Attention, prompt: int) -> None:
    weights = attention.by_step.sums[prompt] / attention.by_step.counts
    steps = np.array([step for (step,) in attention.by_step.groups])
    width = max(1, min(_SMOOTHED, len(steps) // 8))
    panel.plot(steps, weights, color=INK[3], alpha=0.5, linewidth=0.5, label="a step")
    smooth = np.convolve(weights, np.ones(width) / width, mode="valid")
    panel.plot(
        steps[width // 2 : width // 2 + len(smooth)], smooth, color="black", linewidth=1.1, label=f"mean of {width}"
    )
    panel.set_xlabel("training step")
    panel.set_ylabel("mean absolute attention\nweight of a step's tokens")
    panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, columnspacing=1.0, handlelength=1.2)


def quantiles(
    values: NDArray[np.float64], bins: int, levels: Sequence[float]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """First index of stretches of about equal length, `bins` of them or fewer, and float64[levels, stretches]: the
    quantiles of the values in each."""
    starts = np.unique(np.arange(bins) * len(values) // bins)
    parts = np.split(values, starts[1:])
    return starts, np.stack([np.quantile(part, levels) for part in parts], axis=1)


def spread(places: NDArray[np.floating[Any]], gap: float) -> NDArray[np.float64]:
    """float64[n]: where labels of float64[n] places between 0 and 1 go, so that they keep their order, lie between 0
    and 1, and no two are nearer than `gap`, or than there is room for."""
    order = np.argsort(places, kind="stable")
    gap = min(gap, 1 / max(1, len(places)))
    steps = gap * np.arange(len(places))
    # Each is pushed right by those before it, and all of them back from the right edge.
    pushed = np.maximum.accumulate(np.clip(places[order], gap / 2, None) - steps)
    pushed = np.minimum(pushed, 1 - gap / 2 - steps[-1:]) + steps
    found = np.empty(len(places))
    found[order] = pushed
    return found


def show_prompt(page: Page, prompt: Report, report: Report) -> None:
    name, unit, table = prompt["name"], report["corpus"]["unit"], prompt["table"]
    page.heading(heading_of(prompt))
    if not prompt["in_the_text"]:
        page.paragraph("The texts at hand do not have this passage of the paper; it was asked in the paper's words.")
    if prompt["unread"] is not None:
        page.paragraph(
            f"The query is {unit} {prompt['unread']:,} of the training text, beyond what the streams read: it was not "
            "itself trained on."
        )
    query = Passage(**prompt["query"])
    if prompt["tokens"][-1]["unknown"]:
        page.paragraph(f"The training text does not have the marked {unit}: the network reads it as unknown.")
    page.table(
        f"{name}-passages",
        f"The training passages attended to most by the marked {unit}"
        + (f", beside those of Table {table} of the paper" if table else "")
        + (f", in which the paper sees {prompt['remark']}" if table else "")
        + f". {prompt['of_these_also_signed']} of these {len(prompt['passages'])} also lead where weights are summed "
        "with their sign." + _marks(prompt["unmarked"]),
        [
            "",
            "training passage",
            "from",
            "summed weight",
            *(
                [
                    "the paper's passage",
                    "from",
                    f"its rank here, of {report['corpus']['tokens_read']:,}",
                    "its rank by signed sums",
                ]
                if table
                else []
            ),
        ],
        _passage_rows(prompt, query, bool(table)),
    )
    _show_forms(page, prompt, report)
    _show_prevalence(page, prompt, report)
    for sentence in without_verdict(prompt, report):
        page.paragraph(sentence)
    page.figure(
        report_folder(page.run) / f"{name}-attention.png",
        "Absolute attention weights of the marked token, summed by training token position along the text (left: how "
        "the sums are distributed in each stretch of it, and the positions of the passages above, by rank"
        f"{_signs(prompt)}), and the mean weight by training step (right).",
    )
    page.table(
        f"{name}-tokens",
        f"{_which(prompt, unit)} of what was read of the prompt, and the training passage that it attends to most.",
        [unit, "training passage", "from", "summed weight"],
        [[_token(entry), passage_of(entry).marked(), entry["title"], entry["sum"]] for entry in prompt["tokens"]],
    )


def _show_forms(page: Page, prompt: Report, report: Report) -> None:
    """What the best positions show of what the paper sees in its passages."""
    if not prompt["forms"]:
        return
    page.table(
        f"{prompt['name']}-forms",
        f"How many of the {BEST} best positions, and of all {report['corpus']['tokens_read']:,}, show what; and of how "
        "many pairs with a position that its page alone rules out a case has the greater sum.",
        ["what they show", "counted where", f"of the {BEST} best", "of all", "ruled out by their page", "pairs"],
        [
            [
                form["claim"],
                form["rule"],
                form["of_ten"],
                form["of_all"],
                form["elsewhere"],
                None if form["told_apart"] is None else percent(form["told_apart"], ".3g"),
            ]
            for form in prompt["forms"]
        ],
    )


def _show_prevalence(page: Page, prompt: Report, report: Report) -> None:
    """How other queries of the same form fare."""
    rows: list[list[Cell]] = [
        [
            told["claim"],
            told["of_all"],
            told["in_the_test_text"],
            len(told["of_ten"]),
            sum(map(is_most, told["of_ten"])),
            ", ".join(map(str, told["of_ten"])),
        ]
        for told in report["prevalence"]
        if told["table"] == prompt["table"]
    ]
    if not rows:
        return
    page.table(
        f"{prompt['name']}-prevalence",
        "Other queries of the same form from the test text, chosen evenly along it where there are many: of how many "
        f"two thirds of the {BEST} best positions are of the form, too.",
        [
            "form",
            "positions of the training text",
            "other tokens of the test text",
            "queries asked",
            "of these with two thirds",
            f"of the {BEST} best, query by query",
        ],
        rows,
    )


def _marks(unmarked: Sequence[str]) -> str:
    if not unmarked:
        return ""
    return f" The paper's text as we have it lost the marks of {', '.join(unmarked)}: they stand as in its other rows."


def _signs(prompt: Report) -> str:
    """What the signs of the paper's passages mean that the figure has: those that were read."""
    read = [row for row in prompt["published"] if row["rank_here"] is not None]
    shown = ", ".join(row["sign"] for row in read if row["leads"])
    others = ", ".join(row["sign"] for row in read if not row["leads"])
    words = f"; of Table {prompt['table']} of the paper: {shown}, passages shown by their rank there" if shown else ""
    return words + (f"; {others}, its example that is not attended to" if others else "")


def _which(prompt: Report, unit: str) -> str:
    asked = len(prompt["tokens"])
    return f"Every {unit}" if asked == prompt["length"] else f"The last {asked:,} of {prompt['length']:,} {unit}s"


def _token(entry: Report) -> str:
    return Passage("", entry["of"], "").marked().token + (" (unknown)" if entry["unknown"] else "")


def _passage_rows(prompt: Report, query: Passage, published: bool) -> Sequence[Sequence[Cell]]:
    rows: list[list[Cell]] = [["query", query.marked(), "", None]]
    rows += [
        [str(rank), passage_of(entry).marked(), entry["title"], entry["sum"]]
        for rank, entry in enumerate(prompt["passages"], start=1)
    ]
    if published:
        nothing: list[Cell] = ["", "", None, None]
        told = [nothing] + [
            [passage_of(entry).marked(), entry["title"], entry["rank_here"], entry["rank_signed"]]
            for entry in prompt["published"]
        ]
        for at in range(max(len(rows), len(told))):
            if at >= len(rows):
                rows.append(["", "", "", None])
            rows[at] += told[at] if at < len(told) else nothing
    return rows


def language_page(run: Path, report: Report, claims: Sequence[Claim]) -> Page:
    page = Page(run, report["title"])
    _describe(page, report)
    if claims:
        page.show(claims_table(claims))
    page.show(beside_table([(report["study"], Beside(**row)) for row in report["beside_paper"]]))
    _show_perplexity(page, report)
    show_course(page, report)
    for prompt in report["prompts"]:
        show_prompt(page, prompt, report)
    page.heading("Asking on")
    page.paragraph(_asking_on(report))
    return page


def _describe(page: Page, report: Report) -> None:
    corpus, recipe = report["corpus"], report["recipe"]
    unit = corpus["unit"]
    cut_short = (
        ""
        if reads_evenly(recipe["steps"], corpus["chunks_of_a_pass"])
        else ", the last of them cut short: some tokens were read once more than others, and their sums are greater "
        "for that alone"
    )
    page.paragraph(
        f"A {unit}-level language model of one LSTM layer with {recipe['hidden']:,} units, trained on "
        f"{corpus['trained_on']} ({corpus['train_tokens']:,} {unit}s) for {recipe['steps']:,} updates. "
        f"{recipe['batch']} streams read the text side by side, each a run of {corpus['chunks_of_a_pass']:,} chunks of "
        f"{recipe['unroll']} {unit}s, which is {corpus['tokens_of_a_pass']:,} {unit}s a pass; the rest at the end of "
        f"the text is not read. That makes {corpus['passes']:.1f} passes{cut_short}. The state is carried from chunk "
        f"to chunk; it begins anew with each pass, and at any step with probability {recipe['reset']:g}. The "
        f"vocabulary has {corpus['vocabulary']:,} {unit}s. Preset `{report['preset']}`, seed {report['seed']}."
    )
    if corpus["note"]:
        page.paragraph(corpus["note"])
    way = "without keys, the questions answered while it ran a second time" if report["rerun"] else "with its keys"
    page.paragraph(
        f"The training was recorded {way}: {report['slots']:,} datapoints, "
        f"{report['disk_bytes'] / 1e9:.2f} GB on disk. Attention weights are those of the LSTM's one linear "
        "transformation, whose key is the state before a token and the token's input; the query is that of the last of "
        "100 tokens read from a state of zeros. The absolute values of all weights that go to the same training token "
        "position are summed, as in the paper's code; the passages below stand around the positions with the greatest "
        "sums."
    )


def _show_perplexity(page: Page, report: Report) -> None:
    corpus, recipe = report["corpus"], report["recipe"]
    rows = [["recorded", report["perplexity"]["recorded"], report["bits"]["recorded"], _sameness(report)]]
    if "plain" in report["perplexity"]:
        rows.append(["plain PyTorch", report["perplexity"]["plain"], report["bits"]["plain"], "-"])
    unknown = (
        f"; {100 * corpus['unknown']:.2f} % of them are <unk> in the corpus itself, and "
        f"{100 * corpus['lacking']:.2f} % are read as <unk>, as the training text does not have them"
        if corpus["unit"] == "word"
        else ""
    )
    page.table(
        "perplexity",
        f"How well the test text ({corpus['test_tokens']:,} {corpus['unit']}s{unknown}) is predicted. It is read in "
        f"{recipe['batch']} streams, each from a state of zeros, as the paper's code reads it; the paper states no "
        "perplexity.",
        ["training", "perplexity", f"bits per {corpus['unit']}", "weights"],
        rows,
    )


def _sameness(report: Report) -> str:
    if report["unharmed"] is None:
        return "those of the second training, step by step (a rerun refuses any other)"
    return "equal to the last bit to the plain training's" if report["unharmed"] else "DIFFERENT"


def _asking_on(report: Report) -> str:
    study = report["study"]
    if report["rerun"]:
        return (
            "No keys are stored, so questions about other prompts need the training once more: give them to another "
            f"run, `dualform study {study} --data DATA --out RUN --rerun --prompt TEXT`."
        )
    return (
        f"`dualform study {study} --data DATA --out RUN --prompt TEXT`, RUN being this run's folder, adds a prompt "
        "to this page without training again. The queries of the prompts asked last are in `report/queries.npy`, one a "
        "token: `dualform topk RUN --layer lstm --query RUN/report/queries.npy` lists single datapoints, "
        "`dualform group-sum` with `--by position` every sum."
    )


_WARM_UP, _TIMED = 2, 8
"""Steps: the first of a process are slow, as threads start and memory is mapped."""
_SLOT_BYTES, _DIGEST_BYTES = 12, 48
"""Of a slot's columns in DuckDB, compressed, and of a step's digests, about."""
_PRODUCT_SECONDS = 1e-9
"""For one number of a key and one of a query, about, on one core."""


def dry_run(
    study: str, task: Task, prompts: Sequence[Prompt], compared: Sequence[int], others: Sequence[Tokens]
) -> Report:
    """Slots, bytes and seconds of both ways; nothing is written. `compared` and `others`: see `prepare`."""
    recipe = task.recipe
    replace(task, recipe=recipe.with_steps(_WARM_UP)).run_plain()
    network, seconds = replace(task, recipe=recipe.with_steps(_TIMED)).run_plain()
    nothing = np.empty((0, recipe.d_in), dtype=np.float32)
    stops = updates_to_stop_at(recipe.steps, task.of_a_pass)[:-1]
    seen = [Checkpoint(stop, 1.0, nothing) for stop in stops]
    asking = prepare(network, task.vocabulary, prompts, compared, seen, others)
    queries = round(asking.scored(recipe.steps))
    numbers = recipe.slots * recipe.d_in
    table = _SLOT_BYTES * recipe.slots + 2 * sum(4 * value.numel() for value in network.state_dict().values())
    training_twice = 2 * recipe.steps * seconds / _TIMED + _PRODUCT_SECONDS * numbers * queries
    report: Report = {
        "study": study,
        "seed": task.seed,
        "dry_run": True,
        "slots": recipe.slots,
        "key_width": recipe.d_in,
        "queries": queries,
        "step_seconds": seconds / _TIMED,
        "stored": {"bytes": 4 * numbers + table, "seconds": training_twice},
        "rerun": {"bytes": _DIGEST_BYTES * recipe.steps + table, "seconds": training_twice},
    }
    report["tables"] = [_table(report).plain()]
    return report


def _table(report: Report) -> Table:
    ways = {"stored": "keys stored, and trained plainly", "rerun": "--rerun: no keys stored, trained twice"}
    return Table(
        "estimate",
        f"{report['study']}: {report['slots']:,} slots with keys of {report['key_width']:,} numbers, "
        f"{report['queries']:,} questions. A step takes {report['step_seconds']:.3g} s here.",
        ["way", "slots", "disk (GB)", "time (minutes)"],
        [
            [words, report["slots"], round(report[way]["bytes"] / 1e9, 3), round(report[way]["seconds"] / 60, 1)]
            for way, words in ways.items()
        ],
    )
