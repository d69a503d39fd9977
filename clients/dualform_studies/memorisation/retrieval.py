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
from dualform_studies.memorisation.torus import TOKEN_INK, TOKEN_MARKS, token_handles
from dualform_studies.memorisation.transformer import (
    HEAD_WIDTH,
    HEADS,
    LENGTH,
    QUERY_SET,
    TOKENS,
    WIDTH,
    AttentionOnly,
    Facts,
)
from dualform_studies.report import Page, Report, report_folder


@dataclass(frozen=True, eq=False)
class TwoLevels:
    """One prediction."""

    pair: int
    scores: NDArray[np.float64]
    """float64[S, P]: first level, the attention weights x_t . x_j summed over the slots of each training pair."""
    pattern: NDArray[np.float64]
    """float64[H, S]: second level, how much each head attends to each token."""
    offered: NDArray[np.float64]
    """float64[S, H, P, N]: what each training pair's values of one token would add to the logits through one head that
    attended to that token alone."""
    initial: NDArray[np.float64]
    """float64[N]: what the initial value projection adds."""
    residual: NDArray[np.float64]
    """float64[N]: what the last token's own stream adds."""

    @property
    def logits(self) -> NDArray[np.float64]:
        """float64[S, H, P, N]: what each training pair adds to the logits through one token and one head's values."""
        return self.pattern.T[:, :, None, None] * self.offered

    @property
    def total(self) -> NDArray[np.float64]:
        """float64[N]: the logits of the network."""
        return np.asarray(self.residual + self.initial + self.logits.sum(axis=(0, 1, 2)))

    def margin(self, token: int) -> tuple[NDArray[np.float64], int]:
        """float64[S, H, P]: what is added to the lead of `token` over its strongest rival; and the rival."""
        others = self.total.copy()
        others[token] = -np.inf
        rival = int(others.argmax())
        return self.logits[..., token] - self.logits[..., rival], rival


@torch.no_grad()
def ask_two_levels(memory: Engine, network: AttentionOnly, facts: Facts, pair: int) -> TwoLevels:
    """Take one prediction of the trained network apart; the memory speaks for each training pair alone."""
    exact = AttentionOnly().double()
    exact.load_state_dict(network.state_dict())
    stream = exact.stream(exact.embed(facts.pairs[pair : pair + 1]))
    pattern = exact.pattern(stream)[0]
    begun, moved = moved_values(memory, facts)
    # The initial values, then pair by pair what the training added.
    values = torch.cat([begun[None], moved])
    outputs = exact.output.weight.reshape(WIDTH, HEADS, HEAD_WIDTH)
    offered = torch.einsum("nd,dhe,phec,jc->jhpn", exact.unembedding.weight, outputs, values, stream[0])
    sums = memory.group_sum("value", QuerySetExamples(QUERY_SET, (pair,)), by="sample")
    return TwoLevels(
        pair,
        sums.sums,
        pattern.numpy(),
        offered[:, :, 1:].numpy(),
        torch.einsum("hj,jhn->n", pattern, offered[:, :, 0]).numpy(),
        exact.unembedding(stream[0, -1]).numpy(),
    )


def moved_values(memory: Engine, facts: Facts) -> tuple[Tensor, Tensor]:
    """[H, e, d] and [P, H, e, d], of float64: the value projection at its start, and what each training pair added."""
    begun = memory.weights(at_step=0)["value.weight"].double()
    inputs = np.eye(WIDTH, dtype=np.float32)
    spoken = [
        torch.from_numpy(memory.output("value", inputs, where=f"first = '{name[0]}' AND second = '{name[1]}'").values)
        .T.contiguous()
        .double()
        for name in facts.names
    ]
    return begun.view(HEADS, HEAD_WIDTH, WIDTH), (torch.stack(spoken) - begun).view(-1, HEADS, HEAD_WIDTH, WIDTH)


def most_divided(network: AttentionOnly, facts: Facts) -> int:
    """The pair whose two tokens the heads disagree about most."""
    with torch.no_grad():
        to_first = network.pattern(network.stream(network.embed(facts.pairs)))[:, :, 0]
    return int((to_first.amax(dim=1) - to_first.amin(dim=1)).argmax())


_PLACES = ("first", "second")


def draw_two_levels(path: Path, found: TwoLevels, facts: Facts) -> Path:
    """A row for each of the two tokens: its scores with the training pairs, and what their values have to say of it.

    A head lets through as much of that as it attends to the token: the product is in the titles.
    """
    true = int(facts.next_tokens[found.pair])
    margin, rival = found.margin(true)
    offered = found.offered[..., true] - found.offered[..., rival]
    most = float(np.abs(offered).max())
    limit = float(np.abs(found.scores).max())
    with new_figure(path, 5.7, shades=True) as figure:
        axes = figure.subplots(LENGTH, 1 + HEADS, sharex=True, sharey=True)
        for row, (place, token) in enumerate(zip(_PLACES, facts.names[found.pair], strict=True)):
            scores = _by_pair(axes[row, 0], found.scores[row], facts, "PuOr_r", limit)
            axes[row, 0].set_title(f"first level:\n{place} token, {token}")
            axes[row, 0].set_ylabel("training pair's first token")
            for head, panel in enumerate(axes[row, 1:]):
                drawn = _by_pair(panel, offered[row, head], facts, "RdBu_r", most)
                says, through = (_rounded(one[row, head].sum()) for one in (offered, margin))
                attention = found.pattern[head, row]
                panel.set_title(f"head {head + 1}, {token}: {says:+.1f} nats,\ntimes {attention:.3f} = {through:+.1f}")
        for panel in axes[-1]:
            panel.set_xlabel("training pair's second token")
        style: Any = {"orientation": "horizontal", "aspect": 30, "pad": 0.03}
        left = figure.colorbar(scores, ax=axes[:, 0], **style | {"aspect": 10})
        left.formatter = EngFormatter(sep=" ")
        left.locator = MaxNLocator(3)
        left.update_ticks()
        left.set_label("attention weights summed\n" r"$\Sigma\,\alpha$")
        right = figure.colorbar(drawn, ax=axes[:, 1:], **style)
        right.set_label(f"lead of {TOKENS[true]} over {TOKENS[rival]} that values offer, before attention (nats)")
        figure.legend(handles=token_handles(), loc="outside lower center", ncols=len(TOKENS), handletextpad=0.2)
    return path


def _rounded(number: float) -> float:
    """To one decimal; never minus zero."""
    return round(float(number), 1) + 0.0


def _by_pair(panel: Axes, values: NDArray[np.float64], facts: Facts, colours: str, limit: float) -> Any:
    side = len(TOKENS)
    drawn = panel.imshow(values.reshape(side, side), cmap=colours, vmin=-limit, vmax=limit)
    panel.set_xticks(range(side), TOKENS)
    panel.set_yticks(range(side), TOKENS)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    for at, token in enumerate(facts.next_tokens.tolist()):
        panel.plot(at % side, at // side, TOKEN_MARKS[token], color=TOKEN_INK[token], markersize=4,
                   markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip
    return drawn


def retrieval_chapter(page: Page, memory: Engine, network: AttentionOnly, facts: Facts) -> Report:
    """One prediction as two levels of retrieval (remark 3.5)."""
    folder, pair = report_folder(page.run), most_divided(network, facts)
    found = ask_two_levels(memory, network, facts, pair)
    name, true = facts.names[pair], int(facts.next_tokens[pair])
    margin, rival = found.margin(true)
    page.heading("Two levels of retrieval")
    page.paragraph(
        f"The prediction of `{name}`, the pair about which the heads disagree most. At the first level, key and value "
        "of either token are looked up in all slots of the training by unnormalised attention: `V x = V₀ x + Σ αₜ eₜ`. "
        "At the second level, a softmax chooses between the two tokens, head by head (the paper's remark 3.5). With "
        "the chosen weights given, the logits are a sum over heads, tokens and training pairs, taken apart here."
    )
    page.figure(
        draw_two_levels(folder / "two-levels.png", found, facts),
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
