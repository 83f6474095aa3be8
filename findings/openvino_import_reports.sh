#!/usr/bin/env bash
# Guess: Importing a library does no more than define names.
# True: "import openvino" starts a process that reports the import to OpenVINO's maker, unless the
#   user has opted out in a file, the variable CI is true, or openvino_telemetry is missing. The
#   process is forked from a thread, so it inherits whatever the importing program holds.
# Versions: openvino==2026.4.1, openvino-telemetry==2025.2.0; Python 3.11; 2026-11-29
# We heed it in: pipeline/predictors/openvino/predictor.py: it hides openvino_telemetry.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check openvino==2026.4.1 openvino-telemetry==2025.2.0
cat >program.py <<'EOF'
import sys
import threading

forks = threading.Event()


def watch(event, _):
    if event in ("os.fork", "socket.connect", "socket.getaddrinfo"):
        thread = threading.current_thread()
        if event == "os.fork":
            print("forks in the main thread:", thread is threading.main_thread(), flush=True)
            forks.set()
        raise PermissionError("nothing is to leave this process")


sys.addaudithook(watch)
if "hidden" in sys.argv:
    sys.modules["openvino_telemetry"] = None
import openvino

print("openvino", openvino.__version__.split("-")[0], "forks:", forks.wait(5))
EOF
cat >seen <<'EOF'
forks in the main thread: False
openvino 2026.4.1 forks: True
openvino 2026.4.1 forks: False
EOF
run() { env -u CI HOME="$work" env/bin/python program.py "$@" 2>errors || { cat errors; exit 1; }; }
{ run; run hidden; } | tee output
diff seen output && echo "as it was seen"
