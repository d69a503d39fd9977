"""Numbers are rounded to half precision as torch rounds them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from hypothesis.extra import numpy as hnp

from dualform.rules.half_precision import rounded, with_product

KINDS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.mark.parametrize("kind", KINDS)
@given(bits=hnp.arrays(np.uint32, (2, 3), elements=st.integers(0, 2**32 - 1)))
@example(bits=np.array([[0x7F800000, 0xFF800000, 0x7FFFFFFF], [0x7F7FFFFF, 0x80000001, 0x3F808000]], np.uint32))
def test_every_float32_is_rounded_to_the_bit(kind, bits):
    numbers = bits.view(np.float32)
    wanted = torch.from_numpy(numbers.copy()).to(KINDS[kind]).double().numpy()
    with np.errstate(invalid="ignore"):
        found = rounded(numbers.astype(np.float64), kind)
    np.testing.assert_array_equal(found, wanted)
    assert np.array_equal(np.signbit(found)[~np.isnan(wanted)], np.signbit(wanted)[~np.isnan(wanted)])


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_added_in_their_type_in_their_order(kind):
    rng = np.random.default_rng(0)
    products = [rng.normal(size=(20, 30)).astype(np.float32) for _ in range(4)]
    total, wanted = None, torch.zeros(20, 30, dtype=KINDS[kind])
    for product in products:
        total = with_product(total, product.astype(np.float64), kind)
        wanted = wanted + torch.from_numpy(product).to(KINDS[kind])
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
