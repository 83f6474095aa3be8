"""A fault as a value, and how it is run."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks import NotMeasuredError
from benchmarks.faults.clients import (
    ANSWERED,
    FAILED,
    HUNG,
    PATIENCE_S,
    REFUSED,
    WRONG,
    Caller,
    Clients,
    ask,
)  # fmt: skip
from benchmarks.process import Service, running

COUNTED = (ANSWERED, FAILED, REFUSED, WRONG, HUNG)


@dataclass(frozen=True)
class Fault:
    """A fault: keys of the server, a command that it runs under, and what happens meanwhile.

    Attributes:
        may_fail: whether requests may fail; otherwise each has to be answered.
        strike: called once the clients are there; returns when the fault is over.
        keys: made in a context that ends with the server.
        caller: the credentials of a client, by its number; that of 0 is always valid.
        module: the server's, in benchmarks/services.
        start_s: the time that the server may take to start.
        needs: programs.
        needs_root: the command that it runs under does.
    """

    name: str
    may_fail: bool = False
    strike: Callable[[Service], None] = lambda service: time.sleep(3)
    keys: Callable[[ExitStack], Mapping[str, Any]] = lambda stack: {}
    caller: Callable[[int], Caller] = lambda client: Caller()
    module: str = "faulted"
    under: tuple[str, ...] = ()
    start_s: float = 60.0
    needs: tuple[str, ...] = ()
    needs_root: bool = False


def suffer(fault: Fault) -> tuple[list[str], bool]:
    """Return the fault's row, and whether all is as it has to be."""
    with ExitStack() as stack:
        keys = json.dumps({"edge": "gateway", **fault.keys(stack)})
        more = {"FAULTED": keys, "PYTHONDONTWRITEBYTECODE": ""}
        running_one = running(fault.module, under=fault.under, environment=more)
        service = stack.enter_context(running_one)
        service.first_answer(lambda: _check_answers(service, fault), fault.start_s)
        with Clients(service.http_port, fault.caller) as clients:
            time.sleep(0.5)
            fault.strike(service)
        is_back = _answers_again(service, fault)
    endings, errors = clients.tally.endings, clients.tally.errors
    reasons = ", ".join(f"{count} {text}" for text, count in errors.most_common(3) if text)
    is_met = (
        is_back
        and not endings[WRONG]
        and not endings[HUNG]
        and bool(endings[ANSWERED])
        and (fault.may_fail or not endings[FAILED])
    )
    counts = [f"{endings[kind]:,}" for kind in COUNTED]
    ends = "met" if is_met else "**missed**"
    return [fault.name, *counts, reasons, "yes" if is_back else "**no**", ends], is_met


def _check_answers(service: Service, fault: Fault) -> None:
    """Raises OSError if it does not answer."""
    caller = fault.caller(0)
    with contextlib.closing(caller.connection(service.http_port)) as connection:
        ending, text = ask(connection, 1, 1, caller.headers)
    if ending != ANSWERED:
        raise OSError(f"{ending}: {text}")


def _answers_again(service: Service, fault: Fault) -> bool:
    ends = time.monotonic() + 2 * PATIENCE_S
    while time.monotonic() < ends:
        with contextlib.suppress(OSError):
            _check_answers(service, fault)
            return True
        time.sleep(0.2)
    return False


def repeat(times: int, hit: Callable[[Service], None]) -> Callable[[Service], None]:
    """Return a strike of several hits, a second apart."""

    def strike(service: Service) -> None:
        for _ in range(times):
            hit(service)
            time.sleep(1.0)

    return strike


def wait_until(is_so: Callable[[], bool], patience_s: float, text: str) -> None:
    """Wait; raises NotMeasuredError with the text."""
    ends = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > ends:
            raise NotMeasuredError(text)
        time.sleep(0.05)
