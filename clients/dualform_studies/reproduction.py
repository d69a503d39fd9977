"""The page of results on the paper: each claim with its verdict, and figures beside the paper's.

python -m dualform_studies.reproduction RUNS docs          RUNS/single/report, RUNS/joint/report, …
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import click

from dualform.errors import Damaged, DualformError, NotFound
from dualform_studies.claims import FAILS, HOLDS, IN_PART, VERDICTS, Beside, Claim, Verdict
from dualform_studies.documents import Shown, write_page
from dualform_studies.images.attention import Found, hub_claims, often_found
from dualform_studies.report import Cell, Report, Table, beside_table, report_folder, table_markdown
from dualform_studies.studies import STUDIES

PAPER_SIZE = {"aesop": "aesop-paper"}
"""Folders of studies that were run at the paper's size, too, by `make reproduction-aesop`; each follows the other."""
RERAN = "aesop-rerun"
"""The folder of the study aesop with --rerun, to stand beside the one that stored its keys."""
_BRIEF = 14
"""Words of what was measured that the page has of a claim; the study's report has all of them."""

_HEAD = """\
`make reproduction` runs the studies and writes all that follows from their reports. Each study leaves its own report,
with every figure, table and criterion, in `runs/NAME/report/index.html`.
"""
_FIGURES = {
    "continual": {
        "recognised-mnist-top-images": "The training images that a recognised 7 attends to most, by layer (Figure 26).",
        "masks": "Test accuracy with the terms of a class removed (filled), and of a network retrained without that "
        "class (hatched). Right: how far the terms cancel each other, and how far they move the weights.",
    },
    "single": {
        "hubs": "Hubs: training images that are among the three best of many test images. Cosine leaves out the length "
        "of keys, and there the hubs vanish.",
    },
}
"""Captions by study and by the name of a figure of its report."""


@dataclass(frozen=True)
class StudyReport:
    report: Report
    claims: Sequence[Claim]
    beside_paper: Sequence[Beside]
    often_found: Found | None
    """Of a study that looks for hubs; None of others."""
    digests: Mapping[str, Sequence[str]]
    """By prompt, of a study of text: those of its best datapoints and of its sums."""
    took: Sequence[Cell]
    """The command line that made it, on how many threads, minutes rounded up, and the most GB that its process held;
    None for what it does not say."""


def read_study(run: Path) -> StudyReport | None:
    """The report in `run/report`, None if there is none.

    Raises Damaged, naming the file, for a report that is cut short or lacks something.
    """
    path = report_folder(run) / "report.json"
    if not path.is_file():
        return None
    try:
        return _read(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise Damaged(f"{path} is not a complete report of a study: {why}.", hint="Run its study again.") from error


def _read(report: Report) -> StudyReport:
    if not isinstance(report, dict):
        raise TypeError("it is not a JSON object")
    claims = [Claim(**claim) for claim in report.get("claims", ())]
    for claim in claims:
        if claim.verdict not in VERDICTS:
            raise ValueError(f"{claim.verdict!r} is not a verdict")
    seconds, peak = report.get("seconds", {}).get("all"), report.get("peak_bytes")
    return StudyReport(
        report,
        claims,
        [Beside(**row) for row in report.get("beside_paper", ())],
        often_found(report["hubs"]) if "hubs" in report else None,
        {one["name"]: (one["digests"]["top_k"], one["digests"]["sums"]) for one in report.get("prompts", ())},
        (
            f"`{report['command']}`",
            report["machine"]["threads"],
            None if seconds is None else ceil(seconds / 60),
            None if peak is None else f"{peak / 1e9:.1f}",
        ),
    )


def write_reproduction(runs: Path, docs: Path) -> Path:
    """Write `docs/results/reproduction.md` from the reports in `runs/NAME/report`, in the order of the studies.

    A study without a report there is named as not run. Raises NotFound if none has one, and what `read_study` and
    `write_page` raise; then nothing changes.
    """
    names = [name for study in STUDIES for name in (study, PAPER_SIZE.get(study)) if name]
    asked = {name: read_study(runs / name) for name in names}
    reports, reran = {name: report for name, report in asked.items() if report}, read_study(runs / RERAN)
    if not reports:
        hint = "Pass the folder of the runs, with NAME/report/report.json in it."
        raise NotFound(f"{runs} has no report of a study.", hint=hint)
    shown = [
        Shown(study, report_folder(runs / study) / f"{name}.png", caption)
        for study in reports
        for name, caption in _FIGURES.get(study, {}).items()
    ]
    rerun = _rerun(reports["aesop"], reran) if "aesop" in reports and reran else ""
    parts: list[str | Shown] = [_HEAD, _claims(reports), *shown, _figures_beside(reports), rerun, _commands(asked)]
    return write_page(docs / "results" / "reproduction.md", "The paper, reproduced", parts)


def _claims(reports: Mapping[str, StudyReport]) -> str:
    """Every claim that a study tests, those that do not hold first."""
    claims = [(name, claim) for name, report in reports.items() for claim in report.claims]
    settings = {name: report.often_found for name, report in reports.items() if report.often_found is not None}
    claims += [(", ".join(settings), claim) for claim in hub_claims(settings)]
    if not claims:
        return ""
    tested: dict[tuple[str, str], list[tuple[str, Claim]]] = {}
    for name, claim in claims:
        tested.setdefault((claim.section, claim.claim), []).append((name, claim))
    by_verdict: dict[Verdict, list[list[str]]] = {verdict: [] for verdict in VERDICTS}
    for (section, words), runs in tested.items():
        least = min((claim.verdict for _, claim in runs), key=VERDICTS.index)
        paper = [] if least == HOLDS else [runs[0][1].paper]
        by_verdict[least].append([f"{words} ({section})", *paper, _ours(runs), ", ".join(name for name, _ in runs)])
    count = {verdict: len(rows) for verdict, rows in by_verdict.items()}
    parts = [
        "## Claims",
        f"Of {len(tested)} claims, {count[HOLDS]} hold, {count[IN_PART]} hold in part and {count[FAILS]} do not hold. "
        "The report of its study gives the criterion, taken from the words of the paper, and every figure. A claim "
        "that two trainings test counts by the lesser of its verdicts.",
    ]
    for verdict, rows in by_verdict.items():
        if rows:
            columns = ("claim", *([] if verdict == HOLDS else ["paper"]), "here", "study")
            table = Table("claims", f"### {verdict.capitalize()}", columns, rows)
            parts.append(table_markdown(table))
    return "\n\n".join(parts)


def _ours(runs: Sequence[tuple[str, Claim]]) -> str:
    if len(runs) == 1:
        return _brief(runs[0][1].ours)
    differ = len({claim.verdict for _, claim in runs}) > 1
    return "; ".join(f"{name}: {_brief(claim.ours)}{f' ({claim.verdict})' if differ else ''}" for name, claim in runs)


def _brief(measured: str) -> str:
    """What was measured first, and what follows it as far as there is room."""
    first, *others = measured.split("; ")
    for other in others:
        if len(f"{first} {other}".split()) > _BRIEF:
            break
        first += f"; {other}"
    return first


def _figures_beside(reports: Mapping[str, StudyReport]) -> str:
    """Figures of ours beside those that the paper's text gives, but for ranks, which are among the claims."""
    studies: dict[Beside, list[str]] = {}
    for name, report in reports.items():
        for row in report.beside_paper:
            if row.text and not row.what.startswith("ranks of"):
                studies.setdefault(row, []).append(name)
    rows = [{"study": ", ".join(names)} | row.plain() for row, names in studies.items()]
    return f"## Figures of the paper\n\n{table_markdown(beside_table(rows))}" if rows else ""


def _rerun(stored: StudyReport, reran: StudyReport) -> str:
    """Whether a training run again answers as a memory with keys does, and what either way stores."""
    same = {True: "equal to the last bit", False: "DIFFERENT"}
    rows = [
        [prompt, *(same[one == other] for one, other in zip(digests, reran.digests[prompt], strict=True))]
        for prompt, digests in stored.digests.items()
        if prompt in reran.digests
    ]
    sizes = [f"{each.report['disk_bytes'] / 1e9:.3f}" for each in (stored, reran)]
    answers = Table(
        "rerun",
        f"`dualform study aesop --rerun` stores no keys and trains again to answer. Its memory takes {sizes[1]} GB, "
        f"and {sizes[0]} GB with keys. Its answers compared with those of the stored keys:",
        ("prompt", "ids and scores of the best datapoints", "sums by training position"),
        rows,
    )
    return f"## Rerun (appendix D)\n\n{table_markdown(answers)}"


def _commands(asked: Mapping[str, StudyReport | None]) -> str:
    """The command of each study and what it took; None of one that was not run."""
    rows: list[Sequence[Cell]] = [
        (name, *(report.took if report else ("not run", None, None, None))) for name, report in asked.items()
    ]
    caption = (
        "DATA is the folder of the datasets, RUN an empty folder. Minutes are wall-clock time on a machine that did "
        "other things, too."
    )
    columns = ["study", "command", "threads", "minutes"]
    if any(row[-1] for row in rows):
        caption += " RAM is the most that the process held."
        columns.append("RAM (GB)")
    told = Table("commands", caption, columns, [row[: len(columns)] for row in rows])
    return f"## Commands\n\n{table_markdown(told)}"


@click.command("document")
@click.argument("runs", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.argument("docs", type=click.Path(path_type=Path, file_okay=False))
def main(runs: Path, docs: Path) -> None:
    """Write DOCS/results/reproduction.md from the studies run into RUNS/NAME."""
    try:
        click.echo(write_reproduction(runs, docs))
    except DualformError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
