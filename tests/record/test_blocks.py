"""Layers that stand for blocks of parameters: transposed ones, parts of a packed one, tied ones, flattened ones."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

import dualform
from dualform.errors import RecordingError
from dualform.record.taps import Call, Parameter, Tap

STEPS, B, L, D, CLASSES = 24, 6, 5, 8, 3


class Product(Tap):
    """A tap of one's own: of a product that the network computes by hand and hands over. Keeps what it saw."""

    def __init__(self, name, d_in, d_out, parameters):
        super().__init__(name)
        self.d_in, self.d_out, self.parameters = d_in, d_out, parameters
        self.listener, self.seen = None, []

    def attach(self, listener):
        self.listener = listener

    def detach(self):
        self.listener = None

    def error_of(self, key, kept, gradients):
        return gradients[0]

    def __call__(self, x, weight, bias=None):
        output = linear(x, weight, bias)
        if self.listener is None:
            return output
        self.seen.append(x.detach().clone().reshape(-1, x.shape[-1]))
        return self.passed(self.listener, Call(x.detach(), (output,), raw=False))[0]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)


def train(model, path, taps=(), steps=STEPS, shape=(B, L, D), momentum_before=0, make=sgd, **options):
    """Under momentum and weight decay; `momentum_before`: updates before the recording begins."""
    generator = torch.Generator().manual_seed(1)
    optimizer = make(model)

    def update():
        y = torch.randint(0, CLASSES, (B,), generator=generator)
        optimizer.zero_grad()
        cross_entropy(model(torch.randn(shape, generator=generator)), y).backward()
        optimizer.step()

    for _ in range(momentum_before):
        update()
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    with dualform.Recorder(model, optimizer, path, taps=taps, **options) as recorder:
        for step in range(steps):
            with recorder.step(dataset="a" if step < steps // 2 else "b", sample=np.arange(B)):
                update()
    return initial


def grades(memory):
    return {layer.name: layer.grade for layer in memory.info().layers}


def assert_exact(memory, layers):
    found, certificates = grades(memory), memory.verify()
    assert list(found) == list(layers)
    for name, grade in found.items():
        assert grade.name == "exact", (name, grade.reason)
        assert certificates[name].relative_error <= 2e-5, name


def assert_live(memory, model):
    """The rebuilt network is the live one."""
    live, rebuilt = model.state_dict(), memory.weights()
    assert set(rebuilt) == set(live)
    for name, value in live.items():
        assert rebuilt[name].shape == value.shape
        np.testing.assert_allclose(rebuilt[name].numpy(), value.numpy(), atol=2e-6, err_msg=name)


# A transposed weight, as Hugging Face's Conv1D has one.


class Conv1D(nn.Module):
    """y = x W + b, with W [d_in, d_out]: what the class of this name is in transformers, which need not be here."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(d_in, d_out) * 0.3), nn.Parameter(torch.zeros(d_out))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.head = Conv1D(D, 12), Conv1D(12, D), nn.Linear(D, CLASSES)

    def forward(self, x):
        return self.head((x + self.down(torch.tanh(self.up(x)))).mean(1))


@pytest.mark.parametrize("momentum_before", [0, 3], ids=["from the start", "with momentum from before"])
def test_a_transposed_weight(tmp_path, momentum_before):
    model = Transposed()
    seen = []
    model.up.register_forward_hook(lambda module, args, output: seen.append(args[0].detach().clone().reshape(-1, D)))
    initial = train(model, tmp_path / "m", momentum_before=momentum_before)
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["up", "down", "head"])
        np.testing.assert_array_equal(memory.keys("up"), torch.cat(seen[momentum_before:]).numpy())
        assert_live(memory, model)
        queries = torch.randn(4, D, generator=torch.Generator().manual_seed(5))
        np.testing.assert_allclose(
            np.asarray(memory.output("up", queries.numpy())), model.up(queries).detach().numpy(), atol=1e-5
        )
        np.testing.assert_array_equal(memory.weights(at_step=0)["up.weight"].numpy(), initial["up.weight"].numpy())
        assert memory.weights().not_recorded == ()


def test_a_transposed_weight_with_a_forward_of_its_own_is_not_recorded(tmp_path):
    class Doubled(Conv1D):
        def forward(self, x):
            return 2 * super().forward(x)

    model = nn.Sequential(Conv1D(D, 5), Doubled(5, CLASSES))
    recorder = dualform.Recorder(model, sgd(model), tmp_path / "m")
    assert recorder.skipped == {"1": "Doubled has a forward of its own"}


# q, k and v of one packed parameter.


class Attention(nn.Module):
    def __init__(self, recorded):
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.randn(3 * D, D) * 0.3)
        self.in_proj_bias = nn.Parameter(torch.randn(3 * D) * 0.1)
        self.products = {part: self.product(part, (D * i, D * i + D)) for i, part in enumerate("qkv")}
        self.taps = [self.products[part] for part in recorded]

    def product(self, part, rows):
        blocks = {
            Parameter("attend.in_proj_weight", 0, D, rows=rows): self.in_proj_weight,
            Parameter("attend.in_proj_bias", D, D + 1, rows=rows): self.in_proj_bias,
        }
        return Product(part, D, D, blocks)

    def forward(self, x):
        parts = zip("qkv", self.in_proj_weight.split(D), self.in_proj_bias.split(D), strict=True)
        q, k, v = (self.products[part](x, weight, bias) for part, weight, bias in parts)
        return torch.softmax(q @ k.transpose(1, 2) / D**0.5, -1) @ v


class Attending(nn.Module):
    def __init__(self, recorded="qkv"):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.attend, self.head = nn.Linear(D, D), Attention(recorded), nn.Linear(D, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        return self.head((x + self.attend(x)).mean(1))


@pytest.mark.parametrize("momentum_before", [0, 3], ids=["from the start", "with momentum from before"])
def test_queries_keys_and_values_of_one_parameter(tmp_path, momentum_before):
    model = Attending()
    train(model, tmp_path / "m", model.attend.taps, momentum_before=momentum_before)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().skipped == {}
        assert_exact(memory, ["q", "k", "v", "stem", "head"])
        for tap in model.attend.taps:
            np.testing.assert_array_equal(memory.keys(tap.name), torch.cat(tap.seen).numpy())
        assert_live(memory, model)
        assert memory.weights().not_recorded == ()
        x = torch.randn(4, D, generator=torch.Generator().manual_seed(5))
        for i, part in enumerate("qkv"):
            rows = slice(D * i, D * i + D)
            live = linear(x, model.attend.in_proj_weight[rows], model.attend.in_proj_bias[rows])
            np.testing.assert_allclose(np.asarray(memory.output(part, x.numpy())), live.detach().numpy(), atol=1e-5)


def brought(memory, layer, dataset):
    """float64[d_out, d_in]: what the slots of a dataset brought to a layer's weight, in plain NumPy."""
    ids = np.arange(len(memory.keys(layer)))
    stays = np.asarray(memory.slots(ids, "token")["dataset"]) == dataset
    keys, values = memory.keys(layer)[stays].astype(np.float64), memory.values(layer)[stays].astype(np.float64)
    return (memory.coefficients(layer, ids)[stays, None] * values).T @ keys


def parted(memory, name):
    """float64 arrays of a parameter: what no slot brought to it, and what it is by that and the slots of dataset a."""
    masks = (None, "dataset = 'a'", "dataset = 'b'")
    whole, left, right = (memory.weights(where)[name].double().numpy() for where in masks)
    return left + right - whole, left


def test_what_a_mask_leaves_of_a_block_is_what_its_slots_brought(tmp_path):
    model = Attending()
    train(model, tmp_path / "m", model.attend.taps)
    name = "attend.in_proj_weight"
    with dualform.open(tmp_path / "m") as memory:
        standing, left = parted(memory, name)
        by_hand = np.concatenate([brought(memory, part, "a") for part in "qkv"])
        np.testing.assert_allclose(left - standing, by_hand, atol=1e-6)
        assert np.abs(by_hand).max() > 1e-2


def test_numbers_written_by_hand_are_seen_in_their_block_alone(tmp_path):
    model = Attending()

    def grow(module, args):
        module.attend.in_proj_weight.data[D : 2 * D] *= 1.01

    model.register_forward_pre_hook(grow)
    train(model, tmp_path / "m", model.attend.taps)
    with dualform.open(tmp_path / "m") as memory:
        assert {name: grade.name for name, grade in grades(memory).items()} == {
            "q": "exact", "k": "off", "v": "exact", "stem": "exact", "head": "exact",
        }  # fmt: skip


def test_parts_that_are_not_recorded_stand_as_they_were(tmp_path):
    model = Attending("qk")
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    train(model, tmp_path / "m", model.attend.taps)
    live = {name: value.clone() for name, value in model.state_dict().items()}
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["q", "k", "stem", "head"])
        begun, masked, whole = memory.weights(at_step=0), memory.weights("dataset = 'a'"), memory.weights()
        for name in ("attend.in_proj_weight", "attend.in_proj_bias"):
            assert torch.equal(begun[name], initial[name])
            assert torch.equal(masked[name][2 * D :], live[name][2 * D :])
            assert not torch.equal(masked[name][: 2 * D], live[name][: 2 * D])
        rest = ("the rest of attend.in_proj_weight", "the rest of attend.in_proj_bias")
        assert [name for name in whole.others if "rest" in name] == list(rest)
        assert whole.not_recorded == ()
        assert_live(memory, model)


def test_a_training_goes_on_in_a_folder_of_its_own(tmp_path):
    model = Attending("qk")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator, y = torch.Generator().manual_seed(1), torch.arange(B) % CLASSES
    for run in ("one", "two"):
        with dualform.Recorder(model, optimizer, tmp_path / run, taps=model.attend.taps) as recorder:
            for _ in range(10):
                with recorder.step(sample=np.arange(B)):
                    optimizer.zero_grad()
                    cross_entropy(model(torch.randn(B, L, D, generator=generator)), y).backward()
                    optimizer.step()
        model.attend.in_proj_weight.data[2 * D :] += 1  # of v, which nobody records
    model.attend.in_proj_weight.data[2 * D :] -= 1  # as the second run ended
    with dualform.open([tmp_path / "one", tmp_path / "two"]) as memory:
        assert_exact(memory, ["q", "k", "stem", "head"])
        assert_live(memory, model)


# Columns of a transposed weight: q, k and v of a packed Conv1D.


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.c_attn, self.head = nn.Parameter(torch.randn(D, 3 * D) * 0.3), nn.Linear(D, CLASSES)
        self.taps = []
        for i, part in enumerate("qkv"):
            block = Parameter("c_attn", 0, D, transposed=True, columns=(D * i, D * i + D))
            self.taps.append(Product(part, D, D, {block: self.c_attn}))

    def forward(self, x):
        q, k, v = (tap(x, own.T) for tap, own in zip(self.taps, self.c_attn.split(D, 1), strict=True))
        return self.head((torch.softmax(q @ k.transpose(1, 2) / D**0.5, -1) @ v).mean(1))


def test_columns_of_a_transposed_weight(tmp_path):
    model = Packed()
    train(model, tmp_path / "m", model.taps, momentum_before=2)
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["q", "k", "v", "head"])
        assert_live(memory, model)
        assert memory.weights().not_recorded == ()


# Tied weights, one of them transposed.


class TiedTransposed(nn.Module):
    """An autoencoder whose decoder is its encoder's weight, transposed."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.bias, self.head = nn.Linear(D, 5), nn.Parameter(torch.zeros(D)), nn.Linear(D, CLASSES)
        shared = Parameter("encoder.weight", 0, 5, transposed=True)
        self.decode = Product("decoder", 5, D, {shared: self.encoder.weight, Parameter("bias", 5, 6): self.bias})

    def forward(self, x):
        return self.head(self.decode(torch.tanh(self.encoder(x)), self.encoder.weight.T, self.bias).mean(1))


@pytest.mark.parametrize("momentum_before", [0, 3], ids=["from the start", "with momentum from before"])
def test_tied_weights_of_which_one_is_transposed(tmp_path, momentum_before):
    model = TiedTransposed()
    train(model, tmp_path / "m", [model.decode], momentum_before=momentum_before)
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["decoder", "encoder", "head"])
        np.testing.assert_array_equal(memory.keys("decoder"), torch.cat(model.decode.seen).numpy())
        assert_live(memory, model)
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(5))
        live = linear(x, model.encoder.weight.T, model.bias).detach().numpy()
        np.testing.assert_allclose(np.asarray(memory.output("decoder", x.numpy())), live, atol=1e-5)
        terms = brought(memory, "encoder", "a") + brought(memory, "decoder", "a").T
        standing, left = parted(memory, "encoder.weight")
        np.testing.assert_allclose(left - standing, terms, atol=1e-6)


# A convolution of kernel size 1 is a product of each pixel.


class Pointwise(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(4, 6, 1), nn.Linear(6, CLASSES)
        blocks = {Parameter("conv.weight", 0, 4): self.conv.weight, Parameter("conv.bias", 4, 5): self.conv.bias}
        self.product = Product("pixels", 4, 6, blocks)

    def forward(self, x):
        pixels = x.flatten(2).transpose(1, 2)
        return self.head(torch.relu(self.product(pixels, self.conv.weight.flatten(1), self.conv.bias)).mean(1))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["as usual", "channels last"])
def test_a_weight_of_four_axes(tmp_path, layout):
    model = Pointwise().to(memory_format=layout)
    train(model, tmp_path / "m", [model.product], shape=(B, 4, 3, 3))
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["pixels", "head"])
        assert_live(memory, model)


# An optimizer that is run again.


@pytest.mark.parametrize("momentum_before", [0, 3], ids=["from the start", "with momentum from before"])
@pytest.mark.parametrize("network", [Transposed, Packed, TiedTransposed, Pointwise])
def test_blocks_under_adamw(tmp_path, network, momentum_before):
    model = network()
    taps = [tap for name in ("taps", "decode", "product") for tap in np.ravel(getattr(model, name, []))]
    shape = (B, 4, 3, 3) if network is Pointwise else (B, L, D)
    train(model, tmp_path / "m", taps, shape=shape, momentum_before=momentum_before, make=adamw)
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, grades(memory))
        assert_live(memory, model)
        for name, value in memory.weights().items():
            standing, left = parted(memory, name)
            assert 1e-4 < np.abs(left - standing).max() < np.abs(value.numpy() - standing).max() + 0.1


def test_a_block_under_adamw_is_what_it_is_as_a_parameter_of_its_own(tmp_path):
    class Single(nn.Module):
        """Packed with q, k and v apart."""

        def __init__(self):
            super().__init__()
            packed = Packed()
            self.head, parts = packed.head, packed.c_attn.detach().split(D, 1)
            for part, weight in zip("qkv", parts, strict=True):
                layer = nn.Linear(D, D, bias=False)
                layer.weight.data = weight.T.contiguous()
                setattr(self, part, layer)

        def forward(self, x):
            q, k, v = self.q(x), self.k(x), self.v(x)
            return self.head((torch.softmax(q @ k.transpose(1, 2) / D**0.5, -1) @ v).mean(1))

    packed = Packed()
    train(packed, tmp_path / "packed", packed.taps, make=adamw)
    train(Single(), tmp_path / "single", make=adamw)
    with dualform.open(tmp_path / "packed") as one, dualform.open(tmp_path / "single") as other:
        for where in (None, "dataset = 'a'"):
            expected = np.concatenate([other.weights(where)[f"{part}.weight"].numpy() for part in "qkv"]).T
            np.testing.assert_allclose(one.weights(where)["c_attn"].numpy(), expected, atol=2e-6)


# What has no block.


def refused(model, tmp_path, taps):
    with pytest.raises(RecordingError) as raised:
        dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m", taps=taps)
    return raised.value.message


def test_blocks_that_overlap(tmp_path):
    model = Attending()
    model.attend.taps[1].parameters = {
        Parameter("attend.in_proj_weight", 0, D, rows=(D - 1, 2 * D - 1)): model.attend.in_proj_weight
    }
    assert refused(model, tmp_path, model.attend.taps) == (
        "layers 'q' and 'k' stand for blocks of one parameter that overlap: attend.in_proj_weight[0:8] and "
        "attend.in_proj_weight[7:15]."
    )


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Parameter("weight", 0, D), "layer 'p' holds 'weight', and the model's state dict has nothing of that name."),
        (
            Parameter("attend.in_proj_weight", 0, D, rows=(20, 28)),
            "layer 'p': attend.in_proj_weight has 24 rows, and attend.in_proj_weight[20:28] is no range of them.",
        ),
        (
            Parameter("attend.in_proj_weight", 0, D, columns=(0, 9)),
            "layer 'p': attend.in_proj_weight has 8 columns, and attend.in_proj_weight[:, 0:9] is no range of them.",
        ),
        (
            Parameter("attend.in_proj_weight", 0, D, rows=(0, 4)),
            "layer 'p': attend.in_proj_weight[0:4] has shape [4, 8] where its tap says [8, 8].",
        ),
        (
            Parameter("attend.in_proj_weight", 0, D, transposed=True),
            "layer 'p': attend.in_proj_weight has shape [8, 24] where its tap says [8, 8].",
        ),
        (
            Parameter("attend.in_proj_weight", D, D + 1, rows=(0, 8)),
            "layer 'p': attend.in_proj_weight[0:8] has shape [24, 8] where its tap says [8].",
        ),
    ],
    ids=["name", "rows", "columns", "shape", "transposed", "bias"],
)
def test_what_is_no_block_of_the_model(tmp_path, block, message):
    model = Attending()
    tap = Product("p", D, D, {block: model.attend.in_proj_weight})
    assert refused(model, tmp_path, [tap]) == message
