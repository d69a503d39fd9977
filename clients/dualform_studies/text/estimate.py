"""What a language study will take, said before it trains: slots, bytes and seconds, with keys stored and by rerun.

Some steps of the training are timed; what recording and answering add is arithmetic.
Where keys are stored, the study trains once more, to compare the recorded training with a plain one; a rerun trains
twice as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Table
from dualform_studies.text.attention import prepare
from dualform_studies.text.checkpoints import Checkpoint, updates_to_stop_at
from dualform_studies.text.prompts import Prompt
from dualform_studies.text.runs import Task
from dualform_studies.text.tokens import Tokens

_WARM_UP, _TIMED = 2, 8
"""Steps: the first of a process are slow, as threads start and memory is mapped."""
_SLOT_BYTES, _DIGEST_BYTES = 12, 48
"""Of a slot's columns in DuckDB, compressed, and of a step's digests, about."""
_PRODUCT_SECONDS = 1e-9
"""For one number of a key and one of a query, about, on one core."""


def dry_run(
    study: str, task: Task, prompts: Sequence[Prompt], compared: Sequence[int], others: Sequence[Tokens]
) -> Report:
    """Slots, bytes and seconds of both ways; nothing is written. `compared` and `others`: see `prepare`."""
    recipe = task.recipe
    replace(task, recipe=recipe.with_steps(_WARM_UP)).run_plain()
    network, seconds = replace(task, recipe=recipe.with_steps(_TIMED)).run_plain()
    nothing = np.empty((0, recipe.d_in), dtype=np.float32)
    stops = updates_to_stop_at(recipe.steps, task.of_a_pass)[:-1]
    seen = [Checkpoint(stop, 1.0, nothing) for stop in stops]
    asking = prepare(network, task.vocabulary, prompts, compared, seen, others)
    queries = round(asking.scored(recipe.steps))
    numbers = recipe.slots * recipe.d_in
    table = _SLOT_BYTES * recipe.slots + 2 * sum(4 * value.numel() for value in network.state_dict().values())
    training_twice = 2 * recipe.steps * seconds / _TIMED + _PRODUCT_SECONDS * numbers * queries
    report: Report = {
        "study": study,
        "seed": task.seed,
        "dry_run": True,
        "slots": recipe.slots,
        "key_width": recipe.d_in,
        "queries": queries,
        "step_seconds": seconds / _TIMED,
        "stored": {"bytes": 4 * numbers + table, "seconds": training_twice},
        "rerun": {"bytes": _DIGEST_BYTES * recipe.steps + table, "seconds": training_twice},
    }
    report["tables"] = [_table(report).plain()]
    return report


def _table(report: Report) -> Table:
    ways = {"stored": "keys stored, and trained plainly", "rerun": "--rerun: no keys stored, trained twice"}
    return Table(
        "estimate",
        f"{report['study']}: {report['slots']:,} slots with keys of {report['key_width']:,} numbers, "
        f"{report['queries']:,} questions. A step takes {report['step_seconds']:.3g} s here.",
        ["way", "slots", "disk (GB)", "time (minutes)"],
        [
            [words, report["slots"], round(report[way]["bytes"] / 1e9, 3), round(report[way]["seconds"] / 60, 1)]
            for way, words in ways.items()
        ],
    )
