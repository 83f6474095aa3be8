"""Start the service, have it read a picture over gRPC and HTTP, stop it: `make ocr`.

    python demo.py [--config config_paddle.yml] [--mode thread|process]

Exits with status 1 if a line is wrong, or the service does not start or does not end cleanly.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import grpc
from annotate import annotated
from client import ask_grpc, ask_http
from models import ModelsError, read_config
from serving import CONFIG, Service, ServiceError, running

from pipeline import PipelineClient
from pipeline.errors import PipelineError

PICTURES = Path(__file__).resolve().parent / "pictures"


class DemoError(Exception):
    """A failure of the demo, with a text for its user."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--mode", choices=("thread", "process"))
    parser.add_argument("--out", type=Path, default=Path("annotated.png"))
    arguments = parser.parse_args()
    try:
        read_config(arguments.config)  # reports a missing package at once
        print("starting web_server.py")
        with running(arguments.config, arguments.mode) as service:
            ask_both_ways(service, arguments.out)
            print("\nstopping the server with SIGTERM")
    except (DemoError, ModelsError, ServiceError) as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    print("demo passed: every line right over gRPC and HTTP, server stopped with exit code 0")
    return 0


def ask_both_ways(service: Service, out: Path) -> None:
    """Print what the service reads over both protocols; write the annotated picture to `out`."""
    file = (PICTURES / "page.png").read_bytes()
    with PipelineClient() as client:
        client.connect([service.endpoint])
        lines = checked(f"over gRPC, {service.endpoint}", lambda: ask_grpc(client, file))
    checked(f"over HTTP, POST {service.url}", lambda: ask_http(service.url, file))
    cv2.imwrite(str(out), annotated(file, lines))
    print(f"\n{out}: the picture, and beside it what was read")


def checked(title: str, ask: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Print and return the lines of an answer. Raises DemoError: a line is wrong."""
    print(f"\n{title}:")
    try:
        lines = ask()
    except (grpc.RpcError, PipelineError, RuntimeError, OSError) as error:
        raise DemoError(f"{title}: {error}") from error
    for line in lines:
        print(f"  {line['score']:.3f}  {line['text']}")
    expected = (PICTURES / "page.txt").read_text(encoding="utf-8").splitlines()
    # The model, not the service, drops some spaces between words.
    if [squeezed(line["text"]) for line in lines] != [squeezed(text) for text in expected]:
        raise DemoError(f"{title}: the text of the picture is\n" + "\n".join(expected))
    return lines


def squeezed(text: str) -> str:
    return "".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
