"""Rules round the updates of half precision as torch's own optimizers do, and keep masks' shares adding up."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from hypothesis.extra import numpy as hnp

from dualform.rules import State, named, updated
from dualform.rules.half_precision import HalfType, rounded, with_product
from dualform.rules.half_precision_rule import HalfPrecisionRule

KINDS = [torch.bfloat16, torch.float16]
SGD = [
    {}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"momentum": 0.8, "dampening": 0.3, "maximize": True},
]  # fmt: skip
ADAM = [{}, {"weight_decay": 0.1}, {"betas": (0.8, 0.95), "maximize": True}]
EVERY = [(torch.optim.SGD, {"lr": 0.03, **more}) for more in SGD] + [
    (kind, {"lr": 0.01, "eps": 1e-3, **more}) for kind in (torch.optim.Adam, torch.optim.AdamW) for more in ADAM
]
PLAIN_LOOPS = "torch's plain loops round the multiple of a tensor before they add it (docs/exactness.md)"


def sums_are_rounded_once() -> bool:
    """Whether torch adds a multiple of a tensor in one rounding: its plain loops, which it runs on processors without
    AVX2, round the multiple first.
    """
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(64, generator=generator).bfloat16() for _ in range(2))
    exact = one.double() + 0.5625 * other.double()  # which bfloat16 holds; the sum fits into float32, too
    return torch.equal(one.add(other, alpha=0.5625), exact.bfloat16())


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize(("kind", "options"), EVERY, ids=lambda value: getattr(value, "__name__", ""))
def test_an_update_is_rounded_as_torch_rounds_it(dtype, kind, options):
    coupled = kind is torch.optim.Adam and "weight_decay" in options
    if (kind is torch.optim.SGD or coupled) and not sums_are_rounded_once():
        pytest.skip(PLAIN_LOOPS)
    torch.manual_seed(0)
    # The last numbers of a tensor whose length the processor's vectors do not divide may be rounded differently.
    parameter = torch.nn.Parameter((torch.randn(32, 32) * 0.1).to(dtype))
    optimizer = kind([parameter], **options)
    rule = HalfPrecisionRule(named(kind.__name__.lower()), str(dtype).removeprefix("torch."))
    state = State(parameter.detach().double().numpy().copy())
    for _ in range(30):
        parameter.grad = (torch.randn(32, 32) * 0.1).to(dtype)
        gradient = parameter.grad.double().numpy().copy()
        state, _ = updated(rule, state, gradient, rule.read(optimizer.param_groups[0]))
        optimizer.step()
    live = parameter.detach().double().numpy()
    # Adam's last operation divides and multiplies in float32, whose own rounding may decide a tie.
    assert np.mean(np.isclose(state.weight, live, rtol=1e-7, atol=0)) >= (1.0 if kind is torch.optim.SGD else 0.99)


@pytest.mark.parametrize(("kind", "options"), EVERY, ids=lambda value: getattr(value, "__name__", ""))
def test_what_rounding_adds_is_nobodys_part(kind, options):
    rng, rule = np.random.default_rng(0), HalfPrecisionRule(named(kind.__name__.lower()), "bfloat16")
    settings = rule.read(
        {"params": [torch.zeros(1, dtype=torch.bfloat16)], **kind([torch.zeros(1)], **options).defaults}
    )
    start = HalfType("bfloat16")(rng.normal(size=(5, 4)))
    whole, none, parts = State(start), State(start), [State(start), State(start)]
    for _ in range(6):
        shares = rng.normal(size=(2, 5, 4))
        gradient = rule.half(shares.sum(0))
        rest = gradient - shares.sum(0)  # as SlotGradients has it
        after, scale = updated(rule, whole, gradient, settings)
        parts = [rule.advance(own, share + rest, settings, scale) for own, share in zip(parts, shares, strict=True)]
        none, whole = rule.advance(none, rest, settings, scale), after
    np.testing.assert_allclose(parts[0].weight + parts[1].weight - none.weight, whole.weight, atol=1e-12)
    assert np.abs(none.weight - start).max() > 0


HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.mark.parametrize("kind", HALVES)
@given(bits=hnp.arrays(np.uint32, (2, 3), elements=st.integers(0, 2**32 - 1)))
@example(bits=np.array([[0x7F800000, 0xFF800000, 0x7FFFFFFF], [0x7F7FFFFF, 0x80000001, 0x3F808000]], np.uint32))
def test_every_float32_is_rounded_to_the_bit(kind, bits):
    numbers = bits.view(np.float32)
    wanted = torch.from_numpy(numbers.copy()).to(HALVES[kind]).double().numpy()
    with np.errstate(invalid="ignore"):
        found = rounded(numbers.astype(np.float64), kind)
    np.testing.assert_array_equal(found, wanted)
    assert np.array_equal(np.signbit(found)[~np.isnan(wanted)], np.signbit(wanted)[~np.isnan(wanted)])


@pytest.mark.parametrize("kind", HALVES)
def test_products_are_added_in_their_type_in_their_order(kind):
    rng = np.random.default_rng(0)
    products = [rng.normal(size=(20, 30)).astype(np.float32) for _ in range(4)]
    total, wanted = None, torch.zeros(20, 30, dtype=HALVES[kind])
    for product in products:
        total = with_product(total, product.astype(np.float64), kind)
        wanted = wanted + torch.from_numpy(product).to(HALVES[kind])
    assert total is not None
    assert total.tobytes() == wanted.double().numpy().tobytes()
    backwards = None
    for product in reversed(products):
        backwards = with_product(backwards, product.astype(np.float64), kind)
    assert backwards is not None
    assert (backwards != total).any(), "else their order would not matter here"


def test_one_number_is_rounded_like_any():
    assert rounded(np.array(1 + 2.0**-9), "bfloat16") == 1.0
    assert rounded(np.array(7e4), "float16") == np.inf
