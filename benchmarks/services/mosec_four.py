"""A peer: the diamond's work as mosec's four linear stages: parse, sum, sum, combine."""

from __future__ import annotations

import os
from typing import Any

from mosec import Server, Worker

from benchmarks.services.ports import HTTP_PORT


class Parse(Worker):
    def forward(self, data: Any) -> Any:
        return list(map(float, data["value"][0].split(",")))


class SumA(Worker):
    def forward(self, data: Any) -> Any:
        return data, sum(data)


class SumB(Worker):
    def forward(self, data: Any) -> Any:
        numbers, sum_a = data
        return sum_a, sum(numbers)


class Combine(Worker):
    def forward(self, data: Any) -> Any:
        result = str(data[0] + data[1])
        return {"err_no": 0, "err_msg": "", "key": ["result"], "value": [result], "tensors": []}


if __name__ == "__main__":
    os.environ |= {
        "MOSEC_ADDRESS": "127.0.0.1",
        "MOSEC_PORT": str(HTTP_PORT),
        "MOSEC_LOG_LEVEL": "error",
    }
    server = Server()
    for stage in (Parse, SumA, SumB, Combine):
        server.append_worker(stage)
    server.run()
