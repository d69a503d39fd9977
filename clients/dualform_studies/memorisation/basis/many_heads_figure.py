"""How many heads are enough: accuracy over their number, and how many networks give each head a set of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from dualform_studies.memorisation.basis.many_heads import ManyHeads
from dualform_studies.memorisation.boosting.figure import quartiles
from dualform_studies.memorisation.boosting.ways import HEADS_WORDS
from dualform_studies.pages.frame import INK, MARKS, new_figure

_LINES = ("-", "--", ":", "-.")


def draw_many_heads(path: Path, many: ManyHeads) -> Path:
    """Left the median over seeds with its quartiles, right shares of the networks."""
    numbers = np.arange(1, len(many.own_sets) + 1)
    accuracies = {
        f"{HEADS_WORDS['free']} (SGD)": many.free_accuracy(),
        f"{HEADS_WORDS['shared']} (SGD)": many.boosted["shared"],
        f"{HEADS_WORDS['frozen']} (SGD)": many.boosted["frozen"],
        "trained to sets of their own: the head that\na pair was dealt to, alone (Adam)": np.stack(
            [sets.own for sets in many.own_sets]
        ),
    }
    with new_figure(path, 4.2) as figure:
        left, right = figure.subplots(1, 2)
        for at, (words, accuracy) in enumerate(accuracies.items()):
            low, middle, high = quartiles(list(accuracy))
            # Side by side, so that bars at the same number of heads do not hide each other.
            places = numbers + 0.09 * (at - 1.5)
            left.errorbar(
                places, middle, (middle - low, high - middle), color=INK[at], marker=MARKS[at], linestyle=_LINES[at],
                markersize=4, linewidth=1.2, elinewidth=0.9, label=words,
            )  # fmt: skip
        left.set_ylabel("accuracy over the 25 pairs (%)\nmedian and quartiles over the seeds")
        left.set_ylim(0, 104)
        by_hand = np.array(many.heads_by_hand())
        numbers_by_hand = np.arange(1, max([len(numbers), *by_hand.tolist()]) + 1)
        made = [(by_hand <= number).sum() / len(many.by_hand) for number in numbers_by_hand]
        trained = [sets.succeeded.mean() for sets in many.own_sets]
        left_free = [np.mean([one.has_own_sets for one in networks]) for networks in many.free]
        for at, (places, shares, words) in enumerate(
            (
                (numbers, trained, "trained to it (Adam)"),
                (numbers_by_hand, made, "set by hand, with so many heads or fewer:\neach with no pair of another's"),
                (numbers, left_free, "trained freely (SGD)"),
            )
        ):
            right.plot(
                places, 100 * np.array(shares), color=INK[at], marker=MARKS[at], linestyle=_LINES[at], markersize=5,
                label=words,
            )  # fmt: skip
        right.set_ylabel("networks whose heads alone know\nsets of their own (%)")
        right.set_ylim(-3, 104)
        for panel in (left, right):
            panel.set_xlabel("heads")
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=7)  # curves go everywhere above
    return path
