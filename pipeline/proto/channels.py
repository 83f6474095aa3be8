"""gRPC channels as all clients here open them, and their end with the program's."""

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
    """Options of a channel to all endpoints of a target: calls go round robin over them.

    gRPC asks by the proxies of the environment, but not what is on loopback.
    """
    return [
        ("grpc.enable_http_proxy", int(not has_loopback(endpoints))),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.lb_policy_name", "round_robin"),
        # gRPC's own pauses grow to two minutes, for which a server that is back stays unused.
        ("grpc.initial_reconnect_backoff_ms", _FIRST_RECONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", _LAST_RECONNECT_MS),
    ]


def close_at_exit(channel: Any) -> None:
    """See to it that a script can end: gRPC may hang when it does so with calls under way."""
    if not _open:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _open.add(channel)


def _close_all() -> None:
    for channel in list(_open):
        channel.close()
