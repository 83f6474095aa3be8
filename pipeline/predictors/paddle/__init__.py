"""Paddle models, which paddle.inference runs."""

from typing import Annotated

from pipeline.predictors.base import AcceleratedModel, PredictorEngine


class PaddleModel(AcceleratedModel, frozen=True):
    """A model of Paddle; Paddle chooses if `ir_optim` is None."""

    ir_optim: Annotated[
        bool | None, "Let Paddle optimise the graph; absent: Paddle's default, on."
    ] = None


ENGINE = PredictorEngine(
    "pipeline.predictors.paddle.predictor",
    (".pdmodel", ".json"),
    companion=".pdiparams",
    names=("__model__",),  # its weights may be one file per variable
    Options=PaddleModel,
    holds_gil=True,
    before_fork="pipeline.predictors.paddle.predictor:import_paddle",
)
