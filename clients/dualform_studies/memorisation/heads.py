"""What heads know alone, heads that are trained to remember sets of their own, and heads that are constructed to.

Shapes: M networks, H heads, P pairs, d = 3 the stream, F = 9 features of a pair, K sets of pairs.

Were heads a meaningful basis, each alone would know pairs of its own, and together these would be all pairs. Sets of
the same sizes drawn independently of each other overlap, too: of two with a and b of P pairs, a b / P are expected in
both. What is known without any head, most heads know alone, too, and would be seen as an overlap of theirs: whether
heads part the work is asked of the other pairs.

Trained: each network's pairs are dealt to its heads, in sets as equal as can be. The loss asks for both things at once:
all heads together answer all pairs, and each head alone answers its own.

    loss = sum_p ( -log p(next | p, all heads) - log p(next | p, the head that p was dealt to, alone) ) / P

It does not ask a head to be wrong about the pairs of others. Whether a network succeeded is judged by what its heads
know alone, as that of a freely trained network is (`Alone.has_own_sets`).

Constructed, with parameters that are set and not trained: the words c lie in the plane of mean zero. Place 2 adds the
normal n of that plane, and place 1 adds nothing. A head's values read the stream along n: it is silent where it attends
to the first token, and speaks where it attends to the second. Which it does is up to its attention, a bilinear form of
the last token's stream and the difference of the two:

    attention to the second token = sigmoid(m . f),     f = x_2 (x_2 - x_1)^T, F = 9 features of a pair
    what the head adds            = (attention to the second token) * strength * (direction of its next token)

So a head can remember any set of pairs with one next token that a plane m cuts off from all other pairs in these
features. One pair alone can always be cut off: a constant, c_1 and c_2 are linear functions of f, and with the words of
a pair held fixed as a and b, a . c_1 + b . c_2 is greatest at that pair alone, since words lie on a circle.

The directions of the five next tokens stand around the plane at 72 degrees. Where all heads are silent, the answer is
the direction nearest to the second token's word; words stand where this is wrong for each of their pairs, which is
possible unless a second token has all five next tokens.

How few heads are enough is a matter of finding planes. `construct` tries arrangements of words, asks of every set of
pairs with one next token whether a plane cuts it off, and deals each next token's pairs to few such sets. It gives an
upper bound, which is proved by evaluating the network: what its heads know alone is a partition of all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from dualform_studies.assignment import Progress, counting
from dualform_studies.memorisation.torus import on_circle
from dualform_studies.memorisation.transformer import (
    HEAD_WIDTH,
    TOKENS,
    WIDTH,
    AttentionOnly,
    Ensemble,
    Facts,
    Recipe,
    ensemble_of,
)


@dataclass(frozen=True, eq=False)
class Alone:
    """One network's heads, each at the strength it was trained with while the others are silent."""

    known: NDArray[np.bool_]
    """bool[H, P]: the pairs that a head knows alone."""
    without: NDArray[np.bool_]
    """bool[P]: the pairs that are known with no head, by the last token's own stream."""
    together: NDArray[np.bool_]
    """bool[P]: the pairs that the whole network knows."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64[H]: how many pairs each head knows."""
        return np.asarray(self.known.sum(axis=1))

    @property
    def union(self) -> NDArray[np.bool_]:
        """bool[P]: the pairs that any head knows alone."""
        return np.asarray(self.known.any(axis=0))

    @property
    def outside(self) -> Alone:
        """The same of the pairs alone that are not known without any head."""
        kept = ~self.without
        return Alone(self.known[:, kept], self.without[kept], self.together[kept])

    @property
    def has_own_sets(self) -> bool:
        """Whether every head knows a set of its own, so that all heads together know all pairs: the pairs can be
        dealt to heads that know them alone, to none more than to H heads as equally as can be."""
        return bool(self.together.all()) and _can_be_dealt(self.known)

    @property
    def is_partition(self) -> bool:
        """Whether each pair is known by one head alone and no other: then the heads' accuracies sum to 1."""
        return bool((self.known.sum(axis=0) == 1).all())

    def shared(self, *heads: int) -> NDArray[np.bool_]:
        """bool[P]: the pairs that each of these heads knows alone."""
        return np.asarray(self.known[list(heads)].all(axis=0))

    def shared_by_chance(self, *heads: int) -> float:
        """How many they would share, were sets of their sizes drawn independently."""
        pairs = self.known.shape[1]
        return float(pairs * np.prod(self.sizes[list(heads)] / pairs)) if pairs else 0.0

    @property
    def fewer_than_chance(self) -> float:
        """By how many pairs two heads share less than by chance, mean over all twos."""
        return _mean([self.shared_by_chance(*two) - self.shared(*two).sum() for two in _twos(self)])


def heads_alone(ensemble: Ensemble) -> list[Alone]:
    """Of each network of an ensemble."""
    heads = ensemble.heads
    right = ensemble.right(torch.cat([torch.eye(heads), torch.zeros(1, heads), torch.ones(1, heads)]))
    return [Alone(each[:heads], each[heads], each[heads + 1]) for each in right]


@dataclass(frozen=True)
class Overlaps:
    """Means over many networks, in pairs."""

    networks: int
    sizes: float
    """Sum of what the heads know alone."""
    union: float
    """What any head knows alone."""
    partitions: int
    """Networks whose heads share no pair and leave none."""
    own_sets: int
    """Networks whose every head knows a set of its own."""

    @staticmethod
    def of(networks: Sequence[Alone]) -> Overlaps:
        return Overlaps(
            len(networks),
            _mean([one.sizes.sum() for one in networks]),
            _mean([one.union.sum() for one in networks]),
            sum(one.is_partition for one in networks),
            sum(one.has_own_sets for one in networks),
        )


def fewer_than_chance(networks: Sequence[Alone]) -> NDArray[np.float64]:
    """float64[M]: by how many pairs two heads share less than by chance, of those that no head is needed for."""
    return np.array([one.outside.fewer_than_chance for one in networks])


def _can_be_dealt(known: NDArray[np.bool_]) -> bool:
    """Whether every pair can be given to a head that knows it, bool[H, P], and no head more than ceil(P / H) of them.

    One pair after the other; where all heads that know it have their fill, pairs change hands (Kuhn 1955, "The
    Hungarian method for the assignment problem").
    """
    heads, pairs = known.shape
    dealt: list[list[int]] = [[] for _ in range(heads)]

    def deal(pair: int, asked: set[int]) -> bool:
        for head in np.flatnonzero(known[:, pair]).tolist():
            if head in asked:
                continue
            asked.add(head)
            if len(dealt[head]) < -(-pairs // heads):
                dealt[head].append(pair)
                return True
            for at, other in enumerate(dealt[head]):
                if deal(other, asked):
                    dealt[head][at] = pair
                    return True
        return False

    return all(deal(pair, set()) for pair in range(pairs))


def _twos(one: Alone) -> Iterator[tuple[int, int]]:
    return combinations(range(len(one.known)), 2)


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers)) if numbers else 0.0


PAIRS = len(TOKENS) ** 2


@dataclass(frozen=True, eq=False)
class OwnSets:
    """What became of the networks of one number of heads."""

    heads: int
    owned: NDArray[np.bool_]
    """bool[M, H, P]: the pairs dealt to each head."""
    networks: Sequence[Alone]
    """What their heads know alone."""

    @property
    def own(self) -> NDArray[np.float64]:
        """float64[M]: the fraction of the pairs that are known by their own head alone."""
        known = np.stack([one.known for one in self.networks])
        return np.asarray((self.owned & known).sum(axis=(1, 2)) / self.owned.sum(axis=(1, 2)))

    @property
    def succeeded(self) -> NDArray[np.bool_]:
        """bool[M]."""
        return np.array([one.has_own_sets for one in self.networks])


def deal(seed: int, heads: int) -> NDArray[np.bool_]:
    """bool[H, P]: all pairs, dealt to heads at random from a seed."""
    order = np.random.default_rng(seed).permutation(PAIRS)
    owner = np.empty(PAIRS, dtype=np.int64)
    owner[order] = np.arange(PAIRS) % heads
    return np.asarray(owner == np.arange(heads)[:, None])


def train_own_sets(recipe: Recipe, seeds: Sequence[int], heads: int, progress: Progress | None = None) -> OwnSets:
    """Train a network of each seed with so many heads, by Adam: the question is what they can hold."""
    owned = np.stack([deal(seed, heads) for seed in seeds])
    weightings = torch.cat([torch.ones(1, heads), torch.eye(heads)])
    counted = torch.cat([torch.ones(len(seeds), 1, PAIRS), torch.from_numpy(owned).float()], dim=1)
    ensemble = ensemble_of(seeds, heads)
    ensemble.train(
        recipe.own_steps,
        recipe.adam,
        counted=counted,
        heads=weightings,
        say=counting(progress, f"sets of their own for {heads} heads", recipe.own_steps),
    )
    return OwnSets(heads, owned, heads_alone(ensemble))


_NORMAL = np.full(WIDTH, WIDTH**-0.5)
_STRENGTH = 10.0
"""How far a head that speaks moves the stream; the words are sqrt(3) long."""
_MARGIN = 30.0
"""The least |m . f| of any pair: attention is 1 to within exp(-30)."""
_RIDGES = tuple(10.0**-power for power in range(8))
_STEPS = 6
"""Of Newton's method, at each ridge."""
_PARTS = (0.0, 0.1, 0.4, 1.0)
"""Of a step of it."""


@dataclass(frozen=True, eq=False)
class Constructed:
    network: AttentionOnly
    owned: NDArray[np.bool_]
    """bool[H, P]: the pairs that each head is made to know."""


def construct(facts: Facts, seed: int, arrangements: int) -> Constructed | None:
    """The network of fewest heads that so many random arrangements of the words give.

    None if a second token has all five next tokens: then one of its pairs is known without any head.
    """
    missing = _missing(facts)
    if not all(missing):
        return None
    rng = np.random.default_rng(seed)
    best: tuple[list[NDArray[np.bool_]], NDArray[np.float64], NDArray[np.float64]] | None = None
    for _ in range(arrangements):
        directions = np.asarray(rng.permutation(len(TOKENS)) * (2 * np.pi / len(TOKENS)), dtype=np.float64)
        angles = _arrange(rng, missing, directions)
        sets = [pairs for label in range(len(TOKENS)) for pairs in _deal(facts, label, angles)]
        if best is None or len(sets) < len(best[0]):
            best = sets, angles, directions
    assert best is not None, "there is an arrangement"
    sets, angles, directions = best
    owned = np.stack(sets)
    labels = facts.next_tokens.numpy()[owned.argmax(axis=1)]
    return Constructed(_network(angles, directions, cut_off(angles, owned)[0], labels), owned)


def _missing(facts: Facts) -> list[list[int]]:
    """By second token, the next tokens that none of its pairs has."""
    table = facts.next_tokens.reshape(len(TOKENS), len(TOKENS)).numpy()
    return [sorted(set(range(len(TOKENS))) - set(table[:, second].tolist())) for second in range(len(TOKENS))]


def _arrange(
    rng: np.random.Generator, missing: list[list[int]], directions: NDArray[np.float64]
) -> NDArray[np.float64]:
    """float64[N]: an angle of each word, nearest to the direction of a next token that none of its pairs has."""
    sector = np.pi / len(TOKENS)
    # Words of one sector keep apart from each other, and from its borders.
    offsets = 0.8 * sector * (2 * (rng.permutation(len(TOKENS)) + rng.random()) / len(TOKENS) - 1)
    return np.array([directions[rng.choice(tokens)] for tokens in missing]) + offsets


def features(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[P, F], of all pairs of words at these angles."""
    words = on_circle(torch.from_numpy(angles)).numpy()
    first, second = (words[place] for place in np.indices((len(words), len(words))).reshape(2, -1))
    stream = second + _NORMAL
    return np.asarray((stream[:, :, None] * (stream - first)[:, None, :]).reshape(len(first), -1))


def cut_off(angles: NDArray[np.float64], sets: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """float64[K, F] planes m, with m . f > 0 for the pairs in a set bool[K, P] alone; and bool[K], whether it is so.

    Logistic regression by Newton's method, with less and less ridge: what it does not find may be there all the same.
    Planes that were found are scaled so that every |m . f| is 30 or more.
    """
    f, signs = features(angles), np.where(sets, 1.0, -1.0)
    planes = np.zeros((len(sets), f.shape[1]))
    for ridge in _RIDGES:
        for _ in range(_STEPS):
            planes = _newton_step(planes, f, signs, ridge)
    margins = (signs * (planes @ f.T)).min(axis=1)
    found = margins > 0
    planes[found] *= np.maximum(1, _MARGIN / margins[found])[:, None]
    return planes, found


def _newton_step(
    planes: NDArray[np.float64], f: NDArray[np.float64], signs: NDArray[np.float64], ridge: float
) -> NDArray[np.float64]:
    """The best of a whole step, parts of it, and none."""
    doubt = 1 / (1 + np.exp(np.clip(signs * (planes @ f.T), -50, 50)))
    slope = (signs * doubt) @ f - ridge * planes
    curve = np.einsum("kp,pf,pg->kfg", doubt * (1 - doubt), f, f) + ridge * np.eye(f.shape[1])
    step = np.linalg.solve(curve, slope[..., None])[..., 0]
    tried = planes + np.array(_PARTS)[:, None, None] * step
    loss = np.logaddexp(0, -signs * (tried @ f.T)).sum(axis=-1) + ridge / 2 * (tried**2).sum(axis=-1)
    return np.asarray(tried[loss.argmin(axis=0), np.arange(len(planes))])


def _deal(facts: Facts, label: int, angles: NDArray[np.float64]) -> list[NDArray[np.bool_]]:
    """The pairs of one next token as few sets that planes cut off: the largest that can be, again and again."""
    left = np.flatnonzero(facts.next_tokens.numpy() == label)
    dealt: list[NDArray[np.bool_]] = []
    while len(left):
        dealt.append(_largest(left, angles))
        left = np.setdiff1d(left, np.flatnonzero(dealt[-1]))
    return dealt


def _largest(pairs: NDArray[np.int64], angles: NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool[P]: the largest set of some of the pairs that a plane cuts off; of several, the first."""
    for size in range(len(pairs), 0, -1):
        chosen = np.array(list(combinations(pairs.tolist(), size)))
        sets = np.zeros((len(chosen), len(angles) ** 2), dtype=np.bool_)
        np.put_along_axis(sets, chosen, True, axis=1)
        found = cut_off(angles, sets)[1]
        if found.any():
            return np.asarray(sets[found.argmax()])
    raise AssertionError("a single pair is cut off")


def _network(
    angles: NDArray[np.float64],
    directions: NDArray[np.float64],
    planes: NDArray[np.float64],
    labels: NDArray[np.int64],
) -> AttentionOnly:
    """The network in float64; `labels` int64[H] are the next tokens that the heads speak for."""
    heads = len(planes)
    target = on_circle(torch.from_numpy(directions)) / WIDTH**0.5
    normal = torch.from_numpy(_NORMAL)
    weights = {
        "word": on_circle(torch.from_numpy(angles)).T,
        "position": torch.stack([torch.zeros(WIDTH, dtype=torch.float64), normal], dim=1),
        "unembedding": target,
        # The query is (m of the head)^T x_2, the key x_j: their product parts the two tokens by m . f.
        "query": torch.from_numpy(planes).reshape(heads, WIDTH, WIDTH).mT.reshape(-1, WIDTH) * HEAD_WIDTH**0.5,
        "key": torch.eye(WIDTH, dtype=torch.float64).repeat(heads, 1),
        "value": torch.zeros(heads, HEAD_WIDTH, WIDTH, dtype=torch.float64),
        "output": torch.zeros(WIDTH, heads, HEAD_WIDTH, dtype=torch.float64),
    }
    weights["value"][:, 0] = normal
    weights["output"][:, :, 0] = _STRENGTH * target[torch.from_numpy(labels)].T
    weights |= {"value": weights["value"].reshape(-1, WIDTH), "output": weights["output"].reshape(WIDTH, -1)}
    network = AttentionOnly(heads).double()
    network.load_state_dict({f"{name}.weight": weight.contiguous() for name, weight in weights.items()})
    return network
