"""Matrices that a module multiplies by itself are layers, also of a training that is resumed; others are named."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.errors import RecordingError
from tests.cases import some
from tests.record.listed import Opened, opened_on
from tests.trainings import learn

B, D = 5, 4


def matrix(*shape):
    return nn.Parameter(torch.randn(*shape) / 2)


def one_step(opened, model, *inputs, **said):
    with opened.recorder.step(**said):
        learn(opened.optimizer, model(*inputs).square().sum())


class Tied(nn.Module):
    """A matrix that is multiplied here, the other way round, and by a linear layer inside."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.inner = matrix(D, D), nn.Linear(D, D)
        self.inner.weight = self.weight

    def forward(self, x):
        return (torch.tanh(self.inner(x)) @ self.weight).tanh() @ self.weight.T


class Checkpointed(nn.Module):
    def __init__(self, inside):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.head, self.inside = matrix(D, D), nn.Linear(D, 1), inside

    def products(self, x):
        return torch.tanh(x @ self.weight) @ self.weight

    def forward(self, x):
        return self.head(checkpoint(self.products, x, use_reentrant=False) if self.inside else self.products(x))


class Turned(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return x @ self.weight.T


class Products(nn.Module):
    """A product of each kind, one after another."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.right, self.left, self.added = matrix(9, D), matrix(D, 3), matrix(D, 3), matrix(D, D)
        self.weight, self.bias, self.shift = matrix(6, D), nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(D))
        self.halves = matrix(D, 6)
        self.listed = nn.ParameterList([matrix(2, D)])
        self.last = nn.Linear(2, 1)

    def forward(self, numbers):
        x = functional.embedding(numbers, self.rows, padding_idx=0)
        x = torch.tanh(x @ self.right)
        x = (self.left @ x.T).T
        x = torch.tanh(torch.addmm(self.shift, x, self.added))
        x = torch.relu(functional.linear(x, weight=self.weight, bias=self.bias))
        x = x[:, :3] @ self.halves[:, :3].T + functional.linear(x[:, 3:], self.halves[:, 3:])
        return self.last(x.matmul(self.listed[0].mT))


LAYERS = {
    "rows": ("rows", 9, D), "right": ("right", D, 3), "left": ("left", 3, D), "added": ("added", D, D),
    "weight": ("weight", D, 6), "halves[:, 0:3]": ("halves", 3, D), "halves[:, 3:6]": ("halves", 3, D),
    "listed.0": ("listed.0", D, 2), "last": ("last.weight", 2, 1),
}  # fmt: skip


def train(model, inputs, recorder=None, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    made, gradients = recorder(model, optimizer) if recorder else None, []
    with made or nullcontext():
        for _ in range(steps):
            with made.step(label=np.arange(len(inputs))) if made else nullcontext():
                learn(
                    optimizer,
                    model(inputs).square().sum(),
                    lambda: gradients.append([p.grad.clone() for p in model.parameters()]),
                )
        if made:
            made.query_set("test", inputs)
    return gradients


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    model, numbers = Products(), torch.tensor([3, 0, 8, 3, 1])
    path = tmp_path_factory.mktemp("products") / "m"
    recorded = train(model, numbers, lambda *both: dualform.Recorder(*both, path))
    with dualform.open(path) as memory:
        yield model, memory, recorded


def test_each_kind_of_product_is_a_layer(trained):
    _, memory, _ = trained
    assert {x.name: (x.d_in, x.d_out) for x in memory.info().layers} == {
        name: sizes for name, (_, *sizes) in LAYERS.items() for sizes in [tuple(sizes)]
    }
    assert {x.name: x.space for x in memory.info().layers} == dict.fromkeys(LAYERS, "sample")
    assert memory.info().skipped == {}


def test_keys_and_values_make_the_gradients(trained):
    model, memory, recorded = trained
    first = dict(zip([name for name, _ in model.named_parameters()], recorded[0], strict=True))
    for layer in some(memory.info().layers):
        keys, values = memory.keys(layer.name)[:B], memory.values(layer.name)[:B]
        gradient = values.T.astype(np.float64) @ keys
        own = first[LAYERS[layer.name][0]].numpy()
        own = own[:, :3] if "0:3" in layer.name else own[:, 3:] if "3:6" in layer.name else own
        np.testing.assert_allclose(gradient, own if gradient.shape == own.shape and layer.name != "added" else own.T,
                                   rtol=1e-5, atol=1e-6, err_msg=layer.name)  # fmt: skip
    for bias, layer in (("bias", "weight"), ("shift", "added")):
        np.testing.assert_allclose(memory.values(layer)[:B].sum(0), first[bias], rtol=1e-5, atol=1e-6)


def test_the_record_rebuilds_every_parameter(trained):
    model, memory, _ = trained
    assert all(found.reconstruction_error <= 1e-5 for found in memory.verify().values())
    weights = memory.weights()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(weights[name], parameter.detach(), atol=2e-6, err_msg=name)


def test_a_query_set_has_queries_of_all_of_them_and_outputs_are_the_networks(trained):
    model, memory, _ = trained
    queries = {
        name: torch.from_numpy(memory.query_set("test", layer=name).queries) for name in LAYERS if name != "rows"
    }
    x = torch.relu(queries["weight"] @ model.weight.T + model.bias)
    np.testing.assert_allclose(queries["halves[:, 3:6]"], x[:, 3:].detach(), atol=1e-5)
    np.testing.assert_allclose(np.maximum(memory.output("weight", queries["weight"].numpy()), 0), x.detach(), atol=1e-5)
    left = (queries["left"] @ model.left.T).detach()
    np.testing.assert_allclose(memory.output("left", queries["left"].numpy()), left, atol=1e-5)


def test_tied_products_count_once_each(tmp_path):
    model = Tied()
    train(model, torch.randn(B, D), lambda *both: dualform.Recorder(*both, tmp_path / "m"))
    with dualform.open(tmp_path / "m") as memory:
        assert [layer.name for layer in memory.info().layers] == ["inner", "weight", "weight.2"]
        assert [layer.slots for layer in memory.info().layers] == [3 * B] * 3
        assert max(found.reconstruction_error for found in memory.verify().values()) <= 1e-5


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Checkpointed(inside=False)

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


def test_a_checkpoint_around_the_module_is_recorded_and_one_inside_its_forward_is_named(tmp_path):
    x = torch.randn(B, D)
    around, inside = Around(), Checkpointed(inside=True)
    train(around, x, lambda *both: dualform.Recorder(*both, tmp_path / "around"))
    alone = train(copy.deepcopy(inside), x)
    recorded = train(inside, x, lambda *both: dualform.Recorder(*both, tmp_path / "inside"))
    for before, now in zip(alone, recorded, strict=True):
        assert all(torch.equal(*pair) for pair in zip(before, now, strict=True))
    with dualform.open(tmp_path / "around") as memory:
        assert {x.name: x.slots for x in memory.info().layers} == {"inner.head": 3 * B, "inner.weight": 6 * B}
        assert max(found.reconstruction_error for found in memory.verify().values()) <= 1e-5
    with dualform.open(tmp_path / "inside") as memory:
        assert "a checkpoint inside its module's forward" in memory.info().skipped["weight"]


class Both(nn.Module):
    """A tied head, experts of a kind, and attention, all of which multiply without calling a module of torch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.tied, self.attention = (
            nn.Embedding(7, D),
            Tied(),
            nn.MultiheadAttention(D, 2, batch_first=True),
        )
        self.head = Turned(self.embed.weight)

    def forward(self, words):
        x = self.tied(self.embed(words))
        return self.head(x + self.attention(x, x, x, need_weights=False)[0])


def test_two_recorders_of_one_model_see_the_same(tmp_path):
    model, words = Both(), torch.arange(10).view(5, 2) % 7
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    outer, inner = (dualform.Recorder(model, optimizer, tmp_path / name) for name in ("outer", "inner"))
    with outer, inner:
        for number in range(3):
            with outer.step(), inner.step() if number != 1 else nullcontext():
                learn(optimizer, model(words).square().sum())
    with dualform.open(tmp_path / "outer") as one, dualform.open(tmp_path / "inner") as other:
        assert (outer.skipped, inner.skipped) == ({}, {})
        assert [x.name for x in one.info().layers] == [x.name for x in other.info().layers]
        assert {"head.weight", "tied.weight.2", "attention.q"} <= {x.name for x in one.info().layers}
        assert max(found.reconstruction_error for found in one.verify().values()) <= 1e-5
        for layer in other.info().layers:
            keys, values = one.keys(layer.name), one.values(layer.name)
            step = one.slots(np.arange(len(keys)), layer.space)["step"] != 1
            np.testing.assert_array_equal(other.keys(layer.name), keys[step])
            np.testing.assert_array_equal(other.values(layer.name), values[step])


def test_names_and_patterns_choose_among_them(tmp_path):
    model = Tied()
    opened = opened_on(model, tmp_path / "m", layers=["weight.2"], spaces={"weight.?": "second"})
    with opened.recorder:
        one_step(opened, model, torch.randn(B, D))
    assert {layer.name: layer.space for layer in opened.sink.layers} == {"weight.2": "second"}
    assert opened.recorder.skipped == {"inner": "layers= leaves it out", "weight": "layers= leaves it out"}


class Function(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return functional.linear(x, weight)

    @staticmethod
    def backward(context, error):
        x, weight = context.saved_tensors
        return error @ weight, error.flatten(0, -2).T @ x.flatten(0, -2)


class Others(nn.Module):
    """Parameters that no product with a matrix is seen of."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.position, self.gate, self.summed, self.paired = matrix(3, D), matrix(1, D), matrix(D, D), matrix(D, D)
        self.grouped, self.frozen, self.unused = matrix(2, D, D), matrix(D, D), matrix(2, 2)
        self.copied, self.shown = matrix(2, D, D // 2), matrix(D, D)
        self.frozen.requires_grad_(False)
        self.scale, self.head = nn.Parameter(torch.ones(D)), nn.Linear(D, 1)
        self.cell = nn.RNNCell(D, D)

    def forward(self, x):
        x = (x + self.position) * self.gate * self.scale
        x = torch.einsum("nld,de->nle", x, self.summed) @ (self.paired @ self.frozen)
        x = torch.bmm(x[:2], self.grouped) @ self.copied.permute(1, 0, 2).reshape(D, D)
        x = Function.apply(x, self.shown)
        return self.head(self.cell(x.flatten(0, 1)) @ self.frozen)


def test_every_other_parameter_is_named_with_what_it_does(tmp_path):
    model = Others()
    opened = opened_on(model, tmp_path / "m")
    assert opened.recorder.skipped["position"] == "the first step will show what it is multiplied with"
    with opened.recorder:
        one_step(opened, model, torch.randn(5, 3, D))
    assert opened.sink.layer_names == ["head"]
    hidden = "not into a matrix product that the recorder can see"
    assert opened.recorder.skipped == {
        "position": "it is added, not multiplied",
        "gate": f"it goes into mul, {hidden}",
        "summed": f"it goes into einsum, {hidden}",
        "paired": f"it goes into a product with another parameter, {hidden}",
        "grouped": f"it goes into bmm, {hidden}",
        "frozen": "it is frozen",
        "copied": "reshape may copy it, and products with a copy are not seen",
        "shown": "it ran under torch.no_grad or in an autograd.Function in every recorded step",
        "unused": "no product with it was seen in the first step; products in compiled code are never seen",
        "scale": "it is not a matrix",
        "cell": "RNNCell is not supported",
    }


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.head = nn.Parameter(torch.randn(2, 16, 8)), nn.Linear(8, 1)
        self.bfloat16()

    def forward(self, x):
        return self.head(functional.grouped_mm(x, self.up, offs=torch.tensor([2, len(x)], dtype=torch.int32)))


def test_products_of_one_kernel_are_refused_with_advice(tmp_path):
    model = Grouped()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        one_step(opened, model, torch.randn(6, 16, dtype=torch.bfloat16))
    assert opened.recorder.skipped == {
        "up": "one kernel computes all its products, which hides them: compute them one by one, as transformers "
        "does with experts_implementation='eager'"
    }


@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
def test_in_compiled_code_they_are_let_pass_and_named(tmp_path):
    torch._dynamo.reset()
    model, x = Checkpointed(inside=False), torch.randn(B, D)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder, opened.recorder.step():
        compiled(x).square().sum().backward()
    torch._dynamo.reset()
    assert opened.sink.layer_names == ["head"]
    assert opened.recorder.skipped == {
        "weight": "no product with it was seen in the first step; products in compiled code are never seen"
    }


def test_a_use_that_the_first_step_did_not_show_is_told_of(tmp_path):
    model = Tied()
    opened = opened_on(model, tmp_path / "m", layers=["weight*"])
    with opened.recorder:
        one_step(opened, model, torch.randn(B, D))
        model.forward = lambda x: functional.embedding(x, model.weight)
        with pytest.warns(RuntimeWarning, match="^weight was multiplied in a way that the first step did not show"):
            one_step(opened, model, torch.tensor([1, 2]))
    assert [layer.name for layer in opened.sink.layers] == ["weight", "weight.2"]


class Dropped(nn.Module):
    """Leaves a block out, as training with a random depth does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Turned(matrix(D, D)) for _ in range(3))
        self.head = nn.Linear(D, 2)

    def forward(self, x, dropped):
        for number, block in enumerate(self.blocks):
            x = x + block(x) if number != dropped else x
        return self.head(x)


def test_a_matrix_that_the_first_step_does_not_touch_is_told_of(tmp_path, capsys):
    model = Dropped()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.05), tmp_path / "m")
    with opened.recorder:
        one_step(opened, model, torch.randn(B, D), 1)
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.endswith(" a step; no product was seen with blocks.1.weight, and later ones are not recorded")
        one_step(opened, model, torch.randn(B, D), 1)
        with pytest.warns(RuntimeWarning) as told:
            one_step(opened, model, torch.randn(B, D), 0)
        one_step(opened, model, torch.randn(B, D), 2)
    assert [str(warning.message) for warning in told] == [
        "blocks.1.weight was multiplied for the first time after the first step, which must run every part that "
        "you want to record: those products are not recorded."
    ]
    why = "it was first multiplied after the first step"
    assert opened.sink.skipped == {"blocks.1.weight": why}
    assert [layer.name for layer in opened.sink.layers] == ["head", "blocks.0.weight", "blocks.2.weight"]
    assert opened.sink.defects == []


def test_a_pattern_that_no_layer_comes_to_fit_is_refused_in_the_first_step(tmp_path):
    model = Others()
    opened = opened_on(model, tmp_path / "m", spaces={"position": "token"})
    with (
        opened.recorder,
        pytest.raises(dualform.DualformError, match=r"^spaces='position' does not match any recorded layer\."),
    ):
        one_step(opened, model, torch.randn(5, 3, D))


MOMENT, STEPS = 3, 6


class Shown(nn.Module):
    """Matrices that only a first step shows: multiplied both ways round, by hand, with a bias, of experts, and one that
    is not multiplied in the step from which the training goes on, in which all rows go to the first expert.
    """

    def __init__(self):
        super().__init__()
        self.w, self.held, self.late, self.up = matrix(6, 6), matrix(6, 6), matrix(6, 6), matrix(3, 6, 6)
        self.biased, self.bias, self.head = matrix(6, 6), nn.Parameter(torch.zeros(6)), nn.Linear(6, 3)

    def forward(self, x, number):
        one, other = (self.w, self.w.T) if number % 2 else (self.w.T, self.w)
        h = torch.tanh(x @ one + x @ other)
        h = torch.tanh(dualform.tap(h, self.held.T, "hand") + functional.linear(h, self.biased, self.bias))
        h = h if number == MOMENT else h + x @ self.late
        to = torch.zeros(len(x), dtype=torch.long) if number == MOMENT else torch.arange(len(x)) % 3
        for expert in to.unique().tolist():
            rows = (to == expert).nonzero()[:, 0]
            h = h.index_add(0, rows, functional.linear(x[rows], self.up[expert]))
        return self.head(torch.tanh(h))


def states(kind, path, first, until, saved=None, **options):
    """The states of a recorded network before each step and at the end."""
    torch.manual_seed(0)
    model = kind()
    if saved is not None:
        model.load_state_dict(saved)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with dualform.Recorder(model, optimizer, path, quiet=True, **options) as recorder:
        for number in range(first, until):
            seen.append({name: value.clone() for name, value in model.state_dict().items()})
            generator = torch.Generator().manual_seed(number)
            x, y = torch.randn(7, 6, generator=generator), torch.randint(3, (7,), generator=generator)
            with recorder.step(label=y):
                learn(optimizer, functional.cross_entropy(model(x, number), y))
        recorder.flush()
    return [*seen, {name: value.clone() for name, value in model.state_dict().items()}]


def test_a_resumed_training_has_the_layers_and_weights_of_one_that_never_stopped(tmp_path):
    live = states(Shown, tmp_path / "whole", 0, STEPS)
    saved = states(Shown, tmp_path / "m", 0, MOMENT)[-1]
    states(Shown, tmp_path / "m", MOMENT, STEPS, saved, resume=True)
    with dualform.open(tmp_path / "whole") as whole, dualform.open(tmp_path / "m") as memory:
        spaces = [{layer.name: layer.space for layer in own.info().layers} for own in (whole, memory)]
        assert spaces[0] == spaces[1]
        assert spaces[0].keys() == {"head", "w", "w.2", "hand", "biased", "late", "up[0]", "up[1]", "up[2]"}
        assert whole.info().slots == memory.info().slots
        for at_step in (MOMENT, MOMENT + 1, STEPS):
            one, other = (own.weights(at_step=at_step) for own in (whole, memory))
            for name, value in live[at_step].items():
                assert torch.equal(one[name], other[name]), (at_step, name)
                assert torch.allclose(other[name], value, atol=2e-6), (at_step, name)
        for layer, reconstruction in some(memory.verify().items()):
            assert (reconstruction.exact, reconstruction.reason) == (True, ""), layer


def test_a_resumed_network_without_the_matrix_is_refused_by_name(tmp_path):
    class Without(Shown):
        def forward(self, x, number):
            return self.head(x)

    saved = states(Shown, tmp_path / "m", 0, 2)[-1]
    with pytest.raises(RecordingError, match="network differs from what it was"):
        states(Without, tmp_path / "m", 2, 4, resume=True)
    with pytest.raises(RecordingError, match="was recorded before the training was resumed, and is not"):
        states(Shown, tmp_path / "m", 2, 4, saved, resume=True, layers="head")
