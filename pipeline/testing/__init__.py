"""Tests of services: a client of a server in this process, one Op with samples, fake models."""

from __future__ import annotations

from pipeline.testing.client import TestClient
from pipeline.testing.http import HttpReply
from pipeline.testing.op_run import OpAnswers, run_op
from pipeline.testing.predictor import FakePredictor

__all__ = ["FakePredictor", "HttpReply", "OpAnswers", "TestClient", "run_op"]
