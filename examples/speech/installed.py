"""The configuration of a service, with the path of the model: a file in an installed package."""

import sys
from importlib.util import find_spec
from pathlib import Path

import yaml


def configuration(file, op):
    """Return the configuration in `file`, where `model_config` of `op` is `package/path`."""
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    model = config["op"][op]["local_service_conf"]
    package, _, path = model["model_config"].partition("/")
    found = find_spec(package)  # not imported: that would need PyTorch
    if found is None:
        sys.exit(f"no model: pip install --no-deps {package.replace('_', '-')}==6.2.3")
    model["model_config"] = str(Path(found.submodule_search_locations[0], path))
    return config
