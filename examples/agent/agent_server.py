"""An agent: the model asks for tools and the pipeline runs them, until the model answers.

python agent_server.py          then in another terminal: python demo.py, or see README.md

messages --> think --> act --> say --> {text}, a part for each word
               ^        |
               +--------+  as long as the model asks for tools
"""

import json
from pathlib import Path

from planner import plan
from tools import TOOLS, run

from pipeline import Goto, Op, PipelineServer, RequestOp, ResponseOp
from pipeline.openai import Delta, Message

HERE = Path(__file__).resolve().parent
MOST_ROUNDS = 8


class ThinkOp(Op):
    """Asks the model for its next message: planner.py, or a real one by `client_type: openai`."""

    def preprocess(self, input_dicts):
        ((_, chat),) = input_dicts.items()  # from the request, or with the results of `act`
        return {"messages": chat["messages"], "tools": TOOLS}

    def process(self, feed_batch, *, context):
        if self.client is None:
            return plan(feed_batch[0]["messages"])
        return self.client.predict(feed_batch[0], context=context)

    def postprocess(self, input_dicts, fetch_dict):
        ((_, chat),) = input_dicts.items()
        return {"messages": chat["messages"], **fetch_dict}


class ActOp(Op):
    """Runs the tools that the model asks for, and sends the results back to it."""

    def preprocess(self, input_dicts):
        return input_dicts["think"]

    def postprocess(self, input_dicts, fetch_dict):
        calls = fetch_dict.get("tool_calls")
        if not calls:
            return Goto(fetch_dict, "say")
        request: Message = {
            "role": "assistant",
            "content": fetch_dict.get("text") or None,
            "tool_calls": calls,
        }
        messages = [*fetch_dict["messages"], request, *map(answer_to, calls)]
        return Goto({"messages": messages}, "think")


class SayOp(Op):
    """Streams the answer word by word, after the list of tools that it needed."""

    def preprocess(self, input_dicts):
        return input_dicts["act"]

    def postprocess(self, input_dicts, fetch_dict):
        tools = [
            f"{call['function']['name']}({call['function']['arguments']})"
            for message in fetch_dict["messages"]
            for call in message.get("tool_calls") or ()
        ]
        if tools:
            reasoning: Delta = {"text": "", "reasoning_content": f"tools: {', '.join(tools)}"}
            yield reasoning
        for word in fetch_dict["text"].split(" "):
            part: Delta = {"text": f"{word} "}
            yield part
        end: Delta = {"text": "", "finish_reason": "stop"}
        yield end


def answer_to(call) -> Message:
    """Run one tool; return the message with its result for the model."""
    try:
        content = run(call["function"]["name"], json.loads(call["function"]["arguments"] or "{}"))
    except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        content = f"error: {error}"  # for the model, which may try something else
    return {"role": "tool", "tool_call_id": call["id"], "content": content}


think = ThinkOp("think", RequestOp())
act = ActOp("act", think, loop_to=[think], max_loops=MOST_ROUNDS)
server = PipelineServer("agent")
server.set_response_op(ResponseOp(SayOp("say", act)))
server.prepare_server(str(HERE / "config.yml"))

if __name__ == "__main__":
    server.run_server()
