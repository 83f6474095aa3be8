"""The request of a review and the Op that encodes it, shared with examples/cascade."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from tokenizer import Tokenizer

from pipeline import Op, RequestOp, Schema, Tensor

VOCABULARY = Path(__file__).resolve().parent / "models" / "vocab.txt"
_WORDS = msgspec.Meta(description="the text of a review", examples=["I loved every minute."])


class Review(Schema):
    """A film review, in English."""

    words: Annotated[str, _WORDS]


class ReviewOp(RequestOp):
    """Reads a Review."""

    input_tensors = (Tensor("words", "BYTES", (1,)),)  # for clients of the v2 protocol

    def __init__(self) -> None:
        super().__init__(schema=Review)


class EncodeOp(Op):
    """Turns a review into the models' input: `words` int64 (1, 256)."""

    def init_op(self) -> None:
        self.tokenizer = Tokenizer.load(VOCABULARY)

    def preprocess(self, input_dicts: dict[str, Any]) -> dict[str, Any]:
        (review,) = input_dicts.values()
        return {"words": self.tokenizer.encode(review["words"])[np.newaxis]}
