"""What the estimate says, beside what memories take."""

import pytest

import dualform
from dualform.errors import BadInput
from dualform.store.snapshot import Snapshot
from dualform_studies.limits.cost import estimate
from tests.rerun.trained import Training


def test_the_papers_language_model_takes_hundreds_of_gigabytes_stored_and_a_fraction_reran():
    # WikiText-2 (section 5.5): batch 128, unroll 100, 10,000 steps, one LSTM layer whose key is [h; x], 200 + 200.
    cost = estimate(slots=128 * 100 * 10_000, layers=[400], queries=10, steps=10_000, seconds_per_step=0.5)
    assert cost.key_bytes == 128 * 100 * 10_000 * 400 * 4
    assert cost.store_bytes - cost.key_bytes == cost.table_bytes
    assert cost.rerun_bytes < cost.store_bytes / 100
    assert (cost.store_seconds, cost.rerun_seconds) == (5512.0, 10512.0)


def test_a_layer_of_gpt_3_takes_petabytes():
    # Appendix D of the paper: 300 billion tokens, a state of 12 thousand float32 numbers, "14PB".
    cost = estimate(slots=300 * 10**9, layers=[12_000], queries=0, steps=0, seconds_per_step=0.0)
    assert cost.key_bytes == 14_400 * 10**12


def test_keys_of_half_the_bytes_take_half():
    whole, half = (estimate(1000, [400, 24], 1, 1, 0.1, number_bytes=number) for number in (4, 2))
    assert (whole.key_bytes, half.key_bytes) == (1_696_000, 848_000)
    assert whole.table_bytes == half.table_bytes


def test_it_is_what_a_stored_memory_takes(tmp_path):
    training = Training(steps=30, tokens=20)
    training.run(lambda *of: dualform.Recorder(*of, tmp_path / "stored", values=False))
    training.run(lambda *of: dualform.Recorder(*of, tmp_path / "m", keys=False))
    memory = Snapshot.open(tmp_path / "m")
    cost = estimate(memory.count("token"), [layer.d_in for layer in memory.layers.values()], 1, memory.steps, 0.01)
    stored = Snapshot.open(tmp_path / "stored").sources.values()
    header = 45
    assert sum(source.segment.size - header for sources in stored for source in sources) == cost.key_bytes
    assert memory.table("digests").num_rows * 48 == cost.digest_bytes


def test_negative_numbers_are_refused():
    with pytest.raises(BadInput):
        estimate(10, [-1], 1, 1, 0.1)
