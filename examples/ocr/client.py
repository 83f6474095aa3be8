"""Ask the running service to read a picture: python client.py [PICTURE] [--http] [--out FILE]

Prints the lines, and writes a picture with the text beside the original.
"""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import cv2
from annotate import annotated

from pipeline import PipelineClient

HERE = Path(__file__).resolve().parent
ENDPOINT = "127.0.0.1:18090"
URL = "http://127.0.0.1:18091/ocr/prediction"
TIMEOUT_S = 60


def ask_grpc(client: PipelineClient, file: bytes) -> list[dict[str, Any]]:
    """Return the lines of a picture: `text`, `score`, `box` (four corners, x and y).

    The file is sent as a tensor of bytes. Raises PipelineError: the service refuses it.
    """
    response = client.predict({"image": file}, fetch=["lines"], timeout=TIMEOUT_S)
    response.raise_for_error()
    return json.loads(response["lines"])


def ask_http(url: str, file: bytes) -> list[dict[str, Any]]:
    """Return the same over HTTP, with the file as base64. Raises RuntimeError: refused."""
    body = json.dumps({"key": ["image"], "value": [base64.b64encode(file).decode()]}).encode()
    request = Request(url, data=body, headers={"Content-Type": "application/json"})
    with urlopen(request, timeout=TIMEOUT_S) as reply:
        answer = json.load(reply)
    if answer["err_no"] != 0:
        raise RuntimeError(
            f"the service answered with error {answer['err_no']}: {answer['err_msg']}"
        )
    return json.loads(dict(zip(answer["key"], answer["value"], strict=True))["lines"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", type=Path, default=HERE / "pictures" / "page.png")
    parser.add_argument("--http", action="store_true", help="use HTTP instead of gRPC")
    parser.add_argument("--out", type=Path, default=Path("annotated.png"))
    arguments = parser.parse_args()
    file = arguments.picture.read_bytes()
    if arguments.http:
        lines = ask_http(URL, file)
    else:
        with PipelineClient() as client:
            client.connect([ENDPOINT])
            lines = ask_grpc(client, file)
    for number, line in enumerate(lines, 1):
        print(f"{number:3}  {line['score']:.3f}  {line['text']}")
    cv2.imwrite(str(arguments.out), annotated(file, lines))
    print(f"{arguments.out}: the picture, and the text beside it")


if __name__ == "__main__":
    main()
