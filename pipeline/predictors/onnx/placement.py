"""Placement of a session: asked versus got, down to the nodes of the model."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from pipeline.errors import InitError
from pipeline.predictors.onnx.providers import CPU, TENSORRT, Plan

_LOGGER = logging.getLogger(__name__)

RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"
"""The session entry with which onnxruntime keeps where each node runs (from 1.24 on)."""

_QUANTISED = {"QuantizeLinear", "DequantizeLinear"}
_MAX_SHOWN_TYPES = 8

_Placements = dict[str, Counter[str]]  # a provider to the types of the nodes that it runs


def check_session(plan: Plan, session: Any) -> None:
    """See that the session has what was planned, and that nodes of the model run there.

    Raises InitError: it has not, or they all run elsewhere.
    """
    got = session.get_providers()
    if missing := plan.missing_from(got):
        raise InitError(
            f"[{plan.model}] {plan.asked} was asked for, but onnxruntime could not set up "
            f"{', '.join(missing)} and would run on {', '.join(got)}: see that its "
            "libraries, and a card's number and driver, are right (onnxruntime's lines on stderr "
            f"name what is missing), or {plan.otherwise}"
        )
    if plan.main is None or not hasattr(session, "get_provider_graph_assignment_info"):
        return  # onnxruntime before 1.24 does not say where a node runs
    placements = _placements(session)
    if not placements:
        return  # nothing is left to run: all was computed when the model was loaded
    if plan.main not in placements:
        too_small = ", or min_subgraph_size is too large" if plan.main == TENSORRT else ""
        raise InitError(
            f"[{plan.model}] {plan.asked} was asked for, but no node of the model runs there: "
            f"{_described(placements)}. Its operators or their types are not supported "
            f"there{too_small}"
        )
    if plan.needs_scales and not any(_QUANTISED & types.keys() for types in placements.values()):
        raise InitError(
            f"[{plan.model}] precision: int8 needs a model with QuantizeLinear nodes, or "
            "use_calib: True and a calibration table beside the model"
        )
    # A few nodes on the CPU are normal, for shapes; half of them are not.
    on_cpu = placements.get(CPU, Counter()).total()
    everywhere = sum(types.total() for types in placements.values())
    level = logging.WARNING if on_cpu * 2 >= everywhere else logging.INFO
    _LOGGER.log(level, "[%s] %s: %s", plan.model, plan.asked, _described(placements))


def _placements(session: Any) -> _Placements:
    placements: _Placements = {}
    for subgraph in session.get_provider_graph_assignment_info():
        types = placements.setdefault(subgraph.ep_name, Counter())
        types.update(node.op_type for node in subgraph.get_nodes())
    return placements


def _described(placements: _Placements) -> str:
    parts = []
    for provider, types in placements.items():
        shown = ", ".join(name for name, _ in types.most_common(_MAX_SHOWN_TYPES))
        more = ", ..." if len(types) > _MAX_SHOWN_TYPES else ""
        nodes = "1 node" if types.total() == 1 else f"{types.total()} nodes"
        parts.append(f"{provider} runs {nodes} ({shown}{more})")
    return "; ".join(parts)
