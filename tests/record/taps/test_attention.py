"""nn.MultiheadAttention is four layers, held against one that calls four nn.Linear of the same numbers."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from tests.cases import some
from tests.query.test_backends import SETTINGS
from tests.record.listed import Opened
from tests.trainings import learn

B, L, S, E, HEADS, STEPS = 4, 5, 3, 8, 2, 3

PARTS = ("q", "k", "v", "out_proj")


class Own(nn.Module):
    """What nn.MultiheadAttention computes without dropout, by four nn.Linear; batch first."""

    def __init__(self, of: nn.MultiheadAttention) -> None:
        super().__init__()
        self.of = (of.num_heads, of.add_zero_attn)
        weights = of.in_proj_weight.chunk(3) if of._qkv_same_embed_dim else (
            of.q_proj_weight, of.k_proj_weight, of.v_proj_weight,
        )  # fmt: skip
        biases = (None,) * 3 if of.in_proj_bias is None else of.in_proj_bias.chunk(3)
        self.q, self.k, self.v = (linear(*pair) for pair in zip(weights, biases, strict=True))
        self.out_proj = linear(of.out_proj.weight, of.out_proj.bias)
        self.bias_k, self.bias_v = copy.deepcopy(of.bias_k), copy.deepcopy(of.bias_v)

    def forward(self, query, key, value):
        heads, zero = self.of
        q, k, v = self.q(query), self.k(key), self.v(value)
        if self.bias_k is not None:
            k, v = (torch.cat([x, b.expand(len(x), 1, E)], 1) for x, b in ((k, self.bias_k), (v, self.bias_v)))
        if zero:
            k, v = (torch.cat([x, x.new_zeros(len(x), 1, E)], 1) for x in (k, v))
        q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
        scores = (q @ k.transpose(2, 3) / math.sqrt(E // heads)).softmax(-1)
        return self.out_proj((scores @ v).transpose(1, 2).flatten(2))


def linear(weight, bias):
    found = nn.Linear(weight.shape[1], len(weight), bias is not None)
    with torch.no_grad():
        found.weight.copy_(weight)
        if bias is not None:
            found.bias.copy_(bias)
    return found


class Net(nn.Module):
    """Attention between linear layers, of x [B, L, E], and where it crosses of key and value [B, S, .] too."""

    def __init__(self, cross=False, first=True, weights=False, **options):
        super().__init__()
        torch.manual_seed(0)
        self.cross, self.first, self.weights = cross, first, weights
        self.inner, self.head = nn.Linear(E, E), nn.Linear(E, 2)
        self.attn = nn.MultiheadAttention(E, HEADS, batch_first=first, **options)
        for name, parameter in self.attn.named_parameters():
            if "bias" in name:
                nn.init.normal_(parameter, std=0.1)

    def forward(self, x, key, value=None):
        own = isinstance(self.attn, Own)
        turn = not self.first and not own
        x = self.inner(x.transpose(0, 1) if turn else x)
        given = (x, key, key if value is None else value) if self.cross else (x, x, x)
        y = self.attn(*given) if own else self.attn(*given, need_weights=self.weights)[0]
        return self.head(y).transpose(0, 1) if turn else self.head(y)


VARIANTS = {
    "self": {},
    "cross": {"cross": True},
    "widths": {"cross": True, "kdim": 6, "vdim": 4},
    "more keys": {"add_bias_kv": True, "add_zero_attn": True},
    "no bias, time first": {"bias": False, "first": False, "weights": True},
}


def data(model):
    generator = torch.Generator().manual_seed(1)
    widths = (model.attn.kdim, model.attn.vdim)
    for _ in range(STEPS):
        x = torch.randn(B, L, E, generator=generator)
        others = [torch.randn(B, S, width, generator=generator) for width in dict.fromkeys(widths)]
        yield x, *others


def run(model, batches, recorder=None, autocast=False, call=None):
    """Train; returns the gradients of each step. `recorder`: makes one of model and optimizer; `call`: the model, or
    what it was compiled to.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    made, gradients = recorder(model, optimizer) if recorder else None, []
    with made or nullcontext():
        for inputs in batches:
            with made.step(label=np.arange(B)) if made else nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    outcome = (model if call is None else call)(*inputs)
                learn(
                    optimizer,
                    outcome.float().square().sum(),
                    lambda: gradients.append({name: p.grad.clone() for name, p in model.named_parameters()}),
                )
        if made:
            made.query_set("test", inputs)
    return gradients


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request, tmp_path_factory):
    """A variant's network, its memory, and the record of one with linear layers in its place."""
    options, folder = VARIANTS[request.param], tmp_path_factory.mktemp("attention")
    model = Net(**options)
    twin, batches = copy.deepcopy(model), list(data(model))
    twin.attn = Own(model.attn)
    alone = run(copy.deepcopy(model), batches)
    gradients = run(model, batches, lambda *both: dualform.Recorder(*both, folder / "m"))
    spaces = {"attn.[kv]": "memory"} if model.cross else None
    made = []
    run(twin, batches, lambda *both: made.append(Opened(*both, folder / "twin", spaces=spaces)) or made[0].recorder)
    with dualform.open(folder / "m") as memory:
        yield model, (alone, gradients), memory, made[0].sink


def test_every_gradient_has_the_bits_of_the_unrecorded_training(pair):
    _, (alone, gradients), _, _ = pair
    for before, now in some(zip(alone, gradients, strict=True)):
        for name, gradient in before.items():
            assert torch.equal(gradient, now[name]), name


def test_keys_and_values_are_those_of_four_linear_layers(pair):
    _, _, memory, other = pair
    spaces = {layer.name: layer.space for layer in other.layers}
    assert {layer.name: layer.space for layer in memory.info().layers} == spaces
    for part in PARTS:
        name = f"attn.{part}"
        np.testing.assert_allclose(memory.keys(name), other.keys(name), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(memory.values(name), other.values(name), rtol=1e-4, atol=1e-5)


def test_the_record_rebuilds_every_weight(pair):
    model, _, memory, _ = pair
    for name, reconstruction in some(memory.verify().items()):
        assert reconstruction.reconstruction_error <= 1e-5, name
        assert reconstruction.exact, name
    weights = memory.weights()
    for name, parameter in some(model.named_parameters()):
        assert weights[name] == pytest.approx(parameter.detach(), abs=1e-6), name


def test_query_sets_hold_the_queries_of_all_four_and_outputs_are_those_of_the_network(pair):
    model, _, memory, other = pair
    weights = {name: parameter.detach() for name, parameter in model.attn.named_parameters()}
    for part in PARTS:
        name, own = f"attn.{part}", block(weights, part)
        queries = memory.query_set("test", layer=name).queries
        np.testing.assert_allclose(queries, other.query_sets["test"][0][name], rtol=1e-4, atol=1e-5)
        live = nn.functional.linear(torch.from_numpy(queries), *own).numpy()
        np.testing.assert_allclose(np.asarray(memory.output(name, queries)), live, atol=1e-5)


def block(weights, part):
    """Weight and bias of one of the four layers."""
    if part == "out_proj":
        return weights["out_proj.weight"], weights.get("out_proj.bias")
    number, three = "qkv".index(part), weights.get("in_proj_weight")
    weight = weights[f"{part}_proj_weight"] if three is None else three.chunk(3)[number]
    return weight, weights["in_proj_bias"].chunk(3)[number] if "in_proj_bias" in weights else None


def test_under_autocast_the_bits_stay_and_layers_say_bfloat16(tmp_path):
    model, batches = Net(), list(data(Net()))
    alone = run(copy.deepcopy(model), batches, autocast=True)
    made = []
    gradients = run(model, batches, lambda *both: made.append(Opened(*both, tmp_path / "m")) or made[0].recorder, True)
    for before, now in zip(alone, gradients, strict=True):
        assert all(torch.equal(gradient, now[name]) for name, gradient in before.items())
    assert {x.dtype for x in made[0].sink.layers if x.name.startswith("attn")} == {"bfloat16"}
    # How the gradient of each product was rounded is seen through the taps of q, k and v.
    for parts in zip(*(made[0].sink.parts(f"attn.{name}") for name in PARTS), strict=True):
        q, k, v, out = (part.product.copy for _, part in parts)
        assert q == k == v != out


@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
def test_compiled_without_a_break_it_is_recorded_and_keeps_its_bits(tmp_path):
    model = Net(**VARIANTS["cross"])
    batches = list(data(model))

    def compiled_run(model, recorder=None):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        return run(model, batches, recorder, call=compiled)

    alone = compiled_run(copy.deepcopy(model))
    made = []
    gradients = compiled_run(model, lambda *both: made.append(Opened(*both, tmp_path / "m")) or made[0].recorder)
    torch._dynamo.reset()
    for before, now in some(zip(alone, gradients, strict=True)):
        assert all(torch.equal(gradient, now[name]) for name, gradient in before.items())
    sink = made[0].sink
    of_first = {name.removeprefix("attn."): gradient for name, gradient in gradients[0].items()}
    for part in PARTS:
        values, keys = (own[: len(own) // STEPS] for own in (sink.values(f"attn.{part}"), sink.keys(f"attn.{part}")))
        np.testing.assert_allclose(values.T @ keys, block(of_first, part)[0], rtol=1e-3, atol=1e-5)


def test_unbatched_tokens_are_rows_as_those_of_the_linear_layers_beside(tmp_path):
    model = Net()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    with opened.recorder, opened.recorder.step(label=np.arange(L)):
        model(torch.randn(L, E), None).square().sum().backward()
    assert {x.space for x in opened.sink.layers} == {"sample"}
    gradient = model.attn.in_proj_weight.grad.numpy()
    parts = [opened.sink.values(f"attn.{x}").T @ opened.sink.keys(f"attn.{x}") for x in "qkv"]
    np.testing.assert_allclose(np.concatenate(parts), gradient, rtol=1e-4, atol=1e-6)


def test_whatever_ends_a_forward_pass_no_mode_remains(tmp_path):
    model = Net()

    def fail(*_):
        raise KeyboardInterrupt

    model.attn.register_forward_hook(fail)
    recorder = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    with pytest.raises(KeyboardInterrupt), recorder, recorder.step():
        model(torch.randn(B, L, E), None)
    assert torch._C._len_torch_function_stack() == 0


def test_passes_without_gradients_are_left_to_the_fused_path_and_told_of_in_a_step(tmp_path):
    model = Net().eval()
    x = torch.randn(B, L, E)
    with torch.no_grad():
        alone = model(x, None)
    made = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    with made, torch.profiler.profile() as profile:
        with torch.no_grad():
            assert torch.equal(model(x, None), alone)
        with made.step():
            with torch.no_grad():
                assert torch.equal(model(x, None), alone)
            model.inner(x).square().sum().backward()
    assert [event.name for event in profile.events()].count("aten::_native_multi_head_attention") == 2
    assert made.skipped["attn.q"] == "it ran under torch.no_grad or in an autograd.Function in every recorded step"


def test_a_module_that_turns_to_other_tokens_is_told_of(tmp_path):
    model = nn.MultiheadAttention(E, HEADS, batch_first=True)
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    x, other = torch.randn(B, L, E), torch.randn(B, L, E)
    with opened.recorder:
        for given in (x, other):
            with opened.recorder.step():
                model(x, given, given)[0].square().sum().backward()
    reason = "layer 'k' attended to its own tokens at first, and now to others"
    assert ("k", 1, reason) in opened.sink.defects
    assert [len(opened.sink.parts(name)) for name in ("q", "k")] == [2, 1]


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_what_is_set_in_torch_around_a_training_changes_nothing_of_its_record(tmp_path):
    model, kept = Net(), {}
    batches = list(data(model))
    for name in ("none", "default float64", "default device", "deterministic", "anomalies"):
        with SETTINGS[name]():
            run(copy.deepcopy(model), batches, lambda *both, name=name: dualform.Recorder(*both, tmp_path / name))
        with dualform.open(tmp_path / name) as memory:
            layers = [layer.name for layer in memory.info().layers]
            kept[name] = {own: (memory.keys(own).tobytes(), memory.values(own).tobytes()) for own in layers}
            assert all(reconstruction.exact for reconstruction in memory.verify().values())
        assert kept[name] == kept["none"], name
    assert kept["none"].keys() == {"inner", "attn.q", "attn.k", "attn.v", "attn.out_proj", "head"}
