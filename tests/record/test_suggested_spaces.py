"""Spaces suggested for layers that saw different batches: one for each shape, in few patterns."""

from __future__ import annotations

from hypothesis import given, strategies as st

from dualform.patterns import matches
from dualform.record.slots.alignment import suggested_spaces

BLOCK = ("layer.0.SelfAttention.q", "layer.0.SelfAttention.o", "layer.1.EncDecAttention.q", "layer.2.wi", "layer.2.wo")
PARTS = st.lists(st.sampled_from(["0", "1", "block", "q"]), min_size=1, max_size=4).map(".".join)


def test_the_decoder_of_a_translator_whose_keys_come_from_the_encoder():
    shapes = {"encoder.embed": (8, 24)} | {f"encoder.block.{n}.layer.0.q": (8, 24) for n in range(3)}
    for n in range(3):
        shapes |= {f"decoder.block.{n}.{name}": (8, 12) for name in BLOCK}
        shapes |= {f"decoder.block.{n}.layer.1.EncDecAttention.{name}": (8, 24) for name in "kv"}
    shapes["lm_head"] = (8, 12)
    assert suggested_spaces(shapes, "token") == {
        "decoder.block.*.layer.0.*": "token_2",
        "decoder.block.*.layer.*.EncDecAttention.q": "token_2",
        "decoder.block.*.layer.2.*": "token_2",
        "lm_head": "token_2",
    }


def test_each_stage_of_a_pyramid_has_its_own():
    names = [(n, f"stages.{n}.layers.{m}.{name}") for n in range(3) for m in range(2) for name in ("up", "down")]
    shapes = {name: (8, 4 - n) for n, name in names}
    assert suggested_spaces(shapes, "token") == {"stages.1.*": "token_2", "stages.2.*": "token_3"}


def test_layers_of_other_spaces_stay_there():
    shapes = {"embed": 5, "decoder.0.q": 4, "decoder.0.o": 4}
    assert suggested_spaces(shapes, "token") == {"decoder.*": "token_2"}
    assert suggested_spaces(shapes, "token", ["decoder.0.place"]) == {
        "decoder.*.q": "token_2",
        "decoder.*.o": "token_2",
    }


@given(st.dictionaries(PARTS, st.integers(0, 2), min_size=1))
def test_a_pattern_fits_layers_of_its_shape_alone(shapes):
    found = suggested_spaces(shapes, "token")
    spaces = {
        name: {space for pattern, space in found.items() if matches(name, pattern)} or {"token"} for name in shapes
    }
    assert all(len(own) == 1 for own in spaces.values())
    assert len({(shape, *spaces[name]) for name, shape in shapes.items()}) == len(set(shapes.values()))
    assert spaces[next(iter(shapes))] == {"token"}
