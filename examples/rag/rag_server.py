"""Finds the film for a question, and has a language model on another server write about it.

python rag_server.py          the model: python ../chat/chat_server.py; see README.md

question -> embed -> search -> write -> {text, sources}, a part for each word
"""

from pathlib import Path
from typing import Annotated

import numpy as np
from embedding import Embedding
from msgspec import Meta

from pipeline import Op, PipelineServer, RequestOp, ResponseOp, Schema

HERE = Path(__file__).resolve().parent
FILMS = [line.split(" | ") for line in (HERE / "films.txt").read_text("utf-8").splitlines()]
TEXTS = [f"{title}. {about}" for title, about in FILMS]
EMBEDDING = Embedding(TEXTS)
BEST = 2


class Question(Schema):
    """A description of the film that the user would like to see."""

    question: Annotated[str, Meta(min_length=1, examples=["a boat in a storm"])]
    max_tokens: Annotated[int, Meta(ge=1, le=200)] = 40
    seed: Annotated[int, Meta(ge=0)] = 0


class EmbedOp(Op):
    """Embeds the questions of a batch."""

    def preprocess(self, input_dicts):
        return {"question": [input_dicts["@DAGExecutor"]["question"]]}

    def process(self, feed_batch):
        return {"vector": EMBEDDING(feed_batch[0]["question"])}


class SearchOp(Op):
    """Finds the films with the nearest vectors, in one matrix product for a batch."""

    def init_op(self):
        self.vectors = EMBEDDING(TEXTS)

    def preprocess(self, input_dicts):
        return {"vector": input_dicts["embed"]["vector"]}

    def process(self, feed_batch):
        scores = feed_batch[0]["vector"] @ self.vectors.T
        return {"films": np.argsort(-scores, axis=1)[:, :BEST]}


class WriteOp(Op):
    """Streams the text from the model at `server_endpoints`."""

    def preprocess(self, input_dicts):
        request = input_dicts["@DAGExecutor"]
        films = [int(film) for film in input_dicts["search"]["films"][0]]
        about = FILMS[films[0]][1]
        return {
            "prompt": f"{about} i loved this movie because",
            "max_tokens": request["max_tokens"],
            "seed": request["seed"],
            "films": films,
        }

    def process(self, feed_batch, *, context):
        request = dict(feed_batch[0])
        titles = [FILMS[film][0] for film in request.pop("films")]
        yield {"text": f"{titles[0]}: i loved this movie because", "sources": titles}
        yield from self.client.stream(request, context)

    def postprocess(self, input_dicts, fetch_dict):
        return fetch_dict


question = RequestOp(schema=Question)
search = SearchOp("search", EmbedOp("embed", question))
server = PipelineServer("rag")
server.set_response_op(ResponseOp(WriteOp("write", [search, question])))
server.prepare_server(str(HERE / "config.yml"))

if __name__ == "__main__":
    server.run_server()
