"""The clients of a load: what they make of a server's answers."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.tuning.load import LoadFigures, LoadRequest, replay

_OK = b'{"err_no":0,"value":["6"]}'
_FAILED = b'{"err_no":3000,"err_msg":"no"}'


async def _replayed(answers: list[bytes]) -> LoadFigures:
    """Return what two clients see of a server whose answers come in turn, then the last again."""
    question, talks = 0, set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal question
        talks.add(asyncio.current_task())
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
                question += 1
                if not (text := answers[min(question, len(answers)) - 1]):
                    break
                writer.write(text)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    request = LoadRequest("/toys/prediction", b"{}")
    try:
        return await replay(port, [request], clients=2, seconds=0.05)
    finally:
        server.close()
        while talks:
            await talks.pop()


def _http(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_answers_are_counted_and_timed():
    figures = asyncio.run(_replayed([_http(_OK)]))
    assert figures.per_s > 0
    assert figures.failed == 0
    assert 0 < figures.percentile_ms(50) <= figures.percentile_ms(99)


@pytest.mark.parametrize("wrong", [_http(_FAILED), _http(b"no", "503 Service Unavailable")])
def test_errors_are_counted_and_the_first_is_returned(wrong):
    figures = asyncio.run(_replayed([wrong, _http(_OK)]))
    assert figures.failed == 1
    assert "no" in figures.error


@pytest.mark.parametrize(
    ("answer", "told"), [(b"", "closed"), (b"HTTP/1.1 200 OK\r\n\r\n", "a stream")]
)
def test_a_connection_that_is_lost_ends_the_load(answer, told):
    with pytest.raises(ConnectionError, match=told):
        asyncio.run(_replayed([answer]))
