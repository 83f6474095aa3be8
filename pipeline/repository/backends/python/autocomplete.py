"""ModelConfig of `triton_python_backend_utils`: the argument of `auto_complete_config`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_INVALID = "TYPE_INVALID"
_FUNCTION = "auto-complete-config function for model"


class CompletedConfig:
    """A configuration that a model may complete. A contradiction raises ValueError.

    Args:
        model_config: as JSON.
    """

    def __init__(self, model_config: str) -> None:
        self._config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """Return the whole configuration."""
        return self._config

    @property
    def _name(self) -> str:
        return str(self._config["name"])

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the maximum number of samples of an execution, not below a configured one."""
        configured = self._config["max_batch_size"]
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in {_FUNCTION} "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Enable dynamic batching."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but {_FUNCTION} "
                    f"'{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Set whether the model answers in parts: {"decoupled": True}."""
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ValueError(
                    f"model transaction property in {_FUNCTION} '{self._name}' contains property "
                    "other than 'decoupled'."
                )
        policy = self._config.setdefault("model_transaction_policy", {})
        configured = policy.get("decoupled")
        if configured not in (None, transaction_policy_dict.get("decoupled", configured)):
            raise ValueError(
                "trying to change decoupled property in auto-complete-config for model "
                f"'{self._name}', which is already set to '{configured}'."
            )
        policy.update(transaction_policy_dict)

    def add_input(self, input: Mapping[str, Any]) -> None:
        """Add an input: `name`, `data_type`, `dims`, maybe `optional`."""
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output: `name`, `data_type`, `dims`."""
        self._add("output", output, ("name", "data_type", "dims"))

    def _add(self, kind: str, tensor: Mapping[str, Any], known: tuple[str, ...]) -> None:
        self._check(kind, tensor, known)
        name = tensor["name"]
        there = next((known for known in self._config[kind] if known["name"] == name), None)
        if there is None:
            self._config[kind].append(dict(tensor))
            return
        configured = there.get("data_type", _INVALID)
        if configured not in (_INVALID, tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {configured} "
                f"for {kind} '{name}', model provides {tensor['data_type']}"
            )
        for key in ("dims", *known[3:]):
            if key in tensor and there.get(key) and there[key] != tensor[key]:
                raise ValueError(
                    f"model '{self._name}', tensor '{name}': the model expects {key} {tensor[key]} "
                    f"but the model configuration specifies {key} {there[key]}"
                )
        there.update(tensor)

    def _check(self, kind: str, tensor: Mapping[str, Any], known: tuple[str, ...]) -> None:
        where = f"{_FUNCTION} '{self._name}'"
        *first, last = (f"'{key}'" for key in known)
        for key in tensor:
            if key not in known:
                raise ValueError(
                    f"{kind} '{tensor.get('name')}' in {where} contains property other than "
                    f"{', '.join(first)} and {last}."
                )
        if "name" not in tensor:
            raise ValueError(f"{kind} in {where} is missing 'name' property.")
        for key in known[1:3]:
            if key not in tensor:
                raise ValueError(
                    f"{kind} '{tensor['name']}' in {where} is missing '{key}' property."
                )
