"""The counts of a server as Prometheus reads them. Nothing is counted here: each scrape reads what metrics.py, the
engine and the event loop have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from dualform.extras import optional
from dualform_service.engine import Engine
from dualform_service.metrics import Histogram, LoopState, Metrics

if TYPE_CHECKING:
    from dualform.query.counts import Counts


@dataclass(frozen=True)
class Sources:
    """What there is to read at one moment."""

    metrics: Metrics
    engines: Mapping[str, Counts]
    """By the names of their memories: those that count."""
    loop: LoopState
    dropped: int
    """Lines of the log that there was no room for."""

    def of_each(self, count: Callable[[Counts], float]) -> Samples:
        return {(name,): count(own) for name, own in self.engines.items()}

    def lookups(self) -> Samples:
        found: dict[tuple[str, ...], int] = {}
        for name, own in self.engines.items():
            found[name, "codes", "hit"], found[name, "codes", "miss"] = own.codes_found, own.codes_made
            found[name, "derived", "hit"], found[name, "derived", "miss"] = own.derived_found, own.derived_made
        return found

    def limit(self) -> Samples:
        limits = [own.most_bytes for own in self.engines.values() if own.most_bytes is not None]
        return {(): max(limits)} if limits else {}

    def kept(self) -> Samples:
        """With a limit all memories of a server keep what they keep in one budget."""
        kept = [own.kept_bytes for own in self.engines.values()]
        return {(): max(kept) if self.limit() else sum(kept)} if kept else {}

    def read(self) -> Samples:
        """Counted for the whole process."""
        return {(): max(own.read_bytes for own in self.engines.values())} if self.engines else {}


Samples: TypeAlias = Mapping[Any, float | Histogram]
"""By the values of the labels, as a tuple."""


class Family(NamedTuple):
    """Series of one name."""

    name: str
    """As it is written; of a counter with the ending _total."""
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    what: str
    samples: Callable[[Sources], Samples]


MEMORY = ("memory",)
METHOD = (*MEMORY, "method")
CALL = (*METHOD, "layer")
FAMILIES = (
    Family(
        "dualform_calls_total",
        "counter",
        (*CALL, "outcome"),
        "Calls that ended; the outcome is `ok` or the error's code.",
        lambda of: dict(of.metrics.calls),
    ),
    Family(
        "dualform_call_seconds",
        "histogram",
        CALL,
        "Seconds from a call's headers to the end of its result.",
        lambda of: {key: own.copy() for key, own in of.metrics.seconds.items()},
    ),
    Family(
        "dualform_call_working_seconds_total",
        "counter",
        CALL,
        "Seconds of these in which a thread worked on the call, or on a scan that it shared.",
        lambda of: dict(of.metrics.working),
    ),
    Family(
        "dualform_request_bytes_total",
        "counter",
        METHOD,
        "Bytes of requests, as sent.",
        lambda of: dict(of.metrics.bytes_in),
    ),
    Family(
        "dualform_answer_bytes_total",
        "counter",
        METHOD,
        "Bytes of results that were read, as sent.",
        lambda of: dict(of.metrics.bytes_out),
    ),
    Family(
        "dualform_scan_queries",
        "histogram",
        CALL,
        "Queries in a scan, from all calls that shared it.",
        lambda of: {key: own.copy() for key, own in of.metrics.queries.items()},
    ),
    Family(
        "dualform_slots_scanned_total",
        "counter",
        CALL,
        "Slots of the scanned layers.",
        lambda of: dict(of.metrics.slots_scanned),
    ),
    Family("dualform_open_calls", "gauge", (), "Open calls.", lambda of: {(): of.loop.calls}),
    Family(
        "dualform_waiting",
        "gauge",
        ("place",),
        "Calls that wait for their message, a scan or a thread.",
        lambda of: {(place,): count for place, count in of.loop.waiting.items()},
    ),
    Family(
        "dualform_screened_queries_total",
        "counter",
        MEMORY,
        "Queries for the best slots.",
        lambda of: of.of_each(lambda own: own.queries),
    ),
    Family(
        "dualform_fallbacks_total",
        "counter",
        MEMORY,
        "Queries of these that eight-bit codes could not decide.",
        lambda of: of.of_each(lambda own: own.fallbacks),
    ),
    Family(
        "dualform_candidates_total",
        "counter",
        MEMORY,
        "Rows that eight-bit codes left for exact scoring.",
        lambda of: of.of_each(lambda own: own.candidates),
    ),
    Family(
        "dualform_rescoring_seconds_total",
        "counter",
        MEMORY,
        "Seconds of exact scoring.",
        lambda of: of.of_each(lambda own: own.rescoring_seconds),
    ),
    Family(
        "dualform_cache_lookups_total",
        "counter",
        (*MEMORY, "cache", "result"),
        "Cache look-ups of `codes` and of `derived` data (filters, groups, sums, weights): `hit` or `miss`.",
        Sources.lookups,
    ),
    Family(
        "dualform_read_bytes_total",
        "counter",
        (),
        "Bytes read from files of keys, values and derived data.",
        Sources.read,
    ),
    Family("dualform_kept_bytes", "gauge", (), "Bytes kept in RAM between queries.", Sources.kept),
    Family(
        "dualform_ram_limit_bytes",
        "gauge",
        (),
        "RAM limit; absent for one memory without --ram.",
        Sources.limit,
    ),
    Family(
        "dualform_snapshot",
        "gauge",
        MEMORY,
        "Commits in the served snapshot.",
        lambda of: of.of_each(lambda own: own.commits),
    ),
    Family(
        "dualform_recording",
        "gauge",
        MEMORY,
        "1 while the memory is still recorded, or if it was cut off.",
        lambda of: of.of_each(lambda own: own.recording),
    ),
    Family(
        "dualform_wrong_tokens_total",
        "counter",
        (),
        "Calls refused for a wrong or missing token.",
        lambda of: {(): of.metrics.wrong_tokens},
    ),
    Family(
        "dualform_connections_shut_total",
        "counter",
        ("reason",),
        "Connections that the server closed.",
        lambda of: {(reason,): count for reason, count in of.metrics.shut.items()},
    ),
    Family(
        "dualform_log_lines_dropped_total",
        "counter",
        (),
        "Lines of --log json dropped for lack of room.",
        lambda of: {(): of.dropped},
    ),
)
"""All but those of the process, whose names begin with process_. A new one is a line here."""


@runtime_checkable
class Counting(Protocol):
    """Engines that say what answering has taken."""

    def counts(self) -> Counts: ...


class Exposition:
    """Makes pages for scrapes. Loads prometheus_client as it is made; raises MissingPackage without it."""

    def __init__(self, metrics: Metrics, engines: Mapping[str, Engine], dropped: Callable[[], int] = lambda: 0) -> None:
        """`engines`: by the names of their memories. `dropped`: lines of the log that there was no room for."""
        client = optional("prometheus_client")
        self._metrics, self._engines, self._dropped = metrics, engines, dropped
        self._client, self._core, self._written = client, client.metrics_core, client.exposition
        self._process = client.ProcessCollector(registry=None)

    def page(self, state: LoopState, accept: str) -> tuple[str, bytes]:
        """Content type and content, in the form that whoever asks accepts."""
        registry = self._client.CollectorRegistry(auto_describe=False)
        registry.register(self._process)
        registry.register(_Collected(list(self.families(state))))
        encode, kind = self._written.choose_encoder(accept)
        return str(kind), bytes(encode(registry))

    def families(self, state: LoopState) -> Iterator[Any]:
        """All series as prometheus_client has them, those of the process apart."""
        counts = {name: engine.counts() for name, engine in self._engines.items() if isinstance(engine, Counting)}
        sources = Sources(self._metrics, counts, state, self._dropped())
        with self._metrics.lock:
            found = [(family, family.samples(sources)) for family in FAMILIES]
        for family, samples in found:
            yield self._family(family, samples)

    def _family(self, of: Family, samples: Samples) -> Any:
        kinds = {
            "counter": self._core.CounterMetricFamily,
            "gauge": self._core.GaugeMetricFamily,
            "histogram": self._core.HistogramMetricFamily,
        }
        family = kinds[of.kind](of.name, of.what, labels=of.labels)
        for labels, value in samples.items():
            if isinstance(value, Histogram):
                family.add_metric(labels, _buckets(value), sum_value=value.sum)
            else:
                family.add_metric(labels, value)
        return family


class _Collected:
    """A collector of what was collected already."""

    def __init__(self, families: Iterable[Any]) -> None:
        self._families = families

    def collect(self) -> Iterable[Any]:
        return self._families


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Each with all that is below its bound."""
    found, total = list[tuple[str, float]](), 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        found.append(("+Inf" if bound == float("inf") else repr(float(bound)), total))
    return found


def markdown() -> str:
    """The table of docs/observability.md."""
    lines = ["| series | labels | meaning |", "| --- | --- | --- |"]
    for own in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in own.labels)
        lines.append(f"| `{own.name}` | {labels} | {own.what} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
