"""PipelineClient and its asyncio twin: call a pipeline server over gRPC, or over HTTP."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, overload

import grpc

from pipeline.client_answers import (
    AsyncPipelineStream,
    PipelinePredictFuture,
    PipelineStream,
    show_profile,
)
from pipeline.client_http import AsyncHttpChannel, HttpChannel, is_http, services_of
from pipeline.client_sequence import AsyncPipelineSequence, PipelineSequence
from pipeline.errors import ClosedError, InitError
from pipeline.proto.channels import MAX_MESSAGE_BYTES, channel_options, close_at_exit
from pipeline.proto.messages import (
    INFERENCE_PATH,
    STREAM_PATH,
    CallOptions,
    PipelineResponse,
    cut_answer,
    request_from_feed,
)
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.proxies import proxy_hint
from pipeline.proto.targets import grpc_target, own_ip, split_name
from pipeline.tracing.context import call_metadata

__all__ = [
    "AsyncPipelineClient",
    "AsyncPipelineSequence",
    "AsyncPipelineStream",
    "PipelineClient",
    "PipelinePredictFuture",
    "PipelineResponse",
    "PipelineSequence",
    "PipelineStream",
]


class _ClientBase:
    """The common part of both clients."""

    def __init__(self, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_message_bytes = max_message_bytes
        self._channel: Any = None
        self._inference: Any = None
        self._stream: Any = None
        self._own_ip = ""
        self._endpoints: list[str] = []
        self._name = ""  # of the pipeline; HTTP endpoints contain it
        self._turn = itertools.count()

    def _open(
        self,
        endpoints: str | Sequence[str],
        insecure_channel: Callable[..., Any],
        http_channel: type[HttpChannel | AsyncHttpChannel],
    ) -> None:
        most_bytes = self._max_message_bytes
        self._endpoints = [endpoints] if isinstance(endpoints, str) else list(endpoints)
        if is_http(endpoints):
            self._channel = http_channel(services_of(endpoints), most_bytes)
            self._own_ip = own_ip(None)
            self._name = ""
        else:
            hosts, self._name = split_name(self._endpoints)
            target, peer = grpc_target(hosts)
            self._own_ip = own_ip(peer)
            options = channel_options(most_bytes, hosts)
            self._channel = insecure_channel(target, options=options)
        forms: dict[str, Any] = {
            "request_serializer": Request.SerializeToString,
            "response_deserializer": Response.FromString,
        }
        self._inference = self._channel.unary_unary(INFERENCE_PATH, **forms)
        self._stream = self._channel.unary_stream(STREAM_PATH, **forms)

    def _taken_channel(self) -> Any:
        """Return the channel, which the caller closes; this client has none from now on."""
        channel, self._channel = self._channel, None
        self._inference = self._stream = None
        return channel

    def _connected(self, method: Any) -> Any:
        """Return the method of the channel; safe if another thread closes this client meanwhile."""
        if method is None:
            raise ClosedError(
                f"{type(self).__name__} is not connected: call connect(['127.0.0.1:9998']) first"
            )
        return method

    def _one_server(self) -> list[str]:
        """Return the next endpoint in turn, which a sequence keeps; []: there is only one."""
        self._connected(self._inference)
        if len(self._endpoints) == 1:
            return []
        return [self._endpoints[next(self._turn) % len(self._endpoints)]]

    def _explain(self, error: grpc.RpcError) -> None:
        """Add the proxy that was used to the error, if one was."""
        if error.code() is grpc.StatusCode.UNAVAILABLE and (
            hint := proxy_hint(split_name(self._endpoints)[0])
        ):
            error.add_note(hint)

    def _called(
        self, method: Any, feed_dict: dict[str, Any], options: CallOptions, timeout: Any
    ) -> Any:
        """Call `method`, of the channel; return its answer, or the call."""
        connected = self._connected(method)
        request = self._request(feed_dict, options)
        return connected(request, timeout=timeout, metadata=call_metadata())

    def _request(self, feed_dict: dict[str, Any], options: CallOptions) -> Request:
        request = request_from_feed(feed_dict, options, self._own_ip)
        request.name = self._name
        return request


class PipelineClient(_ClientBase):
    """Calls a pipeline server over gRPC and waits, or returns futures.

    `max_message_bytes` limits a sent or received message. Many threads may use one client at the
    same time. It does not change the caller's data, and writes nothing to stdout except a requested
    profile.

    >>> with PipelineClient() as client:
    ...     client.connect(["127.0.0.1:9998"]) ...     response = client.predict({"words": "i am
    very sad | 0"}, fetch=["prediction"])
    """

    def connect(self, endpoints: str | Sequence[str]) -> None:
        """Set the servers, "host:port" each; calls go round robin over the servers that answer.

        "host:port/<name>" names a pipeline, if a server has several. With "http://host:port/<name>"
        each call is a POST, on a connection of its own; errors of a call are PipelineErrors then,
        and there is no `asyn`. Returns at once: gRPC connects with the first call, and again when
        it has to. Several host names are looked up here, once. A connected client switches to the
        new servers. Raises ConfigError for endpoints that cannot be called.
        """
        previous = self._channel
        self._open(endpoints, grpc.insecure_channel, HttpChannel)
        close_at_exit(self._channel)
        if previous is not None:
            previous.close()

    @overload
    def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        asyn: Literal[False] = False,
        pack_tensor_format: bool = False,
        use_tensor_bytes: bool = False,
        profile: bool = False,
        log_id: int = 0,
        timeout: float | None = None,
    ) -> PipelineResponse: ...

    @overload
    def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        asyn: Literal[True] = True,
        pack_tensor_format: bool = False,
        use_tensor_bytes: bool = False,
        profile: bool = False,
        log_id: int = 0,
        timeout: float | None = None,
    ) -> PipelinePredictFuture: ...

    def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        asyn: bool = False,
        pack_tensor_format: bool = False,
        use_tensor_bytes: bool = False,
        profile: bool = False,
        log_id: int = 0,
        timeout: float | None = None,
    ) -> PipelineResponse | PipelinePredictFuture:
        """Send `feed_dict` and return the answer; with `asyn` return a future of it, at once.

        Values are sent as text: `str` unchanged, an array or list as numpy's `repr`, a number as
        Python's, a dict as JSON; bytes as a tensor. With `pack_tensor_format` all values are
        tensors (dicts still JSON text), and `"<key>.lod"` is the LoD of `<key>`; with
        `use_tensor_bytes` arrays are .npy files. A number or text under `logid` and `clientip`
        describes the request, an array is an input; a `log_id` other than 0 overrides `logid`.

        `fetch` reduces the answer to these results. `profile` asks the server for the times of this
        request, which come as the result `pipeline.profile` and are written to stdout, as lines
        that `Analyst` reads. `timeout` is the deadline in seconds, which the server gets; None
        waits forever.

        Raises TypeError for values that cannot be sent, ClosedError before `connect`, and
        grpc.RpcError when the call fails (DEADLINE_EXCEEDED, UNAVAILABLE ...). An error of the
        application is not raised: it is in the answer: `err_no`, `err_msg`, `raise_for_error()`.
        """
        options = CallOptions(fetch, pack_tensor_format, use_tensor_bytes, profile, log_id)
        inference = self._connected(self._inference)
        request = self._request(feed_dict, options)
        if asyn:
            call = inference.future(request, timeout=timeout, metadata=call_metadata())
            return PipelinePredictFuture(call, options)
        try:
            answer = inference(request, timeout=timeout, metadata=call_metadata())
        except grpc.RpcError as error:
            self._explain(error)
            raise
        show_profile(answer, options)
        return cut_answer(answer, options)

    def predict_stream(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        *,
        pack_tensor_format: bool = False,
        use_tensor_bytes: bool = False,
        profile: bool = False,
        log_id: int = 0,
        timeout: float | None = None,
    ) -> PipelineStream:
        """Send `feed_dict` and return the parts of the answer, each when it comes.

        The arguments are those of `predict`; `timeout` is the deadline of the whole stream. A
        pipeline that does not stream answers in one part. To close the stream, or the client,
        cancels the call. Nothing is sent twice. Raises TypeError and ClosedError, as `predict`
        does; reading raises grpc.RpcError when the call fails.

        >>> with client.predict_stream({"text": "a b"}) as parts:
        ...     for part in parts:
        ...         print(part["word"])
        """
        options = CallOptions(fetch, pack_tensor_format, use_tensor_bytes, profile, log_id)
        return PipelineStream(self._called(self._stream, feed_dict, options, timeout), options)

    def sequence(self, id: int | str | None = None) -> PipelineSequence:
        """Return a sequence: requests that Ops with `sequence` run one after the other.

        The server distinguishes its sequences by their `id`; None makes a unique one. With several
        endpoints all requests of a sequence go to one of them, over a connection of its own. Raises
        TypeError for an id that cannot be sent, and ClosedError before `connect`.

        >>> with client.sequence() as sequence:
        ...     for chunk in chunks:
        ...         print(sequence.predict({"audio": chunk})["text"])
        """
        one = self._one_server()
        if not one:
            return PipelineSequence(self, id)
        own = PipelineClient(self._max_message_bytes)
        own.connect(one)
        return PipelineSequence(own, id, own.close)

    def close(self) -> None:
        """End the connection and the running calls. May be called again."""
        channel = self._taken_channel()
        if channel is not None:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncPipelineClient(_ClientBase):
    """`PipelineClient` for asyncio: `await predict(...)`, `await close()`, `async with`."""

    def connect(self, endpoints: str | Sequence[str]) -> None:
        """Connect as `PipelineClient.connect`; call it in the event loop of the calls.

        Several host names are looked up here, which blocks the loop for that time. Raises InitError
        if the client is connected: to close its channel needs an await.
        """
        if self._channel is not None:
            raise InitError("AsyncPipelineClient is connected already: await close() first")
        self._open(endpoints, grpc.aio.insecure_channel, AsyncHttpChannel)

    async def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        *,
        pack_tensor_format: bool = False,
        use_tensor_bytes: bool = False,
        profile: bool = False,
        log_id: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109 - a gRPC deadline, which the server gets
    ) -> PipelineResponse:
        """Predict as `PipelineClient.predict`; cancelling the awaiting task cancels the call."""
        options = CallOptions(fetch, pack_tensor_format, use_tensor_bytes, profile, log_id)
        try:
            answer = await self._called(self._inference, feed_dict, options, timeout)
        except grpc.RpcError as error:
            self._explain(error)
            raise
        show_profile(answer, options)
        return cut_answer(answer, options)

    def predict_stream(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        *,
        pack_tensor_format: bool = False,
        use_tensor_bytes: bool = False,
        profile: bool = False,
        log_id: int = 0,
        timeout: float | None = None,
    ) -> AsyncPipelineStream:
        """Return the parts of the answer, as `PipelineClient.predict_stream`; there is nothing to
        await.

        Cancelling the task that reads cancels the call.
        """
        options = CallOptions(fetch, pack_tensor_format, use_tensor_bytes, profile, log_id)
        return AsyncPipelineStream(self._called(self._stream, feed_dict, options, timeout), options)

    def sequence(self, id: int | str | None = None) -> AsyncPipelineSequence:
        """Return a sequence, as `PipelineClient.sequence`, for `async with`."""
        one = self._one_server()
        if not one:
            return AsyncPipelineSequence(self, id)
        own = AsyncPipelineClient(self._max_message_bytes)
        own.connect(one)
        return AsyncPipelineSequence(own, id, own.close)

    async def close(self) -> None:
        """End the connection and the running calls. May be called again."""
        channel = self._taken_channel()
        if channel is not None:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
