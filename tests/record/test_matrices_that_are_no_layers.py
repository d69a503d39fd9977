"""Matrices of a module that are no layers, or not at every step, are named with what they do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import dualform
from tests.record.products import B, Checkpointed, D, Tied, Turned, matrix, one_step, opened_on

from .listed import Opened


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
