"""Tables of free and boosted training, and of head 1 learning alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dualform_studies.exact_tests import sign_test
from dualform_studies.memorisation.boosting.falls import NEAR, HeadOne
from dualform_studies.memorisation.boosting.falls_statements import FALL_IN_WORDS
from dualform_studies.memorisation.boosting.ways import WAYS
from dualform_studies.memorisation.second_study import plain_percent
from dualform_studies.memorisation.transformer.ensemble import Ensemble
from dualform_studies.pages.items import Table


def ways(trained: Mapping[str, Ensemble]) -> Table:
    rows = []
    for name, way in WAYS.items():
        curve = trained[name].curve
        accuracy, loss = curve.accuracy[-1], curve.loss[-1]
        free = trained["free" if way.optimizer == "SGD" else "adam free"].curve.accuracy[-1]
        rows.append(
            (
                way.words, curve.steps[-1], f"{100 * accuracy.mean():.1f} %",
                " / ".join(f"{100 * part:.0f}" for part in np.percentile(accuracy, (25, 50, 75))) + " %",
                f"{100 * accuracy.min():.0f} %", f"{int((accuracy > 0.99).sum())} of {len(accuracy)}",
                "-" if way.heads == "free" else f"{(free > accuracy).sum()} : {(free < accuracy).sum()}",
                "-" if way.heads == "free" else f"{sign_test(free - accuracy):.2g}",
                f"{np.median(loss):.2g}",
            )
        )  # fmt: skip
    columns = (
        "training", "updates", "accuracy, mean", "quartiles", "worst seed", "seeds that know all 25",
        "seeds where free knows more : less", "p (sign test)", "loss in nats, median",
    )  # fmt: skip
    return Table("ways", "Free and boosted training, over the same seeds.", columns, rows)


def falls(found: Mapping[str, HeadOne]) -> Table:
    rows = []
    for one in found.values():
        steps = [fall for fall in one.falls() if fall is not None]
        rows.append(
            (
                one.words, one.steps, f"{int(one.fell.sum())} of {len(one.fell)}",
                f"{np.median(steps):,.0f}" if steps else "-", f"{100 * one.best.mean():.1f} %",
                f"{100 * one.end.mean():.1f} %", "-" if one.bound is None else f"{one.bound:.0f}",
                "-" if one.bound is None else f"{int(one.at_bound()[one.fell].sum())} of {int(one.fell.sum())}",
                "-" if one.bound is None else f"{int(one.at_bound()[~one.fell].sum())} of {int((~one.fell).sum())}",
            )
        )  # fmt: skip
    columns = (
        "head 1 alone, by", "updates", "seeds that fall", "at update, median", "best accuracy on the way, mean",
        "at the end, mean", "curvature that it follows", "falls near it", "no fall, but near it",
    )  # fmt: skip
    return Table(
        "falls",
        f"Head 1 learning alone: the same networks, with other steps. A fall is {FALL_IN_WORDS}. The last columns "
        f"count seeds of which the loss came within {plain_percent(1 - NEAR)} of the curvature that gradient descent "
        "with momentum follows, up to the fall or to the end.",
        columns,
        rows,
    )
