"""Other packages, here called peers, and one question put to dualform and to all of them.

Every peer gets all cores, and the keys in the form it likes best, built once and not timed with the questions. What a
peer cannot do raises Cannot, with the reason.

Shapes: T slots, n queries, d dimensions, G groups.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import faiss
import numpy as np
from numpy.typing import NDArray

import dualform
from benchmarks.data import COLUMNS, Data, Floats, Groups, Mask, load
from benchmarks.harness import Cannot, Cell, Check, Plan, race
from dualform import Engine

Slots: TypeAlias = list[NDArray[np.int64]]
"""Of each query, or of each group, best first."""
Sums: TypeAlias = NDArray[np.float64]

AT_ONCE = 64
"""Queries whose scores are held at once: 100 MB at T = 384,000."""
INSERTED = 4000
"""Slots of an insert into Milvus: 13 MB of keys, under the 64 MB of its messages."""


class Peer:
    """A peer that has loaded the keys. One that only searches leaves the rest to this class."""

    def __init__(self, data: Data, folder: Path, patience: float) -> None:
        """Load the keys, or find those that an earlier section of this run left in `folder`."""
        self.data = data

    def top(self, queries: Floats, k: int, mask: Mask | None) -> Slots:
        """The k best slots of each query."""
        raise NotImplementedError

    def top_of_groups(self, query: Floats, k: int, groups: Groups) -> Slots:
        """The k best slots of each group, for one query."""
        raise Cannot("no exact search for the best of each group")

    def sums(self, queries: Floats, groups: Groups, absolute: bool) -> Sums:
        """float64[n, G]: the sums of scores, or of their absolute values."""
        raise Cannot("no sums of scores")

    def close(self) -> None:
        """Let go of what is held."""


class FaissSearch(Peer):
    """IndexFlatIP.search; a mask is a bitmap selector, which is its fastest for any slots."""

    def __init__(self, data: Data, folder: Path, patience: float) -> None:
        self._faiss: Any = faiss
        self._index = self._faiss.IndexFlatIP(data.keys.shape[1])
        self._index.add(data.keys)

    def top(self, queries: Floats, k: int, mask: Mask | None) -> Slots:
        selector = mask and self._faiss.IDSelectorBitmap(mask.bits)
        _, slots = self._index.search(queries, k, params=selector and self._faiss.SearchParameters(sel=selector))
        return [row[row >= 0] for row in slots]


class FaissKnn(Peer):
    """faiss.knn over the matrix itself."""

    def top(self, queries: Floats, k: int, mask: Mask | None) -> Slots:
        if mask is not None:
            raise Cannot("knn takes no selector")
        return list(faiss.knn(queries, self.data.keys, k, metric=faiss.METRIC_INNER_PRODUCT)[1])


class Scan(Peer):
    """A float32 matrix product of the keys with AT_ONCE queries at a time."""

    def top(self, queries: Floats, k: int, mask: Mask | None) -> Slots:
        return [slots for part in _parts(queries) for slots in self._top(part, k, mask)]

    def sums(self, queries: Floats, groups: Groups, absolute: bool) -> Sums:
        return np.concatenate([self._sums(part, groups, absolute) for part in _parts(queries)])

    def _top(self, queries: Floats, k: int, mask: Mask | None) -> Slots:
        raise NotImplementedError

    def _sums(self, queries: Floats, groups: Groups, absolute: bool) -> Sums:
        raise NotImplementedError


def _parts(queries: Floats) -> Iterator[Floats]:
    return (queries[start : start + AT_ONCE] for start in range(0, len(queries), AT_ONCE))


class Torch(Scan):
    """Then topk or index_add."""

    def __init__(self, data: Data, folder: Path, patience: float) -> None:
        import torch

        self._torch = torch
        self._keys = torch.from_numpy(data.keys)

    def _top(self, queries: Floats, k: int, mask: Mask | None) -> Slots:
        own = self._torch.from_numpy(queries)
        if mask is not None and mask.is_small:
            slots = self._torch.from_numpy(mask.slots)
            return list(slots[(own @ self._keys[slots].T).topk(min(k, len(slots))).indices].numpy())
        scores = own @ self._keys.T
        if mask is not None:
            scores.masked_fill_(self._torch.from_numpy(mask.removed), -self._torch.inf)
        return list(scores.topk(k).indices.numpy())

    def top_of_groups(self, query: Floats, k: int, groups: Groups) -> Slots:
        scores, numbers, found = self._keys @ self._torch.from_numpy(query), self._torch.from_numpy(groups.numbers), []
        for group in range(groups.count):
            slots = (numbers == group).nonzero()[:, 0]
            found.append(slots[scores[slots].topk(min(k, len(slots))).indices].numpy())
        return found

    def _sums(self, queries: Floats, groups: Groups, absolute: bool) -> Sums:
        scores = self._torch.from_numpy(queries) @ self._keys.T
        scores = scores.abs_() if absolute else scores
        zeros = self._torch.zeros((len(scores), groups.count), dtype=self._torch.float64)
        return zeros.index_add_(1, self._torch.from_numpy(groups.numbers), scores.double()).numpy()


class Numpy(Scan):
    """Then argpartition or bincount."""

    def _top(self, queries: Floats, k: int, mask: Mask | None) -> Slots:
        if mask is not None and mask.is_small:
            return [mask.slots[_best(row, k)] for row in queries @ self.data.keys[mask.slots].T]
        scores = self._scores(queries)
        if mask is not None:
            scores[:, mask.removed] = -np.inf
        return [_best(row, k) for row in scores]

    def top_of_groups(self, query: Floats, k: int, groups: Groups) -> Slots:
        scores = self.data.keys @ query
        return [slots[_best(scores[slots], k)] for slots in map(np.flatnonzero, groups.members)]

    def _sums(self, queries: Floats, groups: Groups, absolute: bool) -> Sums:
        scores = self._scores(queries)
        if absolute:
            np.abs(scores, out=scores)
        return np.stack([np.bincount(groups.numbers, row, groups.count).astype(np.float64) for row in scores])

    def _scores(self, queries: Floats) -> Floats:
        """One query is a matrix-vector product, which NumPy does faster from the other side."""
        keys = self.data.keys
        scores: Floats = (keys @ queries[0])[None] if len(queries) == 1 else queries @ keys.T
        return scores


def _best(scores: Floats, k: int) -> NDArray[np.int64]:
    """The k best of float32[b], best first."""
    top = np.argpartition(scores, len(scores) - k)[-k:] if k < len(scores) else np.arange(len(scores))
    return top[np.argsort(-scores[top], kind="stable")]


class Duckdb(Peer):
    """array_inner_product over a table of arrays, ORDER BY and GROUP BY."""

    def __init__(self, data: Data, folder: Path, patience: float) -> None:
        import duckdb

        self._database, array = duckdb.connect(), f"FLOAT[{data.keys.shape[1]}]"
        self._database.execute("SET enable_progress_bar = false")
        self._database.register("arrow", _key_table(data))
        self._database.execute(f"CREATE TABLE slots AS SELECT * REPLACE (vector::{array} AS vector) FROM arrow")
        self._database.unregister("arrow")
        self._score = f"array_inner_product(vector, ?::{array})"

    def top(self, queries: Floats, k: int, mask: Mask | None) -> Slots:
        where = "" if mask is None else f"WHERE {mask.where}"
        # A statement a query takes no longer than one with a join, and keeps no score in memory.
        statement = f"SELECT slot FROM slots {where} ORDER BY {self._score} DESC, slot LIMIT {k}"
        return [self._fetch(statement, query)["slot"] for query in queries]

    def top_of_groups(self, query: Floats, k: int, groups: Groups) -> Slots:
        by = ", ".join(groups.by)
        rows = self._fetch(
            f"SELECT {by}, slot FROM (SELECT {by}, slot, {self._score} AS score FROM slots) "
            f"QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY score DESC, slot) <= {k} "
            f"ORDER BY {by}, score DESC, slot",
            query,
        )
        number = groups.numbers[rows["slot"]]
        return [rows["slot"][number == group] for group in range(groups.count)]

    def sums(self, queries: Floats, groups: Groups, absolute: bool) -> Sums:
        by, score = ", ".join(groups.by), f"abs({self._score})" if absolute else self._score
        statement = f"SELECT sum({score}::DOUBLE) AS total FROM slots GROUP BY {by} ORDER BY {by}"
        return np.stack([np.asarray(self._fetch(statement, query)["total"]) for query in queries])

    def _fetch(self, statement: str, query: Floats) -> dict[str, NDArray[Any]]:
        return self._database.execute(statement, [query.tolist()]).fetchnumpy()

    def close(self) -> None:
        self._database.close()


def _key_table(data: Data) -> Any:
    """The keys as a column of fixed-size lists, with the slots' columns."""
    import pyarrow as pa

    vectors = pa.FixedSizeListArray.from_arrays(pa.array(data.keys.ravel()), data.keys.shape[1])
    columns = {name: pa.array(data.columns[name]) for name in COLUMNS}
    return pa.table({"slot": np.arange(len(data.keys)), **columns, "vector": vectors})


class Lancedb(Peer):
    """Without an index: an exhaustive search over its columnar files."""

    def __init__(self, data: Data, folder: Path, patience: float) -> None:
        import lancedb

        database = lancedb.connect(str(folder / "lance"))
        kept = (folder / "lance" / "slots.lance").exists()
        self._table = database.open_table("slots") if kept else database.create_table("slots", _key_table(data))

    def top(self, queries: Floats, k: int, mask: Mask | None) -> Slots:
        asked = self._table.search(queries[0] if len(queries) == 1 else list(queries))
        asked = asked.distance_type("dot").limit(k).select(["slot", "_distance"])
        if mask is not None:
            asked = asked.where(mask.where, prefilter=True)
        rows = asked.to_arrow()
        slots = rows["slot"].to_numpy()
        if len(queries) == 1:
            return [slots]
        of_query = rows["query_index"].to_numpy()
        return [slots[of_query == query] for query in range(len(queries))]


class Milvus(Peer):
    """Milvus Lite: a FLAT index in its own file."""

    def __init__(self, data: Data, folder: Path, patience: float) -> None:
        from pymilvus import MilvusClient

        done = folder / "milvus.done"
        self._client = MilvusClient(str(folder / "milvus.db"))
        if not done.exists():
            self._create(data.keys.shape[1])
            self._insert(data, patience)
            done.touch()
        self._client.load_collection("slots")

    def _create(self, width: int) -> None:
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("slot", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
        schema.add_field("dataset", DataType.VARCHAR, max_length=64)
        schema.add_field("sample", DataType.INT64)
        schema.add_field("coin", DataType.BOOL)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="IP")
        self._client.create_collection("slots", schema=schema, index_params=index)

    def _insert(self, data: Data, patience: float) -> None:
        columns = {name: data.columns[name].tolist() for name in ("dataset", "sample", "coin")}
        until = time.monotonic() + patience
        for start in range(0, len(data.keys), INSERTED):
            if time.monotonic() > until:
                raise Cannot(f"it had loaded {start:,} of {len(data.keys):,} slots after {patience:.0f} s")
            rows: list[dict[str, Any]] = [
                {"slot": slot, "vector": data.keys[slot], **{name: column[slot] for name, column in columns.items()}}
                for slot in range(start, min(start + INSERTED, len(data.keys)))
            ]
            self._client.insert("slots", rows)

    def top(self, queries: Floats, k: int, mask: Mask | None) -> Slots:
        where = ""
        if mask is not None:
            value = str(mask.value).lower() if isinstance(mask.value, bool) else repr(mask.value)
            where = f"{mask.column} == {value}"
        found = self._client.search("slots", queries, limit=k, filter=where, search_params={"metric_type": "IP"})
        return [np.array([hit["slot"] for hit in hits], dtype=np.int64) for hits in found]

    def close(self) -> None:
        self._client.close()


class Usearch(Peer):
    """Its exact search over the matrix itself."""

    def __init__(self, data: Data, folder: Path, patience: float) -> None:
        import usearch.index

        self._keys, self._module = data.keys, usearch.index

    def top(self, queries: Floats, k: int, mask: Mask | None) -> Slots:
        if mask is not None:
            raise Cannot("exact search takes no filter")
        found = self._module.search(self._keys, queries, k, self._module.MetricKind.IP, exact=True)
        return list(np.asarray(found.keys).astype(np.int64).reshape(len(queries), -1))


PEERS: dict[str, Callable[[Data, Path, float], Peer]] = {
    "FAISS search": FaissSearch,
    "FAISS knn": FaissKnn,
    "torch": Torch,
    "NumPy": Numpy,
    "DuckDB": Duckdb,
    "LanceDB": Lancedb,
    "Milvus Lite": Milvus,
    "usearch": Usearch,
}
PACKAGES = (
    *("dualform", "numpy", "torch", "faiss-cpu", "faiss-gpu", "duckdb", "lancedb"),
    *("pymilvus", "milvus-lite", "usearch", "grpcio"),
)
"""Whose versions figures belong to."""


@dataclass
class Contest:
    plan: Plan
    data: Data
    engine: Engine
    peers: dict[str, Peer]
    absent: dict[str, str]
    """Peers that take no part, with the reason."""
    build: dict[str, float]
    """Seconds that each peer took to load the keys."""
    _pace: dict[tuple[str, str], float] = field(default_factory=dict)
    """Seconds a query, by kind of question and peer, as of the last time it was asked several."""

    def ask(
        self,
        kind: str,
        queries: int,
        ours: Mapping[str, Callable[[], Any]],
        of_peer: Callable[[Peer], Any],
        check: Check,
    ) -> dict[str, Cell]:
        """Everyone's cell. `kind` names the question, to predict from fewer queries which peers would take too long."""
        repeats, patience = self.plan.repeats, self.plan.patience
        peers = {name: partial(self._in_time, kind, queries, name, of_peer) for name in self.peers}
        if len(ours) > 1:
            # These are compared closely with each other: they race without the peers, for longer.
            cells = race(ours, 3 * repeats, patience, check) | race(peers, repeats, patience, check)
        else:
            cells = race({**ours, **peers}, repeats, patience, check)
        for name in self.peers:
            # One query tells little of many: some answer those in one scan.
            if (seconds := cells[name].seconds) is not None and queries > 1:
                self._pace[kind, name] = seconds / queries
        cells |= {name: Cell(why_not=reason) for name, reason in self.absent.items()}
        return {name: cells[name] for name in (*ours, *PEERS) if name in cells}

    def _in_time(self, kind: str, queries: int, name: str, of_peer: Callable[[Peer], Any]) -> Any:
        predicted = self._pace.get((kind, name), 0.0) * queries
        if predicted > self.plan.patience:
            raise Cannot(f"not waited for: about {predicted:.0f} s, by its time for fewer queries")
        return of_peer(self.peers[name])


@contextmanager
def contest(plan: Plan) -> Iterator[Contest]:
    """Everything in memory: the engine, and every peer that is installed and can load the keys."""
    data = load(plan)
    built: dict[str, Peer] = {}
    log_path = plan.folder / "peers.json"
    log: dict[str, Any] = json.loads(log_path.read_text()) if log_path.exists() else {}
    with ExitStack() as stack:
        for name, peer in PEERS.items():
            if isinstance(log.get(name), str):
                continue
            began = time.perf_counter()
            try:
                built[name] = peer(data, plan.folder, plan.build_patience)
            except Exception as error:  # the error goes into the peer's cell
                log[name] = reason(error)
                continue
            stack.callback(built[name].close)
            log.setdefault(name, time.perf_counter() - began)
        log_path.write_text(json.dumps(log))
        absent = {name: said for name, said in log.items() if isinstance(said, str)}
        build = {name: said for name, said in log.items() if not isinstance(said, str)}
        engine = stack.enter_context(dualform.open(plan.memory, backend=plan.backend))
        yield Contest(plan, data, engine, built, absent, build)


def reason(error: BaseException) -> str:
    """One line, without the folders of this machine."""
    if isinstance(error, Cannot):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed"
    first = (str(error).splitlines() or [""])[0]
    words = ["…" if word.count("/") > 1 else word for word in first.split()]
    return f"{type(error).__name__}: {' '.join(words)}"[:160]
