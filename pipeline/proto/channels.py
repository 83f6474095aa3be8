"""Options of gRPC channels for all clients, and their close at exit."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Sequence
from typing import Any

from pipeline.proto.proxies import has_loopback

MAX_MESSAGE_BYTES = 512 * 1024 * 1024
_FIRST_RECONNECT_MS = 200
_LAST_RECONNECT_MS = 5_000

_open: weakref.WeakSet[Any] = weakref.WeakSet()


def channel_options(
    max_message_bytes: int = MAX_MESSAGE_BYTES, endpoints: Sequence[str] = ()
) -> list[tuple[str, Any]]:
    """Return the options of a channel whose calls go round robin over all endpoints of a target.

    gRPC uses the proxies of the environment, except for loopback.
    """
    return [
        ("grpc.enable_http_proxy", int(not has_loopback(endpoints))),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.lb_policy_name", "round_robin"),
        # gRPC's own pauses grow to two minutes, during which a restarted server is unused.
        ("grpc.initial_reconnect_backoff_ms", _FIRST_RECONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", _LAST_RECONNECT_MS),
    ]


def close_at_exit(channel: Any) -> None:
    """Close a channel at exit: with calls in progress, gRPC may keep the program from ending."""
    if not _open:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _open.add(channel)


def _close_all() -> None:
    for channel in list(_open):
        channel.close()
