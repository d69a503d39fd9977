"""The paper's language model, its batches and its training (section 5.5, appendix C.1).

An embedding, one LSTM layer, and a linear layer to the vocabulary. The text is cut into chunks, and the chunks into B
runs of equal length. One stream reads each run, chunk after chunk, all streams side by side; what is left over at the
end of the text is not read. After the last chunk each stream goes back to its first one, which begins another pass.

The training is as its published code has it: Adam, clipping, and a state that is carried along until a pass ends or
chance has it begin anew. (In the code the thread that fetches batches makes a pass begin anew, perhaps a batch or two
early; here the state begins anew with the pass.) Recorded or not, and however often it is run: on one machine, the seed
alone decides every bit.

Shapes: n tokens of a text, B streams, L tokens of a chunk, V tokens of the vocabulary, h units of the LSTM, e inputs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dualform import GroupSum, PreviewSet, Recorder, Rerun, TopK
from dualform.errors import BadInput
from dualform_studies.assignment import Progress, or_silent
from dualform_studies.recorded_memory import descend, open_recorded, step_of
from dualform_studies.text.corpora import Corpus, Tokens, Vocabulary


@dataclass(frozen=True)
class Recipe:
    embedding: int
    """Width of a token's embedding."""
    projection: int
    """Width of a linear layer between embedding and LSTM; 0 for none."""
    hidden: int
    """Units of the LSTM."""
    lr: float
    clip: float
    """Greatest norm of the gradient of all parameters together."""
    batch: int
    """Streams of text read side by side."""
    steps: int
    """Updates."""
    unroll: int = 100
    """Tokens of each stream a step: gradients go back no further."""
    dropout: float = 0.0
    """Of the embedding."""
    weight_decay: float = 1e-7
    reset: float = 0.01
    """Chance, at each step, that the state is not carried over from the step before."""

    def with_steps(self, steps: int | None) -> Recipe:
        """The same recipe with so many updates, unchanged for None."""
        return self if steps is None else replace(self, steps=steps)

    @property
    def slots(self) -> int:
        """Training datapoints of the LSTM: one per token and step."""
        return self.batch * self.unroll * self.steps

    @property
    def d_in(self) -> int:
        """Width of the LSTM's key [h_(t-1); x_t]."""
        return self.hidden + (self.projection or self.embedding)


State: TypeAlias = tuple[Tensor, Tensor]
"""Hidden state and cell, float32[1, B, h] each."""

LAYER = "lstm"
"""Name of the layer whose one linear transformation is examined: its key is [h_(t-1); x_t], float32[h + e]."""


class LanguageModel(nn.Module):
    """Scores of each next token. Weights of the embedding begin at U(-0.1, 0.1); input and output share none."""

    def __init__(self, vocabulary: int, recipe: Recipe) -> None:
        super().__init__()
        width = recipe.projection or recipe.embedding
        self.embedding = nn.Embedding(vocabulary, recipe.embedding)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.projection = nn.Linear(recipe.embedding, recipe.projection) if recipe.projection else nn.Identity()
        self.dropout = nn.Dropout(recipe.dropout)
        self.lstm = nn.LSTM(width, recipe.hidden, batch_first=True)
        self.output = nn.Linear(recipe.hidden, vocabulary)

    def inputs(self, tokens: Tensor) -> Tensor:
        """float32[B, L, e]: the LSTM's input for tokens int64[B, L]."""
        inputs: Tensor = self.projection(self.dropout(self.embedding(tokens)))
        return inputs

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """float32[B, L, V] for tokens int64[B, L], and the state after the last; no state is a state of zeros."""
        hidden, state = self.lstm(self.inputs(tokens), state)
        return self.output(hidden), state

    @torch.no_grad()
    def queries(self, tokens: Tensor) -> Tensor:
        """float32[L, h + e]: [h_(t-1); x_t] for each token of one text int64[L] read from a state of zeros."""
        was_training = self.training
        self.eval()
        inputs = self.inputs(tokens[None])
        hidden, _ = self.lstm(inputs)
        self.train(was_training)
        before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
        return torch.cat([before, inputs], dim=2)[0]


def build_network(vocabulary: int, recipe: Recipe, seed: int) -> LanguageModel:
    """A network in its initial weights, drawn from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LanguageModel(vocabulary, recipe)


@dataclass(frozen=True, eq=False)
class Chunk:
    opens: bool
    """Whether a pass begins with it."""
    positions: NDArray[np.int64]
    """int64[B, L]: which tokens of the text are read, counted from its first."""
    inputs: NDArray[np.int64]
    """int64[B, L]: the tokens at these positions."""
    targets: NDArray[np.int64]
    """int64[B, L]: the tokens after them."""


def chunks_of_a_pass(length: int, recipe: Recipe) -> int:
    """Chunks of each stream, which are the steps of a pass over a text of `length` tokens.

    Raises BadInput where the text is too short for one.
    """
    # The last token is never read, as none follows it.
    count = (length - 1) // recipe.unroll // recipe.batch
    if count < 1:
        raise BadInput(
            f"a text of {length:,} tokens is too short: each of {recipe.batch} streams needs a chunk of "
            f"{recipe.unroll}.",
            hint="Train on a longer text.",
            field="data",
        )
    return count


def chunks(ids: NDArray[np.int64], recipe: Recipe) -> Iterator[Chunk]:
    """One chunk for each step, of tokens int64[n]. Raises BadInput where the text is too short."""
    count = chunks_of_a_pass(len(ids), recipe)
    first = np.arange(recipe.batch) * count * recipe.unroll
    for step in range(recipe.steps):
        within = step % count
        positions = first[:, None] + within * recipe.unroll + np.arange(recipe.unroll)
        yield Chunk(within == 0, positions, ids[positions], ids[positions + 1])


def passages(tokens: Tokens, begins: Sequence[int], length: int, positions: Sequence[int] | None = None) -> PreviewSet:
    """Stretches of a text, each of `length` tokens from one of `begins` on. `positions`: those of their first tokens,
    as slots have them, counted in the whole text; None for 0.
    """
    texts, offsets = [], []
    for begin in begins:
        starts, ends = (own[begin : begin + length] for own in (tokens.starts, tokens.ends))
        texts.append(tokens.text[starts[0] : ends[-1]])
        offsets.append(np.stack([starts, ends], axis=1) - starts[0])
    return PreviewSet.texts(texts, offsets=offsets, first=positions)


CONTEXT = 100
"""Tokens that the network reads, from a state of zeros; the last of them is the query. So many in the paper's code."""
PASSAGES = 16
"""Passages of the test text, of CONTEXT tokens each, that are stored as queries."""
Question: TypeAlias = TopK | GroupSum


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained on what, and with which seed."""

    corpus: Corpus
    vocabulary: Vocabulary
    train: Tokens
    test: Tokens
    recipe: Recipe
    seed: int
    progress: Progress | None = None

    @property
    def device(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    def network(self) -> LanguageModel:
        """In its initial weights."""
        return build_network(len(self.vocabulary), self.recipe, self.seed).to(self.device)

    def recorded_network(self, out: Path) -> LanguageModel:
        """As a recorded training left it."""
        network = self.network()
        network.load_state_dict(load_file(out / "weights" / "final.safetensors"))
        return network

    def begin(self) -> tuple[LanguageModel, torch.optim.Adam]:
        """A network in its initial weights, and its optimizer."""
        if self.device == "cuda":
            # Otherwise sums may be added in another order each time, and a second training would be another one.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        network, recipe = self.network(), self.recipe
        return network, torch.optim.Adam(network.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)

    def update(
        self,
        network: LanguageModel,
        optimizer: torch.optim.Optimizer,
        steps: int | None = None,
        *,
        recorder: Recorder | None = None,
        label: str = "training",
    ) -> list[float]:
        """Take so many updates, None for the recipe's; the loss of each is returned, in nats a token.

        A recorded slot is one token read, its position the place of that token in the text, its label the token that
        follows, its sample the stream that read it. Whether the state is carried over is drawn by a generator of its
        own; dropout draws from torch's, which is set for the training and put back after it.
        """
        recipe, resets = self.recipe.with_steps(steps), np.random.default_rng((self.seed, 1))
        state: State | None = None
        losses: list[Tensor] = []
        with torch.random.fork_rng(devices=[self.device] if self.device == "cuda" else []):
            torch.manual_seed(self.seed)
            for done, chunk in enumerate(chunks(self.train.ids, recipe), start=1):
                # One chance for all streams: those of a batch begin anew together.
                if resets.random() < recipe.reset or chunk.opens:
                    state = None
                inputs, targets = (torch.from_numpy(part).to(self.device) for part in (chunk.inputs, chunk.targets))
                columns = {"position": chunk.positions, "label": chunk.targets, "sample": np.arange(recipe.batch)}
                with step_of(recorder, dataset=self.corpus.name, **columns):
                    scores, after = network(inputs, state)
                    loss = cross_entropy(scores.flatten(0, 1), targets.flatten())
                    descend(network, optimizer, loss, recipe.clip)
                state = (after[0].detach(), after[1].detach())
                losses.append(loss.detach())
                if recorder is not None:
                    or_silent(self.progress)(label, done, recipe.steps)
        return torch.stack(losses).tolist()

    def record(self, out: Path, *, keys: bool) -> tuple[LanguageModel, float]:
        """The trained network, recorded into a folder, and the seconds it took; without keys for a rerun.

        With keys, what the streams read is stored, too, and passages of the test text as a query set.
        """
        network, optimizer = self.begin()
        names = {self.corpus.name: self.vocabulary.words}
        start = perf_counter()
        with Recorder(
            network, optimizer, out, [LAYER], values=False, label_names=names, keys=keys, quiet=True
        ) as recorder:
            self.update(network, optimizer, recorder=recorder, label="training, recorded")
            seconds = perf_counter() - start
            if keys:
                length = chunks_of_a_pass(len(self.train), self.recipe) * self.recipe.unroll
                streams = [stream * length for stream in range(self.recipe.batch)]
                recorder.previews(self.corpus.name, passages(self.train, streams, length, streams))
                length = min(CONTEXT, len(self.test) - 1)
                begins = np.arange(min(PASSAGES, (len(self.test) - 1) // length)) * length
                places = begins[:, None] + np.arange(length)
                inputs, labels = (torch.from_numpy(self.test.ids[own]).to(self.device) for own in (places, places + 1))
                recorder.query_set("test", inputs, label=labels, previews=passages(self.test, begins.tolist(), length))
        return network, seconds

    def rerun(self, out: Path, questions: Sequence[Question]) -> list[Any]:
        """Answers from the training run again."""
        network, optimizer = self.begin()
        rerun = Rerun(network, optimizer, out, questions)
        with rerun:
            self.update(network, optimizer, recorder=rerun, label="training again, for the answers")
        return rerun.answers()

    def ask_stored(self, out: Path, questions: Sequence[Question]) -> list[Any]:
        """Answers from stored keys."""
        answers: list[Any] = []
        with open_recorded(out, ram=None) as memory:
            for question in questions:
                answers.append(memory.ask(question))
                or_silent(self.progress)("asking the memory", len(answers), len(questions))
        return answers


def last_queries(network: LanguageModel, prompts: Sequence[Tokens]) -> NDArray[np.float32]:
    """float32[m, d]: the key of the last token of each prompt, which is read from a state of zeros."""
    device = next(network.parameters()).device
    rows = [network.queries(torch.from_numpy(prompt.ids).to(device))[-1:].cpu() for prompt in prompts]
    return torch.cat(rows).numpy()
