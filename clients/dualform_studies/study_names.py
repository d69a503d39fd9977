"""The studies by name, each in a line: for lists and completion, which load none of them."""

from __future__ import annotations

STUDY_NAMES = {
    "single": "section 5.2 of the paper: MNIST, what predictions attend to, Table 1 over several runs",
    "single-variants": "what moves the cells of Table 1: one thing of the recipe changed at a time",
    "joint": "section 5.3: MNIST and Fashion-MNIST mixed, and attention across the two",
    "continual": "section 5.4: MNIST, then Fashion-MNIST; masked, the second gives the first back",
    "compact": "remarks 3.1, 3.3 and 3.4: the memory shuffled, orthogonal queries, and updates of low rank",
    "cifar10": "footnote 6: the paper's network on CIFAR-10",
    "aesop": "section 5.5: a character-level language model of Aesop's Fables",
    "wikitext2": "section 5.5: a word-level language model of WikiText-2",
    "limits": "section 6 and appendix D: what storing and asking cost, and a rerun in place of keys",
    "memorisation": "a small attention-only Transformer learns 25 pairs by heart",
}
"""Those of the paper first, in the order of its document."""
