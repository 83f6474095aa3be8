"""`paddle_serving_server`, without its C++ server."""

from typing import Any

from pipeline.dropin.server.util import ArgsParser, dump_pid_file, kill_stop_process_by_pid
from pipeline.dropin.server.version import version_tag as __version__
from pipeline.dropin.stubs import stub

_ADVICE = "serve a single model by `python -m pipeline.serve --model DIR --port N`"

MultiLangServer: Any = stub("MultiLangServer", __name__, _ADVICE)
OpGraphMaker: Any = stub("OpGraphMaker", __name__, _ADVICE)
OpMaker: Any = stub("OpMaker", __name__, _ADVICE)
OpSeqMaker: Any = stub("OpSeqMaker", __name__, _ADVICE)
Server: Any = stub("Server", __name__, _ADVICE)

__all__ = [
    "ArgsParser",
    "MultiLangServer",
    "OpGraphMaker",
    "OpMaker",
    "OpSeqMaker",
    "Server",
    "__version__",
    "dump_pid_file",
    "kill_stop_process_by_pid",
]
