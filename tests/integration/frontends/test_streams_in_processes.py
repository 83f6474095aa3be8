"""Streams of an Op in processes, at each door and each edge: order, errors, deaths, callers."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import grpc
import numpy as np
import pytest
from streamed import EDGES, AskedByName, NamedParts, seen, streaming_server, temporary_folder
from streaming_http import LINES, asked

from pipeline import PipelineClient, PipelineServer
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.v2.codec import SERVICE, add_tensor, tensors_to_arrays

__all__ = ["seen"]
pytestmark = pytest.mark.usefixtures("grpc_is_up", "gateway_binary")

PATIENCE_S = 30
Texts = Iterator[str]
"""The texts of the parts; the text of an error is raised as `StreamError`."""


class StreamError(Exception):
    """The error that a stream ended with."""


@pytest.fixture(scope="module", params=EDGES)
def server(request: Any, module_logs: None) -> Iterator[PipelineServer]:
    op = NamedParts("parts", [AskedByName()], concurrency=2)
    with (
        temporary_folder(),
        streaming_server(request.param, op, dag={"is_thread_op": False}) as running,
    ):
        yield running


def fields_of(**said: int) -> dict[str, str]:
    names = [tensor.name for tensor in AskedByName.input_tensors]
    return {name: str(said.get(name, 0 if name == "size" else -1)) for name in names}


# The doors: each gives the texts of one stream, and hangs up at the end of its `with` ----------


@contextlib.contextmanager
def _by_client(endpoint: str, **said: int) -> Iterator[Texts]:
    with PipelineClient() as client:
        client.connect(endpoint)
        with client.predict_stream(fields_of(**said)) as parts:
            yield (text_or_error("".join(part.value), part.err_msg) for part in parts)


def events(server: PipelineServer, **said: int) -> AbstractContextManager[Texts]:
    return _by_client(f"http://127.0.0.1:{server.http_port}/svc", **said)


def inference_stream(server: PipelineServer, **said: int) -> AbstractContextManager[Texts]:
    return _by_client(f"127.0.0.1:{server.rpc_port}", **said)


@contextlib.contextmanager
def lines(server: PipelineServer, **said: int) -> Iterator[Texts]:
    with asked(server.http_port, LINES, **fields_of(**said)) as heard:
        document = map(json.loads, heard.response)
        yield (text_or_error("".join(part["value"]), part["err_msg"]) for part in document)


@contextlib.contextmanager
def generate_stream(server: PipelineServer, **said: int) -> Iterator[Texts]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port or 0, timeout=PATIENCE_S)
    path = "/v2/models/parts/generate_stream"
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(fields_of(**said)))
        response = connection.getresponse()
        document = (json.loads(line[6:]) for line in response if line.startswith(b"data: "))
        yield (text_or_error(event.get("text", ""), event.get("error", "")) for event in document)
        response.close()


@contextlib.contextmanager
def model_stream_infer(server: PipelineServer, **said: int) -> Iterator[Texts]:
    message = pb.ModelInferRequest(model_name="parts")
    for name, value in fields_of(**said).items():
        array = np.array([value.encode()], object)
        add_tensor(message.inputs, message.raw_input_contents, name, array)
    options = [("grpc.use_local_subchannel_pool", 1)]
    said_so_far: queue.Queue[Any] = queue.Queue()
    said_so_far.put(message)
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}", options) as channel:
        method = channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )
        answers = method(iter(said_so_far.get, None), timeout=PATIENCE_S)
        if said.get("n", -1) >= 0:
            said_so_far.put(None)  # nothing follows; its parts still come
        yield map(_v2_text, answers)
        answers.cancel()
        said_so_far.put(None)


def _v2_text(answer: pb.ModelStreamInferResponse) -> str:
    response = answer.infer_response
    arrays = tensors_to_arrays(response.outputs, response.raw_output_contents)
    text = "" if answer.error_message else arrays["text"].item()
    return text_or_error(text.decode() if isinstance(text, bytes) else text, answer.error_message)


def text_or_error(text: str, error: str) -> str:
    if error:
        raise StreamError(error)
    return text


Door = Callable[..., AbstractContextManager[Texts]]
DOORS: list[Door] = [events, lines, inference_stream, generate_stream, model_stream_infer]
at_each_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)


def texts_and_error(texts: Texts) -> tuple[list[str], str]:
    collected: list[str] = []
    with pytest.raises(StreamError) as caught:
        collected.extend(texts)
    return collected, str(caught.value)


@at_each_door
def test_the_parts_are_in_order(server, door):
    with door(server, n=60) as texts:
        assert list(texts) == [str(number) for number in range(60)]


@at_each_door
def test_an_error_in_the_middle_follows_the_parts(server, door):
    with door(server, n=5, fail=2) as texts:
        result, error = texts_and_error(texts)
    assert result == ["0", "1"]
    assert "broken in the middle" in error


@at_each_door
def test_a_process_that_dies_ends_the_stream_after_its_parts(server, door):
    with door(server, n=5, die=2) as texts:
        result, error = texts_and_error(texts)
    assert result == ["0", "1"]
    assert "killed by SIGKILL" in error
    with door(server, n=2) as texts:
        assert list(texts) == ["0", "1"]


@at_each_door
def test_a_slow_reader_pauses_the_generator_and_a_disconnect_closes_it(server, door, seen):
    with door(server, size=60_000) as texts:
        next(texts)
        made = seen.made_at_rest()
        assert made < 1000
        for number in range(1, made + 20):  # it continues as they are read
            assert next(texts).startswith(f"{number}.")
        assert not seen.closed.is_set()
    assert seen.closed.wait(PATIENCE_S)
