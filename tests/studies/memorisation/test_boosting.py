"""Why head 1 forgets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd.functional import hessian
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dualform_studies.memorisation.basis import why_it_falls
from dualform_studies.memorisation.boosting import (
    HeadOne,
    bound,
    curved_before,
    draw_falls,
    learning,
    sharpness,
    small_steps,
    statements_table,
    train_head_one,
)
from dualform_studies.memorisation.transformer import Curve, Recipe, build_network, draw_facts, ensemble_of


def head_one(*seeds: list[float], curvature=None, bound_of: float | None = 10.0) -> HeadOne:
    curve = Curve(list(range(0, 10 * len(seeds[0]), 10)), [np.array(each) for each in zip(*seeds, strict=True)])
    seen = np.zeros((len(seeds[0]), len(seeds))) if curvature is None else np.array(curvature).T
    return HeadOne("made up", curve.steps[-1], curve, bound_of, curve.steps, seen)


def test_a_fall_is_five_pairs_within_a_twentieth_of_the_training():
    sudden, small = [0.8] * 20 + [0.6] * 181, [0.8] * 15 + [0.64] * 186
    slow = [max(0.2, 0.8 - 0.015 * at) for at in range(201)]
    at_first = [0.4] * 3 + [0.1] * 198
    found = head_one(sudden, slow, small, at_first)
    assert found.falls() == [190, None, None, None]
    assert found.fell.tolist() == [True, False, False, False]
    np.testing.assert_allclose(found.best, [0.8, 0.8, 0.8, 0.4])
    np.testing.assert_allclose(found.end, [0.6, 0.2, 0.64, 0.1])
    np.testing.assert_allclose(found.lost, [0.2, 0.6, 0.16, 0.3])


def test_a_short_training_has_a_short_twentieth():
    """Of 41 moments it is two: a loss of 5 pairs in five of them is no fall, as it was while ten stood for it."""
    steady = [0.8] * 20 + [0.76, 0.72, 0.68, 0.64] + [0.6] * 17
    assert head_one(steady, [0.8] * 20 + [0.7] + [0.6] * 20).falls() == [None, 190]


def test_the_bound_counts_up_to_the_fall_alone():
    accuracy = [0.8] * 25 + [0.4] * 15
    early, during, late, never = [0.0] * 40, [0.0] * 40, [0.0] * 40, [8.9] * 40
    early[24], during[25], late[35] = 9.1, 9.1, 9.1
    seeds = [accuracy, accuracy, accuracy, accuracy, [0.8] * 40]
    found = head_one(*seeds, curvature=[early, during, late, never, late])
    assert found.falls() == [240, 240, 240, 240, None]
    assert found.at_bound().tolist() == [True, False, False, False, True]
    np.testing.assert_allclose(found.before_fall(), [9.1, 0, 0, 8.9, 9.1])


FALLEN, KEPT = [0.8] * 25 + [0.4] * 15, [0.4] * 20 + [0.8] * 20
CURVED, FLAT = [9.5] * 40, [1.0] * 40


def found_of(sgd: HeadOne, small: HeadOne) -> dict[str, HeadOne]:
    return dict.fromkeys(("SGD", "Adam", "Adam, ε", "Adam, small"), sgd) | {"SGD, small": small}


def test_what_is_said_of_falls_follows_from_the_tests():
    fallen, kept = head_one(*[FALLEN] * 6, *[KEPT] * 2, curvature=[CURVED] * 6 + [FLAT] * 2), head_one(*[KEPT] * 8)
    found = found_of(fallen, kept)
    assert small_steps(found).p == pytest.approx(1 / 64)
    assert small_steps(found).ours.startswith("7.5 pairs lost with SGD's steps, 0.0 with a quarter of them (means)")
    assert curved_before(found).p == pytest.approx(1 / 28)
    assert "it is the optimizer that loses" in why_it_falls(found)
    assert "falls go with steps that overshoot" in why_it_falls(found)


def test_nothing_is_said_of_falls_that_the_tests_do_not_show():
    everywhere = head_one(*[FALLEN] * 6, *[KEPT] * 2, curvature=[CURVED] * 8)
    found = found_of(everywhere, everywhere)
    assert not small_steps(found).shown
    assert not curved_before(found).shown
    assert "6 of 6 seeds that fell had, up to their fall, and 2 of 2 of the others" in why_it_falls(found)
    assert "It is not shown that smaller steps lose less" in why_it_falls(found)
    assert "does not tell why they fell" in why_it_falls(found)
    kept = head_one(*[KEPT] * 3)
    assert why_it_falls(found_of(kept, kept)).startswith("By SGD, head 1 never falls")
    assert [row[-1] for row in statements_table([small_steps(found), curved_before(found)]).rows] == ["no", "no"]


@pytest.mark.filterwarnings("error")
def test_falls_are_drawn_whoever_falls(tmp_path):
    """Curves that leave a gap around the fall, curvatures over twice the bound, and nobody that falls."""
    high = head_one(*[FALLEN] * 2, KEPT, curvature=[[30.0] * 40] * 3)
    kept = head_one(*[KEPT] * 3)
    for name, one in (("some", high), ("none", kept)):
        assert draw_falls(tmp_path / f"{name}.png", found_of(one, one)).is_file()


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
    ensemble, heads, learns = ensemble_of([3, 4]), torch.eye(3)[:1], learning(0, embeddings=False)
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
