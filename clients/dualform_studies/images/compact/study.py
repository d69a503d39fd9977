"""Remarks 3.1, 3.3 and 3.4 of the paper, on one training of the single task: `dualform study compact`."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np

from dualform.query.engine import Engine
from dualform_studies.assignment import Assignment
from dualform_studies.images.compact.claims import remarks
from dualform_studies.images.compact.order import compare_orders, pairs_of
from dualform_studies.images.compact.page import compact_page
from dualform_studies.images.compact.ranks import (
    ALL_LAYERS,
    SHARES,
    accuracies_by_rank,
    accuracy_with,
    rank_keeping,
    rank_report,
)
from dualform_studies.images.compact.span import ask_span
from dualform_studies.images.compact.update import Update, mixture, update_of, with_bias
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.data.download import load_dataset
from dualform_studies.images.training.network import layer_names
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.recorded import query_set_name, record
from dualform_studies.images.training.stream import batch_rows, batches
from dualform_studies.pages.folder import Report, bytes_on_disk, check_free
from dualform_studies.progress import Progress, or_silent
from dualform_studies.reconstructions import reconstruction_report
from dualform_studies.recorded_memory import open_recorded

COMPACT_RECIPE = Recipe(steps=5000)
"""The single task's."""

_PAIRS, _QUERIES = 12_800, 500
"""Slots that are recorded again in another order, and test images that are asked about them."""
_MIXED = 3
"""Directions of each layer that are taken apart into what each slot brought."""


def run_compact(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train one network on MNIST as the single task does; the memory is `out` itself, the page lies in `out/report`.

    `steps` updates (5,000 where none are given). Raises AlreadyExists where `out` holds something, and what
    `load_dataset` raises.
    """
    out, seed, start = assignment.out, assignment.first_seed, perf_counter()
    check_free(out)
    recipe = (recipe or COMPACT_RECIPE).with_steps(assignment.steps)
    dataset = load_dataset("mnist", assignment.data)
    order = batch_rows(dataset.split.trained, recipe, seed, part=0)
    record([dataset], batches(dataset, order), recipe, seed, out, progress=assignment.progress)
    report: Report = {
        "study": "compact",
        "command": assignment.command("compact"),
        "seed": seed,
        "steps": recipe.steps,
        "recipe": recipe.in_words(),
        "trained_on": dataset.trained_in_words(),
    }
    report |= _examine(out, dataset, recipe, seed, assignment.progress)
    report["claims"] = [claim.plain() for claim in remarks(report)]
    report["disk_bytes"] = bytes_on_disk(out)
    report["seconds"] = {"all": perf_counter() - start}
    compact_page(out, report).write(report)
    return report


def _examine(out: Path, dataset: Dataset, recipe: Recipe, seed: int, progress: Progress | None) -> Report:
    """Everything that the memory is asked. Its keys, gigabytes of them, are let go on return."""
    say, widths = or_silent(progress), recipe.widths(dataset)
    layers, query_set = layer_names(widths), query_set_name(dataset)
    with open_recorded(out) as memory:
        initial, final = memory.weights(at_step=0), memory.weights()
        updates = {layer: update_of(layer, initial, final) for layer in layers}
        slots = sum(memory.info().slots.values())
        say("asking the memory", 0, 3)
        report: Report = {
            "slots": slots,
            "verify": {name: reconstruction_report(reconstruction) for name, reconstruction in memory.verify().items()},
            "span": {layer: ask_span(memory, layer, query_set, with_bias(layer, initial)) for layer in layers},
        }
        say("asking the memory", 1, 3)
        report["mixture"] = {layer: mixture(memory, update, _MIXED) for layer, update in updates.items()}
        say("asking the memory", 2, 3)
        report["order"] = _shuffle(memory, query_set, slots, seed)
        say("asking the memory", 3, 3)
    return report | _truncate(updates, widths, dataset, slots, progress)


def _shuffle(memory: Engine, query_set: str, slots: int, seed: int) -> Report:
    """Pairs drawn from the whole training, as they stand and shuffled."""
    draw = np.random.default_rng(seed)
    chosen = np.sort(draw.choice(slots, size=min(_PAIRS, slots), replace=False))
    queries = {}
    for layer in memory.info().layers:
        of_query_set = memory.query_set(query_set, layer.name).queries
        assert of_query_set is not None, "the layer was named"
        queries[layer.name] = of_query_set[:_QUERIES]
    layers = compare_orders(pairs_of(memory, chosen), draw.permutation(len(chosen)), queries)
    return {"pairs": len(chosen), "queries": min(map(len, queries.values())), "layers": layers}


def _truncate(
    updates: dict[str, Update], widths: tuple[int, ...], dataset: Dataset, slots: int, progress: Progress | None
) -> Report:
    """Energies and accuracies by rank, and what the directions that hold most of each update come to together."""
    by_rank = accuracies_by_rank(updates, widths, dataset, progress)
    kept = {layer: update.directions_holding(SHARES[-1]) for layer, update in updates.items()}
    ranks = {layer: rank_report(update, by_rank[layer], slots) for layer, update in updates.items()}
    together = by_rank[ALL_LAYERS]
    return {
        "energy": {layer: update.energy().tolist() for layer, update in updates.items()},
        "accuracy": {name: {str(rank): reached for rank, reached in own.items()} for name, own in by_rank.items()},
        "ranks": ranks,
        "ranks_all": {str(share): rank_keeping(share, together) for share in SHARES},
        "compact": {
            "accuracy": accuracy_with(updates, kept, widths, dataset),
            "accuracy_all": together[max(together)],
            "numbers": sum(row["numbers"]["directions"] for row in ranks.values()),
            "slots_numbers": sum(row["numbers"]["slots"] for row in ranks.values()),
            "weights_numbers": sum(row["numbers"]["weight"] for row in ranks.values()),
        },
    }
