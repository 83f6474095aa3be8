"""A peer: mosec's echo, one worker, JSON in and out."""

from __future__ import annotations

import os
from typing import Any

from mosec import Server, Worker

from benchmarks.services.ports import HTTP_PORT


class Echo(Worker):
    def forward(self, data: Any) -> Any:
        return {
            "err_no": 0,
            "err_msg": "",
            "key": data["key"],
            "value": data["value"],
            "tensors": [],
        }


if __name__ == "__main__":
    os.environ |= {
        "MOSEC_ADDRESS": "127.0.0.1",
        "MOSEC_PORT": str(HTTP_PORT),
        "MOSEC_LOG_LEVEL": "error",
    }
    server = Server()
    server.append_worker(Echo)
    server.run()
