"""What the pages say of update rules is what there is: the optimizers that have one, and what a rule may say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dualform import rules
from dualform.rules.half_precision_rule import RoundedRule
from dualform.rules.update_rule import LinearRule, UpdateRule

ROOT = Path(__file__).parents[2]
LISTS = {
    "docs/exactness.md": r"\*\*Optimizers\.\*\* (.+?) have rules",
    "docs/rules.md": r"that have rules:\s+(.+?)\.",
}


@pytest.mark.parametrize("page", LISTS)
def test_the_optimizers_that_a_page_lists_are_those_of_the_table(page):
    (listed,) = re.findall(LISTS[page], (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    found = re.split(r",\s+|\s+and\s+", listed)
    ours = [name.rpartition(".")[2] for name in rules._BY_TYPE if name.startswith("torch.optim.")]
    assert sorted(found) == sorted(ours)


@pytest.mark.parametrize("protocol", [UpdateRule, LinearRule, RoundedRule], ids=lambda kind: kind.__name__)
def test_all_that_a_rule_may_say_stands_on_its_page(protocol):
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    said = {*vars(protocol), *protocol.__annotations__}
    said = {name for name in said if not name.startswith("_")}
    assert said
    assert [name for name in sorted(said) if not re.search(rf"`{name}\b|\b(def )?{name}( =|\()", page)] == []
