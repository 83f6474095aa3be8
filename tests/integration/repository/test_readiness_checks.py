"""A Python model's own `is_ready`, as v2's readiness, the server's and other models see it."""

from __future__ import annotations

import asyncio

import pytest
from doubles import http, settle, virtual
from repositories import add_python, infer, serving

from pipeline.workers.peer_calls import ModelCheck

CODE = """
import os, time
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([
            pb.Tensor("OUTPUT0", each.inputs()[0].as_numpy())]) for each in requests]
"""
SAYS = "    def is_ready(self):\n        {}\n"
AWAITS = """
    async def is_ready(self):
        import asyncio
        await asyncio.sleep(0)
        return True
"""
ASKS = """
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        ready = [float(pb.is_model_ready(name)) for name in ("yes", "no")]
        return [pb.InferenceResponse([
            pb.Tensor("OUTPUT0", np.array([ready], np.float32))]) for each in requests]
"""
IN_THREADS = 'parameters { key: "workers" value { string_value: "thread" } }'


def ready(server, model):
    return http(server, "GET", f"/v2/models/{model}/ready")[0] == 200


def of_server(server):
    return http(server, "GET", "/v2/health/ready")[0] == 200


@pytest.mark.parametrize("config", ["", IN_THREADS])
def test_a_model_has_the_readiness_that_it_reports(tmp_path, config):
    flag = tmp_path / "flag"
    models = {
        "asks": ASKS,
        "awaits": CODE + AWAITS,
        "flagged": CODE + SAYS.format(f"return os.path.exists({str(flag)!r})"),
        "no": CODE + SAYS.format("return False"),
        "exits": CODE + SAYS.format(f"return os.path.exists({str(flag)!r}) or exit()"),
        "leaves": CODE
        + AWAITS.replace("return True", f"return os.path.exists({str(flag)!r}) or exit()"),
        "raises": CODE + SAYS.format("raise ValueError"),
        "text": CODE + SAYS.format("return 'yes'"),
        "yes": CODE + SAYS.format("return True"),
    }
    for name, code in models.items():
        add_python(tmp_path / "models", name, code, config)
    with serving(tmp_path / "models", "none") as server:
        found = {name: ready(server, name) for name in models}
        assert found == {name: name in ("asks", "awaits", "yes") for name in models}
        assert all(infer(server, name, [1.0])[0] == 200 for name in models)
        assert infer(server, "asks", [1.0]) == (200, {"OUTPUT0": [1.0, 0.0]})
        assert not ready(server, "flagged")
        flag.touch()
        assert ready(server, "flagged")
        assert ready(server, "exits")
        assert ready(server, "leaves")
        flag.unlink()
        assert not ready(server, "flagged")


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_strict_server_is_ready_only_if_its_models_are(tmp_path, is_strict):
    add_python(
        tmp_path / "models",
        "flagged",
        CODE + SAYS.format(f"return os.path.exists('{tmp_path}/flag')"),
    )
    with serving(tmp_path / "models", "none", is_strict=is_strict) as server:
        assert of_server(server) is not is_strict
        (tmp_path / "flag").touch()
        assert of_server(server)


@virtual
async def test_concurrent_checks_get_the_answer_of_the_running_call():
    begun = []
    check = ModelCheck(asyncio.get_running_loop(), lambda: begun.append(1))
    late = asyncio.create_task(check.is_ready())
    await settle()
    assert await late is False, "it has not answered in time"
    later = asyncio.create_task(check.is_ready())
    await settle()
    assert begun == [1]
    check.answered(True)
    assert await later is True
    check.answered(False)  # its worker ends
    again = asyncio.create_task(check.is_ready())
    await settle()
    check.answered(False)
    assert await again is False
    assert begun == [1, 1]


@virtual
async def test_a_check_that_cannot_begin_begins_at_the_next_call():
    errors = [RuntimeError("can't start new thread")]

    def begin():
        if errors:
            raise errors.pop()

    check = ModelCheck(asyncio.get_running_loop(), begin)
    assert await check.is_ready() is False
    later = asyncio.create_task(check.is_ready())
    await settle()
    check.answered(True)
    assert await later is True
