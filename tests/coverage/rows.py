"""The rows of the coverage table: network x optimizer x precision x trainer, and what falls short of the whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from . import plain, published
from .network import Network

RECONSTRUCTIONS = {
    "float32": 1e-5, "bfloat16 autocast": 5e-5, "float16 autocast": 5e-5, "bfloat16": 2**-7,
}  # fmt: skip
"""By precision, what the rebuilt weights may miss, of the distance that the weights moved."""
DIVIDED = 1e-4
"""The same in float32, where a gradient is divided by its size: rounding, which processors do differently, then counts
for more (docs/exactness.md).
"""


@dataclass(frozen=True)
class Row:
    network: Network
    optimizer: str
    precision: str = "float32"
    trainer: str = "loop"
    options: Mapping[str, object] = field(default_factory=dict)
    """Arguments of the recorder beside the network's own."""
    bound: float | None = None
    """Of the reconstruction error, where it is not that of the precision."""
    status: str = "exact"
    because: str = ""
    """Why the status is not exact, or the bound another."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Pattern of names -> words of the reason, of what is neither recorded nor kept."""
    refused: str = ""
    """Words of the message, where the recorder refuses."""

    @property
    def name(self) -> str:
        return f"{self.network.name} | {self.optimizer} | {self.precision} | {self.trainer}"

    @property
    def values(self) -> frozenset[str]:
        """What tells it apart from other rows."""
        return frozenset(self.name.split(" | "))

    @property
    def reconstruction(self) -> float:
        if self.bound is None and self.precision == "float32" and not self.optimizer.startswith(("SGD", "ASGD")):
            return DIVIDED
        return RECONSTRUCTIONS[self.precision] if self.bound is None else self.bound

    def depends_on_the_processor(self) -> bool:
        """Whether its status is another on a processor like this one, as docs/exactness.md has it."""
        if self.precision != "bfloat16 autocast" or convolutions_are_one_product():
            return False
        return any(isinstance(module, nn.modules.conv._ConvNd) for module in self.network.build().modules())


def convolutions_are_one_product() -> bool:
    """Whether torch rounds the gradient of a bfloat16 convolution once: without AVX-512 it does so sample by sample."""
    generator = torch.Generator().manual_seed(0)
    pixels, weight = (torch.randn(8, 3, 9, 9, generator=generator), torch.randn(5, 3, 3, 3, generator=generator))
    found = list[torch.Tensor]()
    for dtype in (torch.bfloat16, torch.float64):
        own = weight.bfloat16().to(dtype).requires_grad_()
        nn.functional.conv2d(pixels.bfloat16().to(dtype), own).sum().backward()
        assert own.grad is not None
        found.append(own.grad.double())
    # One product is off by half a last place of bfloat16, and by what float32 sums are off.
    return bool(((found[0] - found[1]).abs() <= 2.0**-8 * found[1].abs() + 1e-4).all())


_EVERYWHERE = (
    plain.MLP, plain.CNN, plain.ENCODER, plain.TRANSLATOR, plain.LSTM, plain.GRU, plain.BAG, plain.CONVOLVED,
    plain.UNET, plain.FILM, plain.TIED, plain.LOW_RANK, published.RESNET, published.MOBILENET, published.CONVNEXT,
    published.VIT, published.BERT, published.MASKED_BERT, published.GPT2, published.LLAMA, published.TIED_LLAMA,
    published.T5, published.MIXTRAL, published.LORA,
)  # fmt: skip
_RULES = (
    "SGD", "SGD, momentum", "SGD, Nesterov", "Adam", "AdamW, fused", "AMSGrad", "NAdam", "RAdam", "Adamax", "RMSprop",
    "Adagrad", "Adadelta", "ASGD", "Rprop", "Adafactor", "SGD and AdamW",
)  # fmt: skip
_AUTOCAST = (plain.MLP, plain.CNN, plain.ENCODER, published.RESNET, published.VIT, published.GPT2, published.LLAMA)
_COMPUTED = (
    "the optimizer moves the parameters from which weight norm computes a weight; that weight is scored, and the "
    "parameters are kept"
)
_MUON = "Muon computes its update in bfloat16"
_HALF = "the weights are bfloat16; torch rounds the last numbers of a tensor differently"
_ALONG = "the sum over slots is not rounded as autocast rounds it"
_CONVOLUTION = "on a CPU torch does not round the gradient of a float16 convolution as one product"
_LEFT = "not a matrix product (LayerNorm)"

ROWS: list[Row] = [
    *(Row(network, "AdamW") for network in _EVERYWHERE),
    Row(plain.NORMED, "AdamW", status="scores only", because=_COMPUTED),
    *(Row(plain.MLP, optimizer) for optimizer in _RULES),
    *(
        Row(n, "Muon and AdamW", bound=2**-7, status="exact to bfloat16", because=_MUON)
        for n in (plain.MLP, published.LLAMA)
    ),
    *(Row(n, "SGD, momentum") for n in (plain.CNN, plain.ENCODER, published.RESNET, published.GPT2, published.T5)),
    *(Row(network, "AdamW, two groups", "bfloat16 autocast") for network in _AUTOCAST),
    *(
        Row(n, "SGD, momentum", "bfloat16 autocast", bound=2**-7, status="exact to bfloat16", because=_ALONG)
        for n in (plain.MLP, plain.ENCODER)
    ),
    Row(plain.MLP, "AdamW", "float16 autocast"),
    Row(plain.CNN, "AdamW", "float16 autocast", bound=1e-3, because=_CONVOLUTION),
    *(Row(n, "AdamW", "bfloat16", status="exact to bfloat16", because=_HALF) for n in (plain.MLP, published.LLAMA)),
    *(Row(n, "AdamW, two groups", trainer="accumulation, clipping") for n in (plain.CNN, published.GPT2)),
    *(Row(n, "AdamW", trainer="torch.compile") for n in (plain.MLP, plain.CNN)),
    *(Row(n, "AdamW", trainer="checkpointing") for n in (published.GPT2, published.LLAMA)),
    Row(published.LLAMA, "AdamW", trainer="checkpointing, reentrant"),
    *(Row(n, "AdamW, two groups", "bfloat16 autocast", "Lightning") for n in (plain.MLP, published.RESNET)),
    *(Row(n, "AdamW, two groups", "bfloat16 autocast", "Transformers") for n in (published.GPT2, published.VIT)),
    *(Row(n, "AdamW, two groups", trainer="Transformers") for n in (published.LLAMA, published.LORA)),
    Row(plain.MLP, "AdamW", trainer="DDP"),
    Row(plain.ENCODER, "AdamW, two groups", "bfloat16 autocast", "DDP"),
    Row(plain.MLP, "AdamW", trainer="FSDP2"),
    Row(plain.ENCODER, "AdamW", trainer="FSDP2", skipped={"*.norm?": _LEFT, "place": "it is sharded over processes"}),
    Row(plain.MLP, "LBFGS", trainer="closure", refused="LBFGS"),
]


def covering(rows: Iterable[Row]) -> list[Row]:
    """Few rows that have each network, optimizer, precision and trainer: one by one those that have most new ones."""
    left, found, seen = list(rows), list[Row](), set[str]()
    while best := max(left, key=lambda row: len(row.values - seen), default=None):
        if best.values <= seen:
            return found
        found.append(best)
        left.remove(best)
        seen |= best.values
    return found
