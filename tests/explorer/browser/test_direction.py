"""A text that turns the direction of writing turns nothing beside it."""

from __future__ import annotations

import torch

import dualform
from tests.explorer.browser.shown import served_to, settle
from tests.trainings import take_steps

TURNED = "from right to left: \u202e"
PLACES = """(selector) => [...document.querySelectorAll(selector)].map(own => {
    const walker = document.createTreeWalker(own, NodeFilter.SHOW_TEXT);
    const found = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode())
        for (let place = 0; place < node.length; place++)
            if (/[0-9]/.test(node.data[place])) {
                const range = document.createRange();
                range.setStart(node, place);
                range.setEnd(node, place + 1);
                const box = range.getBoundingClientRect();
                if (box.width) found.push([box.left, node.data[place]]);
            }
    const said = found.map(own => own[1]).join("");
    const seen = [...found].sort((one, other) => one[0] - other[0]).map(own => own[1]).join("");
    return [said, seen];
})"""
"""Of each element its digits, as they are said and from left to right as they are seen."""


def test_numbers_beside_a_text_that_turns_the_direction_are_seen_as_they_are(page, tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {TURNED: ["none \u202e", "one \u202e"]}
    with dualform.Recorder(model, optimizer, tmp_path / "run", label_names=names, quiet=True) as recorder:
        take_steps(
            recorder,
            optimizer,
            15,
            lambda _: torch.nn.functional.cross_entropy(model(torch.eye(2)), torch.tensor([0, 1])),
            dataset=TURNED,
            label=[0, 1],
            note=TURNED,
            size=1234,
        )
        recorder.query_set("test", torch.eye(2), label=[0, 1])
    with served_to(page, {"run": lambda: dualform.open(tmp_path / "run")}) as pages:
        page.goto(
            f"{pages.url}explore?item=test/1&by=note,size&without=note:other;size:1234&without=size:567&open=data,layers,training,record"
        )
        settle(page)
        for selector in (
            "#slots .said > *",
            "#sums tbody th",
            "#terms tbody th",
            ".chip",
            ".verdict > *",
            "#outputs tbody th",
        ):
            places = page.evaluate(PLACES, selector)
            assert any(said for said, _ in places), selector
            assert [seen for _, seen in places] == [said for said, _ in places], selector
