"""What importing the package leaves alone."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_package_makes_no_folder_and_no_handler(tmp_path):
    code = (
        "import logging, threading, pipeline.observe.logs.setup\n"
        "assert not logging.getLogger('pipeline').handlers and not logging.getLogger().handlers\n"
        "assert threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert list(tmp_path.iterdir()) == []


def test_the_package_does_not_load_the_library_that_writes_metrics():
    program = "import sys, pipeline; pipeline.Op; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
