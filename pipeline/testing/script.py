"""Scripts that make a server and run it, taken without running it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.cli.graph import nothing_starts
from pipeline.errors import InitError
from pipeline.server import PipelineServer
from pipeline.web_service import WebService


def server_of_script(path: str | Path) -> PipelineServer:
    """Execute a script up to where its server would start; return that server.

    It is executed in its own folder, as a module of its name: what stands under `if __name__ ==
    "__main__":` is not run, and the one server that it has made is taken.

    Raises InitError: there is no such file, or it makes no server, or several and runs none.
    """
    script = Path(path).resolve()
    spec = importlib.util.spec_from_file_location(script.stem, script)
    if spec is None or spec.loader is None or not script.is_file():
        raise InitError(f"{path}: there is no such script (current folder: {Path.cwd()})")
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module  # where process workers find its classes
    if str(script.parent) not in sys.path:
        sys.path.insert(0, str(script.parent))
    before = Path.cwd()
    os.chdir(script.parent)  # where it looks for its config.yml
    try:
        with nothing_starts() as servers:
            spec.loader.exec_module(module)
    except SystemExit:
        if not servers:
            raise
    finally:
        os.chdir(before)
    made: Sequence[PipelineServer | WebService] = servers or [
        value for value in vars(module).values() if isinstance(value, PipelineServer | WebService)
    ]
    if not servers and len(made) != 1:
        raise InitError(
            f"{path} runs no server, and makes {len(made)}: give TestClient the server itself"
        )
    return pipeline_server(made[0])


def pipeline_server(server: PipelineServer | WebService) -> PipelineServer:
    """Return the PipelineServer in a WebService; a PipelineServer itself."""
    return server._server if isinstance(server, WebService) else server
