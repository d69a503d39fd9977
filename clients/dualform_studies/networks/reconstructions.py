"""How exact the record of every layer is, as a page shows it."""

from __future__ import annotations

from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Cell
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import percent


def show_reconstructions(page: Page, report: Report) -> None:
    """Of a report with "verify" and "skipped", as `dualform verify` and `dualform info` print them."""
    verify, skipped = report["verify"], report["skipped"]
    page.heading("The status of each layer")
    page.paragraph(
        "`dualform verify` rebuilds each layer's weights from its initial weights and its slots, W', and compares them "
        "with the trained W: the relative error is ‖W - W'‖ / ‖W - W₀‖, with the bias."
    )
    rows: list[list[Cell]] = [
        [
            layer,
            f"{one['reconstruction_error']:.1e}",
            one["status"],
            one["reason"] or "-",
            percent(one["rounding_share"]) if one["rounding_share"] else "-",
        ]
        for layer, one in verify.items()
    ]
    page.table(
        "statuses",
        "By layer: the relative error, the status that the training earned, and the share of the distance that lies in "
        "biases whose gradient was nothing but rounding, of which no slot has a part.",
        ["layer", "relative error", "status", "reason for the status", "share moved by rounding alone"],
        rows,
    )
    errors = {layer: one["reconstruction_error"] for layer, one in verify.items()}
    worst = max(errors, key=errors.__getitem__)
    exact = sum(one["exact"] for one in verify.values())
    page.paragraph(
        f"Finding: {exact} of {len(verify)} layers are exact. The rebuilt weights differ from the trained ones "
        f"by at most {errors[worst]:.1e} of the distance that training moved them ({worst}). The {len(skipped)} "
        "normalisations are kept step by step and have no attention."
    )
