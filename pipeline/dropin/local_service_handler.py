"""LocalServiceHandler: an Op's model described in code rather than under `local_service_conf`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from pipeline.errors import InitError, NotImplementedByOpError

_CONF_FILE = "serving_server_conf.prototxt"
# Arguments that are not keys of local_service_conf.
_NO_SETTINGS = frozenset(
    ["self", "fetch_names", "available_port_generator", "use_profile", "dynamic_shape_info"]
)


class LocalServiceHandler:
    """`Op(name, local_service_handler=LocalServiceHandler(model_config="uci_housing_model"))`

    A record: only the server loads or starts the model. Its values override those of
    `op.<name>.local_service_conf`, which has the same names and defaults.

    Args:
        model_config: the model's folder or file.
        client_type: "local_predictor"; or "brpc" or "grpc" for a service of its own.
        workdir: working folder of such a service; a generated one if it is "".
        thread_num: CPU threads of one predictor.
        device_type: -1 by devices, 0 CPU, 1 GPU, 2 TensorRT, 3 ARM, 4 XPU, 5 and 6 Ascend.
        devices: card numbers, "0,1"; "": CPU.
        fetch_names: outputs to fetch; all if it is None.
        available_port_generator: has no effect; the system chooses the ports.
        use_profile: has no effect.
        dynamic_shape_info: as `Op.dynamic_shape_info`.

    All others are keys of `local_service_conf`.
    """

    def __init__(
        self,
        model_config: str,
        client_type: Literal["local_predictor", "brpc", "grpc"] = "local_predictor",
        workdir: str = "",
        thread_num: int = 2,
        device_type: int = -1,
        devices: str = "",
        fetch_names: Sequence[str] | None = None,
        mem_optim: bool = True,
        ir_optim: bool | None = None,
        available_port_generator: Any = None,
        use_profile: bool = False,
        precision: str = "fp32",
        use_mkldnn: bool | None = None,
        mkldnn_cache_capacity: int = 0,
        mkldnn_op_list: Sequence[str] | None = None,
        mkldnn_bf16_op_list: Sequence[str] | None = None,
        min_subgraph_size: int = 3,
        dynamic_shape_info: dict[str, Any] = {},
        use_calib: bool = False,
    ) -> None:
        given = locals()
        self._settings: dict[str, Any] = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in given.items()
            if name not in _NO_SETTINGS
        }
        self._settings["fetch_list"] = None if fetch_names is None else list(fetch_names)
        self.dynamic_shape_info: dict[str, Any] = dict(dynamic_shape_info)

    def as_settings(self) -> dict[str, Any]:
        """Return the values as keys of `op.<name>.local_service_conf`; a copy."""
        return dict(self._settings)

    def get_fetch_list(self) -> list[str] | None:
        """Return the outputs to fetch; None means all."""
        fetch_list: list[str] | None = self._settings["fetch_list"]
        return fetch_list

    def get_client_config(self) -> str:
        """Return the path of the model's configuration of inputs and outputs."""
        return str(Path(self._settings["model_config"], _CONF_FILE))

    def get_port_list(self) -> list[int]:
        """Return an empty list: the server chooses the ports of the services that it starts."""
        return []

    def get_client(self, concurrency_idx: int | None) -> Any:
        """Load the model for the worker with this number; workers take the cards in turn.

        The caller closes it. Inside an Op use `self.client` instead.
        Raises InitError: the model cannot be loaded, or it runs as a service of its own.
        """
        from pipeline.predictors.base import LocalModel, load_local_predictor

        options = self.as_settings()
        if options.pop("client_type") != "local_predictor":
            raise InitError(
                "LocalServiceHandler.get_client: a model that runs as a service is reached by "
                "self.client in the Op, once the server runs."
            )
        own = {name: options.pop(name) for name in LocalModel.__struct_fields__ if name in options}
        path = options.pop("model_config")
        model = LocalModel(path, dynamic_shapes=self.dynamic_shape_info, options=options, **own)
        return load_local_predictor(model, concurrency_idx or 0)

    def prepare_server(self) -> NoReturn:
        """Raise NotImplementedByOpError: services are started by the server, not by hand."""
        raise NotImplementedByOpError(
            "LocalServiceHandler.prepare_server: give the handler to an Op, the server starts "
            "its service; or run `python -m pipeline.serve` yourself."
        )

    start_server = prepare_server
