"""The page's site: files, policy, status of all copies, recordings."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from doubles import chain, http, post, run_virtual, server_for, wait_until
from fake_page import MS, Played, graph_of, op_state, request, rows, served, turn

from pipeline.engine.journal.journal import REQUEST, SPAN, Outcome
from pipeline.engine.state import EngineState
from pipeline.errors import ErrorCode
from pipeline.frontends.dashboard import routes as page_module
from pipeline.frontends.dashboard.recent import Recorded, Recording
from pipeline.frontends.dashboard.routes import Dashboard
from pipeline.frontends.http.routes import HttpError, WebRequest, WebResponse
from pipeline.observe.snapshot import NO_REPLICA, Snapshot

STATIC = Path(page_module.__file__).with_name("static")


@pytest.fixture
def played() -> Played:
    return Played(graph_of(("", "a"), ("a", "b")))


async def _no_body() -> bytes:
    return b""


def web_request(path: str, query: str = "", method: str = "GET", **headers: str) -> WebRequest:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return WebRequest(method, path, path, query, named, _no_body)


async def reply_of(page: Dashboard, question: WebRequest) -> WebResponse:
    endpoint = page.endpoint(question)
    assert endpoint is not None
    return await endpoint(question)


def answer(page: Dashboard, question: WebRequest) -> WebResponse:
    return run_virtual(reply_of(page, question))


def status(page: Dashboard) -> Any:
    return json.loads(answer(page, web_request("/status.json")).body)


# Files ------------------------------------------------------------------------------------


class References(HTMLParser):
    """What a document loads, and what a strict policy forbids in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.inline += [name for name in named if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in named):
            self.inline.append(tag)
        if tag == "a":
            self.links.append(named["href"] or "")
        else:
            self.loads += [named[name] or "" for name in ("src", "href") if name in named]


def test_the_page_loads_existing_files_and_has_nothing_inline(played):
    page = played.page()
    html = answer(page, web_request("/"))
    assert html.content_type == b"text/html; charset=utf-8"
    references = References(html.body.decode())
    assert references.inline == []
    assert "page.js" in references.loads
    for name in references.loads:
        assert answer(page, web_request(f"/{name}")).status == 200


class Landmarks(HTMLParser):
    """The names of a document's regions, as readers for the blind list them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        name = named.get("aria-label") or named.get("aria-labelledby")
        if name and (tag == "section" or named.get("role") == "region"):
            self.names.append(name)


def test_no_two_regions_have_one_name(played):
    names = Landmarks(answer(played.page(), web_request("/")).body.decode()).names
    assert names
    assert len(names) == len(set(names))


def test_scripts_load_only_files_that_are_there(played):
    for path in STATIC.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', path.read_text("utf-8")):
            reply = answer(played.page(), web_request(f"/{name}"))
            assert reply.content_type == b"text/javascript; charset=utf-8"


def test_no_file_names_another_host():
    namespace = "http://www.w3.org/2000/svg"  # a name, nothing is fetched from there
    for path in STATIC.iterdir():
        text = path.read_text("utf-8").replace(namespace, "")
        assert re.findall(r"\w+://[\w./]+", text) in ([], ["chrome://tracing."]), path
        assert '"//' not in text


def test_no_script_reads_data_as_html_or_code():
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\("
    )
    for path in STATIC.glob("*.js"):
        assert not forbidden.search(path.read_text("utf-8")), path


@pytest.mark.parametrize("path", ["/", "/page.css", "/page.js", "/status.json"])
def test_each_answer_has_a_strict_content_security_policy(played, path):
    headers = dict(answer(played.page(), web_request(path)).headers)
    policy = headers[b"content-security-policy"].decode()
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers[b"x-content-type-options"] == b"nosniff"


def test_a_file_that_the_browser_has_is_not_sent_again(played):
    page = played.page()
    first = answer(page, web_request("/page.js"))
    tag = dict(first.headers)[b"etag"].decode()
    again = answer(page, web_request("/page.js", if_none_match=tag))
    assert (again.status, again.body) == (304, b"")
    other = answer(page, web_request("/page.js", if_none_match='"other"'))
    assert (other.status, other.body) == (200, first.body)


@pytest.mark.parametrize(
    "path", ["/page.html", "/page", "/../page.py", "/static/page.js", "/status", "/metrics", "//"]
)
def test_other_paths_are_left_to_others(played, path):
    assert played.page().endpoint(web_request(path)) is None


@pytest.mark.parametrize("path", ["/", "/page.js", "/status.json", "/trace.json"])
def test_other_methods_are_refused(played, path):
    with pytest.raises(HttpError) as refusal:
        answer(played.page(), web_request(path, method="POST"))
    assert refusal.value.status == 405
    assert refusal.value.headers == ((b"allow", b"GET, HEAD"),)


@pytest.mark.usefixtures("open_files")
def test_a_real_door_serves_it(played):
    with served(played.page()) as url:
        with urllib.request.urlopen(url, timeout=30) as response:
            assert b"<!doctype html>" in response.read()
        head = urllib.request.Request(f"{url}status.json", method="HEAD")
        with urllib.request.urlopen(head, timeout=30) as response:
            assert (response.status, response.read()) == (200, b"")
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"{url}trace.json?seconds=never", timeout=30)
        error = json.loads(refusal.value.read())
        refusal.value.close()
        assert (refusal.value.code, error["err_no"]) == (400, ErrorCode.RPC_PACKAGE_ERROR)
        assert "from 0.1 to 30" in error["err_msg"]


# Status -----------------------------------------------------------------------------------


def test_the_status_has_states_and_counters(played):
    played.states["a"] = op_state("a", joining=1, queued=2, running=3, wanted=5, up=4, busy=3)
    played.inside, played.waiting, played.rejected = 6, 7, 8
    at = played.now_ns
    played.fold(
        [turn(n, 0, at=at, queue=MS, stages=(MS, 2 * MS, 3 * MS), batch=1) for n in (1, 2)],
        [request(1, at=at, took=9 * MS), request(2, at=at, took=8 * MS)],
    )
    played.recent.failed(3, 33, "boom")
    played.fold(
        [turn(3, 0, at=at, outcome=Outcome.BACKEND)],
        [request(3, at=at, took=7 * MS, outcome=Outcome.BACKEND, code=4)],
    )
    result = status(played.page())
    assert (result["name"], result["copies"], result["is_ready"]) == ("shop", 1, True)
    engine = [result[name] for name in ("inside", "waiting", "accepted", "rejected")]
    assert engine == [6, 7, 3, 8]
    a, b = result["ops"]
    assert (a["name"], a["joining"], a["queued"], a["running"]) == ("a", 1, 2, 3)
    assert (a["workers"]["wanted"], a["workers"]["up"], a["workers"]["busy"]) == (5, 4, 3)
    assert a["counters"]["requests"] == 2
    assert a["counters"]["executions"] == 1
    assert a["counters"]["batches"] == {"2": 1}
    assert a["counters"]["busy_ns"] == 6 * MS
    assert a["counters"]["infer_ns"] == 4 * MS
    assert a["counters"]["failed"]["backend"] == 1
    assert sum(a["counters"]["latency"]) == 2
    assert b["counters"]["latency"] == []
    assert result["pipeline"]["succeeded"] == 2
    assert [slow["data_id"] for slow in result["slowest"]] == ["1", "2"]
    (failed,) = result["failed"]
    assert (failed["log_id"], failed["outcome"], failed["error"]) == ("33", "backend", "boom")
    assert [t["op"] for t in result["slowest"][0]["turns"]] == ["@unpack", "a"]


def page_of(played: Played, *snapshots: Snapshot) -> Dashboard:
    async def whole() -> list[Snapshot]:
        return list(snapshots)

    return Dashboard(played.name, played.graph, whole)


def test_replicas_are_summed_with_counters_of_dead_ones(played):
    other = Played(played.graph, copy=1, is_ready=False)
    at = played.now_ns
    for number, each in enumerate((played, other)):
        each.states["b"] = op_state("b", queued=2, wanted=3, busy=1)
        each.inside = 5
        each.fold([turn(number, 1, at=at)], [request(number, at=at, took=(number + 1) * MS)])
    dead = Snapshot(NO_REPLICA, EngineState(True, 0, 0, 0, 0), played.statistics.models)
    result = status(page_of(played, played.snapshot(), other.snapshot(), dead))
    assert (result["copies"], result["is_ready"], result["inside"]) == (2, False, 10)
    b = result["ops"][1]
    assert (b["queued"], b["workers"]["wanted"], b["workers"]["busy"]) == (4, 6, 2)
    assert b["counters"]["succeeded"] == 3
    assert result["pipeline"]["succeeded"] == 3
    assert [(slow["copy"], slow["data_id"]) for slow in result["slowest"]] == [(1, "1"), (0, "0")]


@pytest.mark.parametrize("copies", [0, 1])
def test_a_server_without_statistics_or_answers_is_shown(played, copies):
    snapshot = played.snapshot()
    snapshot.models = []
    result = status(page_of(played, *[snapshot] * copies))
    assert [op["name"] for op in result["ops"]] == ["a", "b"]
    assert result["ops"][0]["counters"]["executions"] == 0
    assert result["is_ready"] == bool(copies)
    assert result["can_record"] is False


def test_a_service_without_a_name_is_called_pipeline(played):
    played.name = None
    assert status(played.page())["name"] == "pipeline"


def test_many_pages_cause_one_query(played):
    now = [100.0]
    page = Dashboard(played.name, played.graph, played.whole, clock=lambda: now[0])

    async def many() -> list[WebResponse]:
        asking = [reply_of(page, web_request("/status.json")) for _ in range(20)]
        return list(await asyncio.gather(*asking))

    assert len({reply.body for reply in run_virtual(many())}) == 1
    assert played.questions == 1
    now[0] += 1.0
    run_virtual(many())
    assert played.questions == 2


# Trace ------------------------------------------------------------------------------------


def run_real(test: Coroutine[Any, Any, Any]) -> Any:
    """On a loop that has threads: a trace is written in one."""
    return asyncio.run(test)


def test_a_recording_of_all_replicas_is_one_trace(played):
    other = Played(played.graph, copy=1)

    async def record(seconds: float) -> list[bytes]:
        assert seconds == 0.25
        async with asyncio.TaskGroup() as group:
            results = [group.create_task(item.record(0.01)) for item in (played, other)]
            await asyncio.sleep(0)
            for number, each in enumerate((played, other)):
                each.recording.notify(
                    rows(SPAN, turn(number, 0, at=10**9)),
                    rows(REQUEST, request(number, at=10**9, took=5 * MS)),
                )
        return [result.result()[0] for result in results]

    page = Dashboard(played.name, played.graph, played.whole, record)
    reply = run_real(reply_of(page, web_request("/trace.json", "seconds=0.25")))
    headers = dict(reply.headers)
    assert headers[b"content-disposition"] == b'attachment; filename="pipeline_trace.json"'
    assert b"x-trace-cut" not in headers
    document = json.loads(reply.body)
    names = [event["args"]["name"] for event in document if event.get("name") == "process_name"]
    assert len(names) == len(set(names)) > 2, "each copy has processes of its own"
    assert {"request 0", "request 1"} <= {event.get("name") for event in document}


@pytest.mark.parametrize(
    "query",
    [
        "seconds=",
        "seconds=x",
        "seconds=0",
        "seconds=nan",
        "seconds=31",
        "seconds=-1",
        "seconds=1e999",
    ],
)
def test_a_recording_of_no_or_too_many_seconds_is_refused(played, query):
    with pytest.raises(HttpError) as refusal:
        answer(played.page(), web_request("/trace.json", query))
    assert refusal.value.status == 400


def test_without_statistics_nothing_can_be_recorded(played):
    page = Dashboard(played.name, played.graph, played.whole)
    with pytest.raises(HttpError, match="statistics: True") as refusal:
        answer(page, web_request("/trace.json"))
    assert refusal.value.status == 404


def test_only_so_many_record_at_a_time(played):
    going_on = asyncio.Event()

    async def record(seconds: float) -> list[bytes]:
        await going_on.wait()
        return []

    async def main() -> None:
        page = Dashboard(played.name, played.graph, played.whole, record)
        recording = [
            asyncio.ensure_future(reply_of(page, web_request("/trace.json"))) for _ in range(2)
        ]
        await asyncio.sleep(0)
        with pytest.raises(HttpError) as refusal:
            await reply_of(page, web_request("/trace.json"))
        assert (refusal.value.status, refusal.value.headers) == (503, ((b"retry-after", b"4"),))
        going_on.set()
        assert (await recording[1]).status == 200
        assert (await reply_of(page, web_request("/trace.json"))).status == 200

    run_real(main())


def test_a_recording_of_a_cancelled_request_counts_until_it_ends(played):
    """Other copies of the server still record: callers that leave must not pile up."""
    going_on, begun = asyncio.Event(), []

    async def record(seconds: float) -> list[bytes]:
        begun.append(seconds)
        await going_on.wait()
        return []

    async def main() -> None:
        page = Dashboard(played.name, played.graph, played.whole, record)
        refused = 0
        for _ in range(10):
            recording = asyncio.ensure_future(reply_of(page, web_request("/trace.json")))
            await asyncio.sleep(0)
            recording.cancel()
            (end,) = await asyncio.gather(recording, return_exceptions=True)
            refused += isinstance(end, HttpError)
        assert (len(begun), refused) == (2, 8)
        going_on.set()
        await asyncio.wait(page._recordings)
        assert (await reply_of(page, web_request("/trace.json"))).status == 200

    run_real(main())


def test_a_truncated_trace_is_marked(played):
    async def record(seconds: float) -> list[bytes]:
        return [msgspec.msgpack.encode(Recorded(0, is_cut, b"", b"")) for is_cut in (False, True)]

    page = Dashboard(played.name, played.graph, played.whole, record)
    reply = run_real(reply_of(page, web_request("/trace.json")))
    assert dict(reply.headers)[b"x-trace-cut"] == b"true"


# In a real server -------------------------------------------------------------------------


@pytest.mark.usefixtures("open_files")
def test_a_server_shows_its_requests():
    with server_for(chain("a", "b")) as server:
        for _ in range(3):
            assert post(server, {"key": [], "value": []})[1]["err_no"] == 0
        assert http(server, "POST", "/svc/prediction", b"{")[0] == 400
        result = http(server, "GET", "/status.json")[2]
        trace = http(server, "GET", "/trace.json?seconds=0.1")
    assert (result["name"], result["accepted"], result["is_ready"]) == ("svc", 3, True)
    assert result["pipeline"]["succeeded"] == 3
    assert [op["counters"]["succeeded"] for op in result["ops"]] == [3, 3]
    paths = [[t["op"] for t in slow["turns"]] for slow in result["slowest"]]
    assert paths == [["@unpack", "a", "b", "@pack"]] * 3
    assert trace[0] == 200


@pytest.mark.usefixtures("open_files")
def test_a_recording_ends_when_the_server_stops_and_is_answered(caplog):
    server = server_for(chain("a"))
    with ThreadPoolExecutor(1) as caller:
        with server:
            post(server, {"key": [], "value": []})
            trace = caller.submit(http, server, "GET", "/trace.json?seconds=30")
            sinks = server._service._first.observation.journal.sinks
            (recording,) = [sink for sink in sinks if isinstance(sink, Recording)]
            wait_until(lambda: bool(recording._running))
            post(server, {"key": [], "value": []})
        status, _, events = trace.result(10)
    assert status == 200
    assert {"name": "Op a"} in [event.get("args") for event in events]
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_the_page_can_be_switched_off():
    with server_for(chain("a"), status_page=False) as server:
        assert http(server, "GET", "/")[0] == 404
        assert http(server, "GET", "/status.json")[0] == 404
