"""PipelineClient and its asyncio twin: calls a pipeline server over gRPC, or over HTTP."""

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
    """The part that both clients share: all but the kind of channel and who waits for it."""

    def __init__(self, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_message_bytes = max_message_bytes
        self._channel: Any = None
        self._inference: Any = None
        self._stream: Any = None
        self._own_ip = ""
        self._endpoints: list[str] = []
        self._name = ""  # of the pipeline; those of HTTP stand in their endpoints
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
        """Return what makes the call, also when another thread closes this client meanwhile."""
        if method is None:
            raise ClosedError(
                f"{type(self).__name__} is not connected: call connect(['127.0.0.1:9998']) first"
            )
        return method

    def _one_server(self) -> list[str]:
        """Return the endpoint that a sequence keeps to, the next in turn; []: there is but one."""
        self._connected(self._inference)
        if len(self._endpoints) == 1:
            return []
        return [self._endpoints[next(self._turn) % len(self._endpoints)]]

    def _explain(self, error: grpc.RpcError) -> None:
        """Name the proxy that was asked, if one was."""
        if error.code() is grpc.StatusCode.UNAVAILABLE and (
            hint := proxy_hint(split_name(self._endpoints)[0])
        ):
            error.add_note(hint)

    def _called(
        self, method: Any, feed_dict: dict[str, Any], options: CallOptions, timeout: Any
    ) -> Any:
        """Return what `method`, of the channel, gives: an answer, or a call."""
        connected = self._connected(method)
        request = self._request(feed_dict, options)
        return connected(request, timeout=timeout, metadata=call_metadata())

    def _request(self, feed_dict: dict[str, Any], options: CallOptions) -> Request:
        request = request_from_feed(feed_dict, options, self._own_ip)
        request.name = self._name
        return request


class PipelineClient(_ClientBase):
    """Calls a pipeline server over gRPC and waits, or hands out futures.

    `max_message_bytes` bounds what is sent and what is received in one message. One client may
    be used by many threads at once. It leaves the caller's data alone, and writes nothing to stdout
    but a profile that was asked for.

    >>> with PipelineClient() as client:
    ...     client.connect(["127.0.0.1:9998"])
    ...     response = client.predict({"words": "i am very sad | 0"}, fetch=["prediction"])
    """

    def connect(self, endpoints: str | Sequence[str]) -> None:
        """Name the servers, "host:port" each; calls go round robin over the servers that answer.

        "host:port/<name>" asks the pipeline of that name, where a server has several. With
        "http://host:port/<name>" each call is a POST, on a connection of its own; errors of a call
        are PipelineErrors then, and there is no `asyn`. Returns at once: gRPC connects with the
        first call, and again whenever it has to. Several host names are looked up here, once. A
        client that is connected already changes over. Raises ConfigError for endpoints that cannot
        be called.
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
        """Send `feed_dict` and return the answer; with `asyn` a future of it, at once.

        Values travel as text: `str` unchanged, an array or list as numpy's `repr`, a number as
        Python's, a dict as JSON; bytes as a tensor. With `pack_tensor_format` all of them travel
        as tensors (dicts still as JSON text), `"<key>.lod"` as the LoD of `<key>`; with
        `use_tensor_bytes` arrays go as .npy files. A number or text under `logid` and `clientip`
        describes the request, an array is an input; a `log_id` other than 0 overrides `logid`.

        `fetch` cuts the answer down to these results. `profile` asks the server for the times of
        this request, which come as the result `pipeline.profile` and are written to stdout, as
        lines that `Analyst` reads. `timeout` is the deadline in seconds, which the server receives;
        None waits forever.

        Raises TypeError for what cannot be sent, ClosedError before `connect`, and grpc.RpcError
        when the call fails (DEADLINE_EXCEEDED, UNAVAILABLE ...). An error of the application is not
        raised: it is in the answer: `err_no`, `err_msg`, `raise_for_error()`.
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

        The arguments are those of `predict`; `timeout` is the deadline of the whole stream. Of a
        pipeline that makes no stream there is one part. Closing the stream cancels the call, as
        does closing the client. Nothing is sent twice. Raises TypeError and ClosedError, as
        `predict` does; reading raises grpc.RpcError when the call fails.

        >>> with client.predict_stream({"text": "a b"}) as parts:
        ...     for part in parts:
        ...         print(part["word"])
        """
        options = CallOptions(fetch, pack_tensor_format, use_tensor_bytes, profile, log_id)
        return PipelineStream(self._called(self._stream, feed_dict, options, timeout), options)

    def sequence(self, id: int | str | None = None) -> PipelineSequence:
        """Return a sequence: requests that Ops with `sequence` run one after the other.

        `id` is known to the server, which tells its sequences apart by it; None makes one that
        nobody else has. With several endpoints all requests of a sequence go to one of them, over a
        connection of its own. Raises TypeError for an id that cannot be sent, and ClosedError
        before `connect`.

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
        """End the connection and the calls under way. May be called again."""
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

        Several host names are looked up here, which blocks the loop for that long. Raises
        InitError when the client is connected: its channel has to be awaited to close.
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
        timeout: float | None = None,  # noqa: ASYNC109 - a gRPC deadline, which the server receives
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
        """Return the parts of the answer, as `PipelineClient.predict_stream`; nothing to await.

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
        """End the connection and the calls under way. May be called again."""
        channel = self._taken_channel()
        if channel is not None:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
