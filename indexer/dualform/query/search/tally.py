"""What answering took, counted over the life of an engine."""

from __future__ import annotations

import threading


class Tally:
    """Safe to add to from several threads."""

    def __init__(self) -> None:
        self.queries = 0
        """Queries whose best slots were asked for."""
        self.fallbacks = 0
        """Those that the screen was asked about and could not decide, answered from float32 scores of every row."""
        self.candidates = 0
        """Rows that the screen left for canonical scoring."""
        self.rescoring_seconds = 0.0
        """Time of canonical scoring."""
        self.found = self.made = 0
        """Values derived from the memory that a cache had, and that were made for a question."""
        self._lock = threading.Lock()

    def add(
        self,
        *,
        queries: int = 0,
        fallbacks: int = 0,
        candidates: int = 0,
        rescoring_seconds: float = 0.0,
        found: int = 0,
        made: int = 0,
    ) -> None:
        with self._lock:
            self.found += found
            self.made += made
            self.queries += queries
            self.fallbacks += fallbacks
            self.candidates += candidates
            self.rescoring_seconds += rescoring_seconds
