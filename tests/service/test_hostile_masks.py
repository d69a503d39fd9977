"""Masks that mean no good, asked of a server: none reads a file, the environment or the network, none outlives its
limits, and none leaves memory or a thread behind.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dualform.errors import BadInput, NotFound, TimedOut
from dualform.store.files.ram_budget import resident_bytes
from dualform_client import Client
from dualform_service.server import Server
from tests.query import arrays
from tests.reliability import report, rounds, soaking
from tests.service.held_engine import until

SEED, SLOTS = 13, 600
SECRET = "what no mask may see"
QUERY = np.ones((1, 4), np.float32)
PROCESSOR_SECONDS = 10.0
"""Of one mask, at most; without bounds some take minutes."""
STOPPING_SECONDS = 3.0
"""Of the processor, at most, from the deadline on: DuckDB does not hear of it before its first row, which took 1.1 on a
busy machine."""
LONG = "'" + "x" * 600 + "'"

REFUSED = [
    "dataset = getenv('DUALFORM_SECRET')",
    "current_setting('home_directory') = 'x'",
    "dataset IN (SELECT content FROM read_text({file}))",
    "EXISTS (SELECT 1 FROM read_csv({file}))",
    "EXISTS (SELECT 1 FROM {file})",
    "(SELECT count(*) FROM glob('/*')) > 0",
    "read_text({file}) IS NOT NULL",
    "dataset = (SELECT max(content) FROM read_blob({file}))",
    "EXISTS (FROM read_text('{url}'))",
    "slot IN (FROM sniff_csv({file}))",
    "dataset = current_database()",
    "dataset = version()",
    "slot = txid_current()",
    "dataset = current_user",
    "EXISTS (SELECT * FROM duckdb_settings())",
    "EXISTS (SELECT * FROM pragma_database_list)",
    "EXISTS (SELECT * FROM information_schema.tables)",
    "(SELECT count(*) FROM range(1000000000)) > 1",
    "slot = (WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t)",
    "1; ATTACK",
    "true; COPY slots TO {file}",
    "true; ATTACH {file} AS other",
    "true; INSTALL httpfs",
    "true; PRAGMA memory_limit='100GB'",
    "true; SET threads=100",
    "true FROM read_text({file})",
    "true LIMIT 1",
    "repeat('x', 1000000000) = dataset",
    "lpad(dataset, 1000000000, 'x') = dataset",
    "rpad('x', 2000000000, 'y') = dataset",
    "length(array_to_string(range(100000000), ',')) > 3",
    "list_sum(range(1000000000)) > 1",
    "format('{{:>1000000000}}', dataset) = 'x'",
    "printf('%1000000000d', slot) = 'x'",
    "nextval('s') > 1",
    "setseed(0.5) IS NULL",
    "sleep_ms(100000) IS NULL",
    "random() > 0.5",
    "getvariable('x') IS NULL",
    "md5(dataset) = 'x'",
    "dataset::BLOB = 'x'",
    "dataset::JSON IS NULL",
    "[slot] = [1]",
    "{{'a': slot}} IS NULL",
    "list_transform([slot], x -> x + 1) IS NULL",
    "slot = ?",
    "slot = $1",
    "COLUMNS(*) = 1",
    "sum(slot) OVER () > 1",
    "count(*) > 1",
    "(" * 5_000 + "slot = 1" + ")" * 5_000,
    "NOT " * 300 + "slot = 1",
    "-" * 10_000 + "1 = slot",
    "slot IN (" + "1," * 60_000 + "1)",
    " OR ".join(["slot = 1"] * 3_400),
    " OR ".join(["regexp_matches(dataset, 'a+')"] * 2_000),
    "regexp_matches(dataset, '" + "(a+)+" * 60 + "')",
    "regexp_matches(dataset, '((((m?){{20}}){{20}}){{2}}){{1}}')",
    "regexp_matches(dataset, dataset || '{{1000}}')",
    r"regexp_matches(dataset, '(\pL{{30}}){{30}}')",
    "dataset LIKE '" + "%a" * 200 + "'",
]
"""Refused before any slot is looked at."""

COSTLY = [
    "length(" + " || ".join(["dataset", *[LONG] * 90]) + ") < 0",
    "length(" + "upper(lower(" * 40 + " || ".join(["dataset", *[LONG] * 9]) + "))" * 40 + ") < 0",
    " OR ".join(f"lower(dataset || '{number}') > 'z'" for number in range(1_600)),
    " OR ".join(f"slot + {number} < 0" for number in range(1_600)),
    " OR ".join(f"slot ** {number}.5 ** 1.5 < 0" for number in range(1_200)),
    " OR ".join(f"slot::VARCHAR::BIGINT = {-number}" for number in range(1, 1_500)),
    "CASE " + " ".join(f"WHEN slot = {number} THEN false" for number in range(1_600)) + " ELSE false END",
    "slot IN (" + ", ".join(str(-number) for number in range(1, 9_000)) + ")",
    " OR ".join(["regexp_matches(dataset || dataset, '(a|aa)+$')"] * 16),
    " OR ".join(["regexp_matches(" + LONG + " || dataset, '(x+x+)+y')"] * 16),
    " OR ".join(["(" + LONG + " || dataset) LIKE '" + "%x" * 100 + "b'"] * 16),
    " OR ".join(["(" + LONG + " || dataset) ILIKE '" + "%x_" * 60 + "b'"] * 16),
    "coalesce(" + ", ".join(["CAST(NULL AS VARCHAR)"] * 1_500) + ", 'a') = 'b'",
    "greatest(" + ", ".join(["slot + 1"] * 2_500) + ") < 0",
    "0." + "1" * 5_000 + " < -slot",
    "CAST('" + "9" * 5_000 + "' AS DOUBLE) < slot",
    "substring(" + "'" + "x" * 60_000 + "'" + ", 1, slot) = 'y'",
    "left(" + "'" + "x" * 60_000 + "'" + ", slot) < ''",
]
"""Within the bounds, and as costly as they allow. None leaves a slot, where it is answered at all."""


@contextmanager
def serving(slots: int) -> Iterator[Server]:
    keys = np.ones((slots, 4), np.float32)
    names = [["mnist", "fashion-mnist", None][slot % 3] for slot in range(slots)]
    memory = arrays.engine(arrays.memory({"fc": keys}, {"dataset": names}))
    with Server(memory) as server:
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(SLOTS) as server:
        yield server


def drawn(rng: random.Random, file: str) -> str:
    """Some of the above, joined, wrapped, cut or mixed up."""
    text = rng.choice(REFUSED[:50]).format(file=file, url="http://127.0.0.1:1/")
    match rng.randrange(5):
        case 0:
            return f"slot >= 0 {rng.choice(['AND', 'OR'])} ({text})"
        case 1:
            return f"CASE WHEN slot > {rng.randrange(SLOTS)} THEN {text} ELSE {rng.choice(['true', 'NULL'])} END"
        case 2:
            return text[: rng.randrange(1, len(text))]
        case 3:
            return f"coalesce(TRY_CAST(({text}) AS BOOLEAN), NOT ({rng.choice(REFUSED[:10])}))"
    return "".join(rng.sample(text, len(text)))


@pytest.mark.soak
def test_no_mask_reads_anything_or_outlives_its_limits(server, tmp_path, monkeypatch):
    monkeypatch.setenv("DUALFORM_SECRET", SECRET)
    secret = tmp_path / "secret.csv"
    os.mkfifo(secret)  # whoever opens it waits for ever, which nobody does
    rng = random.Random(SEED)
    with socket.create_server(("127.0.0.1", 0)) as listener, Client(server.address) as client:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        masks = [text.format(file=f"'{secret}'", url=url) for text in REFUSED]
        masks += COSTLY if soaking() else COSTLY[::4]
        masks += [drawn(rng, f"'{secret}'") for _ in range(rounds(15, 1_000))]
        client.topk("fc", QUERY)
        refused, before = list[str](), resident_bytes()
        for where in masks:
            began = time.process_time()
            try:
                answer = client.topk("fc", QUERY, 1, where)
            except (BadInput, NotFound) as error:
                refused.append(str(error))
            else:
                assert where not in masks[: len(REFUSED)]
                assert answer.scan.slots_matching <= SLOTS
            assert time.process_time() - began < PROCESSOR_SECONDS, where[:200]
            assert resident_bytes() - before < 600e6, where[:200]
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert list(tmp_path.iterdir()) == [secret]
    assert len(refused) >= len(REFUSED)
    assert not [said for said in refused if SECRET in said or str(Path.home()) in said]
    outcome = f"{len(refused)} refused, the others answered; no file, environment or network reached"
    report("hostile masks asked of a server", seed=SEED, count=len(masks), outcome=outcome)


def busy(server: Server) -> bool:
    """Whether a thread works on a mask, or on any question."""
    lanes = server._handlers._resources.lanes.all
    return any(lane._turns.free < lane._turns._size for lane in lanes) or any(
        thread.name == "mask" for thread in threading.enumerate()
    )


@pytest.mark.soak
@pytest.mark.skipif(not resident_bytes(), reason="the system does not say what a process holds")
def test_masks_stop_at_the_deadline_and_leave_no_thread_and_no_memory():
    rng, count, stopped = random.Random(SEED), rounds(4, 300), 0
    with serving(100 * SLOTS) as server, Client(server.address) as client:
        client.topk("fc", QUERY)
        before = resident_bytes()
        for number in range(count):
            where = f"slot < -{number + 1} OR {rng.choice(COSTLY[:3])}"  # one that no other has asked for
            seconds = rng.uniform(0.01, 0.2)
            with Client(server.address, timeout=seconds) as hasty, pytest.raises((TimedOut, BadInput)) as met:
                hasty.topk("fc", QUERY, 1, where)
            stopped += isinstance(met.value, TimedOut)
            began = time.process_time()
            until(lambda: not busy(server))
            assert time.process_time() - began < STOPPING_SECONDS, where[:200]
        assert stopped
        assert resident_bytes() - before < 300e6
        assert client.topk("fc", QUERY, 1, "slot < 5").scan.slots_matching == 5
    report(
        "costly masks whose deadline passes while they are evaluated",
        seed=SEED,
        count=count,
        outcome=f"{stopped} stopped, the others refused; no thread and no memory left behind",
    )
