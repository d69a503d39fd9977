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
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from urllib.parse import quote, urlsplit

import pytest
import torch

import dualform
from dualform.errors import BadInput, Unavailable
from dualform.methods import Answers
from dualform.questions import Contribution, GroupSum, Inventory
from dualform_client import Client
from dualform_explorer import server
from dualform_explorer.application import Pages
from dualform_explorer.memories import Memories
from dualform_explorer.panels import PANELS
from dualform_explorer.server import ExplorerConfig
from dualform_service.config import ServiceConfig
from dualform_service.server import Server
from tests.explorer.recorded import images_of, network
from tests.explorer.served import Served, served
from tests.service.test_tls import certificate


@pytest.fixture(scope="module")
def pages(folder) -> Iterator[Served]:
    with served({"run": lambda: dualform.open(folder)}) as found:
        yield found


class Troubled(Answers):
    """Answers as another one does, but for questions of one kind."""

    def __init__(self, answers: Answers, kind: type, trouble) -> None:
        self.answers, self.kind, self.trouble = answers, kind, trouble

    def ask(self, question):
        if isinstance(question, self.kind):
            self.trouble()
        return self.answers.ask(question)

    def close(self) -> None:
        self.answers.close()


def panels_of(text: str) -> dict[str, str]:
    """By name, each panel's HTML."""
    return {
        found[1]: found[0] for found in re.finditer(r'<section id="panel-([\w-]+)".*?</section>', text, flags=re.DOTALL)
    }


def failed(text: str) -> set[str]:
    return {name for name, html in panels_of(text).items() if "data-failure" in html}


def test_a_page_without_scripts_is_whole(pages):
    page = pages.get("/explore?item=shapes/3&without=label:1&open=data,layers,training,record")
    assert page.status == 200
    assert list(panels_of(page.text)) == [*PANELS]
    assert not failed(page.text)


def test_sums_and_slots_are_sent_before_what_passes_over_every_layer(pages):
    text = pages.get("/explore?item=shapes/3&open=data,layers,training,record").text
    sent = [text.index(f'id="panel-{name}"') for name in ("query", "output", "sums", "slots", "layers")]
    assert sent == sorted(sent)


def test_numbers_have_all_their_digits_beside_them(pages, memory):
    text = panels_of(pages.get("/explore?item=shapes/3&open=data,layers,training,record").text)["sums"]
    shown = re.findall(
        r'<td class="right sum"><data class="n" value="([^"]+)" data-value="([^"]+)" title="([^"]+)"', text
    )
    sums = memory.group_sum("4", "shapes/3", by=("dataset", "label")).sums[0].tolist()
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


def test_a_recording_is_looked_ahead_at_without_moving_the_page(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = images_of(0, 0)

    def step():
        with recorder.step(dataset="shapes", label=labels[:12], sample=torch.arange(12)):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[:12]), labels[:12]).backward()
            optimizer.step()

    with dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True) as recorder:
        step()
        recorder.query_set("test", inputs, label=labels)
        recorder.flush()
        with served({"run": lambda: dualform.open(tmp_path / "run")}) as pages:
            text = pages.get("/explore?item=test/1&open=data,layers,training,record").text
            assert 'data-recording="yes"' in text
            before = json.loads(pages.get("/news").text)
            assert (before["steps"], before["recording"]) == (1, True)
            for _ in range(3):
                step()
            recorder.flush()
            after = json.loads(pages.get("/news").text)
            assert (after["steps"], after["snapshot"] > before["snapshot"]) == (4, True)
            parts = pages.get("/panels?item=test/1&open=data,layers,training,record").text
            assert "1</data> steps of SGD" in parts.replace('\\"', '"')
            assert "4</data> steps of SGD" in pages.get("/explore?item=test/1&open=data,layers,training,record").text


def test_the_start_page_leads_to_examples(pages):
    page = pages.get("/")
    assert page.status == 200
    links = re.findall(r'href="(explore\?item=shapes/[^"]+)"', page.text)
    assert links
    assert pages.get("/" + links[0].replace("&amp;", "&")).status == 200


def test_all_that_a_page_loads_or_links_to_is_relative_and_ours(pages):
    for path in ("/", "/explore?item=shapes/3&without=dataset:shapes"):
        for address in re.findall(r'(?:href|src|action)="([^"]+)"', pages.get(path).text):
            parts = urlsplit(address)
            assert not parts.netloc
            assert parts.scheme in ("", "data")
            assert not address.startswith("/")


def test_what_a_memory_holds_is_text_in_the_page(pages):
    text = pages.get("/explore?item=noise/1").text
    assert "noise <b>" not in text
    assert "noise &lt;b&gt;" in text
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
        ("label =", "where"),
        ("colour = 3", "no slot column"),
    ],
)
def test_a_mask_that_cannot_be_is_told_of_once(pages, where, message):
    page = pages.get(f"/explore?item=shapes/3&where={quote(where)}&open=data,layers,training,record")
    assert page.status == 200
    assert {"sums", "slots", "steps"} <= failed(page.text)
    assert "query" not in failed(page.text)
    assert message in panels_of(page.text)["filter"]
    for name in failed(page.text):
        assert panels_of(page.text)[name].endswith("hidden></section>"), name


def test_a_condition_that_would_reach_beyond_the_chips_is_refused(pages):
    state = f"item=shapes/3&without=label:3&where={quote('label = 1) OR (true')}&open=data,layers,training,record"
    page = pages.get(f"/explore?{state}")
    assert page.text.count("closes a parenthesis that it did not open") == 1
    assert "closes a parenthesis that it did not open" in panels_of(page.text)["filter"]
    assert re.search(r'<section id="panel-sums"[^>]* data-failure="bad_mask" hidden>', page.text)
    paper = pages.get(f"/paper?{state}")
    assert paper.status == 200
    assert "closes a parenthesis that it did not open" in paper.text


def test_a_condition_that_is_refused_stands_where_it_was_written(pages):
    own = "label = 1) OR (true"
    text = pages.get(f"/explore?item=shapes/3&without=label:3&where={quote(own)}").text
    assert re.search(r'<textarea[^<]*">([^<]*)</textarea>', text)[1] == own


@pytest.mark.parametrize(("by", "coloured"), [("dataset,label", "dataset"), ("label", "label"), ("step", None)])
def test_a_chip_has_a_colour_where_groups_have_it_of_the_same_column(pages, by, coloured):
    text = pages.get(f"/explore?item=shapes/3&by={by}").text
    chips = re.findall(r'<a class="chip" [^>]*title="(\w+), [^>]*><i class="dot( h[0-9])?">', text)
    assert {column for column, _ in chips} == {"dataset", "label"}
    assert all(bool(hue) == (column == coloured) for column, hue in chips)


def test_an_output_as_of_a_step_is_said_to_be_that_of_its_layer_alone(pages):
    output = re.compile(r'<section id="panel-output".*?</section>', re.DOTALL)
    whole, earlier = (output.search(pages.get(f"/explore?item=shapes/3{own}").text)[0] for own in ("", "&at=20"))
    assert "of the network</span>" in whole
    assert "of layer 4 as of step 20</span>" in earlier
    assert "As of step 20, only this layer goes back: its inputs are the ones stored with the query set." in earlier
    assert ">predicted</span>" in whole
    assert ">predicted</span>" not in earlier


def test_one_panel_that_fails_leaves_the_others(folder):
    def gone():
        raise Unavailable("The server went away.", hint="Start it again.")

    with served({"run": lambda: Troubled(dualform.open(folder), Contribution, gone)}) as pages:
        text = pages.get("/explore?item=shapes/3&open=data,layers,training,record").text
    assert failed(text) == {"answer", "terms"}
    assert "The server went away." in panels_of(text)["terms"]
    assert "Start it again." in panels_of(text)["terms"]


def test_a_fault_of_ours_shows_no_traceback(folder, caplog):
    def broken():
        raise ZeroDivisionError("in the midst of it")

    with served({"run": lambda: Troubled(dualform.open(folder), Contribution, broken)}) as pages:
        text = pages.get("/explore?item=shapes/3&open=data,layers,training,record").text
    assert failed(text) == {"answer", "terms"}
    assert "Traceback" not in text
    assert "ZeroDivisionError: in the midst of it" in panels_of(text)["terms"]
    assert "the panel terms failed" in caplog.text


def test_a_panel_that_is_late_says_so_and_the_others_stand(folder):
    late, let_go = threading.Event(), threading.Event()

    def wait():
        if late.is_set():
            let_go.wait()

    with served({"run": lambda: Troubled(dualform.open(folder), Contribution, wait)}, deadline=6.0) as pages:
        pages.get("/explore?item=shapes/4&open=data,layers,training,record")  # first questions take longer
        late.set()
        text = pages.get("/explore?item=shapes/3&open=data,layers,training,record").text
        let_go.set()
    assert failed(text) == {"answer", "terms"}
    assert "There was no answer within 6 seconds." in panels_of(text)["terms"]


def test_the_same_question_is_asked_once(folder):
    asked = []

    class Counted(Troubled):
        def ask(self, question):
            asked.append(question)
            return super().ask(question)

    with served({"run": lambda: Counted(dualform.open(folder), int, None)}) as pages:
        pages.get("/explore?item=shapes/3&by=label&open=data,layers,training,record")
        first = [question for question in asked if isinstance(question, GroupSum)]
        pages.get("/explore?item=shapes/3&by=label&open=data,layers,training,record")
    assert len(set(first)) == len(first) > 3
    assert [question for question in asked if isinstance(question, GroupSum)] == first


def test_a_server_elsewhere_gives_the_same_page_and_its_end_is_told(folder, pages):
    with dualform.open(folder) as engine:
        server = Server(engine, ServiceConfig("127.0.0.1:0", sql=True))
        server.start()
        with served({"run": lambda: Client(server.address, timeout=20)}) as remote:
            path = "/explore?item=shapes/3&without=label:2&open=data,layers,training,record"
            here, there = panels_of(pages.get(path).text), panels_of(remote.get(path).text)
            del here["record"], there["record"]  # which says how long answering took
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
        "&".join(f"{number:x}=1" for number in range(200)),
        "&".join(f"without=label:{'x' * 60}" for _ in range(200)),
        "by=" + "x," * 1_900 + "&where=" + "x" * 3_900 + "".join(f"&{name:x}=" for name in range(150)),
        "by=a,b,c&layer=9&item=x/1&where=" + "%C3%BC" * 3_900,
        "item=" + "x" * 50_000,
        "by=" + "x," * 25_000,
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
    monkeypatch.setattr(server, "SECONDS", 3.0)
    with served({"run": lambda: dualform.open(folder)}) as pages, ExitStack() as open_ones:
        quiet = [open_ones.enter_context(slow(pages.port)) for _ in range(150)]
        assert pages.get("/explore?item=shapes/3&open=data,layers,training,record").status == 200
        assert ends(quiet[0])
        again = open_ones.enter_context(slow(pages.port))
        for _ in range(20):  # what comes bit by bit has no more time
            try:
                again.sendall(b"x")
            except ConnectionError:
                break
            time.sleep(0.3)
        else:
            pytest.fail("half a request may take any time")
        assert all(map(ends, quiet))
        css = pages.get("/static/explorer.css").text
        unread = open_ones.enter_context(socket.create_connection(("127.0.0.1", pages.port), 60))
        unread.sendall(b"GET /static/explorer.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        time.sleep(6.0)
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
    monkeypatch.setattr(server, "SECONDS", 1.0)
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
    with served({"run": lambda: Troubled(dualform.open(folder), Inventory, lambda: going.wait(30))}) as pages:
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


def test_a_name_that_was_given_is_let_in(folder):
    with served({"run": lambda: dualform.open(folder)}, hosts=["hub.example.org"]) as pages:
        assert pages.get("/", Host="hub.example.org").status == 200
        assert pages.get("/", Host="hub.example.com").status == 421


def test_with_a_token_nothing_of_a_memory_is_shown_without_it(folder):
    with served({"run": lambda: dualform.open(folder)}, token="sesame-sesame-sesame") as pages:
        for path in ("/", "/explore", "/explore?item=shapes/3&open=data,layers,training,record"):
            for headers in ({}, {"Authorization": "Bearer sesame"}, {"Authorization": "Basic sesame-sesame-sesame"}):
                page = pages.get(path, **headers)
                assert page.status == 401
                assert "shapes" not in page.text
                assert "sesame" not in page.text
            assert pages.get(path, Authorization="Bearer sesame-sesame-sesame").status == 200
        assert pages.get("/static/explorer.css").status == 200


def test_it_works_under_a_prefix_that_a_proxy_leaves_in_the_path_or_takes_away(folder):
    with served({"run": lambda: dualform.open(folder)}, root_path="/user/me/explorer") as pages:
        for prefix in ("", "/user/me/explorer"):
            assert pages.get(f"{prefix}/").status == 200
            assert pages.get(f"{prefix}/explore?item=shapes/3&open=data,layers,training,record").status == 200
            assert pages.get(f"{prefix}/static/explorer.css").status == 200
            nowhere = pages.get(f"{prefix}/explore/?item=shapes/3")
            assert (nowhere.status, "location" in nowhere.headers) == (404, False)
            assert nowhere.text.startswith("There is nothing at '/explore/'. Pages are")
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
    answer.request(
        "GET", "/explore?item=shapes/3&open=data,layers,training,record", headers={"Accept-Encoding": "gzip"}
    )
    found = answer.getresponse()
    content = found.read()
    answer.close()
    assert found.headers["Content-Encoding"] == "gzip"
    text, plain = (
        gzip.decompress(content).decode(),
        pages.get("/explore?item=shapes/3&open=data,layers,training,record").text,
    )
    assert panels_of(text).keys() == panels_of(plain).keys()
    assert len(content) < len(plain) / 4


def test_the_output_layer_is_asked_before_the_first_visitor(folder):
    asked = []

    class Counted(Troubled):
        def ask(self, question):
            asked.append(type(question))
            return super().ask(question)

    with served({"run": lambda: Counted(dualform.open(folder), int, None)}):
        for _ in range(200):
            if Contribution in asked:
                break
            time.sleep(0.05)
    assert Contribution in asked


def test_under_contributions_layers_are_compared_by_attention_and_say_so(folder):
    address = "/explore?item=shapes/3&layer=4&target=1-2&by=label&open=layers&score="
    with served({"run": lambda: dualform.open(folder)}) as pages:
        by_score = {score: pages.get(address + score).text for score in ("dot", "contribution")}
    ribbons = {score: re.findall(r'<svg class="ribbon".*?</ul>', text, re.DOTALL) for score, text in by_score.items()}
    widths = {score: re.findall(r'<rect x="([^"]*)" width="([^"]*)"', own) for score, (own,) in ribbons.items()}
    assert widths["dot"] == widths["contribution"]
    assert "shares of attention scores by label" in by_score["contribution"]
    said = "so layers are compared by attention"
    assert (said in by_score["dot"], said in by_score["contribution"]) == (False, True)
