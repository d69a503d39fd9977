"""Whether a mark stands where the record of its run ends: a moment that was counted wrongly has other updates."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc

from dualform.store.mark import Mark
from dualform.store.snapshot import Snapshot


def why_misplaced(runs: Sequence[Snapshot], mark: Mark) -> str:
    """What the record holds otherwise than the weights of a mark at the end of the last of these runs, which are all
    up to it; empty where both agree.

    Of several optimizers, marks that do not tell how many factors were logged by then are taken at their word.
    """
    run = runs[-1]
    if not any(layer.values for layer in run.layers.values()):
        return ""  # no gradient was measured, and no weights are rebuilt
    if "factors" in mark.rows:
        made, held = mark.rows["factors"], run.table("factors").num_rows
        what = "gradient factors of updates"
    elif len(mark.updates) == 1:
        made, held = mark.updates[0], sum(pc.sum(own.table("steps")["updated"]).as_py() or 0 for own in runs)
        what = "updates"
    else:
        return ""
    return "" if made == held else f"the weights that were saved had {made} {what} behind them, and {held} are recorded"
