"""A language model that writes film reviews, word by word, for many callers at once.

    python web_server.py          then ask it: python demo.py, or see README.md

prompt -> write -> {text}, a part for each word
"""

from pathlib import Path

import numpy as np
from words import Vocabulary
from writing import begin, step

from pipeline import Op, PipelineServer, ProductError, RequestOp, ResponseOp, Tensor

HERE = Path(__file__).resolve().parent
MOST_WORDS, MOST_PROMPT = 500, 50
BAD_REQUEST = 51  # a code of this product: 51-99 are free for them


class PromptOp(RequestOp):
    """Reads `prompt`, and if they are given `most` (words), `temperature` and `seed`."""

    input_tensors = (Tensor("prompt", "BYTES", (1,)),)  # for callers of the v2 protocol

    def unpack_request_package(self, request):
        data, log_id, _, _ = super().unpack_request_package(request)
        try:
            asked = {
                "prompt": str(np.asarray(data["prompt"]).ravel()[0]),
                "most": int(data.get("most", 60)),
                "temperature": float(data.get("temperature", 0.8)),
                "seed": int(data.get("seed", 0)),
            }
        except (KeyError, ValueError, IndexError, TypeError):
            raise ProductError(
                BAD_REQUEST, 'send a text under the key "prompt"; most, temperature, seed: numbers'
            ) from None
        if not (1 <= asked["most"] <= MOST_WORDS and 0.05 <= asked["temperature"] <= 5):
            raise ProductError(BAD_REQUEST, f"most: 1 to {MOST_WORDS}; temperature: 0.05 to 5")
        if asked["seed"] < 0:
            raise ProductError(BAD_REQUEST, "seed: 0 or more")
        return asked, log_id, None, ""


class WriteOp(Op):
    """Writes the next word of each text that is under way: `batching: iterative`."""

    output_tensors = (Tensor("text", "BYTES", (1,)),)

    def init_op(self):
        self.vocabulary = Vocabulary.load(HERE / "models" / "words.txt")

    def preprocess(self, input_dicts, *, context):
        (asked,) = input_dicts.values()
        prompt = self.vocabulary.encode(asked["prompt"])[-MOST_PROMPT:]
        context.state.update(begin(self.run, prompt, asked["seed"], asked["most"]))
        return {"temperature": np.array([asked["temperature"]], np.float32)}

    def process(self, feed_batch, *, context):
        texts = [each.state for each in context]
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
