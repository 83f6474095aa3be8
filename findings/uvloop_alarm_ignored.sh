#!/usr/bin/env bash
# Guess: An exception that a signal handler raises leaves `run_until_complete`, so a timeout by
#   SIGALRM, as pytest-timeout has it, ends whatever a test waits for.
# True: On uvloop only SystemExit and KeyboardInterrupt leave it. Any other exception goes to the
#   loop's exception handler, and the loop continues to wait.
# Versions: uvloop==0.23.0; Python 3.11; 2026-11-30
# We heed it in: pyproject.toml: faulthandler ends a test process that outlives its timeout.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check uvloop==0.23.0
cat >program.py <<'EOF'
import asyncio
import signal

import uvloop


class TookTooLong(BaseException):
    pass


async def wait(kind):
    def alarm(*_):
        raise kind

    signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    await asyncio.sleep(3)
    return "waited to the end"


for kind in (TookTooLong, SystemExit):
    for name, new_loop in (("asyncio", asyncio.new_event_loop), ("uvloop", uvloop.new_event_loop)):
        loop = new_loop()
        loop.set_exception_handler(lambda *_: None)
        try:
            ended = loop.run_until_complete(wait(kind))
        except BaseException as error:
            ended = type(error).__name__
        print(f"{name}, {kind.__name__}: {ended}")
EOF
cat >seen <<'EOF'
asyncio, TookTooLong: TookTooLong
uvloop, TookTooLong: waited to the end
asyncio, SystemExit: SystemExit
uvloop, SystemExit: SystemExit
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
