"""The clients: each sends one request after the other, and checks each answer."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import select
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

CLIENTS = 64
PATIENCE_S = 15.0  # the server's own deadline is 8 s
SIZES = (1, 1, 1, 100, 10_000, 1_000_000)
ANSWERED, FAILED, REFUSED, WRONG, HUNG = "answered", "failed", "refused", "wrong", "hung"
_PAUSE_S = 0.05  # of a client between two requests


@dataclass(slots=True)
class Caller:
    """Credentials of a client.

    Attributes:
        context: of its TLS; None: plain HTTP.
        headers: of each request.
        is_known: False: the server has to refuse it; None: it may do either, at the moment.
    """

    context: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_known: bool | None = True

    def connection(self, port: int) -> http.client.HTTPConnection:
        """Return a connection to a port of this machine, which is not open yet."""
        if self.context is None:
            return http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        return http.client.HTTPSConnection(
            "localhost", port, timeout=PATIENCE_S, context=self.context
        )


@dataclass(slots=True)
class Tally:
    """The endings of the requests; `errors`: the texts of failures."""

    endings: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class Clients:
    """Clients that send requests until the block ends."""

    def __init__(self, port: int, caller: Callable[[int], Caller]) -> None:
        self.tally = Tally()
        self._port = port
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number, caller(number)))
            for number in range(CLIENTS)
        ]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, client: int, caller: Caller) -> None:
        dice = random.Random(client)
        connection = caller.connection(self._port)
        number = client
        while not self._is_over.wait(_PAUSE_S):
            number += CLIENTS
            was_known = caller.is_known
            ending, text = ask(connection, number, dice.choice(SIZES), caller.headers)
            ending, text = counted(ending, text, was_known, caller.is_known)
            with self._lock:
                self.tally.endings[ending] += 1
                self.tally.errors[text] += bool(text)
        connection.close()


def counted(
    ending: str, text: str, was_known: bool | None, is_known: bool | None
) -> tuple[str, str]:
    """Return how a request counts; `Caller.is_known` when it was sent, and when it ended."""
    if was_known and is_known:
        return FAILED if ending == REFUSED else ending, text
    if ending == ANSWERED and was_known is False:
        return WRONG, "a stranger was answered"
    return ending, "" if ending == REFUSED else text


def ask(
    connection: http.client.HTTPConnection,
    number: int,
    size: int,
    headers: Mapping[str, str] | None = None,
) -> tuple[str, str]:
    """Send one request; return its ending and the reason of a failure.

    A request is refused by status 401 or 403, or by a TLS alert.
    """
    feed = {"number": str(number), "size": str(size)}
    body = json.dumps({"key": [*feed], "value": [*feed.values()]})
    try:
        _drop_closed(connection)
        _send(connection, body, headers or {})
        response = connection.getresponse()
        text = response.read()
    except TimeoutError:
        connection.close()
        return HUNG, ""
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        is_alert = isinstance(error, ssl.SSLError) and "_ALERT_" in str(error)
        return REFUSED if is_alert else FAILED, type(error).__name__
    if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return REFUSED, f"status {response.status}"
    try:
        answer = json.loads(text)
        if answer.get("err_no"):
            return FAILED, f"err_no {answer['err_no']}"
        pairs = dict(zip(answer["key"], answer["value"], strict=True))
    except (ValueError, KeyError, TypeError, AttributeError):
        return WRONG, ""
    is_right = pairs == {"number": str(number), "sum": str(size)}
    return (ANSWERED, "") if is_right else (WRONG, "")


def _send(connection: http.client.HTTPConnection, body: str, headers: Mapping[str, str]) -> None:
    try:
        connection.request("POST", "/faulted/prediction", body, headers)
    except ssl.SSLEOFError:
        if connection.sock is not None:
            connection.sock.recv(1)  # raises the alert that came before the end, if one did
        raise


def _drop_closed(connection: http.client.HTTPConnection) -> None:
    """Close a connection that the server has closed since its last answer."""
    with contextlib.suppress(OSError, ValueError):
        if connection.sock is not None and select.select([connection.sock], [], [], 0)[0]:
            connection.close()
