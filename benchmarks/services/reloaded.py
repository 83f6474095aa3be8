"""`pipeline serve --reload` of a copy of faulted.py, in the folder of the benchmark."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

if __name__ == "__main__":
    folder = Path(os.environ["SERVING_LOG_PATH"])
    shutil.copy(Path(__file__).with_name("faulted.py"), folder)
    os.chdir(folder)
    words = ("-m", "pipeline", "serve", "--reload", "faulted.py")
    os.execv(sys.executable, [sys.executable, *words])
