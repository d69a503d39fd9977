"""The glossary of dualform: a one-sentence definition for each word, used in docs/glossary.md and in the tooltips of
the explorer and the notebook widget.
"""

from __future__ import annotations

from typing import NamedTuple


class Word(NamedTuple):
    meaning: str
    """One sentence of plain text."""
    link: str = ""
    """A page in docs/ with more about it."""


GLOSSARY: dict[str, Word] = {
    "ablation": Word(
        "Removing the terms of some slots from a layer's sum, by arithmetic and without retraining.",
        "howto/ablation.md",
    ),
    "absolute score": Word("An attention score without its sign.", "howto/search.md"),
    "adjoint": Word(
        "How a loss would change if training had left out a sample: the derivative through all of its updates.",
        "howto/was-it-this-data.md",
    ),
    "attention score": Word(
        "The inner product of a slot's key and the query: how similar the layer finds the two inputs.", "concepts.md"
    ),
    "budget": Word(
        "A limit on a memory's size on disk; slots beyond it are sampled, each sample whole.", "howto/budget.md"
    ),
    "cancellation": Word(
        "The removed terms' norms added up, divided by the norm of their sum: 1 if they agree, large if they cancel.",
        "howto/ablation.md",
    ),
    "contribution": Word(
        "The attention score times the slot's value: how much the slot adds to an output of its layer.",
        "howto/contributions.md",
    ),
    "cosine": Word("An attention score divided by the lengths of key and query.", "howto/search.md"),
    "delete": Word(
        "Removing samples from a memory; the trained model does not change, so it is not unlearning.", "howto/delete.md"
    ),
    "distinct": Word("An option of searches: one hit for each sample, its best slot.", "howto/search.md"),
    "effective slots": Word(
        "The number of equally scored slots that would be as concentrated: (Σ|s|)² / Σs² over the scores s.",
        "which-question.md",
    ),
    "filter": Word("A condition that chooses slots by their columns or ids, given as where=.", "howto/search.md"),
    "gradient score": Word(
        "The inner product of a slot's recorded gradient and a test example's gradient.",
        "howto/gradients.md",
    ),
    "group": Word("All slots with the same values in the columns that you group by.", "howto/search.md"),
    "initial weights and bias": Word(
        "The weights before the training, and the whole bias, with what training changed in it.", "concepts.md"
    ),
    "key": Word("The layer's input for a slot, recorded while training.", "concepts.md"),
    "label": Word("The class of a sample, as your training passed it to step().", "recording.md"),
    "layer": Word("A module whose inputs and error signals are recorded, by its name in the model.", "recording.md"),
    "ledger": Word(
        "What each group of training data did to the loss of examples, update by update.", "howto/ledger.md"
    ),
    "margin": Word(
        "One output minus another, written 3-8; of a prediction, its output minus the largest other one.",
        "howto/contributions.md",
    ),
    "memory": Word("Everything recorded of one training: a folder, opened with dualform.open.", "concepts.md"),
    "output layer": Word("The recorded layer that gives the network's outputs.", "explorer.md"),
    "placebo": Word(
        "Ablations of as many random samples, and of siblings; only a change outside the central 95 % of both is "
        "unusual.",
        "api.md",
    ),
    "preview": Word("How a sample looked, stored as an image, a text or a table row.", "howto/previews.md"),
    "query": Word("The layer's input for a test example.", "concepts.md"),
    "query set": Word("Test examples stored in a memory under a name, so that test/17 is example 17.", "concepts.md"),
    "reconstruction error": Word(
        "How far the rebuilt weights are from the trained ones, relative to how far training moved them.",
        "exactness.md",
    ),
    "repeats": Word("How many slots of a hit's sample score at least as high as the last hit.", "howto/search.md"),
    "rerun": Word("A second run of the training, which makes keys that were not stored.", "howto/rerun.md"),
    "residual": Word("The part of an output that the listed terms leave unexplained.", "howto/contributions.md"),
    "sample": Word("One example of your training data, by the number passed to step().", "recording.md"),
    "score": Word(
        "How slots are rated for a query: attention, its absolute size, or the contribution to an output.",
        "howto/search.md",
    ),
    "share": Word("The part of all absolute scores that the slots up to a rank hold together.", "howto/search.md"),
    "sibling": Word(
        "An ablation of the same kind with other values of the same columns, or another span of as many steps.",
        "api.md",
    ),
    "slot": Word("One key-value pair: a training row, token or patch in one layer at one step.", "concepts.md"),
    "slot space": Word("A set of slots with the same rows and columns, such as sample or token.", "concepts.md"),
    "snapshot": Word(
        "The state of a memory that an answer belongs to, counted up as a training records.", "durability.md"
    ),
    "status": Word(
        "How well the record rebuilds a layer: exact, exact to bfloat16, or approximate since a step.", "exactness.md"
    ),
    "step": Word("One update of the training, counted from 0.", "recording.md"),
    "surprise": Word(
        "The loss at a token in nats: minus the logarithm of the share that a softmax of the outputs gives its label.",
        "explorer.md",
    ),
    "target": Word("The output, margin or direction along which contributions are measured.", "howto/contributions.md"),
    "unrecorded change": Word("A change of the weights that the recorded updates do not explain.", "exactness.md"),
    "value": Word("The layer's error signal for a slot, times what the optimizer made of it.", "concepts.md"),
}
"""In alphabetical order."""
SCORE_WORDS = {"dot": "attention score", "abs": "absolute score", "contribution": "contribution"}
"""The glossary word of each score."""


def meaning(word: str) -> str:
    """The definition of a word, also for its plural and with a capital. Raises KeyError for unknown words."""
    own = word if word in GLOSSARY else word.lower()
    return GLOSSARY[own if own in GLOSSARY else own.removesuffix("s")].meaning
