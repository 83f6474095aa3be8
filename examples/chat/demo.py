"""Run the server, ask it with OpenAI's official client, and stop it: `make chat`.

Exits with status 1 if a stream, a choice or a stop gives a different text, or a bad request passes.
"""

from __future__ import annotations

import sys

import openai
from chat_server import server

MODEL, PROMPT, SEED = "reviews-small", "i loved this movie because", 3


def main() -> int:
    with server:
        url = f"http://127.0.0.1:{server.http_port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", timeout=60) as client:
            print("\nmodels:", *(model.id for model in client.models.list()))
            return ask(client)


def ask(client: openai.OpenAI) -> int:
    """Send all kinds of requests, print the answers, and return the exit status."""
    print(f"a chat, word by word: {PROMPT}", end="")
    parts = []
    for chunk in client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=30,
        seed=SEED,
        stream=True,
    ):
        parts.append(chunk.choices[0].delta.content or "")
        print(parts[-1], end="", flush=True)

    done = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=30, seed=SEED)
    whole = done.choices[0].text
    print(f"\na completion: {PROMPT}{whole}")
    two = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=30, seed=SEED, n=2)
    print(f"another choice: {PROMPT}{two.choices[1].text}")
    stop = parts[len(parts) // 2]
    cut = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=30, seed=SEED, stop=stop
    ).choices[0]
    print(f"up to {stop!r}: {PROMPT}{cut.text}")
    try:
        client.completions.create(model=MODEL, prompt=PROMPT, temperature=100)
        refused = False
    except openai.BadRequestError as error:
        refused = "temperature: expected" in error.message
        print(f"refused: {error.message}")
    is_same = "".join(parts) == whole == two.choices[0].text
    if not (refused and len(parts) > 2 and is_same and cut.text == whole.partition(stop)[0]):
        print("demo failed: see above", file=sys.stderr)
        return 1
    print("demo passed: the stream, the choice and the stop agree with the single answer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
