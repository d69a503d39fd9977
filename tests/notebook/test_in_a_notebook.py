"""The widget in a kernel, as a notebook's front end talks to it: it is shown, and changed by messages."""

from __future__ import annotations

import json

import nbformat
from nbclient import NotebookClient

MAKE = """\
import dualform
memory = dualform.open({folder!r})
explorer = memory.explorer("test/3", layer="0", by="label", k=3)
explorer
"""
SAY = "import json; print(json.dumps([explorer.model_id, explorer.view]))"


def cells(folder):
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(code) for code in (MAKE.format(folder=str(folder)), SAY, SAY, SAY)]
    return book


def said(cell):
    return json.loads(
        "".join(own["text"] for own in cell.outputs if own.output_type == "stream" and own.name == "stdout")
    )


async def test_a_front_end_shows_it_and_asks_by_messages(folder, memory, monkeypatch):
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    book = cells(folder)
    client = NotebookClient(book, timeout=60, kernel_name="python3")
    messages = []
    async with client.async_setup_kernel():

        async def run(number):
            await client.async_execute_cell(book.cells[number], number)
            return book.cells[number]

        async def change(model, **state):
            content = {"comm_id": model, "data": {"method": "update", "state": state, "buffer_paths": []}}
            client.kc.shell_channel.send(client.kc.session.msg("comm_msg", content))
            messages.append(state)

        shown = await run(0)
        (output,) = [own for own in shown.outputs if own.output_type in ("display_data", "execute_result")]
        assert "application/vnd.jupyter.widget-view+json" in output["data"]
        model, view = said(await run(1))
        assert output["data"]["application/vnd.jupyter.widget-view+json"]["model_id"] == model
        assert [own["slot"] for own in view["slots"]] == memory.topk("0", "test/3", k=3).slots[0].tolist()
        state = client.widget_state[model]
        assert "export default" in state["_esm"]
        assert state["view"]["groups"] == view["groups"], "the front end was sent what the kernel has"

        await change(model, layer="2", masks=[{"values": {"label": 1}, "keep": False}])
        _, view = said(await run(2))
        wanted = memory.topk("2", "test/3", k=3, where="label IS DISTINCT FROM 1")
        assert [(own["slot"], own["score"]) for own in view["slots"]] == [
            (hit.slot, hit.score) for hit in next(iter(wanted))
        ]
        assert view["chips"] == ["without label 1"]

        await change(model, where="labl = 3")
        _, view = said(await run(3))
        assert view["error"]["message"] == "There is no slot column 'labl'."
        assert view["error"]["hint"].startswith("Columns: ")
    assert len(messages) == 2
    assert not [own for cell in book.cells for own in cell.outputs if own.output_type == "error"]
