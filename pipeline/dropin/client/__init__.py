"""`paddle_serving_client`: asks a model service over brpc or gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

from pipeline.dropin.client.httpclient import HttpClient
from pipeline.dropin.server.version import version_tag as __version__
from pipeline.dropin.stubs import stub
from pipeline.errors import ClosedError, InitError, NotImplementedByOpError
from pipeline.predictors.base import Predictor
from pipeline.predictors.model_conf import ModelConf, read_model_conf
from pipeline.predictors.remote.base import (
    DEFAULT_TIMEOUT_S,
    RemoteModel,
    connect_remote_predictor,
)

__all__ = ["Client", "HttpClient", "MultiLangClient", "SDKConfig", "__version__"]


class Client:
    """Asks the servers of one model; may be used by many threads at once.

    >>> client = Client()
    >>> client.load_client_config("uci_housing_client")  # a prototxt or its folder
    >>> client.connect(["127.0.0.1:9393"])
    >>> client.predict(feed={"x": x}, fetch=["price"], batch=True)
    """

    def __init__(self) -> None:
        self._client_type = "brpc"
        self._conf: ModelConf | None = None
        self._conf_path: Path | None = None
        self._timeout_s = DEFAULT_TIMEOUT_S
        self._predictor: Predictor | None = None

    def load_client_config(self, model_config_path_list: str | Sequence[str]) -> None:
        """Read the model's inputs and outputs from `serving_client_conf.prototxt`.

        Raises:
            InitError: the file cannot be read, or several configurations were given.
        """
        path_or_paths = model_config_path_list
        paths = [path_or_paths] if isinstance(path_or_paths, str) else list(path_or_paths)
        if len(paths) != 1:
            raise InitError(
                f"load_client_config: {len(paths)} configurations were given; the services of "
                "this library have one model: name one."
            )
        self._conf_path = Path(paths[0])
        self._conf = read_model_conf(self._conf_path)

    def set_use_grpc_client(self, use_grpc_client: bool) -> None:
        """Choose gRPC or brpc for the next `connect`."""
        self._client_type = "grpc" if use_grpc_client else "brpc"

    def set_rpc_timeout_ms(self, rpc_timeout: int) -> None:
        """Set the limit of a call in milliseconds; the default is 20,000."""
        self._timeout_s = rpc_timeout / 1000

    def set_connect_timeout_ms(self, connect_timeout: int) -> None:
        """Has no effect: the time to connect is part of the call's limit."""

    def set_max_body_size(self, body_size: int) -> None:
        """Has no effect: the limit is always 512 MiB."""

    def connect(self, endpoints: Sequence[str] | None = None, encryption: bool = False) -> None:
        """Set the servers as "host:port"; calls go round robin over the servers that answer.

        Raises:
            InitError: no configuration was loaded, or the client cannot be made.
        """
        if encryption or not endpoints:
            _refuse("variants and encrypted models: name the endpoints of a plain model")
        if self._conf_path is None:
            raise InitError("call load_client_config before connect.")
        self.release()
        self._predictor = connect_remote_predictor(
            RemoteModel(
                name=str(self._conf_path),
                client_type=self._client_type,
                endpoints=tuple(endpoints),
                client_config=self._conf_path,
            )
        )

    def get_feed_names(self) -> list[str]:
        """Return the input names that `feed` uses."""
        return [var.alias for var in self._loaded().feeds]

    def get_fetch_names(self) -> list[str]:
        """Return the output names that `fetch` uses."""
        return [var.alias for var in self._loaded().fetches]

    def predict(
        self,
        feed: Any = None,
        fetch: Sequence[str] | str | None = None,
        batch: bool = False,
        need_variant_tag: bool = False,
        logid: int = 0,
        log_id: int = 0,
    ) -> dict[str, Any]:
        """Run the model once.

        Args:
            feed: maps input names to arrays or lists of str; "<name>.lod" holds an input's LoD.
            fetch: names of the outputs; all if it is empty.
            batch: whether axis 0 of the arrays is the batch; otherwise they are one sample.
            need_variant_tag: not supported.
            logid: the caller's number of the request; `log_id` takes precedence.
            log_id: the caller's number of the request.

        Returns:
            A dict of output names to arrays; "<name>.lod" holds an output's LoD.

        Raises:
            InputError, PayloadTypeError: the feed is not the model's.
            PredictorError: the server refused the request, or no server answered.
            DeadlineError: the limit has passed. (The predecessor returned None for all of these.)
        """
        if need_variant_tag:
            _refuse("variants")
        if self._predictor is None:
            raise ClosedError("the client is not connected: call connect(['127.0.0.1:9292']).")
        return self._predictor.predict(
            feed,
            [fetch] if isinstance(fetch, str) else fetch,
            batch,
            log_id or logid,
            deadline_s=self._timeout_s,
        )

    def release(self) -> None:
        """Close the connections. May be called again."""
        predictor, self._predictor = self._predictor, None
        if predictor is not None:
            predictor.close()

    def use_key(self, key_filename: str) -> NoReturn:
        """Encrypted models are not supported."""
        _refuse("encrypted models")

    def add_variant(self, tag: str, cluster: Sequence[str], variant_weight: float) -> NoReturn:
        """Variants are not supported: choose a server in your own code."""
        _refuse("variants: choose the server in your own code")

    def _loaded(self) -> ModelConf:
        if self._conf is None:
            raise InitError("call load_client_config first.")
        return self._conf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class MultiLangClient(Client):
    """The client that speaks gRPC."""

    def __init__(self) -> None:
        super().__init__()
        self._client_type = "grpc"


def _refuse(what: str) -> NoReturn:
    raise NotImplementedByOpError(f"paddle_serving_client.Client: not supported: {what}.")


SDKConfig: Any = stub("SDKConfig", __name__, "name the endpoints in Client.connect")
