"""`paddle_serving_server.pipeline.analyse`."""

from pipeline.observe.analysis.analyst import Analyst, OpAnalyst

__all__ = ["Analyst", "OpAnalyst"]
