"""Run both servers, ask in every way, and stop them: `make rag`.

Exits with 1 where a wrong film is found, or a stream is another text than the one answer.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path

import openai

sys.path.append(str(Path(__file__).resolve().parent.parent / "chat"))

from chat_server import server as writer

QUESTION, FILM = "is there something about a boat in a storm?", "The Lamp at the Bay"
QUESTIONS = {
    "ghosts in a hospital": "Ward Seven",
    "aliens in space": "Red Planet Blues",
    "a western with guns": "Gold Dust",
    "two sisters and their mother": "Mother's Garden",
}


def main() -> int:
    with writer:
        os.environ["WRITER"] = f"http://127.0.0.1:{writer.http_port}/v1"
        from rag_server import server  # reads where the writer is

        with server:
            return ask(server.http_port)


def ask(port: int) -> int:
    """Ask in every way and show what came; return the exit status."""
    url = f"http://127.0.0.1:{port}"
    parts = []
    print(f"\n{QUESTION} ", end="")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60) as client:
        for chunk in client.chat.completions.create(
            model="films",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=30,
            stream=True,
        ):
            parts.append(chunk.choices[0].delta.content or "")
            print(parts[-1], end="", flush=True)
    whole = plain(url, QUESTION)["text"]
    found = {question: plain(url, question)["text"].partition(":")[0] for question in QUESTIONS}
    for question, film in found.items():
        print(f"\n{question}: {film}", end="")
    print()
    is_right = found == QUESTIONS and whole.startswith(FILM)
    if not (is_right and len(parts) > 3 and "".join(parts) == whole):
        print("demo failed: see above", file=sys.stderr)
        return 1
    print("demo passed: each film was found, and a stream is what the one answer is")
    return 0


def plain(url: str, question: str) -> dict[str, str]:
    """Return the answer to a question by plain JSON."""
    body = json.dumps({"question": question, "max_tokens": 30}).encode()
    asked = urllib.request.Request(
        f"{url}/api/rag", body, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        said: dict[str, str] = json.load(answer)
    return said


if __name__ == "__main__":
    sys.exit(main())
