"""Networks trained at once are those that plain torch trains one by one."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dualform_studies.attribution.examples import Examples, flipped
from dualform_studies.attribution.recipe import Recipe, seed_of_step
from dualform_studies.attribution.schedule import batches_of, epochs_of, left_out, subsets, whole
from dualform_studies.attribution.stacked import StackedNetworks, train_in_parts

RECIPE = Recipe(hidden=(9, 7), batch=8, epochs=3, trained=30, tested=6, lr=0.05)
SEED = 4


def examples(count: int, seed: int) -> Examples:
    draw = torch.Generator().manual_seed(seed)
    return Examples(torch.randn(count, 12, generator=draw), torch.randint(10, (count,), generator=draw))


TRAINED, TESTED = examples(30, 0), examples(6, 1)
ORDER = epochs_of(30, RECIPE.epochs, SEED)


def plain(batches, absent=()):
    """torch's own modules, optimizer and dropout, one network and one batch at a time."""
    network = RECIPE.build(12, 10, SEED).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=RECIPE.lr, momentum=RECIPE.momentum)
    for number, rows in enumerate(batches):
        torch.manual_seed(seed_of_step(SEED, number))
        losses = cross_entropy(network(TRAINED.inputs[rows]), TRAINED.labels[rows], reduction="none")
        stays = torch.tensor([float(row not in absent) for row in rows.tolist()])
        optimizer.zero_grad()
        ((losses * stays).sum() / len(rows)).backward()
        optimizer.step()
    return network.eval()


def assert_same(stack, networks):
    assert len(stack) == len(networks)
    with torch.no_grad():
        for state, network, losses in zip(
            stack.states(networks[0]), networks, stack.losses(TESTED), strict=True
        ):  # fmt: skip
            for name, own in network.state_dict().items():
                torch.testing.assert_close(state[name], own, rtol=1e-4, atol=1e-6)
            expected = cross_entropy(network(TESTED.inputs), TESTED.labels, reduction="none")
            np.testing.assert_allclose(losses, expected.numpy(), rtol=1e-4, atol=1e-5)


def trained(steps, count):
    stack = StackedNetworks([RECIPE.build(12, 10, SEED)] * count)
    before = torch.random.get_rng_state()
    stack.train(TRAINED, steps, RECIPE, SEED)
    assert torch.equal(torch.random.get_rng_state(), before)
    return stack


def test_whole_trainings_are_those_of_plain_torch():
    assert_same(trained(whole(ORDER, 8, 2), 2), [plain(batches_of(ORDER, 8))] * 2)


def test_samples_left_out_bring_no_gradient_and_change_nothing_else():
    absent = [np.array([3]), np.array([], dtype=np.int64), np.array([0, 7, 11])]
    networks = [plain(batches_of(ORDER, 8), set(own.tolist())) for own in absent]
    stack = trained(left_out(ORDER, 8, absent), 3)
    assert_same(stack, networks)
    assert np.abs(stack.losses(TESTED)[0] - stack.losses(TESTED)[1]).max() > 1e-3


def test_a_subset_is_trained_as_a_loader_over_it_would():
    kept = [np.arange(15), np.arange(5, 20)]
    networks = []
    for own in kept:
        passed = np.stack([[row for row in epoch if row in own] for epoch in ORDER])
        networks.append(plain(batches_of(passed, 8)))
    assert_same(trained(subsets(ORDER, 8, kept), 2), networks)


def test_subsets_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match="equally many"):
        subsets(ORDER, 8, [np.arange(3), np.arange(4)])


def test_parts_are_what_all_of_them_together_are():
    absent = [np.array([row]) for row in range(3)]
    parts = [(2, lambda: left_out(ORDER, 8, absent[:2])), (1, lambda: left_out(ORDER, 8, absent[2:]))]
    losses = np.concatenate([own for own, _ in train_in_parts(TRAINED, RECIPE, SEED, TESTED, parts)])
    together = trained(left_out(ORDER, 8, absent), 3)
    np.testing.assert_allclose(losses, together.losses(TESTED), rtol=1e-5, atol=1e-6)


def test_every_epoch_has_every_sample_once():
    assert np.sort(ORDER, axis=1).tolist() == [list(range(30))] * RECIPE.epochs
    assert [len(rows) for rows in batches_of(ORDER, 8)] == [8, 8, 8, 6] * RECIPE.epochs


def test_flipped_labels_are_wrong_and_as_many_as_asked():
    found, wrong = flipped(TRAINED, 0.2, seed=0)
    assert wrong.sum() == 6
    assert ((found.labels != TRAINED.labels).numpy() == wrong).all()
    assert copy.copy(found).labels.min() >= 0
    assert found.labels.max() < 10
