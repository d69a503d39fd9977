"""A recorded training is the training: same bits, same random numbers, no hook left behind."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

from dualform.store.batch import TOLERANCE
from tests.trainings import learn

from .listed import Opened, batches


class Mixed(nn.Module):
    """In-place operations, dropout, a branch that adds up, a normalisation, tokens."""

    def __init__(self, checkpointed=False):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.left, self.right, self.last = (
            nn.Linear(5, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 3),
        )
        self.norm = nn.LayerNorm(6)
        self.checkpointed = checkpointed

    def body(self, x):
        x = torch.relu_(self.first(x))
        x = nn.functional.dropout(self.left(input=x).mul_(0.5) + self.right(x), 0.2, self.training)
        return self.last(self.norm(x))

    def forward(self, x):
        if not self.checkpointed:
            return self.body(x)
        return checkpoint(self.body, x.requires_grad_(), use_reentrant=self.checkpointed == "reentrant")


def weights_after(model, tmp_path=None, autocast=False):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    opened = None if tmp_path is None else Opened(model, optimizer, tmp_path / "m")
    torch.manual_seed(7)

    def train():
        for x, y in batches(6):
            x = x.clone()
            if opened is None:
                one(x, y)
            else:
                with opened.recorder.step(label=y):
                    one(x, y)

    def one(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = cross_entropy(model(x).float(), y)
        loss.backward()
        clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()

    if opened is None:
        train()
    else:
        with opened.recorder:
            train()
    return [p.detach().clone() for p in model.parameters()], torch.get_rng_state(), opened


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize(
    "checkpointed", [False, "non-reentrant", "reentrant"], ids=["kept", "non-reentrant", "reentrant"]
)
def test_same_bits_and_same_random_numbers_as_without(tmp_path, checkpointed, autocast):
    plain, plain_rng, _ = weights_after(Mixed(checkpointed), autocast=autocast)
    recorded, rng, opened = weights_after(Mixed(checkpointed), tmp_path, autocast)
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    assert torch.equal(plain_rng, rng)
    sink = opened.sink
    assert sink.layer_names == ["first", "left", "right", "last"]
    assert all(len(sink.keys(name)) == len(sink.values(name)) == 48 for name in sink.layer_names)
    if not autocast:
        assert sink.defects == []
        assert all(f.residual < 1e-5 for log in sink.logs.values() for f in log.factors)


def test_under_autocast_the_key_is_what_the_product_used_and_rounding_is_no_defect(tmp_path):
    _, _, opened = weights_after(Mixed(), tmp_path, autocast=True)
    keys = torch.from_numpy(opened.sink.keys("first"))
    assert torch.equal(keys, torch.cat([x for x, _ in batches(6)]).bfloat16().float())
    assert opened.sink.defects == []
    assert max(f.residual for log in opened.sink.logs.values() for f in log.factors) > TOLERANCE


def hooks(model, optimizer):
    return [m._forward_hooks for m in model.modules() if m._forward_hooks] + [
        h for h in (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks) if h
    ]


@pytest.mark.parametrize("fails", [False, True], ids=["finished", "failed"])
def test_no_hook_remains(tmp_path, fails):
    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    assert hooks(model, optimizer) == []

    def train():
        with opened.recorder:
            for number, (x, y) in enumerate(batches(3)):
                with opened.recorder.step(label=y):
                    cross_entropy(model(x), y).backward()
                    if fails and number == 2:
                        raise KeyError("in the training")
            assert len(hooks(model, optimizer)) == 7  # four layers, the whole model, two of the optimizer

    if fails:
        with pytest.raises(KeyError, match="in the training"):
            train()
    else:
        train()
    assert hooks(model, optimizer) == []
    assert opened.sink.finished is not fails
    assert [batch.step for batch in opened.sink.recorded] == ([0, 1] if fails else [0, 1, 2])
    assert set(opened.sink.final) == set(model.state_dict())
    x, y = batches(1)[0]
    cross_entropy(model(x), y).backward()
    assert len(opened.sink.recorded) == (2 if fails else 3)


def test_keys_survive_a_loader_that_overwrites_its_buffer(tmp_path):
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    data, buffer, labels = batches(3), torch.empty(8, 5), torch.empty(8, dtype=torch.int64)
    with opened.recorder:
        for x, y in data:
            buffer.copy_(x)
            labels.copy_(y)
            with opened.recorder.step(label=labels):
                learn(optimizer, cross_entropy(model(buffer), labels))
            buffer.zero_()
            model.weight.grad.zero_()
            labels.zero_()
    assert torch.equal(torch.from_numpy(opened.sink.keys("")), torch.cat([x for x, _ in data]))
    assert opened.sink.column("label") == torch.cat([y for _, y in data]).tolist()
    assert [parameter.name for parameter in opened.sink.header.layers[0].parameters] == ["weight", "bias"]


def test_calls_outside_a_step_or_without_gradients_are_not_recorded(tmp_path):
    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    (x, y), (other, _) = batches(2)
    with opened.recorder:
        model(other)
        with opened.recorder.step(label=y):
            with torch.no_grad():
                model.eval()(other)
            model.train()
            cross_entropy(model(x), y).backward()
        model(other).sum().backward()
    assert torch.equal(torch.from_numpy(opened.sink.keys("first")), x)
    assert opened.sink.defects == []
