"""What a reader does on the page: fills the form, sends, sees the answer; in a real Chromium."""

from __future__ import annotations

import ast
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from browser import CHROMIUM, Browser, shared_chromium
from typed_api import typed_server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")


@pytest.fixture(scope="module", autouse=True)
def chromium():
    with shared_chromium():
        yield


PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4//8/A27AwDC0AQD9AgPAT8k3WwAAAABJ"
    "RU5ErkJggg=="
)


@contextlib.contextmanager
def opened(streams: bool = False, width: int = 1280) -> Iterator[Browser]:
    """The page of a server; it must have nothing to complain of."""
    with typed_server(streams) as server, Browser(width, 900) as browser:
        browser.open(f"http://127.0.0.1:{server.http_port}/docs")
        browser.wait_for("document.getElementById('state').textContent === 'Ready'")
        yield browser
        # The browser also reports refusals of the server.
        assert [text for text in browser.complaints if "status of 400" not in text] == []


def fill(browser: Browser, field: str, value: str) -> None:
    """Write into a field as a reader does."""
    result = f"document.getElementById('field_{field}')"
    browser.run(f"{result}.focus()")
    browser.run(f"{result}.value = ''")
    browser.call("Input.insertText", text=value)


def press(browser: Browser, key: str, code: str, number: int, modifiers: int = 0) -> None:
    pressed = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers}
    text = {"text": "\r"} if key == "Enter" and not modifiers else {}
    browser.call("Input.dispatchKeyEvent", type="keyDown", **pressed, **text)
    browser.call("Input.dispatchKeyEvent", type="keyUp", **pressed)


def answered(browser: Browser) -> str:
    """The status that is shown, when the answer is there."""
    browser.wait_for("/^(\\d|Stopped)/.test(document.getElementById('status').textContent)")
    browser.wait_for("!document.getElementById('send').disabled")
    return browser.text("#status")


def test_a_reader_fills_the_form_and_sees_the_answer():
    with opened() as browser:
        assert browser.text("#about") == "Words, said again and again."
        assert browser.run("document.getElementById('field_words').value") == "well"
        fill(browser, "words", "so ")
        fill(browser, "times", "3")
        fill(browser, "marks", "[1, 2]")
        browser.run("document.getElementById('send').click()")
        assert answered(browser).startswith("200, ")
        assert json.loads(browser.text("#answer"))["said"] == "so so so !!!"


def test_each_field_has_a_label_and_all_works_by_keyboard():
    with opened() as browser:
        unlabelled = browser.run(
            "[...document.querySelectorAll('#form input, #form textarea, #form select')]"
            ".filter((each) => !each.labels.length).length"
        )
        assert unlabelled == 0
        browser.run("document.getElementById('field_words').focus()")
        reached = []
        for _ in range(6):
            press(browser, "Tab", "Tab", 9)
            reached.append(browser.run("document.activeElement.id"))
        assert reached[:4] == ["field_times", "field_loud", "field_picture", "field_marks"]
        assert "send" in reached
        browser.run("document.getElementById('field_words').focus()")
        press(browser, "Enter", "Enter", 13, modifiers=2)
        assert answered(browser).startswith("200, ")


def test_a_refusal_is_shown_at_its_field():
    with opened() as browser:
        fill(browser, "times", "30")
        browser.run("document.getElementById('send').click()")
        assert answered(browser).startswith("400, ")
        assert browser.text("#wrong_times") == "times: expected int <= 9, found int 30"
        assert browser.run("document.activeElement.id") == "field_times"
        fill(browser, "times", "2")
        fill(browser, "marks", "[1,")
        browser.run("document.getElementById('send').click()")
        browser.wait_for("!document.getElementById('wrong_marks').hidden")
        assert browser.text("#wrong_marks").startswith("no JSON")


def test_a_stream_grows():
    with opened(streams=True) as browser:
        fill(browser, "words", "on ")
        fill(browser, "times", "9")
        browser.run("document.getElementById('send').click()")
        assert answered(browser).startswith("9 parts, ")
        assert browser.text("#grown").strip() == " ".join(["on"] * 9)
        browser.run("document.getElementById('stream').click()")
        browser.run("document.getElementById('send').click()")
        browser.wait_for("document.getElementById('status').textContent.startsWith('200')")
        assert json.loads(browser.text("#answer"))["said"] == "on " * 9


def test_a_picture_is_uploaded_and_its_lines_are_drawn():
    with opened() as browser:
        browser.run(
            f"(() => {{ const text = atob('{PICTURE}');"
            "const bytes = Uint8Array.from(text, (one) => one.charCodeAt(0));"
            "const files = new DataTransfer();"
            "files.items.add(new File([bytes], 'it\\'s.png', {type: 'image/png'}));"
            "const field = document.getElementById('field_picture');"
            "field.files = files.files;"
            "field.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )
        browser.wait_for("document.getElementById('code').textContent.includes('base64 -w0')")
        browser.run("document.getElementById('send').click()")
        assert answered(browser).startswith("200, ")
        browser.wait_for("document.querySelector('#picture polygon') !== null")
        points = browser.run("document.querySelector('#picture polygon').getAttribute('points')")
        assert points == "1,1 7,1 7,4 1,4"


def test_the_code_that_is_shown_does_the_same(tmp_path):
    with opened() as browser:
        fill(browser, "words", 'it\'s "so" \\ ')
        fill(browser, "marks", "[1]")
        browser.wait_for("document.getElementById('code').textContent.includes('[1]')")
        shown = browser.run("document.getElementById('code').textContent")
        stdout = subprocess.run(["bash", "-c", shown], capture_output=True, check=True).stdout
        said = 'it\'s "so" \\ ' * 2 + "!"
        assert json.loads(stdout)["said"] == said
        browser.run("document.querySelector('input[value=python]').click()")
        browser.wait_for("document.getElementById('code').textContent.includes('urlopen')")
        shown = browser.run("document.getElementById('code').textContent")
        stdout = subprocess.run(
            [sys.executable, "-c", shown], capture_output=True, check=True
        ).stdout
        assert ast.literal_eval(stdout.decode())["said"] == said
        browser.run("document.querySelector('input[value=javascript]').click()")
        browser.wait_for("document.getElementById('code').textContent.includes('fetch')")
        shown = browser.run("document.getElementById('code').textContent")
        keeps = "const console = {log: (one) => { window.told = one; }};"
        stdout = browser.run(f"(async () => {{ {keeps}\n{shown}\nreturn window.told; }})()")
        assert stdout["said"] == said


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_any_width(width, tmp_path):
    with opened(width=width) as browser:
        assert browser.run("document.documentElement.scrollWidth") <= width
        browser.screenshot(tmp_path / "docs.png", is_whole=True)
