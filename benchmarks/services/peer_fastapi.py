"""A peer by hand: FastAPI, whose `def` endpoints run in threads; a process of uvicorn a core."""

# ruff: noqa: E402 - the peers are imported from the folder that use_peers adds

from __future__ import annotations

import os
from typing import Annotated, Any

from benchmarks.services.installed import use_peers
from benchmarks.services.peer_models import Jpegs, Reviews
from benchmarks.services.ports import HTTP_PORT

use_peers()
import uvicorn
from fastapi import FastAPI, File
from pydantic import BaseModel


class Review(BaseModel):
    """A film review."""

    words: str


class Scores(BaseModel):
    """Probability of a positive review."""

    prediction: float
    bow: float
    cnn: float


class Label(BaseModel):
    """The class of a picture, with its score."""

    label: int
    score: float


def jpeg() -> FastAPI:
    """Return the classifier's app."""
    app, model = FastAPI(), Jpegs()

    @app.post("/predict", response_model=Label)
    def predict(image: Annotated[bytes, File()]) -> Any:
        return model.answers(model.read(image))[0]

    return app


def imdb() -> FastAPI:
    """Return the ensemble's app."""
    app, model = FastAPI(), Reviews()

    @app.post("/predict", response_model=Scores)
    def predict(review: Review) -> Any:
        return model.answers(model.read(review.words))[0]

    return app


def serve(name: str) -> None:
    """Serve an app, as `uvicorn --factory --workers 2` does on two cores."""
    uvicorn.run(
        f"benchmarks.services.peer_fastapi:{name}",
        factory=True,
        port=HTTP_PORT,
        workers=os.cpu_count(),
        access_log=False,
        log_level="warning",
    )
