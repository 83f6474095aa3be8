"""Main function of the process that completes a model's configuration: JSON in, JSON out."""

from __future__ import annotations

import json
import os
import sys

from pipeline.repository.backends.python.autocomplete import CompletedConfig
from pipeline.repository.backends.python.loading import ModelCode, load_alone


def main(name: str, version: str, file: str, version_folder: str) -> int:
    """Print the completed configuration from stdin. Returns the exit code."""
    answer = os.dup(1)
    os.dup2(2, 1)  # the model's own output goes to stderr
    config = CompletedConfig(sys.stdin.read())
    try:
        model = load_alone(ModelCode(name, int(version), file, version_folder))
        completed = completed_by(model, name, config)
    except Exception as error:
        sys.stderr.write(f"\n{type(error).__name__}: {error}\n".replace("ValueError: ", ""))
        return 1
    os.write(answer, json.dumps(completed.as_dict()).encode())
    return 0


def completed_by(model: type, name: str, config: CompletedConfig) -> CompletedConfig:
    """Return what a model's class makes of its configuration.

    Raises ValueError: its hook returns something else.
    """
    complete = getattr(model, "auto_complete_config", None)  # users' class
    completed = complete(config) if complete else config
    if not isinstance(completed, CompletedConfig):
        raise ValueError(
            f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig "
            "object."
        )
    return completed


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
