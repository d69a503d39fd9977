"""The page of results on the paper: each claim with its verdict, and figures beside the paper's.

python -m dualform_studies.reproduction RUNS docs          RUNS/single/report, RUNS/joint/report, …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dualform_studies.images.claims.hub_claims import hub_claims
from dualform_studies.pages.claims import FAILS, HOLDS, IN_PART, VERDICTS, Claim, Verdict, beside_table
from dualform_studies.pages.document import (
    RESULTS,
    Captions,
    Shown,
    commands_part,
    document_command,
    figures_of,
    read_studies,
    write_page,
)
from dualform_studies.pages.items import Table
from dualform_studies.pages.markdown import table_markdown
from dualform_studies.pages.study_report import StudyReport, read_study
from dualform_studies.studies import STUDIES

PAPER_SIZE = {"aesop": "aesop-paper"}
"""Folders of studies that were run at the paper's size, too, by `make reproduction-aesop`; each follows the other."""
RERAN = "aesop-rerun"
"""The folder of the study aesop with --rerun, to stand beside the one that stored its keys."""

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
        by_verdict[least].append([f"{words} ({section})", runs[0][1].paper, _ours(runs), _named(runs)])
    count = {verdict: len(rows) for verdict, rows in by_verdict.items()}
    parts = [
        "## Claims",
        f"Of {len(tested)} claims, {count[HOLDS]} hold, {count[IN_PART]} hold in part and {count[FAILS]} do not hold. "
        "Each is judged by a criterion taken from the words of the paper, which the report of its study gives. A claim "
        "that two trainings test counts by the lesser of its verdicts.",
    ]
    for verdict, rows in by_verdict.items():
        if rows:
            table = Table("claims", f"### {verdict.capitalize()}", ("claim", "paper", "here", "study"), rows)
            parts.append(table_markdown(table, folded=False))
    return "\n\n".join(parts)


def _ours(runs: Sequence[tuple[str, Claim]]) -> str:
    if len(runs) == 1:
        return runs[0][1].ours
    differ = len({claim.verdict for _, claim in runs}) > 1
    return "; ".join(f"{name}: {claim.ours}{f' ({claim.verdict})' if differ else ''}" for name, claim in runs)


def _named(runs: Sequence[tuple[str, Claim]]) -> str:
    return ", ".join(name for name, _ in runs)


def _figures_beside(reports: Mapping[str, StudyReport]) -> str:
    """Figures of ours beside those that the paper's text gives."""
    rows = [(name, row) for name, report in reports.items() for row in report.beside_paper if row.text]
    return f"## Figures of the paper\n\n{table_markdown(beside_table(rows), folded=False)}" if rows else ""


def _rerun(stored: StudyReport, reran: StudyReport) -> str:
    """Whether a training run again answers as a memory with keys does, and what either way stores."""
    rows = [
        [prompt, *(_sameness(*pair) for pair in zip(digests, reran.digests[prompt], strict=True))]
        for prompt, digests in stored.digests.items()
        if prompt in reran.digests
    ]
    answers = Table(
        "rerun",
        f"`{reran.command}` stores no keys and trains again to answer. Its answers compared with those of "
        f"`{stored.command}`:",
        ("prompt", "ids and scores of the best datapoints", "sums by training position"),
        rows,
    )
    cost = Table(
        "rerun-cost",
        "The size of either memory:",
        ("way", "disk (GB)"),
        [
            [way, None if report.disk_bytes is None else f"{report.disk_bytes / 1e9:.3f}"]
            for way, report in (("keys stored", stored), ("trained again", reran))
        ],
    )
    return "\n\n".join(["## Rerun (appendix D)", table_markdown(answers), table_markdown(cost)])


def _sameness(one: str, other: str) -> str:
    return "equal to the last bit" if one == other else "DIFFERENT"


main = document_command(write_reproduction, "Write DOCS/results/reproduction.md from the studies run into RUNS/NAME.")


if __name__ == "__main__":
    main()
