"""`paddle_serving_client.httpclient`: HttpClient, which asks a model service over HTTP."""

from __future__ import annotations

import gzip
import http.client
import itertools
import re
import ssl
import threading
import zlib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import orjson
from google.protobuf.message import DecodeError

from pipeline.errors import (
    ConfigError,
    DeadlineError,
    InitError,
    InputError,
    NotImplementedByOpError,
    PredictorError,
    PredictorUnavailableError,
    one_line,
)
from pipeline.predictors.model_conf import ModelConf, read_model_conf
from pipeline.predictors.remote.base import RemoteModel
from pipeline.predictors.remote.grpc_calls import GrpcCalls
from pipeline.predictors.signature import LOD
from pipeline.proto.brpc.frames import SERVICE
from pipeline.proto.brpc.general_model import dtype_of, put_value, request_to_json
from pipeline.proto.general_model_pb2 import Request, Response
from pipeline.proto.http import header_line
from pipeline.proto.lists import as_array
from pipeline.proto.targets import host_and_port

__all__ = ["HttpClient"]

_PROTO = "application/proto"
_JSON = "application/json"
_MIN_PACKED_BYTES = 512
_TEXT = np.dtype(object)


class HttpClient:
    """Asks the server of one model over HTTP; may be used by many threads at once.

    >>> client = HttpClient()
    >>> client.load_client_config("uci_housing_client")  # a prototxt or its folder
    >>> client.connect(["127.0.0.1:9393"])
    >>> client.predict(feed={"x": x}, fetch=["price"], batch=True).outputs[0].tensor[0].float_data

    Attributes:
        headers: fields that every request has.
        ssl_context: used for "https://" addresses.
    """

    def __init__(
        self,
        ip: str = "127.0.0.1",
        port: str = "9393",
        service_name: str = "/GeneralModelService/inference",
    ) -> None:
        self.ip: str = ip
        self.port: str = str(port)
        self.service_name: str = service_name
        self._take_conf(ModelConf((), ()))
        self.headers: dict[str, str] = {"Content-Type": _PROTO}
        self.http_proto: bool = True
        self.use_grpc_client: bool = False
        self.try_request_gzip: bool = False
        self.try_response_gzip: bool = False
        self.timeout_ms: int = 20000
        self.max_body_size: int = 512 * 1024 * 1024
        self.http_s: str = "http://"
        self.ssl_context: ssl.SSLContext | None = None
        self._retries = 0
        self._posts = HttpPosts()
        self._grpc: GrpcCalls | None = None

    # Settings ---------------------------------------------------------------------------

    def load_client_config(self, model_config_path_list: str | Sequence[str]) -> None:
        """Read the model's inputs and outputs from `serving_client_conf.prototxt`.

        Of several models in a row, the first has the inputs and the last has the outputs.

        Raises:
            InitError: a file cannot be read.
        """
        path_or_paths = model_config_path_list
        paths = [
            Path(path)
            for path in ([path_or_paths] if isinstance(path_or_paths, str) else path_or_paths)
        ]
        self._take_conf(read_model_conf(paths))

    def _take_conf(self, conf: ModelConf) -> None:
        feeds, fetches = conf.feeds, conf.fetches
        self.feed_names_: list[str] = [var.alias for var in feeds]
        self.feed_real_names: list[str] = [var.name for var in feeds]
        self.feed_names_to_idx_: dict[str, int] = {v.alias: at for at, v in enumerate(feeds)}
        self.feed_types_: dict[str, int] = {var.alias: var.elem_type for var in feeds}
        self.feed_shapes_: dict[str, list[int]] = {var.alias: list(var.shape) for var in feeds}
        self.fetch_names_: list[str] = [var.alias for var in fetches]
        self.fetch_names_to_idx_: dict[str, int] = {v.alias: at for at, v in enumerate(fetches)}
        self.fetch_names_to_type_: dict[str, int] = {var.alias: var.elem_type for var in fetches}
        self.lod_tensor_set: set[str] = {v.alias for v in (*feeds, *fetches) if v.is_lod}

    def connect(self, url: str | Sequence[str] | None = None, encryption: bool = False) -> None:
        """Set the server: "host:port", "http://host:port" or "https://host:port".

        Raises:
            InitError: the address is not valid, or several were given.
        """
        if encryption:
            _refuse("encrypted models")
        urls = [url] if isinstance(url, str) else list(url or [f"{self.ip}:{self.port}"])
        if len(urls) != 1:
            raise InitError(f"HttpClient.connect: {len(urls)} servers were named; it asks one.")
        scheme, _, address = urls[0].rpartition("://")
        checked_address(address if scheme in ("", "http", "https") else urls[0])
        self.ip, _, self.port = address.rpartition(":")
        self.http_s = f"{scheme or 'http'}://"
        self._posts.forget()
        self._close_grpc()

    def set_max_body_size(self, max_body_size: int) -> None:
        """Set the maximum size of an answer in bytes; the default is 512 MiB."""
        self.max_body_size = max_body_size

    def set_timeout_ms(self, timeout_ms: int) -> None:
        """Set the limit of a call; the default is 20,000 ms."""
        if not isinstance(timeout_ms, int):
            raise ValueError("timeout_ms must be int type.")
        self.timeout_ms = timeout_ms

    def set_max_retries(self, retry_times: int = 3) -> None:
        """Set how often a failed connect is tried again; the default is 0."""
        if not isinstance(retry_times, int):
            raise ValueError("retry_times must be int type.")
        self._retries = retry_times

    def set_service_name(self, service_name: str) -> None:
        """Set the path; the default is "/GeneralModelService/inference"."""
        self.service_name = service_name

    def add_http_headers(self, headers: Mapping[str, str]) -> None:
        """Add fields to the headers of every request."""
        self.headers.update(headers)

    def set_request_compress(self, try_request_gzip: bool) -> None:
        """Compress requests of more than 512 bytes with gzip."""
        self.try_request_gzip = try_request_gzip

    def set_response_compress(self, try_response_gzip: bool) -> None:
        """Ask for answers that are compressed with gzip."""
        self.try_response_gzip = try_response_gzip

    def set_http_proto(self, http_proto: bool) -> None:
        """Choose protobuf messages (the default) or JSON, for requests and answers."""
        self.http_proto = http_proto
        self.headers["Content-Type"] = _PROTO if http_proto else _JSON

    def set_use_grpc_client(self, use_grpc_client: bool) -> None:
        """Choose gRPC or HTTP."""
        self.use_grpc_client = use_grpc_client

    def use_key(self, key_filename: str) -> NoReturn:
        """Encrypted models are not supported."""
        _refuse("encrypted models")

    def get_serving_port(self) -> NoReturn:
        """Encrypted models are not supported."""
        _refuse("encrypted models")

    def get_feed_names(self) -> list[str]:
        """Return the input names that `feed` uses."""
        return self.feed_names_

    def get_fetch_names(self) -> list[str]:
        """Return the output names that `fetch` uses."""
        return self.fetch_names_

    def get_legal_fetch(self, fetch: str | Sequence[str] | None) -> list[str]:
        """Return the names in `fetch` that the model has."""
        names = [fetch] if isinstance(fetch, str) else list(fetch or [])
        return [name for name in names if name in self.fetch_names_]

    def get_feedvar_dict(self, feed: Any) -> dict[str, Any]:
        """Return the feed as a dict; of a list, each item is the value of one input."""
        if isinstance(feed, Mapping):
            return dict(feed)
        if not isinstance(feed, list | tuple | str):
            raise ValueError("Feed only accepts dict/str/list/tuple")
        if len(feed) == 1 and isinstance(feed[0], Mapping):
            return dict(feed[0])
        if len(self.feed_names_) == 1:
            return {self.feed_names_[0]: feed}
        if isinstance(feed, str) or len(feed) != len(self.feed_names_):
            raise ValueError(
                f"the feed has {len(feed)} values, the model {len(self.feed_names_)} inputs: "
                f"give a dict of {self.feed_names_}"
            )
        return dict(zip(self.feed_names_, feed, strict=True))

    # Calls ------------------------------------------------------------------------------

    def predict(
        self,
        feed: Any = None,
        fetch: str | Sequence[str] | None = None,
        batch: bool = False,
        need_variant_tag: bool = False,
        log_id: int = 0,
    ) -> Any:
        """Run the model once.

        Args:
            feed: maps input names to arrays, lists or scalars; "<name>.lod" holds an input's LoD.
            fetch: names of the outputs; all if it is empty.
            batch: whether axis 0 of the arrays is the batch; otherwise they are one sample.
            need_variant_tag: has no effect.
            log_id: the caller's number of the request.

        Returns:
            The service's `Response` message, with `outputs[0].tensor`; a dict with the same fields
            after `set_http_proto(False)`. `err_no` and `err_msg` say why the model refused.

        Raises:
            InputError, ValueError: the feed is not the model's, or a header cannot be sent.
            PredictorError: there is no answer. (The predecessor returned None.)
            DeadlineError: the time was over.
        """
        call = self.grpc_client_predict if self.use_grpc_client else self.http_client_predict
        return call(feed, fetch, batch, need_variant_tag, log_id)

    def http_client_predict(
        self,
        feed: Any = None,
        fetch: str | Sequence[str] | None = None,
        batch: bool = False,
        need_variant_tag: bool = False,
        log_id: int = 0,
    ) -> Any:
        """Do what `predict` does over HTTP."""
        arguments = (self.get_feedvar_dict(feed), self.get_legal_fetch(fetch), batch, log_id)
        if self.http_proto:
            body = self.process_proto_data(*arguments).SerializeToString()
        else:
            body = self.process_json_data(*arguments).encode()
        headers = dict(self.headers)
        if self.try_request_gzip and len(body) > _MIN_PACKED_BYTES:
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        if self.try_response_gzip:
            headers["Accept-Encoding"] = "gzip"
        status, kind, answer = self._posts.post(self, body, headers)
        if status != HTTPStatus.OK:
            raise PredictorError(
                f"{self._url} answered {status}: {one_line(answer.decode('utf-8', 'replace'))}"
            )
        return _response(answer) if kind == _PROTO else _from_json(answer)

    def grpc_client_predict(
        self,
        feed: Any = None,
        fetch: str | Sequence[str] | None = None,
        batch: bool = False,
        need_variant_tag: bool = False,
        log_id: int = 0,
    ) -> Response:
        """Do what `predict` does over gRPC."""
        request = self.process_proto_data(
            self.get_feedvar_dict(feed), self.get_legal_fetch(fetch), batch, log_id
        )
        grpc = self.init_grpc_stub()
        return _response(
            grpc.run(grpc.method(f"/{SERVICE}/inference"), request.SerializeToString())
        )

    def init_grpc_stub(self) -> GrpcCalls:
        """Return the connection for calls over gRPC; the first call makes it."""
        if self._grpc is None:
            endpoints = (f"{self.ip}:{self.port}",)
            model = RemoteModel("HttpClient", "grpc", endpoints, timeout_s=self.timeout_ms / 1000)
            self._grpc = GrpcCalls(model)
        return self._grpc

    def process_proto_data(
        self, feed_dict: Mapping[str, Any], fetch_list: Sequence[str], batch: bool, log_id: int
    ) -> Request:
        """Return the request as a message."""
        request = Request(fetch_var_names=fetch_list, log_id=log_id)
        for name, value in feed_dict.items():
            if name in self.feed_names_:
                array = self._array(name, value, batch)
                real_name = self.feed_real_names[self.feed_names_to_idx_[name]]
                lod = feed_dict.get(f"{name}{LOD}")
                put_value(request.tensor.add(), real_name, name, array, lod)
            elif LOD not in name:
                raise ValueError(f"Wrong feed name: {name}.")
        return request

    def process_json_data(
        self, feed_dict: Mapping[str, Any], fetch_list: Sequence[str], batch: bool, log_id: int
    ) -> str:
        """Return the request as JSON."""
        request = self.process_proto_data(feed_dict, fetch_list, batch, log_id)
        return request_to_json(request).decode()

    def _array(self, name: str, value: Any, batch: bool) -> np.ndarray:
        """Return a value of the feed as it is sent; a list takes the configured shape."""
        dtype = dtype_of(self.feed_types_[name])
        is_array = isinstance(value, np.ndarray)
        array = as_array(value)
        if (dtype == _TEXT) != (array.dtype.kind in "OSU"):
            actual, expected = (
                "text" if either.kind in "OSU" else either for either in (array.dtype, dtype)
            )
            raise InputError(f"feed {name!r} is {actual}, the model wants {expected}")
        array = _texts(array) if dtype == _TEXT else array.astype(dtype)
        shape = list(array.shape) if is_array and array.ndim else self.feed_shapes_[name]
        if isinstance(value, list | tuple):
            known = -1 not in shape
            shape = [*([len(value)] if batch else []), *shape] if known else list(array.shape)
        if not batch and (is_array or isinstance(value, list | tuple)):
            shape = [1, *shape]
        try:
            return array.reshape(shape)
        except ValueError:
            raise InputError(
                f"feed {name!r} has {array.size} elements, which are not {shape}"
            ) from None

    @property
    def _url(self) -> str:
        """The service's URL, for error texts."""
        return f"{self.http_s}{self.ip}:{self.port}{self.service_name}"

    def _close_grpc(self) -> None:
        grpc, self._grpc = self._grpc, None
        if grpc is not None:
            grpc.close()

    def release(self) -> None:
        """Close this thread's connection and the gRPC connection. May be called again."""
        self._posts.close()
        self._close_grpc()


def _response(answer: bytes) -> Response:
    try:
        return Response.FromString(answer)
    except DecodeError as error:
        raise PredictorError(f"the answer is not a Response: {error}") from error


def _from_json(answer: bytes) -> Any:
    try:
        return orjson.loads(answer)
    except orjson.JSONDecodeError as error:
        raise PredictorError(f"the answer is not valid JSON: {error}") from error


def _texts(array: np.ndarray) -> np.ndarray:
    flat = [item.decode() if isinstance(item, bytes) else str(item) for item in array.ravel()]
    return np.array(flat, dtype=object).reshape(array.shape)


def _refuse(what: str) -> NoReturn:
    raise NotImplementedByOpError(f"paddle_serving_client.HttpClient: not supported: {what}.")


# Connections ------------------------------------------------------------------------------------


_PATH = re.compile(r"/[!$-~]*")  # printable ASCII without spaces, quotes and fragments
_HUNG_UP = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


class HttpPosts:
    """POSTs to one server, over one connection per thread."""

    def __init__(self) -> None:
        self._local = threading.local()

    def forget(self) -> None:
        """Make all threads connect again."""
        self._local = threading.local()

    def close(self) -> None:
        """Close this thread's connection."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()

    def post(
        self, to: HttpClient, body: bytes, headers: Mapping[str, Any]
    ) -> tuple[int, str, bytes]:
        """Return (status, content type, decompressed body).

        Raises:
            InputError: the path or a header is not valid; nothing was sent.
            InitError: the address is not valid.
            PredictorError: there is no readable answer.
            DeadlineError: the time was over.
        """
        _check(to.service_name, headers)
        for attempt in itertools.count():
            connection, is_used = self._connection(to)
            try:
                connection.request("POST", to.service_name, body, dict(headers))
                answer = connection.getresponse()
                content = answer.read(to.max_body_size + 1)
                break
            except TimeoutError as error:
                connection.close()
                text = f"{to._url}: no answer within {to.timeout_ms} ms"
                raise DeadlineError(text) from error
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # The server may have closed an idle connection.
                was_closed = is_used and isinstance(error, _HUNG_UP)
                if not was_closed and attempt >= to._retries:
                    raise PredictorUnavailableError(f"{to._url}: {error!r}") from error
        try:
            return answer.status, answer.getheader("Content-Type", ""), _whole(to, answer, content)
        except PredictorError:
            connection.close()
            raise

    def _connection(self, to: HttpClient) -> tuple[http.client.HTTPConnection, bool]:
        """Return this thread's connection, and whether it was used before."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        timeout_s = to.timeout_ms / 1000
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(timeout_s)
            return connection, True
        host, port = checked_address(f"{to.ip}:{to.port}")
        made: http.client.HTTPConnection
        if to.http_s == "https://":
            context = to.ssl_context or ssl.create_default_context()
            made = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        else:
            made = http.client.HTTPConnection(host, port, timeout=timeout_s)
        self._local.connection = made
        return made, False


def checked_address(address: str) -> tuple[str, int]:
    """Return host and port. Raises InitError."""
    try:
        return host_and_port(address)
    except ConfigError as error:
        raise InitError(
            f"HttpClient.connect: {address!r} is not an address: expected one like 127.0.0.1:9393 "
            "or http://127.0.0.1:9393"
        ) from error


def _check(path: str, headers: Mapping[str, Any]) -> None:
    """Check that path and headers make one valid head. Raises InputError."""
    if not _PATH.fullmatch(path):
        raise InputError(
            f"the service name {path!r} is not a path: expected one like /Model/inference"
        )
    for name, value in headers.items():
        text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
        try:
            header_line(name, text)
        except ValueError as error:
            raise InputError(f"headers of HttpClient: {error}") from None


def _whole(to: HttpClient, answer: http.client.HTTPResponse, content: bytes) -> bytes:
    """Return the decompressed body. Raises PredictorError: it is too large, broken or cut off."""
    is_over = len(content) > to.max_body_size or not answer.length
    if answer.getheader("Content-Encoding", "") == "gzip":
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            content = unpacker.decompress(content, to.max_body_size + 1)
        except zlib.error as error:
            raise PredictorError(f"{to._url}: the answer is not valid gzip: {error}") from error
        is_over = is_over and (unpacker.eof or len(content) > to.max_body_size)
    if not is_over:
        raise PredictorError(f"{to._url}: the answer was cut off")
    if len(content) > to.max_body_size:
        raise PredictorError(f"{to._url}: the answer is above {to.max_body_size} bytes")
    return content
