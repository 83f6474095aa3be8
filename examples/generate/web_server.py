"""A language model that writes film reviews, word by word, for many clients at once.

    python web_server.py          then in another terminal: python demo.py, or see README.md

prompt -> write -> {text}, a part for each word
"""

from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta
from words import Vocabulary
from writing import begin, step

from pipeline import Op, PipelineServer, RequestOp, ResponseOp, Schema, Tensor

HERE = Path(__file__).resolve().parent
MOST_PROMPT = 50


class Prompt(Schema):
    """The beginning of a review, and how to write the rest."""

    prompt: Annotated[str, Meta(examples=["this movie is"])]
    most: Annotated[int, Meta(ge=1, le=500, description="maximum number of words")] = 60
    temperature: Annotated[float, Meta(ge=0.05, le=5, description="higher is more random")] = 0.8
    seed: Annotated[int, Meta(ge=0, description="seed of the random numbers")] = 0


class PromptOp(RequestOp):
    """Reads a Prompt."""

    input_tensors = (Tensor("prompt", "BYTES", (1,)),)  # for clients of the v2 protocol

    def __init__(self):
        super().__init__(schema=Prompt)


class WriteOp(Op):
    """Writes the next word of all running texts at each step: `batching: iterative`."""

    output_tensors = (Tensor("text", "BYTES", (1,)),)

    def init_op(self):
        self.vocabulary = Vocabulary.load(HERE / "models" / "words.txt")

    def preprocess(self, input_dicts, *, context):
        (request,) = input_dicts.values()
        prompt = self.vocabulary.encode(request["prompt"])[-MOST_PROMPT:]
        context.state.update(begin(self.run, prompt, request["seed"], request["most"]))
        return {"temperature": np.array([request["temperature"]], np.float32)}

    def process(self, feed_batch, *, context):
        texts = [request.state for request in context]
        words, done = step(self.run, texts, feed_batch[0]["temperature"])
        return {"word": words, "done": done}

    def postprocess(self, input_dicts, fetch_dict):
        return {"text": self.vocabulary.text_of(fetch_dict["word"][0])}

    def run(self, word, state):
        """Run the model: the scores of the next words, and the next states."""
        answer = self.client.predict({"word": word, "state": state})
        return answer["scores"], answer["next_state"]


server = PipelineServer("generate")
server.set_response_op(ResponseOp(WriteOp("write", PromptOp())))
server.prepare_server(str(HERE / "config.yml"))

if __name__ == "__main__":
    server.run_server()
