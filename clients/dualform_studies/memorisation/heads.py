"""What heads know alone, heads that are trained or constructed to know sets of their own, and boosted training.

Shapes: M networks, H heads, P = 25 pairs, N = 5 words, d = 3 the stream, F = 9 features of a pair, K sets of pairs.

Were heads a meaningful basis, each alone would know pairs of its own, and together these would be all pairs. Sets of
the same sizes drawn independently of each other overlap, too: of two with a and b of P pairs, a b / P are expected in
both. What is known without any head, most heads know alone, too, and would be seen as an overlap of theirs: whether
heads part the work is asked of the other pairs.

Trained: each network's pairs are dealt to its heads, in sets as equal as can be. The loss asks for both things at once:
all heads together answer all pairs, and each head alone answers its own.

    loss = sum_p ( -log p(next | p, all heads) - log p(next | p, the head that p was dealt to, alone) ) / P

It does not ask a head to be wrong about the pairs of others. Whether a network succeeded is judged by what its heads
know alone, as that of a freely trained network is (`Alone.own_sets`).

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from dualform_studies.assignment import Progress, counting
from dualform_studies.claims import FAILS, HOLDS, IN_PART, Claim, can_reach, judge, judged, sign_test
from dualform_studies.figures import INK, MARKS, new_figure
from dualform_studies.memorisation.torus import on_circle
from dualform_studies.memorisation.transformer import (
    HEAD_WIDTH,
    HEADS,
    PAIRS,
    TOKENS,
    WAYS,
    WIDTH,
    AttentionOnly,
    Ensemble,
    Recipe,
    boundaries,
    draw_facts,
    ensemble_of,
    train_boosted,
    train_free,
)
from dualform_studies.report import Cell, Page, Report, in_fraction, percent, report_folder

LEVEL = 0.05
"""Greatest p at which a difference over networks is more than chance."""
MOST = 2 / 3
"""The share of networks for which a number of heads must be enough."""


@dataclass(frozen=True, eq=False)
class Alone:
    """What the heads of M networks know, each at the strength it was trained with while the others are silent.

    known       bool[M, H, P]: the pairs that a head knows alone
    without     bool[M, P]: the pairs that are known with no head, by the last token's own stream
    together    bool[M, P]: the pairs that the whole network knows
    """

    known: NDArray[np.bool_]
    without: NDArray[np.bool_]
    together: NDArray[np.bool_]

    @property
    def size(self) -> float:
        """The sum of what a network's heads know alone, mean over the networks; in pairs."""
        return float(self.known.sum(axis=(1, 2)).mean())

    @property
    def partitions(self) -> NDArray[np.bool_]:
        """bool[M]: whether each pair is known by one head alone: then the heads' accuracies sum to 1."""
        return np.asarray((self.known.sum(axis=1) == 1).all(axis=1))

    @property
    def own_sets(self) -> NDArray[np.bool_]:
        """bool[M]: whether every head knows a set of its own, so that all heads together know all pairs: the pairs can
        be dealt to heads that know them alone, to none more than to H heads as equally as can be."""
        each = zip(self.known, self.together, strict=True)
        return np.array([together.all() and _can_be_dealt(known) for known, together in each])

    def fewer_than_chance(self) -> NDArray[np.float64]:
        """float64[M]: by how many pairs two heads share less than sets of their sizes drawn independently would, of the
        pairs that a head is needed for; mean over all twos."""
        known, pairs = self.known & ~self.without[:, None], (~self.without).sum(axis=1)
        shares = known.sum(axis=2) / np.maximum(pairs, 1)[:, None]
        fewer = [
            pairs * (shares[:, one] * shares[:, other]) - (known[:, one] & known[:, other]).sum(axis=1)
            for one, other in combinations(range(known.shape[1]), 2)
        ]
        return np.asarray(np.mean(fewer, axis=0))


def _can_be_dealt(known: NDArray[np.bool_]) -> bool:
    """Whether each pair can be given to a head that knows it, bool[H, P], and no head more than ceil(P / H) of them."""
    heads, pairs = known.shape
    places = np.repeat(known, -(-pairs // heads), axis=0)
    return bool(places[linear_sum_assignment(places, maximize=True)].sum() == pairs)


def heads_alone(ensemble: Ensemble) -> Alone:
    """Of each network of an ensemble."""
    heads = ensemble.heads
    right = ensemble.right(torch.cat([torch.eye(heads), torch.zeros(1, heads), torch.ones(1, heads)]))
    return Alone(right[:, :heads], right[:, heads], right[:, heads + 1])


def alone_claims(alone: Alone) -> list[Claim]:
    """That heads do not share the work by remembering different pairs each; no claim by networks too few to tell."""
    networks = len(alone.known)
    if not can_reach(LEVEL, networks):
        return []
    fewer, apart = alone.fewer_than_chance(), int(networks - alone.partitions.sum())
    p = sign_test(fewer)
    ours = (
        f"{apart} of {networks} networks; sizes add up to {alone.size:.1f} "
        f"of 25, any knows {alone.known.any(axis=1).sum(axis=1).mean():.1f}. Of the pairs not known without heads, "
        f"two heads share {fewer.mean():.2f} fewer than by chance (mean), fewer in {(fewer > 0).sum()} networks; "
        f"p = {p:.2g}"
    )
    claim = judge("memorisation.alone", apart / networks, ours, level=LEVEL)
    return [replace(claim, verdict=IN_PART) if claim.verdict == HOLDS and p <= LEVEL else claim]


def deal(seed: int, heads: int) -> NDArray[np.bool_]:
    """bool[H, P]: all pairs, dealt to heads at random from a seed."""
    owner = np.empty(len(PAIRS), dtype=np.int64)
    owner[np.random.default_rng(seed).permutation(len(PAIRS))] = np.arange(len(PAIRS)) % heads
    return np.asarray(owner == np.arange(heads)[:, None])


def train_own_sets(
    recipe: Recipe, dealt: NDArray[np.bool_], seeds: Sequence[int], progress: Progress | None = None
) -> Ensemble:
    """Train a network of each seed to know the pairs dealt to its heads, bool[M, H, P], by Adam: the question is what
    heads can hold."""
    heads = dealt.shape[1]
    ensemble = ensemble_of(seeds, heads)
    ensemble.train(
        recipe.own_steps,
        partial(torch.optim.Adam, lr=recipe.adam_lr),
        counted=torch.cat([torch.ones(len(seeds), 1, len(PAIRS)), torch.from_numpy(dealt).float()], dim=1),
        heads=torch.cat([torch.ones(1, heads), torch.eye(heads)]),
        say=counting(progress, f"sets of their own for {heads} heads", recipe.own_steps),
    )
    return ensemble


_NORMAL = np.full(WIDTH, WIDTH**-0.5)
_STRENGTH = 10.0  # how far a head that speaks moves the stream; the words are sqrt(3) long
_MARGIN = 30.0  # the least |m . f| of any pair: attention is 1 to within exp(-30)
_RIDGES = tuple(10.0**-power for power in range(8))
_STEPS = 6  # of Newton's method, at each ridge
_PARTS = np.array((0.0, 0.1, 0.4, 1.0))[:, None, None]  # of a step of it


@dataclass(frozen=True, eq=False)
class Constructed:
    """A network, the pairs that each head is made to know, bool[H, P], and whether it does."""

    network: AttentionOnly
    owned: NDArray[np.bool_]
    proved: bool


def construct(facts: Tensor, seed: int, arrangements: int) -> Constructed | None:
    """The network of fewest heads that so many random arrangements of the words give.

    None if a second token has all five next tokens: then one of its pairs is known without any head.
    """
    words = len(TOKENS)
    # By second token, the next tokens that none of its pairs has.
    missing = [sorted(set(range(words)) - set(column)) for column in facts.view(words, words).T.tolist()]
    if not all(missing):
        return None
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(arrangements):
        directions = np.asarray(rng.permutation(words) * (2 * np.pi / words), dtype=np.float64)
        # A word is nearest to such a token's direction. Words of one sector keep apart, and from its borders.
        offsets = 0.8 * (np.pi / words) * (2 * (rng.permutation(words) + rng.random()) / words - 1)
        angles = np.array([directions[rng.choice(tokens)] for tokens in missing]) + offsets
        found.append((np.stack(_sets_cut_off(facts, angles)), angles, directions))
    owned, angles, directions = min(found, key=lambda each: len(each[0]))
    network = _network(angles, directions, cut_off(angles, owned)[0], facts[owned.argmax(axis=1)])
    return Constructed(network, owned, is_proved(network, facts, owned))


def is_proved(network: AttentionOnly, facts: Tensor, owned: NDArray[np.bool_]) -> bool:
    """Whether each head alone knows the pairs that it was made to know and no other, and all heads know all."""
    alone = heads_alone(Ensemble([network], [facts]))
    return bool(np.array_equal(alone.known[0], owned) and alone.together.all())


def _sets_cut_off(facts: Tensor, angles: NDArray[np.float64]) -> list[NDArray[np.bool_]]:
    """The pairs of each next token as few sets, bool[P], that planes cut off: the largest, again and again."""
    dealt: list[NDArray[np.bool_]] = []
    for label in range(len(TOKENS)):
        left = np.flatnonzero(facts.numpy() == label)
        while len(left):
            dealt.append(_largest(left, angles))
            left = np.setdiff1d(left, np.flatnonzero(dealt[-1]))
    return dealt


def _largest(pairs: NDArray[np.int64], angles: NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool[P]: the largest set of some of the pairs that a plane cuts off; of several, the first."""
    for size in range(len(pairs), 0, -1):
        chosen = np.array(list(combinations(pairs.tolist(), size)))
        sets = np.zeros((len(chosen), len(PAIRS)), dtype=np.bool_)
        np.put_along_axis(sets, chosen, True, axis=1)
        _, found = cut_off(angles, sets)
        if found.any():
            break
    return np.asarray(sets[found.argmax()])


def features(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[P, F], of all pairs of words at these angles."""
    first, second = on_circle(torch.from_numpy(angles))[PAIRS.T].numpy()
    stream = second + _NORMAL
    return np.asarray((stream[:, :, None] * (stream - first)[:, None, :]).reshape(len(first), -1))


def cut_off(angles: NDArray[np.float64], sets: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """float64[K, F] planes m, with m . f > 0 for the pairs in a set bool[K, P] alone; and bool[K], whether it is so.

    Logistic regression by Newton's method, with less and less ridge: what it does not find may be there all the same.
    Of a whole step, parts of it and none, the best is taken. Planes that were found are scaled so that every |m . f| is
    30 or more.
    """
    f, signs = features(angles), np.where(sets, 1.0, -1.0)
    planes = np.zeros((len(sets), f.shape[1]))
    for ridge in np.repeat(_RIDGES, _STEPS):
        doubt = 1 / (1 + np.exp(np.clip(signs * (planes @ f.T), -50, 50)))
        slope = (signs * doubt) @ f - ridge * planes
        curve = np.einsum("kp,pf,pg->kfg", doubt * (1 - doubt), f, f) + ridge * np.eye(f.shape[1])
        tried = planes + _PARTS * np.linalg.solve(curve, slope[..., None])[..., 0]
        loss = np.logaddexp(0, -signs * (tried @ f.T)).sum(axis=-1) + ridge / 2 * (tried**2).sum(axis=-1)
        planes = tried[loss.argmin(axis=0), np.arange(len(planes))]
    margins = (signs * (planes @ f.T)).min(axis=1)
    found = margins > 0
    planes[found] *= np.maximum(1, _MARGIN / margins[found])[:, None]
    return planes, found


def _network(
    angles: NDArray[np.float64], directions: NDArray[np.float64], planes: NDArray[np.float64], labels: Tensor
) -> AttentionOnly:
    """The network in float64; `labels` int64[H] are the next tokens that the heads speak for."""
    heads, normal = len(planes), torch.from_numpy(_NORMAL)
    target = on_circle(torch.from_numpy(directions)) / WIDTH**0.5
    value = torch.zeros(heads, HEAD_WIDTH, WIDTH, dtype=torch.float64)
    output = torch.zeros(WIDTH, heads, HEAD_WIDTH, dtype=torch.float64)
    value[:, 0] = normal
    output[:, :, 0] = _STRENGTH * target[labels].T
    weights = {
        "word": on_circle(torch.from_numpy(angles)).T,
        "position": torch.stack([torch.zeros(WIDTH, dtype=torch.float64), normal], dim=1),
        # The query is (m of the head)^T x_2, the key x_j: their product parts the two tokens by m . f.
        "query": torch.from_numpy(planes).reshape(heads, WIDTH, WIDTH).mT.reshape(-1, WIDTH) * HEAD_WIDTH**0.5,
        "key": torch.eye(WIDTH, dtype=torch.float64).repeat(heads, 1),
        "value": value.reshape(-1, WIDTH),
        "output": output.reshape(WIDTH, -1),
        "unembedding": target,
    }
    network = AttentionOnly(heads).double()
    network.load_state_dict({f"{name}.weight": weight for name, weight in weights.items()})
    return network


_LINES: Any = ("-", (0, (5, 1.5)), (0, (1, 1)))


def draw_ways(path: Path, trained: Mapping[str, Ensemble], recipe: Recipe) -> Path:
    """The median over the seeds with its quartiles."""
    with new_figure(path, 3.2) as figure:
        panel = figure.subplots()
        for at, (way, words) in enumerate(WAYS.items()):
            steps, accuracy = trained[way].steps, np.stack(trained[way].accuracy)
            low, middle, high = 100 * np.percentile(accuracy, (25, 50, 75), axis=1)
            panel.fill_between(steps, low, high, color=INK[at], alpha=0.16, linewidth=0)
            panel.plot(
                steps, middle, color=INK[at], linestyle=_LINES[at], linewidth=1.5, marker=MARKS[at],
                markevery=(8 * at, 40), markersize=4, label=words,
            )  # fmt: skip
        for head, step in enumerate([0, *boundaries(recipe)[:-1]], start=1):
            panel.axvline(step, color="0.6", linewidth=0.7, linestyle=":")
            panel.text(step, 1.01, f"head {head}", transform=panel.get_xaxis_transform(), fontsize=7)
        panel.set_xlabel("updates (above: the head that boosted training is at)")
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        panel.set_ylabel("accuracy over the 25 pairs (%)")
        panel.set_ylim(0, 104)
        panel.legend(loc="lower right")
    return path


def boosting_claims(accuracy: Mapping[str, NDArray[np.float64]]) -> list[Claim]:
    """That boosting by SGD knows less than free training, with the better way to boost; `accuracy` float64[M] is that
    of each way. No claim where the seeds are too few to tell."""
    free = accuracy["free"]
    boosted = max((accuracy[way] for way in ("shared", "frozen")), key=lambda known: float(known.mean()))
    p = sign_test(free - boosted)
    claim = judge(
        "memorisation.boosting",
        p,
        f"{100 * boosted.mean():.1f} %, all at once {100 * free.mean():.1f} % (means); {(free > boosted).sum()} of "
        f"{len(free)} seeds know less, {(free < boosted).sum()} more; p = {p:.2g}",
    )
    if np.mean(free - boosted) <= 0:
        return [replace(claim, verdict=FAILS)]
    return [] if claim.verdict == FAILS else [claim]


def boosting_section(
    page: Page, recipe: Recipe, seeds: Sequence[int], free: Ensemble, progress: Progress | None
) -> tuple[list[Claim], Report]:
    """`free` are the networks of these seeds trained freely: one seed gives both facts and initial network."""
    trained = {"free": free}
    trained |= {way: train_boosted(recipe, seeds, HEADS, way, progress) for way in ("shared", "frozen")}
    page.heading("Boosted training")
    page.paragraph(
        f"Head 1 learns alone for {recipe.steps:,} updates and is frozen, then head 2 learns for "
        f"{recipe.later_steps:,}, then head 3; the text does not say whether the embeddings go on learning meanwhile, "
        "so both are run, each with more updates than free training has, by SGD with momentum."
    )
    page.figure(
        draw_ways(report_folder(page.run) / "boosting.png", trained, recipe),
        "Accuracy while training: the median over the seeds, shaded from the first quartile to the third.",
    )
    accuracy = {way: ensemble.accuracy[-1] for way, ensemble in trained.items()}
    known = {way: [round(25 * share) for share in shares.tolist()] for way, shares in accuracy.items()}
    return boosting_claims(accuracy), {"ways": known}


@dataclass(frozen=True, eq=False)
class HeadCount:
    """Networks of one number of heads, trained with the same seeds as those of every other number.

    dealt       bool[M, H, P]: the pairs dealt to each head
    trained     what the heads know alone that were trained to know these
    free        what the heads know alone that were trained on all pairs at once
    boosted     by whether embeddings go on learning ("shared") or not ("frozen"), float64[M]: accuracy
    """

    heads: int
    dealt: NDArray[np.bool_]
    trained: Alone
    free: Alone
    boosted: Mapping[str, NDArray[np.float64]]

    @property
    def own(self) -> NDArray[np.float64]:
        """float64[M]: the fraction of the pairs that are known by the head they were dealt to, alone."""
        return np.asarray((self.dealt & self.trained.known).sum(axis=(1, 2)) / self.dealt.sum(axis=(1, 2)))


def train_head_counts(
    recipe: Recipe, seeds: Sequence[int], siblings: Ensemble, progress: Progress | None = None
) -> list[HeadCount]:
    """Every number of heads from 1 on. `siblings` are the networks of three heads of these seeds, trained freely."""
    # One boosted training of all heads passes through those of fewer.
    boosted = {way: train_boosted(recipe, seeds, recipe.most_heads, way, progress) for way in ("shared", "frozen")}
    counts = []
    for heads, step in enumerate(boundaries(recipe, recipe.most_heads), start=1):
        dealt = np.stack([deal(seed, heads) for seed in seeds])
        trained = train_own_sets(recipe, dealt, seeds, progress)
        free = siblings if heads == HEADS else train_free(recipe, seeds, heads, progress)
        # Where a training went on with another head, the first of two moments of a step is the earlier head's end.
        reached = {way: each.accuracy[each.steps.index(step)] for way, each in boosted.items()}
        counts.append(HeadCount(heads, dealt, heads_alone(trained), heads_alone(free), reached))
    return counts


def enough_heads(counts: Sequence[HeadCount]) -> int | None:
    """The least number of heads with which, and with every larger number, 2/3 of the networks gave every head its set;
    None if the largest number is too small."""
    too_few = [each.heads for each in counts if each.trained.own_sets.mean() < MOST - 1e-9]
    least = max(too_few, default=0) + 1
    return least if least <= len(counts) else None


def enough_claims(counts: Sequence[HeadCount], by_hand: Sequence[Constructed | None]) -> list[Claim]:
    """That heads can be made to share the work, that boosting then succeeds, and that nothing else makes them do it."""
    least, most = enough_heads(counts), counts[-1]
    succeeded = float(most.trained.own_sets.mean())
    proved, tried = _proved(by_hand), sum(made is not None for made in by_hand)
    boosted = max(most.boosted.values(), key=lambda known: float(known.mean()))
    three = counts[min(most.heads, 3) - 1].free.together.mean(axis=1)
    as_good = float((boosted >= three).mean())
    in_words = "no number of heads"
    if proved:
        in_words = f"{min(proved)} to {max(proved)} heads (median {np.median(proved):g})"
        in_words = in_words if min(proved) < max(proved) else f"{min(proved)} heads"
    return [
        judge(
            "memorisation.own-sets",
            succeeded,
            f"{100 * succeeded:.0f} % of the networks of {most.heads} heads; {in_fraction(MOST)} of them or more "
            + (f"from {least} heads on" if least else "from no number of heads on")
            + f"; with parameters set by hand, {len(proved)} of {tried} networks, each head with no pair of "
            f"another's, and {in_words}",
            heads=most.heads,
        ),
        judge(
            "memorisation.boosting-as-good",
            as_good,
            f"{100 * boosted.mean():.1f} % with {most.heads} heads, {100 * three.mean():.1f} % free with 3 (means); as "
            f"many pairs in {100 * as_good:.0f} % of the seeds",
            heads=most.heads,
        ),
        _emergence_claim(counts, least),
    ]


def _emergence_claim(counts: Sequence[HeadCount], least: int | None) -> Claim:
    """Judged as the heads that were trained to have sets of their own are, at numbers that were enough for these."""
    name = "memorisation.emergence"
    if least is None:
        return judged(name, FAILS, f"no number of heads up to {len(counts)} is enough, so that nothing can be judged")
    worst = max(counts[least - 1 :], key=lambda each: float(each.free.own_sets.mean()))
    free, trained = worst.free.own_sets, worst.trained.own_sets
    return judge(
        name,
        1 - float(free.mean()),
        f"{(~free).sum()} of {len(free)} networks of {worst.heads} heads, the worst number from "
        f"{least} on; of those trained to it, {(~trained).sum()} of {len(trained)}",
    )


def _proved(by_hand: Sequence[Constructed | None]) -> list[int]:
    """How many heads each network that was set by hand and proved has."""
    return [len(made.owned) for made in by_hand if made is not None and made.proved]


def enough_section(
    page: Page, recipe: Recipe, seeds: Sequence[int], siblings: Ensemble, progress: Progress | None
) -> tuple[list[Claim], Report]:
    """`siblings` are the networks of these seeds with three heads, trained freely."""
    counts = train_head_counts(recipe, seeds, siblings, progress)
    say = counting(progress, "setting parameters by hand", len(seeds))
    by_hand = []
    for done, seed in enumerate(seeds, start=1):
        by_hand.append(construct(draw_facts(seed), seed, recipe.arrangements))
        say(done)
    page.heading("How many heads are enough")
    page.paragraph(
        "Can each head remember a set of pairs of its own, so that it knows them alone, and all heads together know "
        "all? Two answers. Trained to it: the pairs are dealt to the heads at random, and the loss asks all heads "
        f"for all pairs and each head alone for its own (Adam, {recipe.own_steps:,} updates). Set by hand: words are "
        "placed on their circle so that the second token alone always gives a wrong answer, and each head is given an "
        "attention that turns to the second token for its own pairs, which all have one next token, and to a silent "
        "first token for all others."
    )
    proved, networks = _proved(by_hand), len(seeds)
    rows: list[list[Cell]] = [
        [
            each.heads,
            f"{each.trained.own_sets.sum()} of {networks}",
            percent(each.own.mean()),
            f"{each.trained.size:.1f}",
            f"{each.trained.partitions.sum()} of {networks}",
            f"{sum(heads <= each.heads for heads in proved)} of {networks}",
            *(percent(each.boosted[way].mean()) for way in ("shared", "frozen")),
            percent(each.free.together.mean(axis=1).mean()),
            f"{each.free.own_sets.sum()} of {networks}",
            f"{each.free.size:.1f}",
            f"{each.free.partitions.sum()} of {networks}",
        ]
        for each in counts
    ]
    columns = (
        "heads", "trained to: sets of their own", "pairs known by the head they were dealt to",
        "pairs known alone, added up", "accuracies add up to 1", "set by hand: networks that do",
        "boosted: accuracy", "boosted, embeddings frozen", "free: accuracy", "free: sets of their own",
        "free: pairs known alone, added up", "free: accuracies add up to 1",
    )  # fmt: skip
    page.table("enough", "What heads can be made to do, and what they do, by their number.", columns, rows)
    return enough_claims(counts, by_hand), {
        "enough": {
            "trained": enough_heads(counts),
            "by_hand": proved,
            "succeeded": [float(each.trained.own_sets.mean()) for each in counts],
            "emerged": [float(each.free.own_sets.mean()) for each in counts],
        }
    }
