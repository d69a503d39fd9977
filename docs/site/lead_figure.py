"""The first picture of the README: `python -m docs.site.lead_figure` runs its program and draws docs/forgetting.png."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).parents[2]
STEPS, FIRST = 400, 200
SECOND_TASK_LEFT_OUT = "dataset = '0-4'"


def quick_start() -> dict[str, Any]:
    """What the README's program leaves: the data, the model and its memory."""
    (program,) = re.findall(r"<!-- tested: quickstart -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    names: dict[str, Any] = {}
    exec(compile(program, "the quick start", "exec"), names)
    return names


def accuracies(made: dict[str, Any], weights: Any) -> tuple[float, float]:
    """On the digits 0 to 4, and 5 to 9, in per cent."""
    made["model"].load_state_dict(weights)
    right = made["model"](made["x"]).argmax(1) == made["y"]
    parts = (made["y"] < 5, made["y"] >= 5)
    first, second = (100 * float(right[part & made["held_out"]].float().mean()) for part in parts)
    return first, second


def draw(file: Path) -> None:
    made = quick_start()
    memory = made["memory"]
    steps = [*range(0, FIRST, 10), *range(FIRST, FIRST + 40, 2), *range(FIRST + 40, STEPS + 1, 10)]
    curves = np.array([accuracies(made, memory.weights(at_step=step)) for step in steps])
    trained, without = memory.weights(), memory.weights(where=SECOND_TASK_LEFT_OUT)
    bars = {
        "as trained": trained,
        "hidden": {**trained, **{name: own for name, own in without.items() if name.startswith("hidden")}},
        "head": {**trained, **{name: own for name, own in without.items() if name.startswith("head")}},
        "both": without,
    }
    heights = [accuracies(made, weights)[0] for weights in bars.values()]
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8), width_ratios=(3, 2), layout="constrained")
    for number, (name, colour) in enumerate({"digits 0-4": "#0b6e99", "digits 5-9": "#c8602a"}.items()):
        left.plot(steps, curves[:, number], color=colour)
        left.annotate(name, (STEPS * (0.3 + 0.5 * number), 103), color=colour, ha="center", annotation_clip=False)
    left.axvline(FIRST, color="#888888", linewidth=0.8, linestyle=":")
    left.annotate("from here on 5-9 only", (FIRST + 48, 30), color="#666666", fontsize=8)
    left.set(xlabel="step", ylabel="accuracy (%)", xlim=(0, STEPS), ylim=(0, 108), xticks=range(0, STEPS + 1, 100))
    right.bar([*bars], heights, color=["#999999", "#0b6e99", "#0b6e99", "#0b6e99"], width=0.6)
    for place, height in enumerate(heights):
        right.annotate(f"{height:.0f}", (place, height + 2), ha="center")
    right.set(ylabel="accuracy on 0-4 (%)", ylim=(0, 108), title="terms of 5-9 removed from")
    right.title.set_size(9)
    figure.savefig(file, dpi=160)


if __name__ == "__main__":
    os.environ.setdefault("DUALFORM_QUIET", "1")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        draw(ROOT / "docs" / "forgetting.png")
