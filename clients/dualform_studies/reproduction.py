"""The page of results on the paper: each claim with its verdict, and figures beside the paper's.

python -m dualform_studies.reproduction RUNS docs          RUNS/single/report, RUNS/joint/report, …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dualform_studies.claims import FAILS, HOLDS, IN_PART, VERDICTS, Beside, Claim, Verdict
from dualform_studies.documents import (
    RESULTS,
    Captions,
    Shown,
    StudyReport,
    commands_part,
    document_command,
    figures_of,
    read_studies,
    read_study,
    write_page,
)
from dualform_studies.images.hubs import hub_claims
from dualform_studies.report import Table, beside_table, table_markdown
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
_FIGURES: Captions = {
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


def write_reproduction(runs: Path, docs: Path) -> Path:
    """Write `docs/results/reproduction.md` from the reports in `runs/NAME/report`, in the order of the studies.

    A study without a report there is named as not run. Raises what `read_studies` and `write_page` raise; then nothing
    changes.
    """
    names = [name for study in STUDIES for name in (study, PAPER_SIZE.get(study)) if name]
    asked, reports = read_studies(runs, names, "a study")
    reran = read_study(runs / RERAN)
    parts: list[str | Shown] = [_HEAD, _claims(reports), *figures_of(runs, reports, _FIGURES), _figures_beside(reports)]
    parts += [_rerun(reports["aesop"], reran) if "aesop" in reports and reran else "", commands_part(asked)]
    return write_page(docs / RESULTS / "reproduction.md", "The paper, reproduced", parts)


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
        by_verdict[least].append([f"{words} ({section})", *paper, _ours(runs), _named(runs)])
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


def _named(runs: Sequence[tuple[str, Claim]]) -> str:
    return ", ".join(name for name, _ in runs)


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
    rows = [
        [prompt, *(_sameness(*pair) for pair in zip(digests, reran.digests[prompt], strict=True))]
        for prompt, digests in stored.digests.items()
        if prompt in reran.digests
    ]
    sizes = ["?" if report.disk_bytes is None else f"{report.disk_bytes / 1e9:.3f}" for report in (stored, reran)]
    answers = Table(
        "rerun",
        f"`dualform study aesop --rerun` stores no keys and trains again to answer. Its memory takes {sizes[1]} GB, "
        f"and {sizes[0]} GB with keys. Its answers compared with those of the stored keys:",
        ("prompt", "ids and scores of the best datapoints", "sums by training position"),
        rows,
    )
    return f"## Rerun (appendix D)\n\n{table_markdown(answers)}"


def _sameness(one: str, other: str) -> str:
    return "equal to the last bit" if one == other else "DIFFERENT"


main = document_command(write_reproduction, "Write DOCS/results/reproduction.md from the studies run into RUNS/NAME.")


if __name__ == "__main__":
    main()
