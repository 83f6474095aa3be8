"""The floor for HTTP: an echo as a raw ASGI function on uvicorn, uvloop, httptools and orjson."""

from __future__ import annotations

from typing import Any

import orjson
import uvicorn

from benchmarks.services.ports import HTTP_PORT

_HEADERS = [(b"content-type", b"application/json")]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    more = True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    request = orjson.loads(body)
    answer = orjson.dumps(
        {
            "err_no": 0,
            "err_msg": "",
            "key": request["key"],
            "value": request["value"],
            "tensors": [],
        }
    )
    length = (b"content-length", str(len(answer)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, length]})
    await send({"type": "http.response.body", "body": answer})


if __name__ == "__main__":
    uvicorn.run(
        echo,
        host="127.0.0.1",
        port=HTTP_PORT,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
