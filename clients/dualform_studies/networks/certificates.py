"""How exact the record of every layer is, as a page shows it."""

from __future__ import annotations

from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Cell
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import percent


def show_certificates(page: Page, report: Report) -> None:
    """Of a report with "verify" and "skipped", as `dualform verify` and `dualform info` print them."""
    verify, skipped = report["verify"], report["skipped"]
    errors = [one["relative_error"] for one in verify.values()]
    exact = sum(one["exact"] for one in verify.values())
    page.heading("The grade of each layer")
    page.paragraph(
        f"{exact} of {len(verify)} layers are graded exact. The weights that the memory rebuilds are at most "
        f"{max(errors):.1g} of their way from those that were trained; they stand for all parameters but the norms' "
        f"({len(skipped)} modules), which are kept step by step and carry no attention."
    )
    rows: list[list[Cell]] = [
        [
            layer,
            f"{one['relative_error']:.1e}",
            one["grade"]["name"],
            one["reason"] or "-",
            percent(one["rounding_share"]) if one["rounding_share"] else "-",
        ]
        for layer, one in verify.items()
    ]
    page.table(
        "grades",
        "`dualform verify`: ‖W - rebuilt‖ / ‖W - W₀‖ with the bias, the grade while training, and what lies in biases "
        "whose gradient was rounding alone, of which no slot has a part.",
        ["layer", "relative error", "grade", "reason", "rounding alone"],
        rows,
    )
