"""The counts of a server as Prometheus reads them. Nothing is counted here: each scrape reads what metrics.py, the
engine and the event loop have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from dualform.extras import optional
from dualform_service.engine import Engine
from dualform_service.metrics import Histogram, LoopState, Metrics

if TYPE_CHECKING:
    from dualform.query.counts import Counts


class Family(NamedTuple):
    """Series of one name."""

    name: str
    """As it is written; of a counter with the ending _total."""
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    what: str


MEMORY = ("memory",)
METHOD = (*MEMORY, "method")
CALL = (*METHOD, "layer")
FAMILIES = (
    Family("dualform_calls_total", "counter", (*CALL, "outcome"), "Calls that have ended: `ok`, or the error's code."),
    Family("dualform_call_seconds", "histogram", CALL, "From a call's headers to the end of its answer."),
    Family(
        "dualform_call_working_seconds_total",
        "counter",
        CALL,
        "Of these seconds, those in which a thread worked on the call, alone or for several that share a scan.",
    ),
    Family("dualform_request_bytes_total", "counter", METHOD, "Of questions, as they were sent."),
    Family("dualform_answer_bytes_total", "counter", METHOD, "Of answers that were read, as they were sent."),
    Family("dualform_scan_queries", "histogram", CALL, "Queries of a scan: those of all calls that shared it."),
    Family("dualform_slots_scanned_total", "counter", CALL, "Slots that the layers had which were scanned."),
    Family("dualform_open_calls", "gauge", (), "Calls that there are."),
    Family("dualform_waiting", "gauge", ("place",), "Those that wait to be read, for a scan or for a thread."),
    Family("dualform_screened_queries_total", "counter", MEMORY, "Queries whose best slots were asked for."),
    Family("dualform_fallbacks_total", "counter", MEMORY, "Of these, those that eight-bit codes could not decide."),
    Family("dualform_candidates_total", "counter", MEMORY, "Rows that eight-bit codes left for canonical scoring."),
    Family("dualform_rescoring_seconds_total", "counter", MEMORY, "Of canonical scoring."),
    Family(
        "dualform_cache_lookups_total",
        "counter",
        (*MEMORY, "cache", "result"),
        "Lookups of eight-bit `codes` and of what else is `derived` (masks, groups, sums, weights): `hit` or `miss`.",
    ),
    Family("dualform_read_bytes_total", "counter", (), "Read of files of keys, values and what derives from them."),
    Family("dualform_kept_bytes", "gauge", (), "Kept in memory between questions."),
    Family(
        "dualform_memory_limit_bytes",
        "gauge",
        (),
        "What the process may take; no series for one memory without --memory.",
    ),
    Family("dualform_snapshot", "gauge", MEMORY, "Commits of the snapshot that is served."),
    Family("dualform_recording", "gauge", MEMORY, "1 while the memory is still being recorded, or was cut off."),
    Family("dualform_wrong_tokens_total", "counter", (), "What was refused for its token, or for want of one."),
    Family("dualform_connections_shut_total", "counter", ("reason",), "Connections that the server has shut."),
    Family("dualform_log_lines_dropped_total", "counter", (), "Lines of --log json that there was no room for."),
)
"""All but those of the process, whose names begin with process_."""

Samples = Mapping[str, Any]
"""By name, a mapping of labels' values to a number or a Histogram."""


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
        samples = self._samples(state)
        for family in FAMILIES:
            yield self._family(family, samples.get(family.name, {}))

    def _family(self, of: Family, samples: Mapping[tuple[str, ...], Any]) -> Any:
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

    def _samples(self, state: LoopState) -> Samples:
        counts = {name: engine.counts() for name, engine in self._engines.items() if isinstance(engine, Counting)}
        engine = _of_engines(counts) if counts else {}
        loop: Samples = {
            "dualform_open_calls": {(): state.calls},
            "dualform_waiting": {(place,): count for place, count in state.waiting.items()},
            "dualform_log_lines_dropped_total": {(): self._dropped()},
        }
        return {**_of_calls(self._metrics), **engine, **loop}


class _Collected:
    """A collector of what was collected already."""

    def __init__(self, families: Iterable[Any]) -> None:
        self._families = families

    def collect(self) -> Iterable[Any]:
        return self._families


def _of_calls(metrics: Metrics) -> Samples:
    with metrics.lock:
        return {
            "dualform_calls_total": dict(metrics.calls),
            "dualform_call_seconds": {key: own.copy() for key, own in metrics.seconds.items()},
            "dualform_call_working_seconds_total": dict(metrics.working),
            "dualform_request_bytes_total": dict(metrics.bytes_in),
            "dualform_answer_bytes_total": dict(metrics.bytes_out),
            "dualform_scan_queries": {key: own.copy() for key, own in metrics.queries.items()},
            "dualform_slots_scanned_total": dict(metrics.slots_scanned),
            "dualform_wrong_tokens_total": {(): metrics.wrong_tokens},
            "dualform_connections_shut_total": {(reason,): count for reason, count in metrics.shut.items()},
        }


def _of_engines(counts: Mapping[str, Counts]) -> Samples:
    by_memory: dict[str, Callable[[Counts], float]] = {
        "dualform_screened_queries_total": lambda own: own.queries,
        "dualform_fallbacks_total": lambda own: own.fallbacks,
        "dualform_candidates_total": lambda own: own.candidates,
        "dualform_rescoring_seconds_total": lambda own: own.rescoring_seconds,
        "dualform_snapshot": lambda own: own.commits,
        "dualform_recording": lambda own: int(own.recording),
    }
    limits = {own.most_bytes for own in counts.values() if own.most_bytes is not None}
    # With a limit all memories of a server keep what they keep in one budget.
    kept = max(own.kept_bytes for own in counts.values()) if limits else sum(own.kept_bytes for own in counts.values())
    return {
        **{family: {(name,): of(own) for name, own in counts.items()} for family, of in by_memory.items()},
        "dualform_cache_lookups_total": {
            (name, *labels): count for name, own in counts.items() for labels, count in _lookups(own).items()
        },
        "dualform_read_bytes_total": {(): max(own.read_bytes for own in counts.values())},
        "dualform_kept_bytes": {(): kept},
        "dualform_memory_limit_bytes": {(): max(limits)} if limits else {},
    }


def _lookups(counts: Counts) -> dict[tuple[str, str], int]:
    return {
        ("codes", "hit"): counts.codes_found,
        ("codes", "miss"): counts.codes_made,
        ("derived", "hit"): counts.derived_found,
        ("derived", "miss"): counts.derived_made,
    }


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Each with all that is below its bound."""
    found, total = list[tuple[str, float]](), 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        found.append(("+Inf" if bound == float("inf") else repr(float(bound)), total))
    return found


def markdown() -> str:
    """The table of docs/observability.md."""
    lines = ["| series | kind | labels | |", "| --- | --- | --- | --- |"]
    for own in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in own.labels)
        lines.append(f"| `{own.name}` | {own.kind} | {labels} | {own.what} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
