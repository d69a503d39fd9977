"""The searchers for scores that follow from the inner product of a stored key and a query."""

from __future__ import annotations

from dualform.query.score.backends import Backend, CodesBackend
from dualform.query.search.scan_searcher import ScanSearcher
from dualform.query.search.screen_searcher import ScreenSearcher
from dualform.query.search.searcher import Searcher


def row_searchers(backend: Backend) -> list[Searcher]:
    """The screen where the backend has codes, then the scan, which decides whatever the screen leaves."""
    scan: Searcher = ScanSearcher()
    return [ScreenSearcher(backend.codes), scan] if isinstance(backend, CodesBackend) else [scan]
