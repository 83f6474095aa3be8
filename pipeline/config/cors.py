"""`cors`: which web pages from elsewhere may ask a server, and read its answers."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"https?://[^/?#\s@]+")


class CorsConfig(Struct, frozen=True, kw_only=True):
    """`cors`: web pages from elsewhere."""

    origins: Annotated[
        tuple[str, ...], "Pages that may ask, such as https://app.example.com; *: any; empty: none."
    ] = ()
    headers: Annotated[tuple[str, ...], "Headers that they may send, beside the usual ones."] = ()
    credentials: Annotated[bool, "They may send cookies and certificates; not with *."] = False
    max_age_s: Annotated[
        int, Meta(ge=0), "Seconds for which browsers remember that they may ask."
    ] = 600


def fault_of_cors(cors: CorsConfig) -> str:
    """Return what is wrong with the section; "": nothing."""
    for origin in cors.origins:
        if origin != ANY_ORIGIN and not _ORIGIN.fullmatch(origin):
            return f"cors.origins: {origin!r} is no origin, such as https://app.example.com"
    if cors.credentials and ANY_ORIGIN in cors.origins:
        return "cors.credentials: any page could ask in the name of who looks at it: name origins"
    return ""
