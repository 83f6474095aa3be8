"""Hosts: the names of this server. Web pages of other sites must neither send nor read."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping, Sequence

from pipeline.errors import NoServiceError
from pipeline.frontends.http.cors import Cors
from pipeline.frontends.http.routes import HttpError, WebResponse

_SIMPLE_TYPES = ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
_USUAL_PORTS = {"http": "80", "https": "443"}
_MAX_SHOWN = 100


class Hosts:
    """The names of this server.

    Args:
        told: names in addition to this machine's own, `localhost` and addresses; `.example.com`
            means all names below example.com, `*` any name.
        cors: the web pages of other sites that may send requests.
    """

    def __init__(self, names: Sequence[str] = (), cors: Cors | None = None) -> None:
        self.cors: Cors = cors or Cors()
        self._configured = [name.lower().rstrip(".") for name in names]
        self._own: frozenset[str] | None = None

    async def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a request for another server's name, or from another site's page.

        A page whose own name leads here for a moment (DNS rebinding) could read the answers.

        Raises:
            HttpError: 403; it says what to configure.
        """
        host = headers.get(b"host", b"").decode("latin-1")
        if not await self._knows(_name_of(host)):
            raise _foreign(
                f"this server does not know that it is called {_name_of(host)[:_MAX_SHOWN]!r}: "
                "add the name to allowed_hosts"
            )
        site, mode = headers.get(b"sec-fetch-site"), headers.get(b"sec-fetch-mode")
        if site in (b"cross-site", b"same-site") and mode != b"navigate":
            raise _foreign("a web page from elsewhere may not ask for this")

    def check_page(self, method: str, headers: Mapping[bytes, bytes]) -> WebResponse | None:
        """Refuse requests that a web page may not send; return the answer to a preflight request.

        Raises:
            HttpError: 403; it says what to configure.
        """
        is_socket = b"sec-websocket-key" in headers  # browsers send no preflight request for these
        if method == "POST" or is_socket:
            kind = b"" if is_socket else headers.get(b"content-type", b"")
            self.check_post(headers[b"origin"], headers.get(b"host", b""), kind)
        return self.cors.preflight(method, headers)

    def check_post(self, origin: bytes, host: bytes, content_type: bytes) -> None:
        """Refuse a POST that a browser lets any web page send without a preflight request.

        Args:
            origin: the page's; programs send none, and are not refused.
            host: from the request.
            content_type: "": missing. Before JSON browsers send a preflight request, which is
                refused.

        Raises:
            HttpError: 403; it says what to configure.
        """
        kind = content_type.decode("latin-1").partition(";")[0].strip().lower()
        if kind not in _SIMPLE_TYPES:
            return
        page = origin.decode("latin-1").lower()
        scheme, _, authority = page.rpartition("://")
        if authority and _same(authority, host.decode("latin-1").lower(), scheme):
            return
        if (authority and self._is_configured(_name_of(authority))) or self.cors.allows(page):
            return
        raise _foreign(
            f"a web page from {page[:_MAX_SHOWN]!r} may not ask this server: add its host to "
            "allowed_hosts, or send content-type: application/json from a page of this server's own"
        )

    async def _knows(self, name: str) -> bool:
        if not name or name == "localhost" or name.endswith(".localhost") or _is_address(name):
            return True
        if self._is_configured(name):
            return True
        if self._own is None:
            self._own = await asyncio.to_thread(_own_names)  # may query a name server
        return name in self._own

    def _is_configured(self, name: str) -> bool:
        return any(
            own in ("*", name) or (own.startswith(".") and f".{name}".endswith(own))
            for own in self._configured
        )


def _foreign(text: str) -> HttpError:
    """Return the error for another site's web page, or for an unknown host name."""
    return HttpError(403, NoServiceError(text))


def _own_names() -> frozenset[str]:
    names = (socket.gethostname().lower(), socket.getfqdn().lower())
    return frozenset([*names, names[0].partition(".")[0]])


def _name_of(authority: str) -> str:
    """Return the host without its port, in lower case; an IPv6 address without its brackets."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.partition(":")[0].lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _same(authority: str, host: str, scheme: str) -> bool:
    usual = f":{_USUAL_PORTS.get(scheme, '')}"
    return authority.removesuffix(usual) == host.removesuffix(usual)
