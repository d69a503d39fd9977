"""Whose gradients a question about gradients is asked with: given in it, or a query set's. Shapes: n examples."""

from __future__ import annotations

from dualform.errors import BadInput
from dualform.query.slots import within
from dualform.query.view import View
from dualform.questions import ExampleGradients, QuerySetExamples
from dualform.questions.question import ALL_TOKENS


def examples_of(view: View, given: ExampleGradients | QuerySetExamples) -> ExampleGradients:
    """Raises NotFound for a query set or example that there is not, BadInput for a query set that was taken without a
    loss.
    """
    if isinstance(given, ExampleGradients):
        return given
    stored = view.snapshot.query_set(given.query_set)
    if stored.examples is None or not stored.traced:  # with a loss the number is known
        raise BadInput(
            f"Query set {given.query_set!r} was recorded without a loss, so it has no gradients.",
            hint="Record it with a loss, or pass memory.gradients(model, inputs, labels, loss).",
            field="queries",
        )
    count = stored.examples
    whole: ExampleGradients = view.cache.get(
        ("query set's gradients", given.query_set),
        lambda: ExampleGradients(count, {layer: stored.gradients(layer) for layer in stored.traced}),
    )
    if given.examples is None:
        return whole
    if any(token != ALL_TOKENS for token in given.tokens):
        raise BadInput(
            'score="gradient" needs whole examples, not tokens.',
            hint='Name an example without its token, for example "test/17".',
            field="queries",
        )
    numbers = within(given.examples, count, f"example of query set {given.query_set!r}", "queries").tolist()
    width = sum(own.keys.shape[1] + own.errors.shape[1] for own in whole.layers.values())
    view.bounds.require_queries(len(numbers), width)
    chosen = {name: own.chosen(numbers) for name, own in whole.layers.items()}
    return ExampleGradients(len(numbers), {name: own for name, own in chosen.items() if own is not None})
