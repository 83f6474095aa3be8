"""Program that becomes `python SCRIPT`, which is sent SIGTERM when its parent thread ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))  # outlives the exec
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
