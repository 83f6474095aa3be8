"""`pipeline.deadline`, as `process` may import it: see `pipeline.system.deadline`."""

from pipeline.system.deadline import call_deadline, set_call_deadline, time_left

__all__ = ["call_deadline", "set_call_deadline", "time_left"]
