"""Run the server, ask it with OpenAI's official client, and stop it: `make agent`.

Exits with status 1 if an answer is wrong, or arrives in one piece.
"""

from __future__ import annotations

import sys

import openai
from agent_server import server

QUESTIONS = {
    "What is 12 * (7 + 1)?": "12 * (7 + 1) is 96.",
    "How much warmer is Lagos than Oslo?": "Lagos is 40 degrees warmer than Oslo.",
    "What is 1 / 0?": "That is not possible: division by zero.",
    "Is Atlantis nice?": "That is not possible: the weather of Atlantis is not known.",
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
    """Return the model's reasoning, and the parts of its answer."""
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
