"""A small attention-only Transformer that learns 25 pairs by heart; training one of them, or many at once.

It has one layer of three heads, no MLP, and nothing is wider than three.

Shapes: P = 25 pairs, B pairs of a batch, S = 2 tokens a pair, N = 5 words, d = 3 the stream, H heads of dimension e,
M networks, W weightings of their heads.

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

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
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
from dualform_studies.assignment import Progress, counting

TOKENS = "abcde"
"""The dictionary; a token's number is its place here."""
LENGTH, WIDTH, HEADS, HEAD_WIDTH = 2, 3, 3, 3
PAIRS = torch.cartesian_prod(torch.arange(len(TOKENS)), torch.arange(len(TOKENS)))
"""int64[P, S]: first and second token of all pairs, as (a, a), (a, b), … (e, e)."""
NAMES = [TOKENS[first] + TOKENS[second] for first, second in PAIRS.tolist()]
"""The pairs in letters: "aa", "ab", …"""
DATASET = QUERY_SET = "pairs"
_EPS = 1e-12  # small enough that the circle has the same radius for every word


def draw_facts(seed: int) -> Tensor:
    """int64[P]: a next token for each pair, uniform and independent, so that nothing but memory can know it."""
    return torch.from_numpy(np.random.default_rng(seed).integers(len(TOKENS), size=len(PAIRS)))


def right(logits: Tensor, facts: Tensor) -> NDArray[np.bool_]:
    """bool[..., P]: where the greatest of logits [..., P, N] is that of the next token, int64[..., P]."""
    return np.asarray(logits.argmax(dim=-1) == facts)


class AttentionOnly(nn.Module):
    """Maps pairs of tokens to logits of the next one, with any number of heads side by side."""

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
        logits: Tensor = self.unembedding(self.attended(self.embed(pairs), heads))
        return logits

    def embed(self, pairs: Tensor) -> Tensor:
        """[B, S, d]: the words on their circle."""
        return layer_norm(self.word(one_hot(pairs, len(TOKENS)).to(self.word.weight.dtype)), (WIDTH,), eps=_EPS)

    def attended(self, circle: Tensor, heads: Tensor | None = None) -> Tensor:
        """[..., B, d]: the last token's stream after the attention layer, y above; of any points [B, S, d]."""
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


Optimize: TypeAlias = Callable[[list[Tensor]], torch.optim.Optimizer]
"""Makes the optimizer of stacked parameters; it must treat every number on its own, as SGD and Adam do."""


@dataclass(frozen=True)
class Recipe:
    """SGD, whose steps a memory rebuilds exactly. With these numbers every one of 32 seeds memorised all 25 pairs.

    steps           updates, each on every pair once: the uniform distribution over pairs without its noise
    later_steps     of boosted training: updates of each head after the first, which takes `steps`
    own_steps       updates by which heads are to learn sets of their own, by Adam with `adam_lr`
    seeds           trainings of each kind that are compared, and whose heads are looked at
    most_heads      heads side by side: every number from 1 on is tried
    arrangements    of words that are tried for a network whose parameters are set by hand
    grid            points along each side of a torus
    simplex         intervals along each side of the simplex of head weights; a multiple of 3, so that its centre is
                    among them
    """

    lr: float = 0.02
    momentum: float = 0.9
    steps: int = 2000
    later_steps: int = 1000
    own_steps: int = 3000
    adam_lr: float = 0.01
    seeds: int = 24
    most_heads: int = 8
    arrangements: int = 20
    grid: int = 320
    simplex: int = 45

    @property
    def sgd(self) -> Optimize:
        """The optimizer of the recorded training."""
        return partial(torch.optim.SGD, lr=self.lr, momentum=self.momentum)

    def with_steps(self, steps: int) -> Recipe:
        """So many updates, and those of the other trainings in proportion."""
        return replace(self, steps=steps, later_steps=max(1, steps // 2), own_steps=max(1, 3 * steps // 2))


class Ensemble:
    """Copies of some networks, each with facts of its own, and their learning curve.

    `parameters` are stacked, [M, ...]; `facts` int64[M, P]. The curve has K moments: int `steps`, and for each of them
    `accuracy`, the fraction of the pairs that a network knows, and `loss`, its mean cross-entropy in nats, float64[M].
    """

    def __init__(self, networks: Sequence[AttentionOnly], facts: Sequence[Tensor]) -> None:
        stacked, _ = stack_module_state(list(networks))
        self.parameters: dict[str, Tensor] = {name: p.detach().clone() for name, p in stacked.items()}
        self.facts = torch.stack(list(facts))
        self.heads = networks[0].heads
        self.steps: list[int] = []
        self.accuracy: list[NDArray[np.float64]] = []
        self.loss: list[NDArray[np.float64]] = []
        self._base = networks[0]
        self._done = 0

    def train(
        self,
        steps: int,
        optimize: Optimize,
        *,
        counted: Tensor | None = None,
        heads: Tensor | None = None,
        learns: Mapping[str, Tensor] | None = None,
        say: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Take `steps` updates with a fresh optimizer.

        `heads` [W, H] are the weightings with which every pair is answered, one of all heads where none is given;
        `counted`, broadcast to [M, W, P], weighs the answers in the loss, which is their sum over P; `learns` holds, by
        parameter, a mask of the numbers that learn (all where it is missing). The curve is of the first weighting.
        """
        parameters = {name: p.detach().requires_grad_() for name, p in self.parameters.items()}
        optimizer = optimize(list(parameters.values()))
        every = max(1, steps // 200)
        for done in range(1, steps + 1):
            losses, known = self._evaluate(parameters, heads)
            if (done - 1) % every == 0:
                self._note(losses, known)
            optimizer.zero_grad()
            torch.autograd.backward((losses if counted is None else losses * counted).sum() / len(PAIRS))
            for name, mask in (learns or {}).items():
                gradient = parameters[name].grad
                assert gradient is not None
                gradient.mul_(mask)
            optimizer.step()
            self._done += 1
            say(done)
        self.parameters = {name: p.detach() for name, p in parameters.items()}
        self._note(*self._evaluate(self.parameters, heads))

    def right(self, heads: Tensor | None = None) -> NDArray[np.bool_]:
        """bool[M, W, P]: which pairs are known with heads weighed as [W, H]; with all of them where none is given."""
        return self._evaluate(self.parameters, heads)[1]

    def networks(self) -> list[AttentionOnly]:
        """The networks as they are now, one by one."""
        copies = [deepcopy(self._base) for _ in self.facts]
        for member, copy in enumerate(copies):
            copy.load_state_dict({name: p[member] for name, p in self.parameters.items()})
        return copies

    def _note(self, losses: Tensor, known: NDArray[np.bool_]) -> None:
        self.steps.append(self._done)
        self.accuracy.append(known[:, 0].mean(axis=1))
        self.loss.append(losses[:, 0].detach().double().numpy().mean(axis=1))

    def _evaluate(self, parameters: Mapping[str, Tensor], heads: Tensor | None) -> tuple[Tensor, NDArray[np.bool_]]:
        """Cross-entropy [M, W, P] in nats, and which pairs are known, bool[M, W, P]."""
        weights = (torch.ones(1, self.heads) if heads is None else heads)[:, None]
        logits = vmap(lambda own: functional_call(self._base, own, (PAIRS, weights)))(parameters)
        facts = self.facts[:, None].expand(logits.shape[:-1])
        return cross_entropy(logits.movedim(-1, 1), facts, reduction="none"), right(logits, facts)


def ensemble_of(seeds: Sequence[int], heads: int = HEADS) -> Ensemble:
    """An untrained network and facts of each seed."""
    return Ensemble([build_network(seed, heads) for seed in seeds], [draw_facts(seed) for seed in seeds])


def train_free(recipe: Recipe, seeds: Sequence[int], heads: int = HEADS, progress: Progress | None = None) -> Ensemble:
    """A network of each seed, all heads at once, by the recipe of the recorded training; nothing is recorded."""
    ensemble = ensemble_of(seeds, heads)
    ensemble.train(recipe.steps, recipe.sgd, say=counting(progress, f"{heads} heads at once", recipe.steps))
    return ensemble


WAYS = {
    "free": "free, all heads at once",
    "shared": "boosted, embeddings go on learning",
    "frozen": "boosted, embeddings frozen with head 1",
}
"""Ways to train. The study's text leaves open what happens to the embeddings while later heads of boosted training
learn. "frozen" freezes them with head one, so that each later head corrects a fixed prediction, as boosting proper
does; "shared" lets them go on, and freezes only the earlier heads."""


def train_boosted(
    recipe: Recipe, seeds: Sequence[int], heads: int, way: str, progress: Progress | None = None
) -> Ensemble:
    """Networks trained head after head: the first alone and longer, each with the earlier ones speaking and frozen."""
    ensemble = ensemble_of(seeds, heads)
    for head in range(heads):
        steps = recipe.later_steps if head else recipe.steps
        ensemble.train(
            steps,
            recipe.sgd,
            heads=(torch.arange(heads) <= head).float()[None],
            learns=learning(head, way == "shared" or head == 0, heads),
            say=counting(progress, f"{WAYS[way]}: head {head + 1}", steps),
        )
    return ensemble


def learning(head: int, embeddings: bool, heads: int = HEADS) -> dict[str, Tensor]:
    """Masks of the numbers that learn while one head does, and the embeddings where `embeddings`."""
    rows = (torch.arange(heads * HEAD_WIDTH) // HEAD_WIDTH == head).float()
    masks = {f"{name}.weight": rows[:, None] for name in ("query", "key", "value")} | {"output.weight": rows[None, :]}
    return masks | {f"{name}.weight": torch.tensor(float(embeddings)) for name in ("word", "position", "unembedding")}


def boundaries(recipe: Recipe, heads: int = HEADS) -> list[int]:
    """The steps at which boosted training turns to the next head, or is at its end."""
    return [recipe.steps + head * recipe.later_steps for head in range(heads)]


def train_recorded(
    facts: Tensor, recipe: Recipe, seed: int, record_to: Path, progress: Progress | None = None
) -> AttentionOnly:
    """Train a fresh network and record it into the folder `record_to`.

    Slots have the columns `first` and `second`, a pair's tokens in letters, `sample`, the pair's number, and `label`,
    its next token; those of the layers that see both tokens of a pair also `token`, the letter that the slot is of. The
    query set `pairs` holds what each layer is asked by the trained network. Samples of both know their pair as a text.
    Raises AlreadyExists where the folder holds something, RecordingError where the training diverges.
    """
    network = build_network(seed)
    optimizer = recipe.sgd(list(network.parameters()))
    say = counting(progress, "training (recorded)", recipe.steps)
    with Recorder(network, optimizer, record_to, label_names={DATASET: list(TOKENS)}, quiet=True) as recorder:
        for done in range(1, recipe.steps + 1):
            with recorder.step(
                dataset=DATASET, label=facts, sample=torch.arange(len(PAIRS)), first=[name[0] for name in NAMES],
                second=[name[1] for name in NAMES], token=[list(name) for name in NAMES],
            ):  # fmt: skip
                loss = cross_entropy(network(PAIRS), facts)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
            say(done)
        previews = PreviewSet.texts(NAMES, offsets=[[(0, 1), (1, 2)]] * len(NAMES))
        recorder.previews(DATASET, previews)
        recorder.query_set(QUERY_SET, PAIRS, label=facts, previews=previews)
    return network
