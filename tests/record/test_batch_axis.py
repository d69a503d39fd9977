"""Which axis is the batch is said, or known from the modules that know it, or refused; it is never found by size."""

import numpy as np
import pytest
import torch
from torch import nn

from dualform.errors import BadInput, RecordingError
from dualform.record.discovery.followed_rows import FollowedRows

from .listed import Opened


def opened_on(model, path, **options):
    return Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), path, **options)


def one_step(opened, model, x, **said):
    with opened.recorder.step(**said):
        model(x).square().sum().backward()


class Encoder(nn.Module):
    """A transformer with a head behind it that does not know which axis is the batch."""

    def __init__(self, batch_first):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=batch_first)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


def keys_by_hooks(model, x):
    """Layer -> its inputs, as they lie in the training."""
    seen = {}

    def hook(name):
        def keep(module, args, output):
            seen[name] = args[0].detach().clone()

        return keep

    linear = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    handles = [module.register_forward_hook(hook(name)) for name, module in linear.items()]
    model(x)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("rows", [3, 5], ids=["oblong", "square"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_transformer_tells_its_layers(tmp_path, batch_first, rows):
    model = Encoder(batch_first)
    x = torch.randn(rows, 5, 4) if batch_first else torch.randn(5, rows, 4)
    layers = None if batch_first or rows != 5 else ["body.*"]
    opened = opened_on(model, tmp_path / "m", layers=layers)
    words = np.arange(rows * 5).reshape(rows, 5)
    expected = keys_by_hooks(model, x)
    with opened.recorder:
        one_step(opened, model, x, label=np.arange(rows), word=words)
    sink = opened.sink
    for name in expected.keys() & set(sink.layer_names):  # attention's own layers are no modules
        lying = expected[name] if batch_first else expected[name].transpose(0, 1)
        np.testing.assert_array_equal(sink.keys(name), lying.reshape(rows * 5, -1).numpy())
    assert sink.column("row", "token") == [row for row in range(rows) for _ in range(5)]
    assert sink.column("position", "token") == [*range(5)] * rows
    assert sink.column("label", "token") == [row for row in range(rows) for _ in range(5)]
    assert sink.column("word", "token") == [*range(rows * 5)]
    gradient = sink.values("body.layers.0.linear1").T.astype(np.float64) @ sink.keys("body.layers.0.linear1")
    np.testing.assert_allclose(gradient, model.body.layers[0].linear1.weight.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_a_square_batch_behind_a_time_first_layer_is_refused_until_it_is_said(tmp_path):
    model, x = Encoder(False), torch.randn(5, 5, 4)
    refused = opened_on(model, tmp_path / "refused")
    with refused.recorder, pytest.raises(RecordingError) as caught:
        one_step(refused, model, x)
    assert str(caught.value) == (
        "layer 'body.layers.0.self_attn.q' has the batch in axis 1, but the batch axis of layer 'head' cannot "
        "be told from [5, 5] at step 0. Pass batch_dim= to recorder.step, for all layers or for one, as "
        "batch_dim={'head': 0}."
    )
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        one_step(opened, model, x, batch_dim=1, label=np.arange(5))
        one_step(opened, model, x, label=np.arange(5))
    assert opened.sink.column("label", "token") == [row for row in range(5) for _ in range(5)] * 2
    np.testing.assert_array_equal(
        opened.sink.keys("head")[:25], keys_by_hooks(model, x)["head"].transpose(0, 1).reshape(25, 4).numpy()
    )


class Plain(nn.Linear):
    """A layer that knows nothing of batches."""


def test_a_square_first_batch_is_refused_where_rows_are_said(tmp_path):
    for said in ({"label": np.arange(4)}, {"word": np.zeros((4, 4), int)}, {"mask": np.ones((4, 4), bool)}):
        opened = opened_on(Plain(3, 2), tmp_path / "m")
        with opened.recorder, pytest.raises(RecordingError) as caught:
            one_step(opened, opened.recorder._training.plan.model, torch.randn(4, 4, 3), **said)
        assert str(caught.value) == (
            "the batch axis of [4, 4] cannot be told: it is square. Pass batch_dim=0 to recorder.step, or "
            "batch_dim=1 if the batch is the second axis."
        )
        assert caught.value.field == "batch_dim"


@pytest.mark.parametrize(
    "said", [{"batch_dim": 0}, {"batch_dim": {"token": 0}}, {}], ids=["said", "by space", "nothing"]
)
def test_a_square_batch_passes_where_it_is_said_or_nothing_depends_on_it(tmp_path, said):
    model, x = Plain(3, 2), torch.randn(4, 4, 3)
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        one_step(opened, model, x, dataset="a", **(said and {"label": np.arange(4), **said}))
    np.testing.assert_array_equal(opened.sink.keys(""), x.reshape(16, 3).numpy())


def test_once_a_batch_was_oblong_a_square_one_is_known(tmp_path):
    model = Plain(3, 2)
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        one_step(opened, model, torch.randn(2, 4, 3), label=np.arange(2))
        one_step(opened, model, torch.randn(4, 4, 3), label=np.arange(4))
    assert opened.sink.column("label", "token")[8:] == [row for row in range(4) for _ in range(4)]


def test_a_time_first_batch_is_said_not_fitted(tmp_path):
    model, x = Plain(3, 2), torch.randn(7, 2, 3)
    refused = opened_on(model, tmp_path / "refused")
    with refused.recorder, pytest.raises(BadInput) as caught:
        one_step(refused, model, x, label=[1, 2])
    assert str(caught.value) == (
        "label has shape [2], but the recorded layers saw batches of [7, 2] (token). Pass one value, one for each row "
        "[B], or one for each token [B, L]. If the batch is the second axis of the layers' inputs, pass batch_dim=1."
    )
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        one_step(opened, model, x, label=[1, 2], word=np.arange(14).reshape(2, 7), batch_dim=1)
        with pytest.raises(BadInput) as caught:
            one_step(opened, model, x, batch_dim=0)
        with pytest.raises(
            BadInput, match=r"^word has shape \[7, 2\], but the recorded layers saw batches of \[2, 7\]"
        ):
            one_step(opened, model, x, word=np.arange(14).reshape(7, 2))
    assert str(caught.value) == (
        "batch_dim of space 'token' changed from 1 to 0. Pass the same batch_dim in every step."
    )
    assert opened.sink.column("word", "token") == [*range(14)]
    np.testing.assert_array_equal(opened.sink.keys(""), x.transpose(0, 1).reshape(14, 3).numpy())


class Two(nn.Module):
    """Two recurrent layers that lay out a batch differently."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.GRU(3, 3), nn.GRU(3, 3, batch_first=True)

    def forward(self, x):
        return self.second(self.first(x)[0].transpose(0, 1))[0]


def test_layers_that_disagree_are_refused_and_agree_in_spaces_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(FollowedRows, "of", lambda *_: None)  # as in compiled code
    model, x = Two(), torch.randn(5, 2, 3)
    refused = opened_on(model, tmp_path / "refused")
    with refused.recorder, pytest.raises(RecordingError) as caught:
        one_step(refused, model, x)
    assert str(caught.value) == (
        "layers 'first.gates' and 'second.gates' of space 'token' have the batch in axis 1 and 0. Pass "
        "batch_dim= to recorder.step, or give one of them another space with spaces=."
    )
    opened = opened_on(model, tmp_path / "m", spaces={"second.*": "later"})
    with opened.recorder:
        one_step(opened, model, x, label=[7, 8])
    for space in ("token", "later"):
        assert opened.sink.column("label", space) == [7] * 5 + [8] * 5


def test_an_axis_that_no_batch_has(tmp_path):
    opened = opened_on(Plain(3, 2), tmp_path / "m")
    with (
        opened.recorder,
        pytest.raises(
            BadInput,
            match=r"^batch_dim must be 0 or 1, the axis of the batch, not 2\. If you meant a column, "
            r"give it another name\.$",
        ),
    ):
        one_step(opened, opened.recorder._training.plan.model, torch.randn(4, 4, 3), batch_dim=2)


def test_a_query_set_of_a_time_first_model_comes_row_after_row(tmp_path):
    model, x = nn.GRU(3, 4), torch.randn(6, 5, 3)
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        with opened.recorder.step():
            model(x)[0].sum().backward()
        opened.recorder.query_set("test", x, batch_size=2, batch_dim=1)
    queries = opened.sink.query_sets["test"][0]["gates"]
    np.testing.assert_array_equal(queries[:, 4:], x.transpose(0, 1).reshape(30, 3).numpy())
