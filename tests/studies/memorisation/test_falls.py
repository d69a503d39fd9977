from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd.functional import hessian
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dualform_studies.memorisation.boosting import fresh, learning, sign_test
from dualform_studies.memorisation.ensemble import Curve
from dualform_studies.memorisation.facts import draw_facts
from dualform_studies.memorisation.falls import HeadOne, train_head_one
from dualform_studies.memorisation.network import build_network
from dualform_studies.memorisation.sharpness import bound, sharpness
from dualform_studies.memorisation.training import Recipe


def head_one(*seeds: list[float], curvature=None, bound_of: float | None = 10.0) -> HeadOne:
    curve = Curve(list(range(0, 10 * len(seeds[0]), 10)), [np.array(each) for each in zip(*seeds, strict=True)])
    seen = np.zeros((len(seeds[0]), len(seeds))) if curvature is None else np.array(curvature).T
    return HeadOne("made up", curve.steps[-1], curve, bound_of, curve.steps, seen)


def test_a_fall_is_five_pairs_within_ten_moments():
    sudden, slow, small = [0.8] * 20 + [0.6] * 10, [0.8 - 0.015 * at for at in range(30)], [0.8] * 15 + [0.64] * 15
    at_first = [0.4] * 3 + [0.1] * 27
    found = head_one(sudden, slow, small, at_first)
    assert found.falls() == [190, None, None, None]
    assert found.fell.tolist() == [True, False, False, False]
    np.testing.assert_allclose(found.best, [0.8, 0.8, 0.8, 0.4])
    np.testing.assert_allclose(found.end, [0.6, 0.8 - 0.015 * 29, 0.64, 0.1])


def test_the_bound_is_reached_before_or_during_the_fall():
    accuracy = [0.8] * 25 + [0.4] * 15
    early, late, never = [0.0] * 40, [0.0] * 40, [8.9] * 40
    early[22], late[35] = 9.1, 9.1
    found = head_one(accuracy, accuracy, accuracy, [0.8] * 40, curvature=[early, late, never, late])
    assert found.falls() == [240, 240, 240, None]
    assert found.at_bound().tolist() == [True, False, False, True]


def test_gradient_descent_with_momentum_follows_curvatures_below_the_bound():
    for factor, follows in ((0.98, True), (1.02, False)):
        x = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([x], lr=0.02, momentum=0.9)
        for _ in range(2000):
            optimizer.zero_grad()
            (factor * bound(0.02, 0.9) * x**2 / 2).sum().backward()
            optimizer.step()
        assert (x.abs().item() < 1) == follows


def test_the_sharpness_is_the_greatest_eigenvalue_in_what_learns():
    ensemble, heads, learns = fresh([3, 4]), torch.eye(3)[:1], learning(0, embeddings=False)
    found = sharpness(
        build_network(0).double(), ensemble.parameters, ensemble.pairs, ensemble.next_tokens, heads, learns
    )
    facts, network = draw_facts(4), build_network(4).double()
    fixed = {name: p.detach() for name, p in network.named_parameters()}
    places = [
        (name, index) for name, mask in learns.items() for index in mask.bool().expand(fixed[name].shape).nonzero()
    ]

    def loss(numbers):
        placed = {name: p.clone() for name, p in fixed.items()}
        for (name, index), number in zip(places, numbers, strict=True):
            placed[name][tuple(index)] = number
        return cross_entropy(functional_call(network, placed, (facts.pairs, heads.double())), facts.next_tokens)

    numbers = torch.stack([fixed[name][tuple(index)] for name, index in places])
    assert found[1].item() == pytest.approx(torch.linalg.eigvalsh(hessian(loss, numbers))[-1].item(), rel=1e-6)


def test_head_one_is_trained_with_every_step_size():
    found = train_head_one(Recipe(steps=12), [1, 2])
    assert {name: one.steps for name, one in found.items()} == {
        "SGD": 12, "SGD, small": 48, "Adam": 12, "Adam, ε": 12, "Adam, small": 48,
    }  # fmt: skip
    for one in found.values():
        assert one.curve.steps[-1] == one.steps
        assert one.curvature.shape == (len(one.looked_at), 2)
        np.testing.assert_array_equal(one.curve.loss[0], found["SGD"].curve.loss[0])
        np.testing.assert_array_equal(one.curvature[0], found["SGD"].curvature[0])
    assert found["SGD"].bound == pytest.approx(190)
    assert found["Adam"].bound is None


@pytest.mark.parametrize(
    ("better", "worse", "ties", "p"), [(5, 0, 3, 1 / 32), (0, 5, 0, 1.0), (2, 1, 0, 0.5), (0, 0, 4, 1.0)]
)
def test_the_sign_test_counts_seeds_that_differ(better, worse, ties, p):
    free = np.array([1.0] * better + [0.5] * worse + [0.7] * ties)
    boosted = np.array([0.5] * better + [1.0] * worse + [0.7] * ties)
    assert sign_test(free, boosted) == pytest.approx(p)
