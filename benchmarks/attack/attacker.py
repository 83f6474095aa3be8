"""Fires one attack at a port, from a process of its own, and says what it has sent.

`python -m benchmarks.attack.attacker http|grpc NAME PORT SECONDS`
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import sys
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.attack import frames
from benchmarks.attack.catalog import Attack, Wire, attacks

_APART_S = 0.005  # between the first connections, to avoid a burst of handshakes
_AGAIN_S = 0.2  # before a closed connection is opened again
_NICE = 5  # leaves the server CPU time to run beside this process
_READ_BYTES = 65536
_CODE_AT, _CODE_END = 13, 17  # of a GOAWAY frame


@dataclass(slots=True)
class Sent:
    """Counts of sent units and connections, and of closed ones by GOAWAY's code."""

    units: int = 0
    connections: int = 0
    ends: Counter[str] = field(default_factory=Counter)


class Attacker:
    """One attack on a port of this machine."""

    def __init__(self, attack: Attack, port: int) -> None:
        self.sent = Sent()
        self._attack = attack
        self._port = port
        self._tls: ssl.SSLContext | None = None
        if attack.wire is not Wire.TCP:
            self._tls = ssl.create_default_context()
            self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
            self._tls.set_alpn_protocols(["h2" if attack.wire is Wire.H2 else "http/1.1"])

    async def fire(self, seconds: float) -> None:
        """Attack for so long on all connections."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for _ in range(self._attack.connections):
                    group.create_task(self._go_on())
                    await asyncio.sleep(_APART_S)

    async def _go_on(self) -> None:
        while True:
            try:
                await self._connect()
            except OSError as error:
                self.sent.ends[type(error).__name__] += 1
            await asyncio.sleep(_AGAIN_S)

    async def _connect(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls)
        self.sent.connections += 1
        ended: asyncio.Task[str] | None = None
        try:
            if self._attack.wire is Wire.H2:
                writer.write(frames.PREFACE + frames.settings())
            if self._attack.reads:
                ended = asyncio.create_task(_read(reader))
            await self._send(writer, ended)
            if ended is not None:
                self.sent.ends[await ended] += 1
        finally:
            if ended is not None:
                ended.cancel()
            writer.transport.abort()

    async def _send(self, writer: asyncio.StreamWriter, ended: asyncio.Task[str] | None) -> None:
        """Send piece after piece until the server ends the connection."""
        number = 0
        while ended is None or not ended.done():
            writer.write(self._attack.piece(number))
            await writer.drain()
            self.sent.units += self._attack.units
            number += 1
            await asyncio.sleep(1 / self._attack.per_s)


async def _read(reader: asyncio.StreamReader) -> str:
    """Read until the end; return the code of the last GOAWAY that is seen, or "closed"."""
    data, why = b"", "closed"
    with contextlib.suppress(OSError):
        while piece := await reader.read(_READ_BYTES):
            data = data[-_CODE_END:] + piece
            at = data.rfind(bytes([frames.GOAWAY, 0, 0, 0, 0, 0]))
            if at >= 3:
                code = data[at - 3 + _CODE_AT : at - 3 + _CODE_END]
                why = f"GOAWAY {int.from_bytes(code, 'big')}"
    return why


def main(kind: str, name: str, port: str, seconds: str) -> None:
    """Attack, and print what was sent as JSON."""
    os.nice(_NICE)
    (attack,) = (attack for attack in attacks(kind == "grpc") if attack.name == name)
    attacker = Attacker(attack, int(port))
    asyncio.run(attacker.fire(float(seconds)))
    sent = attacker.sent
    print(json.dumps({"units": sent.units, "connections": sent.connections, "ends": sent.ends}))


if __name__ == "__main__":
    main(*sys.argv[1:])
