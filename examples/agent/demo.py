"""Run the server, ask it with the official client of OpenAI's API, and stop it: `make agent`.

Exits with 1 where an answer is wrong, or comes in one piece.
"""

from __future__ import annotations

import sys

import openai
from agent_server import server

QUESTIONS = {
    "What is 12 * (7 + 1)?": "12 * (7 + 1) is 96.",
    "How much warmer is Lagos than Oslo?": "Lagos is 40 degrees warmer than Oslo.",
    "What is 1 / 0?": "That cannot be said: division by zero.",
    "Is Atlantis nice?": "That cannot be said: nobody knows the weather of Atlantis.",
    "hello": "Ask for a sum, or for the weather of cities: Berlin, Lagos, Lima, Oslo, Tokyo.",
}


def main() -> int:
    wrong = []
    with server:
        url = f"http://127.0.0.1:{server.http_port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", timeout=60) as client:
            for question, answer in QUESTIONS.items():
                thoughts, parts = ask(client, question)
                if "".join(parts).strip() != answer or len(parts) < 3:
                    wrong.append(question)
                print(f"\n{question}\n  {thoughts}\n  {''.join(parts)}")
    if wrong:
        print(f"demo failed: {wrong}", file=sys.stderr)
        return 1
    print("demo passed: each question had its tools and its answer")
    return 0


def ask(client: openai.OpenAI, question: str) -> tuple[str, list[str]]:
    """Return what the model thought, and the parts of its answer."""
    thoughts, parts = "", []
    for chunk in client.chat.completions.create(
        model="agent", messages=[{"role": "user", "content": question}], stream=True
    ):
        for choice in chunk.choices:
            thoughts += getattr(choice.delta, "reasoning_content", None) or ""
            if choice.delta.content:
                parts.append(choice.delta.content)
    return thoughts, parts


if __name__ == "__main__":
    sys.exit(main())
