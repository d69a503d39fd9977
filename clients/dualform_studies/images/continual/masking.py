"""Parts of a succession's second training, masked one at a time: what the network is worth without each.

    W_masked = W_T - (W_part - W_0)

where W_part is the sum of the part's slots alone: adding up a tenth of the slots costs a tenth of adding up the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dualform.query.engine import Engine
from dualform_studies.images.training.network import accuracy, layer_names, with_weights
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.succession import Pair, TrainedNetwork, Weights, without
from dualform_studies.pages.folder import Report
from dualform_studies.progress import Progress
from dualform_studies.reconstructions import reconstruction_errors

_LAST_OF_3000 = (30, 100, 300, 600, 1000, 2000, 2900)
"""Last steps to leave out, of 3,000; of another number of steps, as large a share."""


@dataclass(frozen=True)
class Part:
    """Some of the training on the second dataset."""

    words: str
    slots: str
    """The SQL condition that is true of its slots alone."""
    mask: str
    """The SQL condition that is true of all others."""
    label: int | None = None
    """The class of its images, None where it holds all classes."""
    last: int = 0
    """Of a part with all classes: how many steps, counted from the end of training."""


def parts(pair: Pair, recipe: Recipe) -> list[Part]:
    """The whole second dataset, each of its classes, and its last steps, more and more of them."""
    second = pair[1]
    own, end = f"dataset = '{second.name}'", 2 * recipe.steps
    whole = Part(f"all of {second.name}", own, without(second), last=recipe.steps)
    classes = [
        Part(f"its class {label}, {name}", f"{own} AND label = {label}", f"NOT ({own} AND label = {label})", label)
        for label, name in enumerate(second.label_names)
    ]
    last = [Part(f"its last {n:,} steps", f"step >= {end - n}", f"step < {end - n}", last=n) for n in _last(recipe)]
    return [whole, *classes, *last]


def _last(recipe: Recipe) -> list[int]:
    scaled = {max(1, round(n * recipe.steps / 3000)) for n in _LAST_OF_3000}
    return sorted(n for n in scaled if n < recipe.steps)


def masked_weights(memory: Engine, part: Part) -> Weights:
    """What `memory.weights(where=part.mask)` gives, but for float32's rounding; for training without weight decay."""
    whole, alone, initial = memory.weights(), memory.weights(where=part.slots), memory.weights(at_step=0)
    return {name: (whole[name].double() - (alone[name].double() - initial[name].double())).float() for name in whole}


def sweep(
    memory: Engine,
    chosen: Sequence[Part],
    retrained: Sequence[Weights],
    trained: TrainedNetwork,
    pair: Pair,
    recipe: Recipe,
    progress: Progress | None = None,
) -> list[Report]:
    """For each part the test accuracies of the masked network and of the one retrained without it, by dataset.

    Beside them how many datapoints the mask leaves out, and by layer how much these cancel each other and how far they
    moved the weights together, as a multiple of how far all of training did. The first row is of the network as it was
    trained, with nothing left out.
    """
    widths = recipe.widths(pair[0])
    whole, initial = memory.weights(), memory.weights(at_step=0)

    def judged(weights: Weights) -> dict[str, float]:
        network = with_weights(widths, weights)
        return {dataset.name: accuracy(network, dataset) for dataset in pair}

    final = judged(trained.final)
    rows: list[Report] = [
        {"part": "nothing", "label": None, "last": 0, "datapoints": 0, "masked": final, "retrained": final}
    ]
    counts = _counts(memory, chosen)
    for done, (part, other, count) in enumerate(zip(chosen, retrained, counts, strict=True)):
        if progress is not None:
            progress("masking parts", done, len(chosen))
        masked = masked_weights(memory, part)
        rows.append(
            {
                "part": part.words,
                "mask": part.mask,
                "label": part.label,
                "last": part.last,
                "datapoints": count,
                "masked": judged(masked),
                "retrained": judged(other),
                "cancellation": dict(memory.cancellation(where=part.mask)),
                "moved": reconstruction_errors(whole, masked, initial, layer_names(widths)),
            }
        )
    return rows


def _counts(memory: Engine, chosen: Sequence[Part]) -> list[int]:
    """Slots of each part."""
    columns = (f"count(*) FILTER (WHERE {part.slots}) AS part_{at}" for at, part in enumerate(chosen))
    answer = memory.sql(f"SELECT {', '.join(columns)} FROM slots")
    return [int(answer[f"part_{at}"][0]) for at in range(len(chosen))]
