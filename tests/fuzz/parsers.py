"""`python -m fuzz.parsers`: damaged bytes at every parser of Python; only its own errors may come.

A case is a parser with many mutations of its samples. Inputs that lead to a new kind of ending
(an error's text without its numbers, or a type) are mutated further.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import yaml

from fuzz.campaign import campaign, parser_of
from pipeline.config.yaml import parse_yaml
from pipeline.errors import PipelineError
from pipeline.frontends.api.multipart import fields_of_form
from pipeline.proto import inference_v2_pb2 as v2
from pipeline.proto.brpc.frames import FrameError, FrameReader, pack, request_meta
from pipeline.proto.http import HttpReader
from pipeline.proto.pipeline.json import request_from_json
from pipeline.proto.pipeline.plain import plain_request_from_json
from pipeline.proto.pipeline.shapes import array_to_npy, npy_to_array
from pipeline.proto.slices import Limits
from pipeline.proto.v2 import codec as v2_codec
from pipeline.proto.v2 import json as v2_json
from pipeline.repository.model_config import parse_text

_INPUTS = 400  # of a case
_MOST_S = 1.0  # of one input
MOST_BYTES = 1 << 14
_NUMBER = re.compile(r"\d+")
_TOKENS = (
    *(b"\x00", b"\xff" * 4, b"\x80" * 10, b"-1", b"1e999", b"NaN", b"9" * 40, b"[" * 300, b'"'),
    *(b"{", b"}", b",", b":", b"\n", b"\\u", b"\\ud800", b"<", b">", b"null", b"--", b"&a", b"*a"),
)


class Parser(NamedTuple):
    """A parser: valid samples, a function of bytes, and the errors that a caller's bytes may be."""

    samples: Sequence[bytes]
    parse: Callable[[bytes], Any]
    errors: tuple[type[Exception], ...] = (PipelineError,)


_MESSAGE = v2.ModelInferRequest(
    model_name="m",
    inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 2]}],
    raw_input_contents=[bytes(8)],
)
_FORM = b'--b\r\nContent-Disposition: form-data; name="x"; filename="f"\r\n\r\n1\r\n--b--\r\n'
_PBTXT = b"""
name: "m" max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ] parameters { key: "a" value { string_value: "b" } }
"""
_V2 = b"""
{"id": "1", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2]}]}"""
_PAIRS = (
    b'{"key":["x"],"value":["1"],"logid":7}',
    b'{"tensors":[{"name":"x","elem_type":1,"shape":[2],"float_data":[1,2.5]}]}',
)
_EVENTS = b"""HTTP/1.1 200 OK\r
Content-Type: text/event-stream\r
\r
event: a
data: 1

data: 2
data: 3

: c

"""


def _read_events(data: bytes) -> list[tuple[bytes, bytes]]:
    reader = HttpReader("server", MOST_BYTES)
    reader.take(data)
    return list(reader.events())


PARSERS = {
    "npy": Parser([array_to_npy(np.arange(6.0).reshape(2, 3))], npy_to_array, (ValueError,)),
    "pairs": Parser(_PAIRS, lambda data: request_from_json(data, "svc", "prediction")),
    "plain": Parser(_PAIRS, lambda data: plain_request_from_json(data, "svc", "prediction")),
    "v2": Parser([_V2], v2_json.read_request),
    "v2 binary": Parser([_V2 + bytes(8)], lambda data: v2_json.read_request(data, len(_V2))),
    "v2 message": Parser(
        [_MESSAGE.SerializeToString()], lambda data: v2_codec.read_message(data, Limits())
    ),
    "form": Parser(
        [_FORM], lambda data: fields_of_form(data, b"multipart/form-data; boundary=b", Limits())
    ),
    "pbtxt": Parser([_PBTXT], lambda data: parse_text(data, "config.pbtxt")),
    "yaml": Parser(
        [b"rpc_port: 1\nop:\n  a: {b: [1, '2', &x y, *x]}\n"],
        lambda data: parse_yaml(data, "config.yml"),
        (PipelineError, yaml.YAMLError),
    ),
    "sse": Parser([_EVENTS], _read_events),
    "brpc": Parser(
        [pack(request_meta("method", 1), b"body", b"more")],
        lambda data: FrameReader(MOST_BYTES).feed(data),
        (FrameError,),
    ),
}


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with one to four changes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, length = rng.randrange(len(changed) + 1), rng.choice((1, 1, 2, 8, 64))
        kind = rng.randrange(5)
        if kind == 0:
            changed[at : at + length] = b""
        elif kind == 1:
            changed[at:at] = rng.choice(_TOKENS)
        elif kind == 2:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 3:
            changed[at:at] = changed[at : at + length] * rng.choice((1, 2, 30))
        else:
            other = rng.randrange(len(changed) + 1)
            changed[at : at + length] = changed[other : other + length]
    return bytes(changed[:MOST_BYTES])


def run(seed: int, parsers: dict[str, Parser] = PARSERS) -> list[str]:
    """Return the defects that a parser shows."""
    rng = random.Random(f"parsers {seed}")
    name = sorted(parsers)[seed % len(parsers)]
    parser, known, findings = parsers[name], set[str](), list[str]()
    samples = list(parser.samples)
    for _ in range(_INPUTS):
        data = mutated(rng, rng.choice(samples))
        began = time.thread_time()
        try:
            ending = type(parser.parse(data)).__name__
        except parser.errors as error:
            ending = _NUMBER.sub("0", str(error))[:80]
        except Exception as error:
            ending = f"{name}: {type(error).__name__}"
            findings.append(f"{name}: {error!r} of {data!r}")
        if time.thread_time() - began > _MOST_S:
            findings.append(f"{name}: {time.thread_time() - began:.1f} s for {data!r}")
        if ending not in known:
            known.add(ending)
            samples.append(data)
    return findings


def main() -> int:
    parser = parser_of("parsers", __doc__)
    return campaign(parser.prog, parser.parse_args(), run)


if __name__ == "__main__":
    sys.exit(main())
