"""Whose gradients a question about gradients is asked with: given in it, or a probe's. Shapes: n examples."""

from __future__ import annotations

from dualform.errors import BadInput
from dualform.query.slots import within
from dualform.query.view import View
from dualform.questions import ExampleGradients, ProbeRows


def examples_of(view: View, given: ExampleGradients | ProbeRows) -> ExampleGradients:
    """Raises NotFound for a probe or example that there is not, BadInput for a probe that was taken without a loss."""
    if isinstance(given, ExampleGradients):
        return given
    stored = view.snapshot.probe(given.probe)
    if stored.examples is None or not stored.traced:  # with a loss the number is known
        raise BadInput(
            f"probe {given.probe!r} has no error signals: it was taken without a loss.",
            hint="Take it with recorder.probe(…, loss=…), or ask with memory.gradients(model, inputs, labels, loss).",
            field="queries",
        )
    count = stored.examples
    whole: ExampleGradients = view.cache.get(
        ("probe's gradients", given.probe),
        lambda: ExampleGradients(count, {layer: stored.gradients(layer) for layer in stored.traced}),
    )
    if given.rows is None:
        return whole
    numbers = within(given.rows, count, f"example of probe {given.probe!r}", "queries").tolist()
    width = sum(own.keys.shape[1] + own.errors.shape[1] for own in whole.layers.values())
    view.bounds.require_queries(len(numbers), width)
    chosen = {name: own.chosen(numbers) for name, own in whole.layers.items()}
    return ExampleGradients(len(numbers), {name: own for name, own in chosen.items() if own is not None})
