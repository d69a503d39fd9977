"""Rows of docs/results/coverage.md are trained, recorded and not, asked, and compared with the page.

`make test` trains each kind of network, optimizer, precision and loop once, where no other test does; `make soak`
trains every row.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from dualform.query.weights.exactness import EXACT
from dualform_studies.documents import MARK
from tests.integrations import test_lightning, test_transformers
from tests.networks import samples, ways_to_train  # noqa: F401  (they name their networks)
from tests.networks.network import NETWORKS
from tests.query.weights.test_optimizers import KINDS
from tests.record import test_compiled, test_rank_processes
from tests.reliability import soaking

from . import document, plain
from .measure import Measured, measure
from .rows import ROWS, Row, covering
from .training import STEPS

BLOCK = 1 << 18
"""Bytes in which DuckDB's files grow."""

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of packages that a row trains with
    pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning"),  # torch's own, as it traces
]


ALIKE = {
    "MobileNetV2": "ResNet", "ConvNeXt": "ResNet", "BERT, classifying": "ViT", "BERT, masked words": "ViT",
    "Llama, tied": "Llama", "Conv3d": "CNN", "Conv1d over time": "CNN", "GRU": "LSTM",
    "nn.Transformer": "nn.TransformerEncoder",
}  # fmt: skip
"""Networks that `make soak` trains -> those of their kind that `make test` trains in their place."""
BY_NETWORKS = {
    "EmbeddingBag": "embedding-bag", "SGD": "plain-sgd", "SGD, Nesterov": "nesterov", "Adam": "adam",
    "checkpointing": "checkpointed",
}  # fmt: skip
"""What tests/networks trains, recorded and not, and compares."""
BY_OPTIMIZERS = {
    "AMSGrad": "amsgrad, fused", "AdamW, fused": "amsgrad, fused", "NAdam": "nadam", "RMSprop": "rmsprop, momentum",
    "Adagrad": "adagrad", "Rprop": "rprop", "Adafactor": "adafactor",
}  # fmt: skip
"""What tests/query/weights/test_optimizers.py trains and rebuilds."""
BY_TESTS = {
    "torch.compile": test_compiled.test_networks_are_recorded_whole_and_keep_their_bits,
    "DDP": test_rank_processes.test_ranks_are_one_exact_memory,
    "FSDP2": test_rank_processes.test_recording_changes_no_bit_and_the_final_weights_are_whole,
    "Lightning": test_lightning.test_the_training_is_unharmed_and_rebuilt,
    "Transformers": test_transformers.test_the_training_is_unharmed_and_rebuilt,
}
"""Loops that a test of their own trains with."""
ELSEWHERE = {**BY_NETWORKS, **BY_OPTIMIZERS, **BY_TESTS}


def always(row: Row) -> bool:
    """Whether `make test` may train a row: what a perceptron shows as well, it trains of that alone."""
    if row.network is not plain.MLP and (row.precision == "bfloat16" or row.optimizer.startswith("Muon")):
        return False
    return row.values.isdisjoint({*ALIKE, *ELSEWHERE})


SHORT = covering(filter(always, ROWS))
LONG = [pytest.param(row, marks=pytest.mark.soak) for row in ROWS] if soaking() else []


@pytest.mark.parametrize("row", LONG or SHORT, ids=lambda row: row.name)
def test_a_row(row: Row, tmp_path):
    measured = measure(row, tmp_path / "run")
    assert row.refused in measured.refused, measured.refused
    assert bool(row.refused) == bool(measured.refused)
    if not row.refused:
        check(row, measured)
    documented(row, measured)


def check(row: Row, measured: Measured) -> None:
    """All is recorded or kept, to the reconstruction error; what falls short is what the row says."""
    for name, reason in measured.skipped.items():
        said = next((words for pattern, words in row.skipped.items() if fnmatchcase(name, pattern)), None)
        assert said is not None, f"{name}: {reason}"
        assert said in reason
    if not row.skipped:
        assert measured.recorded + measured.kept == pytest.approx(1.0)
    if row.depends_on_the_processor():
        assert measured.reconstruction is not None
        assert (measured.status == "exact") == (measured.reconstruction <= EXACT)
        return
    assert measured.status == row.status
    if measured.status != "scores only":
        assert measured.reconstruction is not None
        assert measured.reconstruction <= max(row.reconstruction, 3 * (measured.rounding or 0.0))


def documented(row: Row, measured: Measured) -> None:
    """What docs/results/coverage.json has, but for clocks and reconstruction errors, which differ on every machine."""
    found = document.read()
    assert row.name in found, "make coverage"
    expected = found[row.name]
    assert (measured.recorded, measured.kept) == pytest.approx((expected.recorded, expected.kept))
    assert measured.refused == expected.refused
    assert measured.status == expected.status or row.depends_on_the_processor()
    assert measured.layers == expected.layers
    # One table more, as that of gradients which are rounding alone, is one more block of DuckDB's.
    assert measured.bytes_a_step == pytest.approx(expected.bytes_a_step, rel=0.05, abs=BLOCK / STEPS + 1)


def test_no_other_row_is_written():
    assert set(document.read()) == {row.name for row in ROWS}


def test_every_kind_of_network_optimizer_precision_and_trainer_is_trained():
    trained = frozenset().union(*(row.values for row in SHORT))
    assert trained | {*ALIKE, *ELSEWHERE} == frozenset().union(*(row.values for row in ROWS))
    assert trained >= set(ALIKE.values())
    assert NETWORKS.keys() >= set(BY_NETWORKS.values())
    assert KINDS.keys() >= set(BY_OPTIMIZERS.values())


def test_the_price_of_a_layer_is_what_recording_adds_to_its_step():
    def row(seconds, recorded, layers):
        return Measured(1.0, 0.0, "exact", None, None, seconds, recorded, 0, layers, {})

    of = {row.optimizer: row.name for row in ROWS if row.name.startswith("MLP") and row.name.endswith("float32 | loop")}
    llama = next(row.name for row in ROWS if row.name.startswith("Llama | AdamW | float32"))
    found = {of["AdamW"]: row(1.0, 7.0, 3), llama: row(2.0, 7.0, 5), of["SGD"]: row(1.0, 1.5, 1)}
    assert document.price(found, "AdamW") == (1.5, 1.0, 2.0)
    assert document.price(found, "SGD") == (0.5, 0.5, 0.5)


def test_the_page_is_made_of_the_figures():
    below = document.PAGE.read_text().partition(MARK)[2]
    assert below.strip() == document.page(document.read()).strip()
