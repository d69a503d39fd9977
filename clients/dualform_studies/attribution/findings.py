"""What each kind of way is good for, in sentences that are made from the figures."""

from __future__ import annotations

from collections.abc import Iterator

from dualform_studies.pages.folder import Report


def findings(report: Report) -> Iterator[str]:
    yield "To be written."
