"""Serve DAGs of models over gRPC and HTTP. The public names, each imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.client import AsyncPipelineClient, PipelineClient
    from pipeline.data import RequestContext, Tensor
    from pipeline.dropin.local_service_handler import LocalServiceHandler
    from pipeline.engine.filters import Filter
    from pipeline.errors import ProductError
    from pipeline.observe.analysis.analyst import Analyst
    from pipeline.op import Op, RequestOp, ResponseOp
    from pipeline.routes import Answer, Goto
    from pipeline.schema import Schema
    from pipeline.server import PipelineServer
    from pipeline.web_service import WebService
    from pipeline.workers.shm.pickling import allow_in_payloads

__version__ = "0.5.0.dev0"

_HOME = {
    "Analyst": "pipeline.observe.analysis.analyst",
    "Answer": "pipeline.routes",
    "AsyncPipelineClient": "pipeline.client",
    "Filter": "pipeline.engine.filters",
    "Goto": "pipeline.routes",
    "LocalServiceHandler": "pipeline.dropin.local_service_handler",
    "PipelineClient": "pipeline.client",
    "ProductError": "pipeline.errors",
    "Op": "pipeline.op",
    "RequestContext": "pipeline.data",
    "RequestOp": "pipeline.op",
    "ResponseOp": "pipeline.op",
    "PipelineServer": "pipeline.server",
    "Schema": "pipeline.schema",
    "Tensor": "pipeline.data",
    "WebService": "pipeline.web_service",
    "allow_in_payloads": "pipeline.workers.shm.pickling",
}

__all__ = [
    "Analyst",
    "Answer",
    "AsyncPipelineClient",
    "Filter",
    "Goto",
    "LocalServiceHandler",
    "Op",
    "PipelineClient",
    "PipelineServer",
    "ProductError",
    "RequestContext",
    "RequestOp",
    "ResponseOp",
    "Schema",
    "Tensor",
    "WebService",
    "allow_in_payloads",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        if name != "namesake":
            importlib.import_module("pipeline.system.namesake").refuse_name(name)
        raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
