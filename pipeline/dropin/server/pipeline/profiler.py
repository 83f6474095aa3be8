"""`paddle_serving_server.pipeline.profiler`."""

from pipeline.dropin.absent import absent

_ADVICE = "statistics and profiles do not exist yet (docs/limits.md)"

PerformanceTracer = absent("PerformanceTracer", __name__, _ADVICE)
TimeProfiler = absent("TimeProfiler", __name__, _ADVICE)
UnsafeTimeProfiler = absent("UnsafeTimeProfiler", __name__, _ADVICE)

__all__ = ["PerformanceTracer", "TimeProfiler", "UnsafeTimeProfiler"]
