"""What a reader sees of a repository: its models in a real Chromium, loaded by hand."""

from __future__ import annotations

import contextlib
import json

import pytest
from browser import CHROMIUM, Browser, shared_chromium
from doubles import http
from repositories import add_ensemble, add_identity, control, infer, serving

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")


@pytest.fixture(scope="module", autouse=True)
def chromium():
    with shared_chromium():
        yield


EVIL = '<img src=x onerror="window.bitten=1">'


@contextlib.contextmanager
def opened(server, refuses=False):
    """The page of a repository, with its first status; it must have nothing to complain of."""
    with Browser(1280, 800) as browser:
        browser.open(f"http://127.0.0.1:{server.http_port}/")
        browser.wait_for("document.querySelector('#models tr') !== null")
        yield browser
        assert [
            complaint for complaint in browser.complaints if not (refuses and "400" in complaint)
        ] == []


def cells(name):
    """JavaScript: the texts of a model's row; "" without one."""
    rows = "[...document.querySelectorAll('#models tr')]"
    find = f"{rows}.find((row) => row.firstChild.textContent === {json.dumps(name)})"
    return f"[...({find}?.children ?? [])].map((cell) => cell.innerText).join('|')"


def press(browser, name, button):
    rows = "[...document.querySelectorAll('#models tr')]"
    find = f"{rows}.find((row) => row.firstChild.textContent === {json.dumps(name)})"
    buttons = f"[...{find}.querySelectorAll('button')]"
    browser.run(f"{buttons}.find((each) => each.innerText === {json.dumps(button)}).click()")


def test_models_are_shown_with_state_and_activity(tmp_path):
    add_identity(tmp_path, "part", 1, more="instance_group { count: 2 kind: KIND_CPU }")
    add_ensemble(tmp_path, "whole", of="part")
    with serving(tmp_path, models=("whole",)) as server, opened(server) as browser:
        browser.wait_for(f"{cells('part')}.startsWith('part|1|ready')")
        assert browser.text("#state") == "Ready"
        assert browser.text("#ready") == "2 of 2"
        for _ in range(3):
            assert infer(server, "whole", [1.0])[0] == 200
        browser.wait_for("document.getElementById('rate_more').innerText.startsWith('6 since')")
        assert "0 of 2 threads" in browser.run(cells("part"))
        browser.run(
            "Object.assign(document.getElementById('filter'), {value: 'WHO'})"
            ".dispatchEvent(new Event('input'))"
        )
        assert browser.run("document.querySelectorAll('#models tr').length") == 1


def test_buttons_load_and_unload_models_and_failures_are_shown(tmp_path):
    add_identity(tmp_path, "here", 1)
    folder = add_identity(tmp_path, "there", 1)
    with serving(tmp_path, models=("here",)) as server, opened(server, refuses=True) as browser:
        browser.wait_for(f"{cells('there')}.includes('not loaded')")
        press(browser, "there", "Load")
        browser.wait_for(f"{cells('there')}.startsWith('there|1|ready')")
        assert infer(server, "there", [1.0])[0] == 200
        press(browser, "there", "Unload")
        browser.wait_for(f"{cells('there')}.includes('unavailable')")
        text = (folder / "config.pbtxt").read_text()
        (folder / "config.pbtxt").write_text(text.replace("identity", EVIL.replace('"', "'")))
        press(browser, "there", "Load")
        browser.wait_for("document.getElementById('news').className === 'news bad'")
        assert "unable to find backend library for backend" in browser.text("#news")
        browser.wait_for(f"{cells('there')}.includes('unable to find backend')")
        assert browser.run("window.bitten") is None
        assert infer(server, "here", [1.0])[0] == 200


def test_without_permission_to_load_there_are_no_buttons(tmp_path):
    add_identity(tmp_path, "here", 1)
    with serving(tmp_path, mode="none") as server, opened(server) as browser:
        browser.wait_for(f"{cells('here')}.startsWith('here|1|ready')")
        assert "Unload" not in browser.run(cells("here"))
        status, _, said = http(server, "GET", "/models.json")
        assert (status, said["loads"]) == (200, False)
        assert control(server, "here", "unload")[0] == 503
