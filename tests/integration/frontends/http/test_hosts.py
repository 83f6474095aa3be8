"""Which names and which web pages the HTTP doors listen to."""

from __future__ import annotations

import asyncio
import json
import socket
from http.client import HTTPConnection

import pytest
from doubles import chain, server_for

from pipeline.frontends.http.hosts import Hosts
from pipeline.frontends.http.routes import HttpError

BODY = json.dumps({"key": ["path"], "value": [""]})


def accepts_host(hosts, host, **more):
    headers = {b"host": host.encode(), **{k.encode(): v.encode() for k, v in more.items()}}
    try:
        asyncio.run(hosts.check(headers))
    except HttpError:
        return False
    return True


@pytest.mark.parametrize(
    "host",
    [
        "",
        "127.0.0.1:9999",
        "10.0.0.7",
        "[::1]:9999",
        "[fe80::1%eth0]",
        "localhost:9999",
        "LOCALHOST.",
        "a.localhost",
        socket.gethostname(),
        f"{socket.gethostname().upper()}:80",
    ],
)
def test_this_machine_has_its_names_and_addresses(host):
    assert accepts_host(Hosts(), host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9999", "127.0.0.1.evil.example", "localhost.evil.example"],
)
def test_any_other_name_is_refused_unless_it_is_configured(host):
    assert not accepts_host(Hosts(), host)
    assert not accepts_host(Hosts(["example", "good.example"]), host)
    assert accepts_host(Hosts([host.partition(":")[0].upper()]), host)
    assert accepts_host(Hosts([".example"]), host)
    assert accepts_host(Hosts(["*"]), host)


def test_a_suffix_matches_whole_labels():
    assert accepts_host(Hosts([".good.example"]), "good.example")
    assert not accepts_host(Hosts([".good.example"]), "notgood.example")


def test_a_foreign_page_may_navigate_but_not_fetch():
    def asked(site, mode):
        return accepts_host(
            Hosts(), "localhost", **{"sec-fetch-site": site, "sec-fetch-mode": mode}
        )

    assert asked("cross-site", "navigate")
    assert asked("none", "navigate")
    assert asked("same-origin", "cors")
    assert not asked("cross-site", "no-cors")
    assert not asked("same-site", "cors")


def may_post(origin, host="svc.example:80", content_type="text/plain", told=()):
    try:
        Hosts(told).check_post(origin.encode(), host.encode(), content_type.encode())
    except HttpError:
        return False
    return True


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "Text/Plain; charset=x", "application/x-www-form-urlencoded",
     "multipart/form-data; boundary=x"],
)  # fmt: skip
def test_a_simple_request_is_accepted_from_pages_of_this_server_only(content_type):
    assert not may_post("https://evil.example", content_type=content_type)
    assert not may_post("null", content_type=content_type)
    assert not may_post("http://svc.example.evil.example", content_type=content_type)
    assert may_post("http://svc.example", content_type=content_type)
    assert may_post("http://SVC.example:80", content_type=content_type)
    assert may_post("https://svc.example", "svc.example", content_type)
    assert not may_post("http://svc.example:81", content_type=content_type)
    assert may_post("https://app.example", content_type=content_type, told=["app.example"])


def test_requests_with_a_preflight_are_accepted_from_any_page():
    assert may_post("https://evil.example", content_type="application/json")
    assert may_post("https://evil.example", content_type="application/octet-stream")


# A real door ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def port():
    with server_for(chain("a"), allowed_hosts=["told.example"]) as server:
        yield server.http_port


def ask(port, method, path, body=None, **headers):
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, data


@pytest.mark.parametrize("path", ["/", "/page.js", "/status.json", "/trace.json?seconds=0.1"])
def test_the_page_is_served_for_configured_names_only(port, path):
    assert ask(port, "GET", path)[0] == 200
    assert ask(port, "GET", path, Host="told.example")[0] == 200
    status, body = ask(port, "GET", path, Host="evil.example:80")
    assert (status, json.loads(body)["err_no"]) == (403, 3002)
    assert b"'evil.example': add the name to allowed_hosts" in body


def test_a_foreign_image_starts_no_recording(port):
    foreign = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}
    assert ask(port, "GET", "/trace.json?seconds=0.1", **foreign)[0] == 403


@pytest.mark.parametrize(
    "path", ["/svc/prediction", "/v2/models/a/infer", "/v2/repository/index", "/nowhere"]
)
def test_a_foreign_page_cannot_send_requests(port, path):
    status, body = ask(port, "POST", path, BODY, Origin="https://evil.example")
    assert (status, json.loads(body)["err_no"]) == (403, 3002)
    assert b"'https://evil.example' may not ask" in body
    own = f"http://127.0.0.1:{port}"
    assert ask(port, "POST", path, BODY, Origin=own)[0] != 403
    assert ask(port, "POST", path, BODY)[0] != 403, "programs say nothing of an origin"
    assert ask(port, "POST", path, BODY, Content_Type="text/plain")[0] != 403


def test_a_preflight_of_a_foreign_page_is_refused(port):
    asks = {"Origin": "https://evil.example", "Access_Control_Request_Method": "POST"}
    assert ask(port, "OPTIONS", "/svc/prediction", **asks)[0] == 405


def test_other_paths_are_for_any_name(port):
    for path in ("/health/ready", "/metrics", "/v2/health/ready"):
        assert ask(port, "GET", path, Host="evil.example")[0] == 200
