"""One question put to dualform and to every peer, each answer checked."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

import dualform
from benchmarks import oracle
from benchmarks.data import Data, load
from benchmarks.peers import PEERS, Peer, closing, make
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell
from benchmarks.timing import Cannot, Ran, race
from dualform import Engine

Check: TypeAlias = Callable[[str, Any], tuple[str, str]]
"""Of a contestant's name and answer: what is wrong with it, and what is remarkable."""


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
        """Everyone's cell. `kind` names what peers are asked, to foresee from fewer queries who would take too long."""
        peers = {name: self._in_time(kind, queries, peer, of_peer) for name, peer in self.peers.items()}
        repeats, patience = self.plan.repeats, self.plan.patience
        if len(ours) > 1:
            # These are compared with each other, closely: they race alone, for longer.
            ran = race(ours, 3 * repeats, patience) | race(peers, repeats, patience)
        else:
            ran = race({**ours, **peers}, repeats, patience)
        for name in self.peers:
            # One query tells little of many: some answer those in one scan.
            if (timing := ran[name].timing) is not None and queries > 1:
                self._pace[kind, name] = timing.seconds / queries
        ran |= {name: Ran(why_not=reason) for name, reason in self.absent.items()}
        order = [*ours, *(name for name in PEERS if name in ran)]
        return {name: cell(name, ran[name], check) for name in order}

    def _in_time(self, kind: str, queries: int, peer: Peer, of_peer: Callable[[Peer], Any]) -> Callable[[], Any]:
        foreseen = self._pace.get((kind, peer.name), 0.0) * queries

        def run() -> Any:
            if foreseen > self.plan.patience:
                raise Cannot(f"not waited for: about {foreseen:.0f} s, by its time for fewer queries")
            return of_peer(peer)

        return run


def cell(name: str, ran: Ran, check: Check) -> Cell:
    if ran.timing is None:
        return Cell(why_not=ran.why_not)
    wrong, remark = check(name, ran.answer)
    return Cell(ran.timing.seconds, ran.timing.best, ran.timing.repeats, wrong=wrong, remark=remark)


def against(right: oracle.Best) -> Check:
    """Of answers to a question about the best slots: ours promises to be exact, others give an index a query."""

    def check(name: str, answer: Any) -> tuple[str, str]:
        if ours(name):
            return oracle.wrong_exactly(right, answer.slots, answer.scores), ""
        found = [np.asarray(own) for own in answer]
        others = sum(len(np.setdiff1d(own, slots)) > 0 for own, slots in zip(found, right.slots, strict=True))
        return "", f"other slots than the exact ones for {others} of {len(found)} queries" if others else ""

    return check


def ours(name: str) -> bool:
    return name.startswith(OURS)


@contextmanager
def contest(plan: Plan) -> Iterator[Contest]:
    """Everything in memory: the engine, and every peer that is installed and can load the keys."""
    data = load(plan)
    built: dict[str, Peer] = {}
    log_path = plan.folder / "peers.json"
    log: dict[str, Any] = json.loads(log_path.read_text()) if log_path.exists() else {}
    for name in PEERS:
        if "why_not" in log.get(name, {}):
            continue
        began = time.perf_counter()
        try:
            peer = make(name)
            peer.build(data, plan.folder, plan.build_patience)
        except Exception as error:  # whatever a peer stumbles over goes into its cell
            log[name] = {"why_not": reason(error)}
            continue
        log.setdefault(name, {"seconds": time.perf_counter() - began})
        built[name] = peer
    log_path.write_text(json.dumps(log))
    absent = {name: entry["why_not"] for name, entry in log.items() if "why_not" in entry}
    build = {name: entry["seconds"] for name, entry in log.items() if "seconds" in entry}
    with dualform.open(plan.memory, backend=plan.backend) as engine, closing(list(built.values())):
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
