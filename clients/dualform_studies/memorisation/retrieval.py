"""One prediction as two levels of retrieval, taken apart exactly (the paper's remark 3.5).

Shapes: P training pairs, S tokens of the pair that is asked about, H heads, N words.

With the attention pattern of a prediction given, its logits are linear in the value projection, and that is linear in
the training's slots (equation 13):

    logits = U x_2 + sum_h sum_j  a_hj  U O_h V_h x_j                       second level: softmax over the two tokens
    V x_j  = V_0 x_j + sum_p  sum_(t in pair p)  (x_t . x_j) e_t            first level: all slots, by training pair
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from dualform.query.engine import Engine
from dualform.questions import QuerySetExamples
from dualform_studies.figures import new_figure
from dualform_studies.memorisation.torus import TOKEN_INK, TOKEN_MARKS, exact_copy, token_legend
from dualform_studies.memorisation.transformer import (
    HEAD_WIDTH,
    HEADS,
    LENGTH,
    NAMES,
    PAIRS,
    QUERY_SET,
    TOKENS,
    WIDTH,
    AttentionOnly,
)
from dualform_studies.report import Page, Report, report_folder


@dataclass(frozen=True, eq=False)
class TwoLevels:
    """One prediction.

    pair        its number
    scores      float64[S, P]: first level, the attention weights x_t . x_j summed over the slots of each training pair
    pattern     float64[H, S]: second level, how much each head attends to each token
    offered     float64[S, H, P, N]: what each training pair's values of one token would add to the logits through one
                head that attended to that token alone
    initial     float64[N]: what the initial value projection adds
    residual    float64[N]: what the last token's own stream adds
    """

    pair: int
    scores: NDArray[np.float64]
    pattern: NDArray[np.float64]
    offered: NDArray[np.float64]
    initial: NDArray[np.float64]
    residual: NDArray[np.float64]

    @property
    def logits(self) -> NDArray[np.float64]:
        """float64[S, H, P, N]: what each training pair adds to the logits through one token and one head's values."""
        return self.pattern.T[:, :, None, None] * self.offered

    @property
    def total(self) -> NDArray[np.float64]:
        """float64[N]: the logits of the network."""
        return np.asarray(self.residual + self.initial + self.logits.sum(axis=(0, 1, 2)))

    def rival(self, token: int) -> int:
        """The strongest of the other tokens."""
        return int(np.where(np.arange(len(TOKENS)) == token, -np.inf, self.total).argmax())


@torch.no_grad()
def ask_two_levels(memory: Engine, network: AttentionOnly, pair: int) -> TwoLevels:
    """Take one prediction of the trained network apart; the memory speaks for each training pair alone."""
    exact = exact_copy(network)
    stream = exact.stream(exact.embed(PAIRS[pair : pair + 1]))
    pattern = exact.pattern(stream)[0]
    begun = memory.weights(at_step=0)["value.weight"].double()
    inputs = np.eye(WIDTH, dtype=np.float32)
    spoken = [
        torch.from_numpy(memory.output("value", inputs, where=f"first = '{name[0]}' AND second = '{name[1]}'").values)
        for name in NAMES
    ]
    # The initial values, then pair by pair what the training added.
    values = torch.stack([begun, *(one.T.double() - begun for one in spoken)]).view(-1, HEADS, HEAD_WIDTH, WIDTH)
    outputs = exact.output.weight.reshape(WIDTH, HEADS, HEAD_WIDTH)
    offered = torch.einsum("nd,dhe,phec,jc->jhpn", exact.unembedding.weight, outputs, values, stream[0])
    return TwoLevels(
        pair,
        memory.group_sum("value", QuerySetExamples(QUERY_SET, (pair,)), by="sample").sums,
        pattern.numpy(),
        offered[:, :, 1:].numpy(),
        torch.einsum("hj,jhn->n", pattern, offered[:, :, 0]).numpy(),
        exact.unembedding(stream[0, -1]).numpy(),
    )


@torch.no_grad()
def most_divided(network: AttentionOnly) -> int:
    """The pair whose two tokens the heads disagree about most."""
    to_first = network.pattern(network.stream(network.embed(PAIRS)))[:, :, 0]
    return int((to_first.amax(dim=1) - to_first.amin(dim=1)).argmax())


def draw_two_levels(path: Path, found: TwoLevels, facts: Tensor) -> Path:
    """A row for each of the two tokens: its scores with the training pairs, and what their values have to say of it.

    A head lets through as much of that as it attends to the token: the product is in the titles.
    """
    true = int(facts[found.pair])
    rival = found.rival(true)
    offered, margin = (each[..., true] - each[..., rival] for each in (found.offered, found.logits))
    with new_figure(path, 5.7, shades=True) as figure:
        axes = figure.subplots(LENGTH, 1 + HEADS, sharex=True, sharey=True)
        for row, (place, token) in enumerate(zip(("first", "second"), NAMES[found.pair], strict=True)):
            scores = _by_pair(axes[row, 0], found.scores[row], facts, "PuOr_r", float(np.abs(found.scores).max()))
            axes[row, 0].set_title(f"first level:\n{place} token, {token}")
            axes[row, 0].set_ylabel("training pair's first token")
            for head, panel in enumerate(axes[row, 1:]):
                drawn = _by_pair(panel, offered[row, head], facts, "RdBu_r", float(np.abs(offered).max()))
                # Rounded first and added to zero, so that no title says minus zero.
                says, through = (round(float(one[row, head].sum()), 1) + 0.0 for one in (offered, margin))
                attention = found.pattern[head, row]
                panel.set_title(f"head {head + 1}, {token}: {says:+.1f} nats,\ntimes {attention:.3f} = {through:+.1f}")
        for panel in axes[-1]:
            panel.set_xlabel("training pair's second token")
        style: Any = {"orientation": "horizontal", "pad": 0.03}
        left = figure.colorbar(scores, ax=axes[:, 0], aspect=10, **style)
        left.formatter = EngFormatter(sep=" ")
        left.locator = MaxNLocator(3)
        left.update_ticks()
        left.set_label("attention weights summed\n" r"$\Sigma\,\alpha$")
        right = figure.colorbar(drawn, ax=axes[:, 1:], aspect=30, **style)
        right.set_label(f"lead of {TOKENS[true]} over {TOKENS[rival]} that values offer, before attention (nats)")
        token_legend(figure, handletextpad=0.2)
    return path


def _by_pair(panel: Axes, values: NDArray[np.float64], facts: Tensor, colours: str, limit: float) -> Any:
    side = len(TOKENS)
    drawn = panel.imshow(values.reshape(side, side), cmap=colours, vmin=-limit, vmax=limit)
    panel.set_xticks(range(side), TOKENS)
    panel.set_yticks(range(side), TOKENS)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    for (first, second), token in zip(PAIRS.tolist(), facts.tolist(), strict=True):
        panel.plot(second, first, TOKEN_MARKS[token], color=TOKEN_INK[token], markersize=4,
                   markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip
    return drawn


def retrieval_section(page: Page, memory: Engine, network: AttentionOnly, facts: Tensor) -> Report:
    """One prediction as two levels of retrieval (remark 3.5)."""
    pair = most_divided(network)
    found, name, true = ask_two_levels(memory, network, pair), NAMES[pair], int(facts[pair])
    rival = found.rival(true)
    margin = found.logits[..., true] - found.logits[..., rival]
    page.heading("Two levels of retrieval")
    page.paragraph(
        f"The prediction of `{name}`, the pair about which the heads disagree most. At the first level, key and value "
        "of either token are looked up in all slots of the training by unnormalised attention: `V x = V₀ x + Σ αₜ eₜ`. "
        "At the second level, a softmax chooses between the two tokens, head by head (the paper's remark 3.5). With "
        "the chosen weights given, the logits are a sum over heads, tokens and training pairs, taken apart here."
    )
    page.figure(
        draw_two_levels(report_folder(page.run) / "two-levels.png", found, facts),
        f"Rows: the two tokens of `{name}`. Left: first level, the attention weights of all training slots, summed by "
        "training pair (marks: the pair's next token). Right: what each training pair's values offer, through each "
        f"head, to the lead of {TOKENS[true]}, the true next token, over {TOKENS[rival]}, its strongest rival; titles "
        "give the sum, and what the head's attention to the token (second level) lets through.",
    )
    return {
        "pair": name,
        "next_token": TOKENS[true],
        "rival": TOKENS[rival],
        "lead": float(found.total[true] - found.total[rival]),
        "from_training": float(margin.sum()),
        "from_training_absolute": float(np.abs(margin).sum()),
        "attention_to_first": found.pattern[:, 0].tolist(),
    }
