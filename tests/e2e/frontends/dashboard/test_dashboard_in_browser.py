"""What a reader sees: the page in a real Chromium, before a server that only plays."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator

import msgspec
import pytest
from browser import CHROMIUM, Browser, shared_chromium
from fake_page import MS, Played, graph_of, op_state, request, served, turn

from pipeline.engine.journal.journal import Outcome
from pipeline.engine.state import SequencesState

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")


@pytest.fixture(scope="module", autouse=True)
def chromium():
    with shared_chromium():
        yield


DIAMOND = (("", "cut"), ("cut", "left"), ("cut", "right"), ("left", "join"), ("right", "join"))
EVIL = '"><img src=x onerror="window.bitten=1"><script>window.bitten=1</script>'


@contextlib.contextmanager
def opened(
    played: Played, width: int = 1280, height: int = 800, is_dark: bool = False
) -> Iterator[Browser]:
    """The page of a played server, with its first status; it must have nothing to complain of."""
    with served(played.page()) as url, Browser(width, height, is_dark) as browser:
        browser.open(url)
        browser.wait_for("document.querySelector('.node h3') !== null")
        yield browser
        assert browser.complaints == []


def ran(played: Played, number: int, took: int = 10 * MS) -> None:
    """A request goes through all Ops, in which it takes as long as in the whole."""
    at = played.now_ns
    turns = [turn(number, op, at=at, stages=(0, took, 0)) for op in range(len(played.names))]
    played.fold(turns, [request(number, at=at, took=took)])


def row_of(op: str) -> str:
    """JavaScript: the texts of an Op's row in the table."""
    name = json.dumps(op)
    rows = "[...document.querySelectorAll('#ops tr')]"
    find = f"{rows}.find((row) => row.dataset.key === {name})"
    return f"[...{find}.children].map((cell) => cell.textContent)"


def test_the_graph_is_drawn_and_its_figures_follow_the_server():
    played = Played(graph_of(*DIAMOND))
    with opened(played) as browser:
        assert browser.text("#name") == "shop"
        assert browser.text("#state") == "Ready"
        drawn = "[...document.querySelectorAll('.node h3')].map((title) => title.textContent)"
        assert browser.run(drawn) == ["cut", "left", "right", "join"]
        assert browser.run("document.querySelectorAll('path.wire').length") == 6
        played.states["left"] = op_state("left", queued=11, running=2, wanted=4, up=3, busy=2)
        played.is_ready = False
        for number in range(20):
            ran(played, number)
        left = browser.wait_for(f"({row_of('left')})[7] === '11' && {row_of('left')}")
        assert left[0] == "left"
        assert left[8:] == ["0", "2", "2 of 3 threads, 1 down", "0"]
        assert browser.text("#state") == "Not ready"
        node = "[...document.querySelectorAll('.node')].find((n) => n.title === 'left: Op')"
        assert "3 of 4 up" in browser.run(f"{node}.innerText")


def test_sequences_are_there_for_ops_that_have_any():
    played = Played(graph_of(("", "cut"), ("cut", "vad")))

    def stand(**counts: int) -> None:
        its = SequencesState(slots=4, used=4, ended=10, **counts)
        played.states["vad"] = msgspec.structs.replace(op_state("vad"), sequences=its)

    with opened(played) as browser:
        card = "document.getElementById('sequences_card')"
        assert browser.run(f"{card}.hidden")
        stand(live=6, backlog=2, reaped=3)
        cells = f"[...{card}.querySelectorAll('tbody td')].map((cell) => cell.textContent)"
        wait = browser.wait_for(f"!{card}.hidden && {cells}")
        assert wait[:2] == ["4 of 4", "2"]
        assert "4 of 4 slots" in browser.run("document.getElementById('graph').innerText")
        stand(live=5, backlog=1, reaped=5, lost=1)
        browser.wait_for(f"({cells})[1] === '1'")
        assert browser.run(cells)[6] == "1"
        assert browser.run(f"{card}.querySelector('td.bad').textContent") == "1"


def test_percentiles_throughput_and_batches_are_of_the_time_that_is_looked_at():
    played = Played(graph_of(("", "only")))
    for number in range(100):
        ran(played, number, took=1000 * MS)
    with opened(played) as browser:
        assert (
            browser.wait_for(f"({row_of('only')})[4] !== '–' && ({row_of('only')})[4]")[-1] == "s"
        )
        browser.run("document.querySelector('input[value=\"300\"]').click()")
        browser.wait_for("document.getElementById('rate').textContent === '0/s'")
        for number in range(100, 200):
            ran(played, number, took=10 * MS)
        all_are_there = "document.getElementById('rate_more').textContent === '200 since the start'"
        browser.wait_for(all_are_there)
        assert browser.text("#rate") != "0/s"
        cells = browser.run(row_of("only"))
        for percentile in cells[2:5]:
            value, unit = percentile.split()
            assert unit == "ms"
            assert 8 <= float(value) <= 12, "the slow ones were before"
        assert cells[6] == "1"


def test_values_of_the_server_are_shown_as_text_and_never_as_markup():
    played = Played(graph_of(("", EVIL)), name=EVIL)
    played.recent.failed(1, 1, EVIL)
    at = played.now_ns
    played.fold(
        [turn(1, 0, at=at, outcome=Outcome.BACKEND)],
        [request(1, at=at, took=MS, outcome=Outcome.BACKEND)],
    )
    ran(played, 2)
    with opened(played) as browser:
        browser.wait_for("document.querySelectorAll('details').length === 2")
        browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        browser.wait_for("document.querySelectorAll('.path').length === 2")
        assert browser.text("#name") == EVIL
        assert browser.text(".path .error") == EVIL
        assert browser.run("document.querySelectorAll('img, main script, .who script').length") == 0
        assert browser.run("window.bitten") is None


def test_the_policy_stops_an_injected_script():
    with served(Played(graph_of(("", "a"))).page()) as url, Browser() as browser:
        browser.open(url)
        browser.run("document.body.innerHTML = '<img src=x onerror=\"window.bitten=1\">'")
        browser.wait_for("document.querySelector('img').complete")
        assert browser.run("window.bitten") is None
        assert any("Content Security Policy" in text for text in browser.complaints)


def test_a_slow_request_opens_its_path_and_stays_open():
    played = Played(graph_of(("", "a"), ("a", "b")))
    at = played.now_ns
    turns = [
        turn(7, 0, at=at + 10 * MS, queue=50 * MS, stages=(0, 20 * MS, 0)),
        turn(7, 1, at=at + 80 * MS, stages=(0, 20 * MS, 0)),
    ]
    played.fold(turns, [request(7, at=at, took=100 * MS, waited=10 * MS)])
    with opened(played) as browser:
        assert browser.text("#slowest summary .why") == "50 ms of it: queue of a"
        browser.run("document.querySelector('#slowest summary').click()")
        browser.wait_for("document.querySelector('#slowest .track i') !== null")
        pieces = browser.run(
            "[...document.querySelectorAll('#slowest .turn')].slice(0, 3).map((turn) => "
            "[turn.firstChild.textContent, ...[...turn.querySelectorAll('i')].map((piece) => "
            "[piece.className, piece.style.left, piece.style.width])])"
        )
        assert pieces == [
            ["RequestOp", ["queue", "0%", "10%"]],
            ["a", ["queue", "10%", "50%"], ["infer", "60%", "20%"]],
            ["b", ["infer", "80%", "20%"]],
        ]
        for number in range(100, 120):  # others take all places
            ran(played, number, took=200 * MS)
        browser.wait_for("document.querySelectorAll('#slowest details').length === 11")
        assert browser.run("document.querySelectorAll('#slowest details[open]').length") == 1


def test_gaps_in_the_path_of_a_request_have_names():
    played = Played(graph_of(*DIAMOND))
    at = played.now_ns
    turns = [
        turn(7, 0, at=at, stages=(0, 10 * MS, 0), late=10 * MS),
        turn(7, 1, at=at + 20 * MS, stages=(0, 10 * MS, 0)),
        turn(7, 2, at=at + 20 * MS, stages=(0, 60 * MS, 0)),
        turn(7, 3, at=at + 80 * MS, queue=10 * MS, stages=(0, 10 * MS, 0)),
    ]
    played.fold(turns, [request(7, at=at, took=100 * MS)])
    with opened(played) as browser:
        browser.run("document.querySelector('#slowest summary').click()")
        browser.wait_for("document.querySelector('#slowest .track i') !== null")
        paths = dict(
            browser.run(
                "[...document.querySelectorAll('#slowest .turn')].slice(0, 5).map((turn) => "
                "[turn.firstChild.textContent, [...turn.querySelectorAll('i')].map((piece) => "
                "[piece.className, piece.style.left, piece.style.width])])"
            )
        )
        assert paths["cut"] == [["infer", "0%", "10%"], ["loop", "10%", "10%"]]
        assert paths["join"] == [
            ["join", "30%", "50%"], ["queue", "80%", "10%"], ["infer", "90%", "10%"]
        ]  # fmt: skip
        reported = browser.run(
            "[...document.querySelectorAll('#slowest .turn')].map((t) => t.title)"
        )
        assert any(
            "waiting for the event loop (or Python's GIL) 10 ms" in text for text in reported
        )
        assert any("waiting for another branch (right) 50 ms" in text for text in reported)


def test_waiting_for_a_branch_and_for_a_worker_are_separate():
    played = Played(graph_of(*DIAMOND))
    played.states["join"] = op_state("join", joining=5, queued=3)
    with opened(played) as browser:
        texts = "[...document.querySelectorAll('.node .facts')].map((line) => line.textContent)"
        assert any("3 waiting, 5 at join" in text for text in browser.run(texts))
        titles = "[...document.querySelectorAll('.card:has(#ops) thead th')]"
        head = browser.run(f"{titles}.map((c) => c.textContent)")
        cells = dict(zip(head, browser.run(row_of("join")), strict=True))
        assert (cells["Waiting"], cells["At a join"]) == ("3", "5")


def test_sparklines_show_the_last_minute_at_once():
    played = Played(graph_of(("", "a")))
    for number in range(50):
        played.now_ns += 1000 * MS
        ran(played, number)
    played.now_ns += 1000 * MS
    with opened(played) as browser:
        points = browser.run("document.querySelector('#rate_line path').getAttribute('d')")
        heights = [float(point.split(",")[1]) for point in points[1:].split("L")]
        assert len(heights) == 60
        assert [height < 27 for height in heights] == [False] * 10 + [True] * 50


def test_a_button_records_and_saves_a_trace():
    played = Played(graph_of(("", "a")))
    with opened(played) as browser:
        browser.run("document.getElementById('record').href = 'trace.json?seconds=0.2'")
        browser.run(
            "window.saved = []; HTMLAnchorElement.prototype.click = function () {"
            " window.saved.push([this.download, this.href]); }"
        )
        browser.run(
            "document.getElementById('record').dispatchEvent("
            "new MouseEvent('click', { cancelable: true, bubbles: true }))"
        )
        wait = browser.wait_for(
            "document.getElementById('news').textContent.startsWith('Saved') && "
            "document.getElementById('news').textContent"
        )
        assert "pipeline_trace.json" in wait
        ((name, address),) = browser.run("window.saved")
        assert name == "pipeline_trace.json"
        assert address.startswith("blob:")


def test_an_unavailable_server_is_shown_as_such():
    played = Played(graph_of(("", "a")))
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(page := contextlib.ExitStack()).enter_context(
            served(played.page())
        )
        browser = stack.enter_context(Browser())
        browser.open(url)
        browser.wait_for("document.getElementById('state').textContent === 'Ready'")
        page.close()
        browser.wait_for("document.getElementById('state').textContent === 'No answer'")


@pytest.mark.parametrize("width", [1280, 700, 360])
def test_it_fits_every_screen(width):
    chain = [("", "a"), ("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f")]
    branches = [("a", "x"), ("a", "y"), ("a", "z")]
    last = [("f", "g"), ("x", "g"), ("y", "g"), ("z", "g")]
    played = Played(graph_of(*chain, *branches, *last))
    with opened(played, width=width) as browser:
        assert browser.run("document.documentElement.scrollWidth") <= width
        boxes = browser.run(
            "[...document.querySelectorAll('.node')].map((node) => {"
            " const box = node.getBoundingClientRect();"
            " return [box.left, box.top, box.right, box.bottom]; })"
        )
        for number, one in enumerate(boxes):
            for other in boxes[:number]:
                is_beside = one[0] >= other[2] or other[0] >= one[2]
                assert is_beside or one[1] >= other[3] or other[1] >= one[3]


@pytest.mark.parametrize("width", [1200, 700, 480])
def test_a_long_chain_is_drawn_in_bands(width):
    names = ["", *(f"op{number}" for number in range(40))]
    played = Played(graph_of(*itertools.pairwise(names)))
    with opened(played, width=width) as browser:
        assert browser.run("document.documentElement.scrollWidth") <= width
        places = browser.run(
            "[...document.querySelectorAll('.node:not(.end)')].map((node) => {"
            " const box = node.getBoundingClientRect(); return [box.left, box.top]; })"
        )
        tops = sorted({top for _, top in places})
        assert len(tops) <= 21, "two Ops stand side by side at least"
        assert places == sorted(places, key=lambda place: (place[1], place[0])), "as lines of text"
        ends = "document.querySelectorAll('path.wire').length"
        assert browser.run(ends) == 41


def test_client_errors_are_shown_apart_from_failures_of_the_service():
    played = Played(graph_of(("", "a")))
    with opened(played) as browser:
        failed = {"at": played.now_ns, "took": MS, "outcome": Outcome.PRODUCT}
        played.fold([], [request(number, **failed) for number in range(5)])
        browser.wait_for("document.querySelectorAll('#failed details').length === 5")
        text = "document.getElementById('failures_more').textContent"
        browser.wait_for(f"{text}.includes('5')")
        assert browser.text("#failures") == "0"


def test_sparklines_are_drawn_behind_the_texts():
    with opened(Played(graph_of(*DIAMOND)), width=1200) as browser:
        behind = "getComputedStyle(document.getElementById('rate_line')).zIndex"
        assert browser.run(behind) == "-1"


def test_each_text_has_enough_contrast():
    """WCAG AA: a contrast of 4.5, in the light and in the dark."""
    played = Played(graph_of(*DIAMOND))
    played.recent.failed(1, 1, "boom")
    at = played.now_ns
    played.fold(requests=[request(1, at=at, took=MS, outcome=Outcome.BACKEND)])
    for is_dark in (False, True):
        with opened(played, is_dark=is_dark) as browser:
            assert browser.run(POOR_CONTRAST) == []


POOR_CONTRAST = """
(() => {
  const light = (color) => {
    const parts = color.match(/[\\d.]+/g).map(Number).slice(0, 3).map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if (color !== "rgba(0, 0, 0, 0)") return color;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText || !element.checkVisibility() || element.closest("noscript")) continue;
    const [one, other] = [light(getComputedStyle(element).color), light(behind(element))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5) poor.push([element.outerHTML.slice(0, 80), contrast]);
  }
  return poor;
})()
"""
