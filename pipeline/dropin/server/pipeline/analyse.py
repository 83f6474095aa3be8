"""`paddle_serving_server.pipeline.analyse`."""

from pipeline.dropin.absent import absent

_ADVICE = "statistics and profiles do not exist yet (docs/limits.md)"

Analyst = absent("Analyst", __name__, _ADVICE)
OpAnalyst = absent("OpAnalyst", __name__, _ADVICE)

__all__ = ["Analyst", "OpAnalyst"]
