"""The conformance table: what the server's own HTTP door and the gateway have in common.

`CASES` holds at both: the same requests get the same answers, which are compared as status, the
headers that matter and the parsed body. In `IN_OTHER_WORDS` the texts of errors are another
parser's. `DIFFERENT` holds what is not the same, with both answers and the reason.

A gateway that does not know the server's HTTP port cannot ask the door about what it cannot judge
itself: see `Case.grpc_only`.
"""

from __future__ import annotations

from conformance_calls import CALL_CASES, CALL_DIFFERENT
from conformance_different import (
    HTTP_DIFFERENT,
    HTTP_EDGE_CASES,
    HTTP_HANDED_OVER,
    HTTP_IN_OTHER_WORDS,
)
from conformance_http import HTTP_CASES
from conformance_json import JSON_CASES
from conformance_numbers import NUMBER_CASES, NUMBER_DIFFERENT

CASES = (
    *NUMBER_CASES,
    *JSON_CASES,
    *HTTP_CASES,
    *CALL_CASES,
    *HTTP_EDGE_CASES,
    *HTTP_HANDED_OVER,
)
IN_OTHER_WORDS = HTTP_IN_OTHER_WORDS
DIFFERENT = (*NUMBER_DIFFERENT, *CALL_DIFFERENT, *HTTP_DIFFERENT)
