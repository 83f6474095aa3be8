"""Keys of Ops whose remote pipeline gets large inputs by a store, see `stores`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class InputStoreConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.input_store`: how large inputs get to a pipeline at `server_endpoints`."""

    url: Annotated[
        str | None, "The payload_store of that pipeline; absent: inputs are in the requests."
    ] = None
    from_bytes: Annotated[int, Meta(ge=1), "Arrays of so many bytes go by the store."] = 2**20
    ttl_s: Annotated[
        int, Meta(ge=1), "Time after which the store forgets what nobody has fetched, s."
    ] = 60
