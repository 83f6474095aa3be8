#!/usr/bin/env bash
# Guess: asyncio's `communicate` with a program that has ended before it read anything returns the
#   program's output and status, on each event loop.
# True: On uvloop the write raises a RuntimeError ("the handler is closed"), so the program's own
#   error text is lost. asyncio's loop and subprocess.run pass over the closed pipe.
# Versions: uvloop==0.23.0; Python 3.11; 2026-11-30
# We heed it in: pipeline/repository/backends/python/backend.py: programs run by subprocess.run in
#   a thread.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check uvloop==0.23.0
cat >program.py <<'EOF'
import asyncio
import subprocess

import uvloop

FAILS = ("sh", "-c", "echo no such model >&2; exit 3")
PIPE = subprocess.PIPE


async def ask():
    program = await asyncio.create_subprocess_exec(*FAILS, stdin=PIPE, stderr=PIPE)
    await program.wait()
    _, errors = await program.communicate(b"a question")
    return errors.decode().strip(), program.returncode


for name, new_loop in (("asyncio", asyncio.new_event_loop), ("uvloop", uvloop.new_event_loop)):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        try:
            print(f"{name}:", runner.run(ask()))
        except RuntimeError as error:
            print(f"{name}: RuntimeError:", str(error).rpartition("; ")[2])
done = subprocess.run(FAILS, input=b"a question", stderr=PIPE)
print("subprocess:", (done.stderr.decode().strip(), done.returncode))
EOF
cat >seen <<'EOF'
asyncio: ('no such model', 3)
uvloop: RuntimeError: the handler is closed
subprocess: ('no such model', 3)
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
