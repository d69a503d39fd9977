"""Puts the pages of all studies into one document, with their figures beside it.

python -m dualform_studies.reproduction RUNS docs          RUNS/single/report, RUNS/joint/report, …
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click

from dualform_studies.dual_form_figures import CAPTIONS, draw_dual_form
from dualform_studies.pages.claims import beside_table
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Link, Table
from dualform_studies.pages.markdown import moved, part_anchor, table_markdown
from dualform_studies.studies import STUDIES

REPLAYED = "aesop-replay"
"""The folder of the study aesop with --replay, to stand beside the one that stored its keys."""

_HEAD = """\
# The paper, reproduced

Every experiment of "The Dual Form of Neural Networks Revisited" (Irie, Csordás, Schmidhuber, ICML 2022), and of a
study of small attention-only Transformers, run again with dualform. `make reproduction` runs every study and writes
this file; nothing in it is written by hand. Each part names its command, machine and versions.
"""


def write_reproduction(runs: Path, docs: Path) -> Path:
    """Write `docs/reproduction.md` from the reports that lie in `runs/NAME/report`, in the order of the studies.

    A study without a report there is named as not run.
    """
    figures = docs / "reproduction"
    shutil.rmtree(figures, ignore_errors=True)
    parts = [_HEAD, _dual_form(figures), _claims(runs), _overview(runs)]
    for name in STUDIES:
        folder = report_folder(runs / name)
        if not (folder / "index.md").is_file():
            continue
        (figures / name).mkdir(parents=True)
        for figure in sorted(folder.glob("*.png")):
            shutil.copy(figure, figures / name / figure.name)
        parts.append(moved((folder / "index.md").read_text(encoding="utf-8"), f"reproduction/{name}", name).strip())
    stored, replayed = _report_of(runs, "aesop"), _report_of(runs, REPLAYED)
    if stored and replayed:
        parts.append(_replay(stored, replayed))
    document = docs / "reproduction.md"
    document.write_text("\n\n".join(part.strip() for part in parts if part) + "\n", encoding="utf-8")
    return document


def _dual_form(figures: Path) -> str:
    """What all of it is about, drawn (Figures 1 and 2 of the paper)."""
    shown = []
    for path in draw_dual_form(figures / "dual-form"):
        caption = CAPTIONS[path.stem]
        shown.append(f"![{caption}](reproduction/dual-form/{path.name})\n\n*{caption}*")
    return "\n\n".join(shown)


def _claims(runs: Path) -> str:
    """Every claim of the paper that a study tests, with its verdict and a link to what was measured."""
    reports = [(name, _report_of(runs, name)) for name in STUDIES]
    claims = [(name, claim) for name, report in reports if report for claim in report.get("claims", ())]
    if not claims:
        return ""
    rows = [
        (
            f"{claim['claim']} ({claim['section']})",
            claim["paper"],
            claim["ours"],
            claim["verdict"],
            Link(name, f"#{part_anchor(name, claim['heading'])}"),
        )
        for name, claim in claims
    ]
    columns = ("claim", "paper", "ours", "verdict", "measured in")
    caption = (
        "What the paper observes, what came of it here, and whether it holds by a criterion that was fixed before."
    )
    return table_markdown(Table("claims", caption, columns, rows))


def _overview(runs: Path) -> str:
    """What each study was told, and figures of ours beside those that the paper names."""
    reports = {name: _report_of(runs, name) for name in STUDIES}
    commands = [(name, f"`{report['command']}`" if report else "not run") for name, report in reports.items()]
    beside = [(name, row) for name, report in reports.items() if report for row in report.get("beside_paper", ())]
    tables = (
        Table("overview", "The studies; DATA and RUN are folders of the reader's own.", ("study", "command"), commands),
        beside_table(beside),
    )
    return "\n\n".join(map(table_markdown, tables))


def _replay(stored: Report, replayed: Report) -> str:
    """Whether a training run again answers as a memory with keys does, and what either way takes."""
    rows = [
        [one["name"], *(_sameness(one["digests"][part] == other["digests"][part]) for part in ("top_k", "sums"))]
        for one, other in zip(stored["prompts"], replayed["prompts"], strict=True)
    ]
    answers = Table(
        "replay",
        f"`{replayed['command']}` beside `{stored['command']}`: the ids and scores of the best datapoints, and every "
        "token's sums by training position.",
        ("prompt", "best datapoints", "sums"),
        rows,
    )
    cost = Table(
        "replay-cost",
        "What either way took.",
        ("way", "disk (GB)", "trainings and questions (s)"),
        [
            [way, f"{report['disk_bytes'] / 1e9:.3f}", f"{sum(report['seconds'].values()):.0f}"]
            for way, report in (("keys stored", stored), ("trained again", replayed))
        ],
    )
    return "\n\n".join(["## Replay (appendix D)", table_markdown(answers), table_markdown(cost)])


def _sameness(same: bool) -> str:
    return "equal to the last bit" if same else "DIFFERENT"


def _report_of(runs: Path, name: str) -> Report | None:
    path = report_folder(runs / name) / "report.json"
    report: Report | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return report


@click.command()
@click.argument("runs", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("docs", type=click.Path(path_type=Path, file_okay=False))
def main(runs: Path, docs: Path) -> None:
    """Write DOCS/reproduction.md and DOCS/reproduction/ from the studies run into RUNS/NAME."""
    click.echo(write_reproduction(runs, docs))


if __name__ == "__main__":
    main()
