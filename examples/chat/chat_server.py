"""The language model of examples/generate behind OpenAI's API.

python chat_server.py          then in another terminal: python demo.py, or see README.md
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "generate"))

from web_server import PromptOp, WriteOp  # noqa: E402

from pipeline import PipelineServer, ResponseOp  # noqa: E402

server = PipelineServer("chat")
server.set_response_op(ResponseOp(WriteOp("write", PromptOp())))
server.prepare_server(str(HERE / "config.yml"))

if __name__ == "__main__":
    server.run_server()
