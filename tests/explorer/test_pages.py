"""The pages as they are sent: whole without scripts, safe, and with errors in their place."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import shutil
import socket
import threading
import time
from contextlib import ExitStack, suppress
from urllib.parse import quote, urlsplit

import pytest
from jinja2 import ChoiceLoader, DictLoader, PackageLoader

import dualform
from dualform.errors import BadInput, Unavailable
from dualform.questions import Contribution, GroupSum, Inventory
from dualform_client import Client
from dualform_explorer import rendering, server
from dualform_explorer.application import STATIC, Pages
from dualform_explorer.export import choose, exported_page
from dualform_explorer.memories import Memories
from dualform_explorer.panels import PANELS, Panel, panels_in
from dualform_explorer.rendering import KEYS
from dualform_explorer.server import ExplorerConfig
from dualform_explorer.view import Snapshot
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.cases import some
from tests.explorer.served import Troubled, failed, panels_of, served
from tests.service.test_tls import certificate

ALL = "open=data,layers,training,record"


def test_a_page_without_scripts_is_whole(pages, memory):
    page = pages.get(f"/explore?item=shapes/3&without=label:1&{ALL}")
    assert page.status == 200
    found = panels_of(page.text)
    assert list(found) == [*PANELS]
    assert not failed(page.text)
    sent = [page.text.index(f'id="panel-{name}"') for name in ("query", "answer", "output", "sums", "slots", "layers")]
    assert sent == sorted(sent)  # what passes over every layer comes last
    titles = dict(re.findall(r'<h2 id="title-(\w+)">([^<]*?) ?(?:<|$)', re.sub("</?abbr[^>]*>", "", page.text)))
    absent = ("adjoint", "samples", "places", "scores")  # nothing kept, no group chosen, no convolution, nothing given
    assert titles == {name: panel.title for name, panel in PANELS.items() if name not in absent}
    shown = re.findall(
        r'<td class="right sum"><data class="n" value="([^"]+)" data-value="([^"]+)" title="([^"]+)"', found["sums"]
    )
    sums = memory.group_sum("4", "shapes/3", ("dataset", "label"), "label <> 1").sums[0].tolist()
    assert [tuple(map(float, own)) for own in shown] == [(own,) * 3 for own in sums]


def test_scripts_get_the_same_parts_as_lines(pages):
    query = "item=shapes/3&without=label:1"
    answer = pages.get(f"/panels?{query}")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    first, *lines = map(json.loads, answer.text.splitlines())
    assert first["address"] == "explore?item=shapes/3&layer=4&by=dataset,label&without=label:1"
    page = pages.get(f"/explore?{query}")
    assert first["bar"].strip() in page.text
    whole = panels_of(page.text)
    assert {line["panel"]: line["html"].strip() for line in lines} == whole
    assert pages.get("/panels?layer=9").status == 400


def test_the_page_as_in_the_paper_has_every_layer(pages):
    page = pages.get("/paper?item=shapes/3&without=label:1")
    assert page.status == 200
    assert [*panels_of(page.text)] == ["query", "layer-0", "layer-1", "layer-2"]
    assert not failed(page.text)
    assert page.text.count('<svg class="descents"') == 3


def test_what_a_memory_holds_is_text_and_all_that_a_page_links_to_is_relative_and_ours(pages):
    start = pages.get("/")
    assert start.status == 200
    links = re.findall(r'href="(explore\?item=shapes/[^"]+)"', start.text)
    assert pages.get("/" + links[0].replace("&amp;", "&")).status == 200
    other = pages.get("/explore?item=noise/1&without=dataset:shapes").text
    for text in (start.text, other):
        for address in some(re.findall(r'(?:href|src|action)="([^"]+)"', text)):
            parts = urlsplit(address)
            assert not parts.netloc
            assert parts.scheme in ("", "data")
            assert not address.startswith("/")
    assert "noise <b>" not in other
    assert "noise &lt;b&gt;" in other
    assert "<script>alert(1)</script>" not in pages.get("/explore?layer=<script>alert(1)</script>").text


def test_faults_of_an_address_are_named_with_what_there_is(pages):
    page = pages.get("/explore?item=shapes/3&layer=9&score=abs")
    assert page.status == 400
    assert "There is no layer &#39;9&#39;." in page.text
    assert 'href="explore?item=shapes/3&amp;score=abs&amp;layer=2"' in page.text
    assert "panel-" not in page.text


def test_a_form_is_answered_with_the_states_own_address(pages):
    page = pages.get("/explore?item=shapes/3&layer=4&by=label&column=step&first=3&last=9&keep=only")
    assert page.status == 303
    assert page.headers["location"] == "explore?item=shapes/3&layer=4&by=label&only=step:3..9"


def test_contributions_go_to_what_was_read_less_what_should_have_been(pages, memory):
    query_set = memory.query_set("shapes")
    read = query_set.outputs.argmax(axis=1)
    for row in (int((read != query_set.labels).argmax()), int((read == query_set.labels).argmax())):
        target = str(read[row]) if read[row] == query_set.labels[row] else f"{read[row]}-{query_set.labels[row]}"
        page = pages.get(f"/explore?item=shapes/{row}&layer=4&score=contribution")
        assert page.status == 303
        assert f"&target={target}&" in page.headers["location"]
    page = pages.get("/explore?item=shapes/3&layer=0&score=contribution")
    assert "&target=0&" in page.headers["location"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("label = 99", "matches no"),
        ("colour = 3", "no slot column"),
    ],
)
def test_a_mask_that_cannot_be_is_told_of_once(pages, where, message):
    page = pages.get(f"/explore?item=shapes/3&where={quote(where)}&{ALL}")
    assert page.status == 200
    assert {"sums", "slots", "steps"} <= failed(page.text)
    assert "query" not in failed(page.text)
    assert message in panels_of(page.text)["filter"]
    for name in failed(page.text):
        assert panels_of(page.text)[name].endswith("hidden></section>"), name


def test_a_condition_that_would_reach_beyond_the_chips_is_refused_and_stands_where_it_was_written(pages):
    own = "label = 1) OR (true"
    state = f"item=shapes/3&without=label:3&where={quote(own)}&{ALL}"
    text = pages.get(f"/explore?{state}").text
    assert text.count("closes a parenthesis that it did not open") == 1
    assert "closes a parenthesis that it did not open" in panels_of(text)["filter"]
    assert re.search(r'<section id="panel-sums"[^>]* data-failure="bad_mask" hidden>', text)
    assert re.search(r'<textarea[^<]*">([^<]*)</textarea>', text)[1] == own
    assert "closes a parenthesis that it did not open" in pages.get(f"/paper?{state}").text


@pytest.mark.parametrize(("by", "coloured"), [("dataset,label", "dataset"), ("label", "label"), ("step", None)])
def test_a_chip_has_a_colour_where_groups_have_it_of_the_same_column(pages, by, coloured):
    text = pages.get(f"/explore?item=shapes/3&by={by}").text
    chips = re.findall(r'<a class="chip" [^>]*title="(\w+), [^>]*><i class="dot( h[0-9])?">', text)
    assert {column for column, _ in chips} == {"dataset", "label"}
    assert all(bool(hue) == (column == coloured) for column, hue in chips)


def test_a_panel_that_fails_or_is_late_leaves_the_others_and_shows_no_traceback(folder, caplog):
    trouble, let_go = [], threading.Event()

    def ask(question):
        if isinstance(question, Contribution) and trouble:
            trouble[0]()

    def gone():
        raise Unavailable("The server went away.", hint="Start it again.")

    def broken():
        raise ZeroDivisionError("in the midst of it")

    with served({"run": lambda: Troubled(dualform.open(folder), ask)}, deadline=6.0) as pages:
        pages.get(f"/explore?item=shapes/4&{ALL}")  # first questions take longer
        for own, said in (
            (gone, ("The server went away.", "Start it again.")),
            (broken, ("ZeroDivisionError: in the midst of it",)),
            (let_go.wait, ("There was no answer within 6 seconds.",)),
        ):
            trouble[:] = [own]
            text = pages.get(f"/explore?item=shapes/3&{ALL}").text
            assert failed(text) == {"answer", "terms"}
            assert all(words in panels_of(text)["terms"] for words in said)
            assert "Traceback" not in text
        let_go.set()
    assert "the panel terms failed" in caplog.text


def test_the_output_layer_is_asked_before_the_first_visitor_and_the_same_question_once(folder):
    asked, warm = [], threading.Event()

    def ask(question):
        asked.append(question)
        if isinstance(question, Contribution):
            warm.set()

    with served({"run": lambda: Troubled(dualform.open(folder), ask)}) as pages:
        assert warm.wait(30)
        pages.get(f"/explore?item=shapes/3&by=label&{ALL}")
        first = [question for question in asked if isinstance(question, GroupSum)]
        pages.get(f"/explore?item=shapes/3&by=label&{ALL}")
    assert len(set(first)) == len(first) > 3
    assert [question for question in asked if isinstance(question, GroupSum)] == first


def test_a_server_elsewhere_gives_the_same_page_and_its_end_is_told(memory, pages):
    server = Server(memory, ServiceConfig("127.0.0.1:0", sql=True))
    server.start()
    with served({"run": lambda: Client(server.address, timeout=20)}) as remote:
        path = f"/explore?item=shapes/3&without=label:2&{ALL}"
        here, there = panels_of(pages.get(path).text), panels_of(remote.get(path).text)
        del here["record"], there["record"]  # which says how long answering took
        assert here == there
        here, there = (json.loads(own.get("/points?item=shapes/7&layer=2").text) for own in (pages, remote))
        assert here == there
        server.stop(grace=0)
        gone = remote.get("/explore?item=shapes/4")
    assert gone.status == 502
    assert "No answer from the memory" in gone.text
    assert server.address in gone.text


def test_a_damaged_file_is_named(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "memory.json").write_text("{")
    with served({"whole": lambda: dualform.open(folder), "broken": lambda: dualform.open(copy)}) as pages:
        start = pages.get("/")
        assert start.status == 200
        assert "memory.json" in start.text
        assert "shapes" in start.text
        assert pages.get("/explore?memory=broken&item=shapes/1").status == 502
        assert pages.get("/explore?memory=whole&item=shapes/1").status == 200
        assert pages.get("/explore?memory=none").status == 404


def test_a_browser_is_told_that_nothing_comes_from_elsewhere(pages):
    for path in ("/", "/explore", "/static/explorer.css", "/nowhere"):
        headers = pages.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in headers
    text = pages.get("/explore?item=shapes/3&open=data,layers,training,record").text
    assert not re.search(r"<script(?![^>]* src=)|\sstyle=|\son\w+=|javascript:", text)


def test_a_request_by_another_name_is_refused(pages):
    for name in (
        *("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]:1"),
        *("[::1]x", "[::1].evil.example", "localhost:evil.example", "localhost:1:2", "[::1]:x", "[::1"),
    ):
        page = pages.get("/explore", Host=name)
        assert page.status == 421
        assert "shapes" not in page.text
    for name in ("localhost", f"127.0.0.1:{pages.port}", "LOCALHOST:1", "[::1]:9"):
        assert pages.get("/", Host=name).status == 200


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "no-cors", 403),
        ("same-site", "no-cors", 403),
        ("cross-site", "cors", 403),
        ("cross-site", None, 403),
        ("cross-site", "navigate", 200),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ],
)
def test_what_a_page_elsewhere_loads_from_here_is_refused_unless_its_reader_comes_along(pages, site, mode, status):
    sent = {"Sec-Fetch-Site": site} | ({"Sec-Fetch-Mode": mode} if mode else {})
    for path in ("/", "/news", "/static/explorer.css"):
        assert pages.get(path, **sent).status == status


def test_an_address_of_many_parameters_is_refused_unread(pages, monkeypatch):
    monkeypatch.setattr(Pages, "_asked", None)  # whoever reads it fails
    page = pages.get("/explore?" + "&".join(f"{number:x}=" for number in range(201)))
    assert (page.status, page.text.split(";")[0]) == (400, "The address has 201 parameters")


@pytest.mark.parametrize(
    "query",
    [
        "&".join(f"without=label:{'x' * 60}" for _ in range(200)),
        "by=" + "x," * 1_900 + "&where=" + "x" * 3_900 + "".join(f"&{name:x}=" for name in range(150)),
        "by=a,b,c&layer=9&item=x/1&where=" + "%C3%BC" * 3_900,
        "item=" + "x" * 50_000,
    ],
    ids=lambda query: query[:20],
)
def test_no_address_takes_long_to_be_read_or_has_a_large_answer(pages, query):
    before = time.process_time()
    page = pages.get(f"/explore?{query}")
    assert page.status == 400
    assert time.process_time() - before < 2.0
    assert len(page.text) < 10 * len(query) + 200_000


def slow(port: int) -> socket.socket:
    """A connection that has sent half a request."""
    own = socket.create_connection(("127.0.0.1", port), 60)
    own.sendall(b"GET /explore HTTP/1.1\r\nHost: local")
    return own


def ends(own: socket.socket) -> bool:
    with suppress(ConnectionError):
        return own.recv(1) == b""
    return True


def test_half_requests_shut_nobody_out_and_end_by_themselves(folder, monkeypatch, caplog):
    monkeypatch.setattr(server, "SECONDS", 0.8)
    with served({"run": lambda: dualform.open(folder)}) as pages, ExitStack() as open_ones:
        quiet = [open_ones.enter_context(slow(pages.port)) for _ in range(150)]
        assert pages.get("/explore?item=shapes/3").status == 200
        assert ends(quiet[0])
        again = open_ones.enter_context(slow(pages.port))
        for _ in range(30):  # what comes bit by bit has no more time
            try:
                again.sendall(b"x")
            except ConnectionError:
                break
            time.sleep(0.1)
        else:
            pytest.fail("half a request may take any time")
        assert all(map(ends, quiet))
        css = pages.get("/static/explorer.css").text
        unread = open_ones.enter_context(socket.create_connection(("127.0.0.1", pages.port), 60))
        unread.sendall(b"GET /static/explorer.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        time.sleep(1.6)
        taken = 0
        with suppress(ConnectionError):
            while part := unread.recv(1 << 16):
                taken += len(part)
        assert taken < 1000 * len(css)
        kept = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=30)
        for _ in range(2):
            kept.request("GET", "/static/explorer.css")
            assert kept.getresponse().read()
        kept.close()
    assert not caplog.records


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
def test_half_a_handshake_ends_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "SECONDS", 0.5)
    listening, over = server.listening_at("127.0.0.1:0"), threading.Event()
    guarded = server.application(Memories({}), ExplorerConfig("127.0.0.1:0"))
    thread = threading.Thread(target=server.run, args=(guarded, listening, over.wait, certificate(tmp_path, "own")))
    with socket.create_connection(listening.getsockname(), 20) as half:
        thread.start()
        try:
            assert ends(half)
        finally:
            over.set()
            thread.join(30)


def test_one_more_than_are_being_answered_is_shut(folder, monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS", 3)
    going = threading.Event()

    def wait(question):
        if isinstance(question, Inventory):
            going.wait(30)

    with served({"run": lambda: Troubled(dualform.open(folder), wait)}) as pages:
        with ExitStack() as answered:
            for _ in range(3):
                own = answered.enter_context(socket.create_connection(("127.0.0.1", pages.port), 60))
                own.sendall(b"GET /explore HTTP/1.1\r\nHost: localhost\r\n\r\n")
                time.sleep(0.1)
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                pages.get("/static/explorer.css")
            going.set()
            assert own.recv(12) == b"HTTP/1.1 200"
        assert pages.get("/static/explorer.css").status == 200


def test_with_a_token_nothing_of_a_memory_is_shown_without_it(folder):
    with served({"run": lambda: dualform.open(folder)}, token="sesame-sesame-sesame") as pages:
        for path in ("/", "/explore", "/explore?item=shapes/3"):
            for headers in ({}, {"Authorization": "Bearer sesame"}, {"Authorization": "Basic sesame-sesame-sesame"}):
                page = pages.get(path, **headers)
                assert page.status == 401
                assert "shapes" not in page.text
                assert "sesame" not in page.text
            assert pages.get(path, Authorization="Bearer sesame-sesame-sesame").status == 200
        assert pages.get("/static/explorer.css").status == 200


def test_it_works_under_a_name_and_a_prefix_that_a_proxy_leaves_in_the_path_or_takes_away(folder):
    with served(
        {"run": lambda: dualform.open(folder)}, root_path="/user/me/explorer", hosts=["hub.example.org"]
    ) as pages:
        for prefix in ("", "/user/me/explorer"):
            assert pages.get(f"{prefix}/").status == 200
            assert pages.get(f"{prefix}/explore?item=shapes/3").status == 200
            assert pages.get(f"{prefix}/static/explorer.css").status == 200
            nowhere = pages.get(f"{prefix}/explore/?item=shapes/3")
            assert (nowhere.status, "location" in nowhere.headers) == (404, False)
            assert nowhere.text.startswith("There is nothing at '/explore/'. Pages are")
        assert pages.get("/", Host="hub.example.org").status == 200
        assert pages.get("/", Host="hub.example.com").status == 421
        start = pages.get("/user/me/explorer")
        assert (start.status, start.headers["location"]) == (307, "explorer/")


def test_only_get_is_answered(pages):
    connection = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=30)
    for method in ("POST", "PUT", "DELETE"):
        connection.request(method, "/explore")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 405
    connection.close()


@pytest.mark.parametrize("seconds", [float("nan"), 0.0, -1.0])
def test_a_deadline_is_a_number_of_seconds(seconds):
    with pytest.raises(BadInput, match="deadline is"):
        ExplorerConfig("127.0.0.1:0", deadline=seconds)


def test_pages_are_compressed_for_those_who_take_that(pages):
    answer = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=60)
    answer.request("GET", f"/explore?item=shapes/3&{ALL}", headers={"Accept-Encoding": "gzip"})
    found = answer.getresponse()
    content = found.read()
    answer.close()
    assert found.headers["Content-Encoding"] == "gzip"
    text, plain = gzip.decompress(content).decode(), pages.get(f"/explore?item=shapes/3&{ALL}").text
    assert panels_of(text).keys() == panels_of(plain).keys()
    assert len(content) < len(plain) / 4


def test_help_names_the_keys_that_the_script_knows():
    script = (STATIC / "keys.js").read_text(encoding="utf-8")
    (table,) = re.findall(r"const KEYS = \{\n(.*?)\n\};", script, flags=re.DOTALL)
    known = re.findall(r'^  (?:"(.)"|(\w)): \(\) => ', table, flags=re.MULTILINE)
    assert len(known) == len(table.splitlines())
    assert sorted("".join(own) for own in known) == sorted(key for keys, _ in KEYS for key in keys.split())


TEMPLATE = """{% extends "panel.html" %}
{% block remark %}<span class="soft">of {{ state.item }}</span>{% endblock %}
{% block panel %}<p>{{ panel }} layers</p>{% endblock %}
"""


def test_an_added_panel_stands_on_the_page_and_in_an_export_in_its_place(folder, memory, info, monkeypatch):
    """One entry of PANELS and a template."""
    places = ("side", "first", "data", "record")
    for place in places:
        panel = Panel(f"Count in {place}", place, lambda view: len(view.info.layers))
        monkeypatch.setitem(PANELS, f"count-{place}", panel)
    added = DictLoader({f"panels/count-{place}.html": TEMPLATE for place in places})
    monkeypatch.setattr(rendering, "PackageLoader", lambda *own: ChoiceLoader([PackageLoader(*own), added]))
    with served({"run": lambda: dualform.open(folder)}) as pages:
        text = pages.get(f"/explore?item=shapes/3&{ALL}").text
    found = Snapshot(memory, info)
    html = exported_page(found, "run", choose(found, ("shapes/3",), ("label:2",))).html
    begins = r'<div class="(side|first)"|id="fold-(\w+)"|<summary>(Data|Layers|Training|Record)</summary>'
    for place in places:
        heading = f'<h2 id="title-count-{place}">Count in {place} <span class="soft">of shapes/3</span></h2>'
        assert heading in re.sub("</?abbr[^>]*>", "", text)
        assert "<p>3 layers</p>" in panels_of(text)[f"count-{place}"]
        assert panels_in(place)[-1] == f"count-{place}"
        for shown, part in ((text, f'id="panel-count-{place}"'), (html, f'id="panel-count-{place}-p1"')):
            before = re.findall(begins, shown[: shown.index(part)])[-1]
            assert "".join(before).lower() == place
    assert html.count("<p>3 layers</p>") == 2 * len(places)
