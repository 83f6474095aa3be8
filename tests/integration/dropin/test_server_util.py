"""Processes and ports, as the predecessor's helpers find them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from pipeline.dropin.server.pipeline.util import (
    AvailablePortGenerator,
)
from pipeline.dropin.server.util import (
    kill_stop_process_by_pid,
    pid_is_exist,
)
from pipeline.dropin.server.web_service import port_is_available


@pytest.mark.parametrize(("command", "number"), [("stop", signal.SIGINT), ("kill", signal.SIGKILL)])
def test_a_process_is_sent_a_signal_and_not_its_group(command, number):
    wait = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); print(flush=True); "
    process = subprocess.Popen(
        [sys.executable, "-c", f"{wait}signal.pause()"], stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()  # it waits now; it is of this group
        kill_stop_process_by_pid("unknown", process.pid)
        assert pid_is_exist(process.pid)
        kill_stop_process_by_pid(command, process.pid)
        assert process.wait(30) == -number
    assert not pid_is_exist(process.pid)
    kill_stop_process_by_pid(command, process.pid)


def test_a_port_in_use_is_not_available():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not port_is_available(port)
        assert AvailablePortGenerator(port).next() > port
