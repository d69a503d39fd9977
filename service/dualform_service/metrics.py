"""What a server has done: calls, failures and seconds by call. Kept in process and logged when the server drains."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class CallMetrics:
    outcomes: Counter[str] = field(default_factory=Counter)
    """Number of calls by outcome: "ok", or the code of the error."""
    seconds: float = 0.0
    slowest: float = 0.0
    """Seconds."""

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items()))
        mean = self.seconds / max(self.outcomes.total(), 1)
        return f"{outcomes}; mean {mean:.3g} s, slowest {self.slowest:.3g} s"


class Metrics:
    """Counts of calls; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, CallMetrics] = {}

    def add(self, call: str, outcome: str, seconds: float) -> None:
        with self._lock:
            metrics = self._calls.setdefault(call, CallMetrics())
            metrics.outcomes[outcome] += 1
            metrics.seconds += seconds
            metrics.slowest = max(metrics.slowest, seconds)

    def outcomes(self, call: str) -> dict[str, int]:
        """Number of calls by outcome."""
        with self._lock:
            return dict(self._calls[call].outcomes) if call in self._calls else {}

    def lines(self) -> list[str]:
        """One line per call that was made."""
        with self._lock:
            return [f"{call}: {metrics}" for call, metrics in sorted(self._calls.items())]
