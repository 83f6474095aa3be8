"""A filter of a plug-in: counts the calls of each caller, and tells them in the answers.

The entry point of the group `pipeline.filters` names Counting. config.yml then has its options
below its name: `filters: {counting: {header: x-user}}`.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import msgspec

from pipeline import Filter
from pipeline.proto.pipeline_service_pb2 import Response


class Counting(Filter):
    """Counts by a header, which `dag.forward_headers` has to let through."""

    class Options(msgspec.Struct, frozen=True):
        header: Annotated[str, "Name of the header, in lower case."] = "x-user"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._calls: Counter[str] = Counter()

    def on_answer(self, request: Any, answer: Any) -> Any:
        """Add the number of the caller's calls, this one included, to answers in pairs."""
        caller = request.info.headers.get(self.options.header, "nobody")
        self._calls[caller] += 1
        if isinstance(answer, Response):  # other doors have a ChannelData
            answer.key.append("calls")
            answer.value.append(str(self._calls[caller]))
        return answer
