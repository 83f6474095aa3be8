"""Paddle models, which paddle.inference runs."""

from typing import Annotated

from pipeline.predictors.base import AcceleratedModel, PredictorEngine


class PaddleModel(AcceleratedModel, frozen=True):
    """A model of Paddle; `ir_optim` is Paddle's own choice where it is None."""

    ir_optim: Annotated[
        bool | None, "Let Paddle optimise the graph; absent: Paddle's default, on."
    ] = None


ENGINE = PredictorEngine(
    "pipeline.predictors.paddle.predictor",
    (".pdmodel", ".json"),
    companion=".pdiparams",
    names=("__model__",),  # its weights may be a file for each variable
    Options=PaddleModel,
    holds_gil=True,
    before_fork="pipeline.predictors.paddle.predictor:import_paddle",
)
