"""The fables as passages of byte pair tokens, each token knowing where it stands.

Shapes: n passages, L tokens of a passage.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from dualform import PreviewSet
from dualform.extras import missing_package
from dualform_studies.networks.gpt2.recipe import Recipe
from dualform_studies.text.corpora import Corpus
from dualform_studies.text.previews import passages
from dualform_studies.text.tokens import Tokens


class Fables:
    """The corpus in tokens of a byte pair encoding that is learned from its training text."""

    def __init__(self, corpus: Corpus, recipe: Recipe) -> None:
        """Raises MissingPackage where `tokenizers` is not installed."""
        self.corpus, self.length = corpus, recipe.length
        self._tokenizer = _learned(corpus.train, recipe.vocabulary)
        self.vocabulary = int(self._tokenizer.get_vocab_size())
        self.train, self.test = self._tokens(corpus.train), self._tokens(corpus.test)
        titles = [corpus.title(start) for start in self.train.starts.tolist()]
        self.titles = list(dict.fromkeys(titles))
        """Of the training text's fables, in order."""
        numbers = {title: number for number, title in enumerate(self.titles)}
        self.fables = np.array([numbers[title] for title in titles])
        """int64[tokens]: the fable that each token of the training text stands in."""

    def _tokens(self, text: str) -> Tokens:
        found = self._tokenizer.encode(text)
        offsets = np.array(found.offsets, dtype=np.int64)
        return Tokens(text, np.array(found.ids, dtype=np.int64), offsets[:, 0], offsets[:, 1])

    def passages(self, tokens: Tokens) -> NDArray[np.int64]:
        """int64[n, L]: the text in passages that follow one another; what is left at its end is not read."""
        return tokens.ids[: len(tokens) // self.length * self.length].reshape(-1, self.length)

    def preview_set(self, tokens: Tokens) -> PreviewSet:
        """What the passages look like, with the place of each token."""
        whole = len(tokens) // self.length * self.length
        return passages(tokens, range(0, whole, self.length), self.length)

    def word(self, token: int) -> str:
        """A token as text."""
        return str(self._tokenizer.decode([token]))


class TrainingPassages(Dataset[dict[str, Any]]):
    """What the Trainer draws from: passages, and columns that the memory is to have of each token."""

    def __init__(self, fables: Fables) -> None:
        self._ids, self._fables = fables.passages(fables.train), fables.fables
        self._next = np.append(fables.train.ids[1:], 0)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, passage: int) -> dict[str, Any]:
        ids = torch.from_numpy(self._ids[passage])
        places = np.arange(ids.numel()) + passage * ids.numel()
        return {
            "input_ids": ids,
            "labels": ids,
            "passage": passage,
            "place": torch.from_numpy(places),
            "fable": torch.from_numpy(self._fables[places]),
            "next": torch.from_numpy(self._next[places]),
        }


def _learned(text: str, size: int) -> Any:
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise missing_package(error) or error from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer
