"""A small attention-only Transformer that learns 25 pairs by heart, alone or many of them at once.

It has one layer of three heads, no MLP, and nothing is wider than three.

Shapes: B pairs, S = 2 tokens a pair, N = 5 words, d = 3 the stream, H heads of dimension e.

The layer norm stands right after the word embedding, so an embedded word lies on a circle: in the plane of mean zero,
at distance sqrt(d) from the origin. Everything after it is a function of two points on that circle, the torus.

    x_j    = norm(word_j) + position_j
    y      = x_2 + sum_h  w_h O_h sum_j a_hj V_h x_j        a_h = softmax_j( (Q_h x_2) . (K_h x_j) / sqrt(e) )
    logits = U y                                            only the last token is predicted; w_h = 1 in training

Every matrix is an nn.Linear without bias, the embeddings too, which read one-hot vectors: so all of them are recorded,
and a mask speaks for the whole network.

Networks this small cost the same alone as by the dozen: the parameters of M networks are stacked, and one pass serves
all, with W weightings of their H heads. Each is trained as it would be alone, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import cross_entropy, layer_norm, one_hot

from dualform import PreviewSet, Recorder
from dualform.errors import BadInput
from dualform_studies.assignment import Progress, counting

TOKENS = "abcde"
"""The dictionary; a token's number is its place here."""


@dataclass(frozen=True, eq=False)
class Facts:
    """All pairs, as (a, a), (a, b), … (e, e), and what follows each of them."""

    next_tokens: Tensor
    """int64[P]."""

    @property
    def pairs(self) -> Tensor:
        """int64[P, 2]: first and second token."""
        tokens = torch.arange(len(TOKENS))
        return torch.cartesian_prod(tokens, tokens)

    @property
    def names(self) -> list[str]:
        """The pairs in letters: "aa", "ab", …"""
        return [TOKENS[first] + TOKENS[second] for first, second in self.pairs.tolist()]

    def __len__(self) -> int:
        return len(self.next_tokens)

    def right(self, logits: Tensor) -> NDArray[np.bool_]:
        """bool[..., P]: where the greatest of logits [..., P, N] is that of the next token."""
        right: NDArray[np.bool_] = (logits.argmax(dim=-1) == self.next_tokens).numpy()
        return right


def draw_facts(seed: int) -> Facts:
    """A next token for each pair, uniform and independent: nothing but memory can know it."""
    drawn = np.random.default_rng(seed).integers(len(TOKENS), size=len(TOKENS) ** 2)
    return Facts(torch.from_numpy(drawn))


LENGTH = 2
WIDTH = 3
HEADS = 3
HEAD_WIDTH = 3
_EPS = 1e-12
"""Small enough that the circle has the same radius for every word."""

PROJECTIONS = ("query", "key", "value")


class AttentionOnly(nn.Module):
    """Maps pairs of tokens to logits of the next one, with so many heads side by side."""

    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.word = nn.Linear(len(TOKENS), WIDTH, bias=False)
        self.position = nn.Linear(LENGTH, WIDTH, bias=False)
        self.query = nn.Linear(WIDTH, heads * HEAD_WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, heads * HEAD_WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, heads * HEAD_WIDTH, bias=False)
        self.output = nn.Linear(heads * HEAD_WIDTH, WIDTH, bias=False)
        self.unembedding = nn.Linear(WIDTH, len(TOKENS), bias=False)

    def forward(self, pairs: Tensor, heads: Tensor | None = None) -> Tensor:
        """Logits [..., B, N] of int64[B, S]; `heads` [..., 1, H] are the weights w_h, all 1 where none are given."""
        return self.answer(self.embed(pairs), heads)

    def embed(self, pairs: Tensor) -> Tensor:
        """[B, S, d]: the words on their circle."""
        return layer_norm(self.word(one_hot(pairs, len(TOKENS)).to(self.word.weight.dtype)), (WIDTH,), eps=_EPS)

    def answer(self, circle: Tensor, heads: Tensor | None = None) -> Tensor:
        """Logits [..., B, N] of any points [B, S, d] on the circle."""
        result: Tensor = self.unembedding(self.attended(circle, heads))
        return result

    def attended(self, circle: Tensor, heads: Tensor | None = None) -> Tensor:
        """[..., B, d]: the last token's stream after the attention layer, y above."""
        stream = self.stream(circle)
        mixed = torch.einsum("bhs,bshe->bhe", self.pattern(stream), _by_head(self.value(stream)))
        if heads is not None:
            mixed = mixed * heads[..., None]
        result: Tensor = stream[:, -1] + self.output(mixed.flatten(-2))
        return result

    def stream(self, circle: Tensor) -> Tensor:
        """[B, S, d]: words and positions, x above."""
        places = torch.eye(LENGTH, dtype=circle.dtype).expand(len(circle), LENGTH, LENGTH)
        result: Tensor = circle + self.position(places)
        return result

    def pattern(self, stream: Tensor) -> Tensor:
        """[B, H, S]: how much the last token attends to each, a above."""
        return torch.softmax(self.attention_logits(stream), dim=-1)

    def attention_logits(self, stream: Tensor) -> Tensor:
        """[B, H, S]: what the softmax over the tokens is taken of."""
        queries, keys = _by_head(self.query(stream[:, -1])), _by_head(self.key(stream))
        logits: Tensor = torch.einsum("bhe,bshe->bhs", queries, keys) / HEAD_WIDTH**0.5
        return logits


def _by_head(rows: Tensor) -> Tensor:
    """[..., H * e] as [..., H, e]."""
    return rows.reshape(*rows.shape[:-1], -1, HEAD_WIDTH)


def build_network(seed: int, heads: int = HEADS) -> AttentionOnly:
    """A network in PyTorch's default initialisation, drawn from the seed and the number of heads alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AttentionOnly(heads)


def with_weights(weights: dict[str, Tensor]) -> AttentionOnly:
    """A network that holds these weights, such as those that a masked memory gives; they say how many heads it has."""
    network = build_network(seed=0, heads=len(weights["query.weight"]) // HEAD_WIDTH)
    network.load_state_dict(weights)
    return network


Optimize: TypeAlias = Callable[[list[Tensor]], torch.optim.Optimizer]
"""Makes the optimizer of stacked parameters; it must treat every number on its own, as SGD and Adam do."""
_NOTED = 200
"""Points of a learning curve."""


@dataclass
class Curve:
    """How a training went, at each of K noted moments."""

    steps: list[int] = field(default_factory=list)
    accuracy: list[NDArray[np.float64]] = field(default_factory=list)
    """K times float64[M]: fraction of the pairs that a network knows."""
    loss: list[NDArray[np.float64]] = field(default_factory=list)
    """K times float64[M]: mean cross-entropy over the pairs, in nats."""

    def note(self, step: int, right: NDArray[np.bool_], losses: NDArray[np.float64]) -> None:
        """Of float and bool[M, P]."""
        self.steps.append(step)
        self.accuracy.append(right.mean(axis=1))
        self.loss.append(losses.mean(axis=1))

    def at(self, step: int) -> int:
        """The moment of a step that was noted; where a training went on with another head, the first of the two."""
        return self.steps.index(step)


class Ensemble:
    """Copies of some networks, each with facts of its own."""

    def __init__(self, networks: Sequence[AttentionOnly], facts: Sequence[Facts]) -> None:
        stacked, _ = stack_module_state(list(networks))
        self.parameters: dict[str, Tensor] = {name: p.detach().clone() for name, p in stacked.items()}
        """Stacked: [M, ...]."""
        self.curve = Curve()
        self.heads = networks[0].heads
        """How many heads each has."""
        self.pairs = facts[0].pairs
        self.next_tokens = torch.stack([own.next_tokens for own in facts])
        """int64[M, P]."""
        self._base = networks[0]
        self._step = 0

    def train(
        self,
        steps: int,
        optimize: Optimize,
        *,
        counted: Tensor | None = None,
        heads: Tensor | None = None,
        learns: dict[str, Tensor] | None = None,
        say: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Take `steps` updates with a fresh optimizer.

        `heads` [W, H] are the weightings with which every pair is answered, one of all heads where none is given;
        `counted`, broadcast to [M, W, P], weighs the answers in the loss, which is their sum over P; `learns` holds, by
        parameter, a mask of the numbers that learn (all where it is missing). The curve is of the first weighting.
        """
        parameters = {name: p.detach().requires_grad_() for name, p in self.parameters.items()}
        optimizer = optimize(list(parameters.values()))
        every = max(1, steps // _NOTED)
        for done in range(1, steps + 1):
            logits = self._logits(parameters, heads)
            losses = self._losses(logits)
            if done % every == 1 or every == 1:
                self._note(logits, losses)
            optimizer.zero_grad()
            torch.autograd.backward((losses if counted is None else losses * counted).sum() / losses.shape[-1])
            for name, mask in (learns or {}).items():
                gradient = parameters[name].grad
                assert gradient is not None
                gradient.mul_(mask)
            optimizer.step()
            self._step += 1
            say(done)
        self.parameters = {name: p.detach() for name, p in parameters.items()}
        with torch.no_grad():
            logits = self._logits(self.parameters, heads)
            self._note(logits, self._losses(logits))

    def weights(self, member: int) -> dict[str, Tensor]:
        """The state dict of one network."""
        return {name: p[member].clone() for name, p in self.parameters.items()}

    def networks(self) -> list[AttentionOnly]:
        """The networks as they are now, one by one."""
        return [with_weights(self.weights(member)).eval() for member in range(len(self.next_tokens))]

    @torch.no_grad()
    def right(self, heads: Tensor | None = None) -> NDArray[np.bool_]:
        """bool[M, W, P]: which pairs are known with heads weighed as [W, H]; with all of them where none is given."""
        return self._right(self._logits(self.parameters, heads))

    def _note(self, logits: Tensor, losses: Tensor) -> None:
        self.curve.note(self._step, self._right(logits)[:, 0], losses.detach().double().numpy()[:, 0])

    def _right(self, logits: Tensor) -> NDArray[np.bool_]:
        right: NDArray[np.bool_] = (logits.argmax(dim=-1) == self.next_tokens[:, None]).numpy()
        return right

    def _losses(self, logits: Tensor) -> Tensor:
        """[M, W, P]: cross-entropy in nats."""
        true = self.next_tokens[:, None].expand(logits.shape[:-1])
        return cross_entropy(logits.movedim(-1, 1), true, reduction="none")

    def _logits(self, parameters: dict[str, Tensor], heads: Tensor | None) -> Tensor:
        """[M, W, P, N]."""
        weights = (torch.ones(1, self.heads) if heads is None else heads)[:, None]

        def one(own: dict[str, Tensor]) -> Tensor:
            result: Tensor = functional_call(self._base, own, (self.pairs, weights))
            return result

        logits: Tensor = vmap(one)(parameters)
        return logits


def ensemble_of(seeds: Sequence[int], heads: int = HEADS) -> Ensemble:
    """An untrained network and facts of each seed."""
    return Ensemble([build_network(seed, heads) for seed in seeds], [draw_facts(seed) for seed in seeds])


DATASET = "pairs"
QUERY_SET = "pairs"


@dataclass(frozen=True)
class Recipe:
    """SGD, whose steps a memory rebuilds exactly. With these numbers every one of 32 seeds memorised all 25 pairs."""

    lr: float = 0.02
    momentum: float = 0.9
    steps: int = 2000
    """Updates, each on every pair once: the uniform distribution over pairs without its noise."""
    later_steps: int = 1000
    """Of boosted training: updates of each head after the first, which takes `steps`."""
    own_steps: int = 3000
    """Updates by which heads are to learn sets of their own."""
    adam_lr: float = 0.01
    """Of the trainings by Adam that stand beside."""
    seeds: int = 24
    """Trainings of each kind that are compared, and whose heads are looked at."""
    most_heads: int = 8
    """Heads side by side: every number from 1 on is tried."""
    arrangements: int = 20
    """Arrangements of words that are tried for a network whose parameters are set by hand."""
    grid: int = 320
    """Points along each side of a torus."""
    simplex: int = 45
    """Intervals along each side of the simplex of head weights; a multiple of 3, so that its centre is among them."""

    @property
    def sgd(self) -> Optimize:
        """The optimizer of the recorded training."""
        return partial(torch.optim.SGD, lr=self.lr, momentum=self.momentum)

    @property
    def adam(self) -> Optimize:
        return partial(torch.optim.Adam, lr=self.adam_lr)

    def with_steps(self, steps: int | None) -> Recipe:
        """So many updates, and others in proportion; unchanged for None. BadInput for fewer than 1."""
        if steps is None:
            return self
        if steps < 1:
            raise BadInput(f"steps must be at least 1, not {steps}.", hint="For example --steps 1000.", field="steps")
        return replace(self, steps=steps, later_steps=max(1, steps // 2), own_steps=max(1, 3 * steps // 2))


def train_recorded(
    facts: Facts, recipe: Recipe, seed: int, record_to: Path, progress: Progress | None = None
) -> AttentionOnly:
    """Train a fresh network and record it into the folder `record_to`.

    Slots have the columns `first` and `second`, a pair's tokens in letters, `sample`, the pair's number, and `label`,
    its next token; those of the layers that see both tokens of a pair also `token`, the letter that the slot is of. The
    query set `pairs` holds what each layer is asked by the trained network. Samples of both know their pair as a text.
    Raises AlreadyExists where the folder holds something, RecordingError where the training diverges.
    """
    network = build_network(seed)
    optimizer = recipe.sgd(list(network.parameters()))
    letters = [[TOKENS[token] for token in pair] for pair in facts.pairs.tolist()]
    first, second = (list(column) for column in zip(*letters, strict=True))
    with Recorder(network, optimizer, record_to, label_names={DATASET: list(TOKENS)}, quiet=True) as recorder:
        for done in range(1, recipe.steps + 1):
            with recorder.step(
                dataset=DATASET, label=facts.next_tokens, sample=torch.arange(len(facts)),
                first=first, second=second, token=letters,
            ):  # fmt: skip
                loss = cross_entropy(network(facts.pairs), facts.next_tokens)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
            if progress is not None:
                progress("training (recorded)", done, recipe.steps)
        preview_set = PreviewSet.texts(facts.names, offsets=[[(0, 1), (1, 2)]] * len(facts))
        recorder.previews(DATASET, preview_set)
        recorder.query_set(QUERY_SET, facts.pairs, label=facts.next_tokens, previews=preview_set)
    return network.eval()


def train_siblings(
    recipe: Recipe, seeds: Sequence[int], heads: int = HEADS, progress: Progress | None = None
) -> Ensemble:
    """A network of each seed, all heads at once, by the recipe of the recorded training; nothing is recorded."""
    ensemble = ensemble_of(seeds, heads)
    ensemble.train(recipe.steps, recipe.sgd, say=counting(progress, f"{heads} heads at once", recipe.steps))
    return ensemble
