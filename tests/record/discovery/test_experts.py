"""Experts whose matrices are stacked in one parameter, held against each token going through every expert, masked."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import linear, silu

import dualform
from dualform.errors import BadInput
from tests.trainings import learn

E, TOP, B, L, H, INNER = 4, 2, 3, 5, 6, 7


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(E, 2 * INNER, H) / 3)
        self.down_proj = nn.Parameter(torch.randn(E, H, INNER) / 3)
        self.say = lambda expert, rows: None

    def one(self, x, expert):
        gate, up = linear(x, self.gate_up_proj[expert]).chunk(2, -1)
        return linear(silu(gate) * up, self.down_proj[expert])

    def forward(self, tokens, chosen, shares):
        """tokens [n, H]; chosen and shares [n, TOP]."""
        total = torch.zeros_like(tokens)
        for expert in range(E):
            rows, place = torch.where(chosen == expert)
            if len(rows):
                self.say(expert, rows)
                total = total.index_add(0, rows, self.one(tokens[rows], expert) * shares[rows, place, None])
        return total

    def dense(self, tokens, chosen, shares):
        weights = torch.zeros(len(tokens), E).scatter(1, chosen, shares)
        return sum(self.one(tokens, expert) * weights[:, expert, None] for expert in range(E))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.router, self.experts, self.head = (
            nn.Linear(H, H), nn.Linear(H, E, bias=False), Experts(), nn.Linear(H, 2),
        )  # fmt: skip

    def forward(self, x, dense=False):
        x = torch.tanh(self.inner(x))
        shares, chosen = self.router(x).softmax(-1).flatten(0, 1).topk(TOP, -1)
        experts = self.experts.dense if dense else self.experts
        return self.head(experts(x.flatten(0, 1), chosen, shares).view_as(x))


STEPS = [torch.randn(B, L, H, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The memory, the model, what the recorder skipped, and the gradients of the same training through every expert."""
    model = Net()
    dense = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(own.parameters(), lr=0.05, momentum=0.9) for own in (model, dense)]
    path, gradients = tmp_path_factory.mktemp("experts") / "m", []
    with dualform.Recorder(model, optimizers[0], path) as recorder:
        for x in STEPS:
            learn(
                optimizers[1],
                dense(x, dense=True).square().sum(),
                lambda: gradients.append({name: p.grad.clone() for name, p in dense.named_parameters()}),
            )
            with recorder.step(label=np.arange(B)):
                learn(optimizers[0], model(x).square().sum())
        recorder.query_set("test", STEPS[0], label=torch.arange(B))
    with dualform.open(path) as memory:
        yield memory, model, recorder.skipped, gradients


def test_each_expert_is_two_layers_in_a_space_of_its_own(trained):
    memory, _, skipped, _ = trained
    spaces = {layer.name: layer.space for layer in memory.info().layers}
    expected = {f"experts.{kind}_proj[{e}]": f"experts_{e}" for kind in ("gate_up", "down") for e in range(E)}
    assert spaces == {"inner": "token", "router": "token", "head": "token"} | expected
    assert sum(memory.info().slots[f"experts_{e}"] for e in range(E)) == len(STEPS) * B * L * TOP
    assert skipped == {}


def test_slots_make_the_gradients_of_every_token_through_every_expert(trained):
    memory, _, _, gradients = trained
    for kind in ("gate_up", "down"):
        for e in range(E):
            name = f"experts.{kind}_proj[{e}]"
            step = memory.slots(np.arange(memory.info().slots[f"experts_{e}"]), f"experts_{e}")["step"]
            for number, own in enumerate(gradients):
                keys, values = (
                    rows[step == number].astype(np.float64) for rows in (memory.keys(name), memory.values(name))
                )
                expected = own[f"experts.{kind}_proj"][e].numpy()
                np.testing.assert_allclose(values.T @ keys, expected, rtol=1e-4, atol=2e-6, err_msg=f"{name} {number}")


def test_the_record_rebuilds_every_expert(trained):
    memory, model, _, _ = trained
    for name, found in memory.verify().items():
        assert found.reconstruction_error <= max(1e-5, 3 * found.status.rounding), name
    weights = memory.weights()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(weights[name], parameter.detach(), atol=2e-6, err_msg=name)
    layer = next(x for x in memory.info().layers if x.name == "experts.down_proj[2]")
    query = torch.randn(4, layer.d_in)
    expected = linear(query, model.experts.down_proj[2]).detach()
    np.testing.assert_allclose(memory.output(layer.name, query.numpy()), expected, atol=2e-6)


def test_heads_in_one_parameter_that_see_the_whole_batch_share_its_space(tmp_path):
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads, self.last = nn.Parameter(torch.randn(3, H, 2)), nn.Linear(6, 1)

        def forward(self, x):
            return self.last(torch.cat([x @ self.heads[number] for number in range(3)], -1))

    model = Heads()
    recorder = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    with recorder, recorder.step(label=np.arange(B)):
        model(STEPS[0]).square().sum().backward()
    with dualform.open(tmp_path / "m") as memory:
        names = ["heads[0]", "heads[1]", "heads[2]", "last"]
        assert sorted((x.name, x.space) for x in memory.info().layers) == [(name, "token") for name in names]


def test_where_the_choice_is_seen_the_rows_are_known(trained):
    """`tokens[rows]` shows them; both layers of an expert have the same slots."""
    memory = trained[0]
    for e in range(E):
        count = memory.info().slots[f"experts_{e}"]
        slots = memory.slots(np.arange(count), f"experts_{e}")
        first = slots["step"] == 0
        keys = memory.keys(f"experts.gate_up_proj[{e}]")[first]
        start = memory.weights(at_step=0)
        inner = torch.tanh(linear(STEPS[0], *(torch.as_tensor(start[f"inner.{name}"]) for name in ("weight", "bias"))))
        rows, positions = slots["row"][first].astype(int), slots["position"][first].astype(int)
        np.testing.assert_allclose(inner[rows, positions].numpy(), keys, atol=1e-6)
        np.testing.assert_array_equal(slots["label"][first], rows)


def test_rows_of_a_query_set_are_no_experts_examples(trained):
    memory, model, _, _ = trained
    tokens = torch.tanh(model.inner(STEPS[0])).detach().flatten(0, 1)
    chosen = (model.router(tokens).topk(TOP, -1).indices == 1).any(-1)
    queries = memory.query_set("test", "experts.gate_up_proj[1]").queries
    np.testing.assert_allclose(queries, tokens[chosen], atol=1e-6)
    assert memory.topk("router", f"test/{7 // L}:{7 % L}", k=1).ids.size == 1
    assert len(memory.topk("experts.gate_up_proj[1]", "test", k=1).slots) == len(queries)
    with pytest.raises(BadInput) as told:
        memory.group_sum("experts.gate_up_proj[1]", "test/0", by="label")
    assert str(told.value) == (
        "The queries of layer 'experts.gate_up_proj[1]' in query set 'test' cannot be matched to its examples: the "
        "network chose their rows, or their order is not known. Pass all, 'test', or rows of "
        "memory.query_set('test', 'experts.gate_up_proj[1]').queries."
    )
    assert told.value.field == "queries"


def test_what_is_said_before_each_call_goes_before_what_is_seen(tmp_path):
    model = Net()
    recorder = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    with recorder:
        for number, x in enumerate(STEPS[:2]):
            with recorder.step(label=np.arange(B) + 10 * number) as step:
                if number:  # the first step shows the spaces
                    model.experts.say = lambda expert, rows, step=step: step.at(
                        f"experts_{expert}", row=np.full(len(rows), 2), position=rows % L
                    )
                model(x).square().sum().backward()
    with dualform.open(tmp_path / "m") as memory:
        slots = memory.slots(np.arange(memory.info().slots["experts_1"]), "experts_1")
        later = slots["step"] == 1
        assert later.any()
        assert (slots["row"][later] == 2).all()
        assert (slots["label"][later] == 12).all()


class Codes(nn.Module):
    """Experts of rows of what it is given, which no layer takes as it is, or of a matrix as long as a batch."""

    def __init__(self, own):
        super().__init__()
        self.up, self.own, self.codes = nn.Parameter(torch.randn(2, 4, H) / 3), own, torch.randn(B, H)

    def forward(self, x):
        flat = self.codes if self.own else x.reshape(-1, H)
        return sum(linear(flat[torch.tensor(rows)], self.up[e]).sum() for e, rows in enumerate(([2, 0], [1])))


@pytest.mark.parametrize("own", [True, False], ids=["of a matrix of its own", "of what it is given"])
def test_rows_are_the_batchs_where_the_module_was_given_them(tmp_path, own):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(H, H), nn.Tanh(), Codes(own))
    recorder = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    with recorder, recorder.step(label=np.arange(B) + 10, position=np.arange(B * L).reshape(B, L) + 100):
        x = model[:2](STEPS[0])
        (model[2](x) + x.sum()).backward()
    with dualform.open(tmp_path / "m") as memory:
        spaces = {layer.name: layer.space for layer in memory.info().layers}
        slots = memory.slots(np.arange(2), spaces["2.up[0]"])
        assert np.ma.getmaskarray(slots["label"]).tolist() == [own, own]
        if not own:
            assert (slots["row"].tolist(), slots["position"].tolist()) == ([0, 0], [102, 100])
            assert slots["label"].tolist() == [10, 10]
