"""What a language study will take, said before it trains: slots, bytes and seconds, with keys stored and by replay.

A few steps of the same recipe are taken each way in a folder that is thrown away; steps and questions cost the same
from first to last, so what they took is stretched to the whole. Bytes of keys follow from their number.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Table
from dualform_studies.text.attention import prepare
from dualform_studies.text.prompts import Prompt
from dualform_studies.text.runs import Task

_PROBED = 6
"""Steps that are timed each way."""
_SLOT_BYTES = 14
"""Of one slot's columns and checksums in the tables, about: measured over a million."""


def estimate(study: str, task: Task, prompts: Sequence[Prompt]) -> Report:
    """The report of a dry run; nothing is left on disk."""
    recipe = task.recipe
    probed = min(_PROBED, recipe.steps)
    probe = replace(task, recipe=recipe.with_steps(probed), progress=None)
    probe.run_plain()  # the first steps of a process are slow: threads start, memory is mapped
    scale = recipe.steps / probed
    network, plain = probe.run_plain()
    asking = prepare(network, task.vocabulary, prompts)
    start = perf_counter()
    with tempfile.TemporaryDirectory(prefix="dualform-") as folder:
        stored = Path(folder) / "stored"
        _, recorded = probe.record(stored, keys=True)
        _, asked = probe.ask_stored(stored, asking.questions())
        digested = Path(folder) / "replay"
        _, first = probe.record(digested, keys=False)
        _, again = probe.replay(digested, asking.questions())
    key_bytes = 4 * recipe.d_in * recipe.slots
    tables = _SLOT_BYTES * recipe.slots + 2 * sum(4 * value.numel() for value in network.state_dict().values())
    report: Report = {
        "study": study,
        "seed": task.seed,
        "dry_run": True,
        "slots": recipe.slots,
        "key_width": recipe.d_in,
        "queries": len(asking.queries),
        "stored": {"bytes": key_bytes + tables, "seconds": scale * (plain + recorded + asked)},
        "replay": {"bytes": tables, "seconds": scale * (plain + first + again)},
        "probe": {"steps": probed, "seconds": perf_counter() - start},
    }
    report["tables"] = [_table(report).plain()]
    return report


def _table(report: Report) -> Table:
    return Table(
        "estimate",
        f"{report['study']}: {report['slots']:,} slots with keys of {report['key_width']:,} numbers, "
        f"{report['queries']} queries; stretched from {report['probe']['steps']} steps taken on this machine.",
        ["way", "slots", "disk (GB)", "time (minutes)"],
        [
            [words, report["slots"], round(report[way]["bytes"] / 1e9, 2), round(report[way]["seconds"] / 60, 1)]
            for way, words in (("stored", "keys stored"), ("replay", "--replay: trained twice, no keys"))
        ],
    )
