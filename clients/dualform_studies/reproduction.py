"""Puts the pages of all studies into one document, with their figures beside it.

python -m dualform_studies.reproduction RUNS docs          RUNS/single/report, RUNS/joint/report, …
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from dualform_studies.dual_form_figures import CAPTIONS, draw_dual_form
from dualform_studies.images.claims.hub_claims import hub_claims
from dualform_studies.pages.claims import FAILS, HOLDS, IN_PART, VERDICTS, Claim, Verdict, beside_table
from dualform_studies.pages.document import document_command, page_parts, read_studies, write_document
from dualform_studies.pages.gathered import GatheredFigures
from dualform_studies.pages.items import Link, Table
from dualform_studies.pages.markdown import part_anchor, table_markdown
from dualform_studies.pages.study_list import commands_part, contents_part
from dualform_studies.pages.study_report import StudyReport, read_study
from dualform_studies.studies import STUDIES

PAPER_SIZE = {"aesop": "aesop-paper"}
"""Folders of studies that were run at the paper's size, too, by `make reproduction-aesop`; each follows the other."""
RERAN = "aesop-rerun"
"""The folder of the study aesop with --rerun, to stand beside the one that stored its keys."""

_HEAD = """\
# The paper, reproduced

Every experiment of "The Dual Form of Neural Networks Revisited" (Irie, Csordás, Schmidhuber, ICML 2022), and of a
study of small attention-only Transformers, run again with dualform. `make reproduction` runs every study and writes
this file; nothing in it is written by hand. Each part names its command, machine and versions.
"""


def write_reproduction(runs: Path, docs: Path) -> Path:
    """Write `docs/reproduction.md` from the reports that lie in `runs/NAME/report`, in the order of the studies.

    A study without a report there is named as not run. Raises what `read_studies` and `GatheredFigures.take` raise;
    then nothing changes.
    """
    names = [name for study in STUDIES for name in (study, PAPER_SIZE.get(study)) if name]
    asked, reports = read_studies(runs, names, "a study")
    figures = GatheredFigures("reproduction")
    with TemporaryDirectory() as scratch:
        parts = [_HEAD, _dual_form(figures, Path(scratch)), _claims(reports), _figures_beside(reports)]
        parts += [commands_part(asked), contents_part(reports), *page_parts(figures, runs, reports)]
        reran = read_study(runs / RERAN)
        if "aesop" in reports and reran:
            parts.append(_rerun(reports["aesop"], reran))
        figures.copy(docs)
    return write_document(docs, "reproduction", parts)


def _dual_form(figures: GatheredFigures, scratch: Path) -> str:
    """What all of it is about, drawn (Figures 1 and 2 of the paper)."""
    shown = []
    for path in draw_dual_form(scratch):
        caption = CAPTIONS[path.stem]
        shown.append(f"![{caption}]({figures.take('dual-form', path)})\n\n*{caption}*")
    return "\n\n".join(shown)


def _claims(reports: Mapping[str, StudyReport]) -> str:
    """Every claim of the paper that a study tests, with its verdict and a link to what was measured."""
    claims = [(name, claim) for name, report in reports.items() for claim in report.claims]
    settings = {name: report.often_found for name, report in reports.items() if report.often_found is not None}
    claims += [(next(iter(settings)), claim) for claim in hub_claims(settings)]
    if not claims:
        return ""
    rows = [
        (
            f"{claim.claim} ({claim.section})",
            claim.paper,
            claim.ours,
            claim.verdict,
            Link(name, f"#{part_anchor(name, claim.heading)}"),
        )
        for name, claim in claims
    ]
    columns = ("claim", "paper", "ours", "verdict", "measured in")
    count = _count(claim for _, claim in claims)
    caption = (
        "What the paper observes, what came of it here, and whether it holds by a criterion that is taken from the "
        f"paper's words. Of {count.total()} claims, {count[HOLDS]} hold, {count[IN_PART]} hold in part and "
        f"{count[FAILS]} do not hold; one that several trainings put to the test counts once, by the least of its "
        "verdicts."
    )
    return f"## Claims\n\n{table_markdown(Table('claims', caption, columns, rows), folded=False)}"


def _count(claims: Iterable[Claim]) -> Counter[Verdict]:
    """How many claims have each verdict; those of one section and one wording are one claim."""
    least: dict[tuple[str, str], Verdict] = {}
    for one in claims:
        same = one.section, one.claim
        least[same] = min(least.get(same, HOLDS), one.verdict, key=VERDICTS.index)
    return Counter(least.values())


def _figures_beside(reports: Mapping[str, StudyReport]) -> str:
    """Figures of ours beside those that the paper names."""
    rows = [(name, row) for name, report in reports.items() for row in report.beside_paper]
    return f"## Figures beside the paper's\n\n{table_markdown(beside_table(rows), folded=False)}" if rows else ""


def _rerun(stored: StudyReport, reran: StudyReport) -> str:
    """Whether a training run again answers as a memory with keys does, and what either way stores."""
    rows = [
        [prompt, *(_sameness(*pair) for pair in zip(digests, reran.digests[prompt], strict=True))]
        for prompt, digests in stored.digests.items()
        if prompt in reran.digests
    ]
    answers = Table(
        "rerun",
        f"`{reran.command}` beside `{stored.command}`: the ids and scores of the best datapoints, and the "
        "signed sums of each prompt's last token by training position, of the prompts that both were asked.",
        ("prompt", "best datapoints", "sums"),
        rows,
    )
    cost = Table(
        "rerun-cost",
        "What either way stores.",
        ("way", "disk (GB)"),
        [
            [way, None if report.disk_bytes is None else f"{report.disk_bytes / 1e9:.3f}"]
            for way, report in (("keys stored", stored), ("trained again", reran))
        ],
    )
    return "\n\n".join(["## Rerun (appendix D)", table_markdown(answers), table_markdown(cost)])


def _sameness(one: str, other: str) -> str:
    return "equal to the last bit" if one == other else "DIFFERENT"


main = document_command(
    write_reproduction, "Write DOCS/reproduction.md and DOCS/reproduction/ from the studies run into RUNS/NAME."
)


if __name__ == "__main__":
    main()
