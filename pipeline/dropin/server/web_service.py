"""`paddle_serving_server.web_service`: WebService and `port_is_available`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from pipeline import web_service
from pipeline.dropin.server.pipeline.pipeline_server import PipelineServer
from pipeline.errors import ConfigError, NotImplementedByOpError
from pipeline.op import Op

__all__ = ["Op", "PipelineWebService", "WebService", "port_is_available"]


def port_is_available(port: int) -> bool:
    """Return whether no process accepts connections on this port of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedByOpError(
        f"{type(self).__name__} uses the single-model WebService (load_model_config, "
        "run_rpc_service, run_web_service ...), which Paddle Serving gave up for the pipeline: "
        "override get_pipeline_response, or serve the model by `python -m pipeline.serve` "
        "(docs/migration.md)."
    )


class WebService(web_service.WebService):
    """The library's WebService; scripts from before the pipeline get a clear error."""

    def __init__(self, name: str = "default_service") -> None:
        super().__init__(name)
        self._server = PipelineServer(name)

    def prepare_pipeline_config(
        self,
        yml_file: str | None = None,
        yml_dict: Mapping[str, Any] | None = None,
        yaml_file: str | None = None,
    ) -> None:
        """Prepare as the library does; `yaml_file` is the name of `yml_file` up to 0.6."""
        if yml_file is not None and yaml_file is not None:
            raise ConfigError("prepare_pipeline_config: give yml_file or yaml_file, not both.")
        super().prepare_pipeline_config(yml_file or yaml_file, yml_dict)

    prepare_server = prepare_pipeline_config

    load_model_config: Callable[..., NoReturn] = _refuse
    set_gpus: Callable[..., NoReturn] = _refuse
    default_rpc_service: Callable[..., NoReturn] = _refuse
    create_rpc_config: Callable[..., NoReturn] = _refuse
    run_rpc_service: Callable[..., NoReturn] = _refuse
    run_debugger_service: Callable[..., NoReturn] = _refuse
    run_web_service: Callable[..., NoReturn] = _refuse
    get_app_instance: Callable[..., NoReturn] = _refuse


PipelineWebService = WebService  # its name in 0.3
