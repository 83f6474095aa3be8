#!/usr/bin/env bash
# Guess: A package that pip installs on a new Python does its main work there.
# True: dill pickles no function by value on Python 3.15, where code objects lack co_lnotab: an
#   AttributeError at the first lambda. Functions by name still work, and cloudpickle takes both.
# Versions: dill==0.4.1, cloudpickle==3.1.2; Python 3.15; 2026-11-29
# We heed it in: pipeline/system/pickling.py: code objects have a form of our own.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3.15}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check dill==0.4.1 cloudpickle==3.1.2
cat >program.py <<'EOF'
import cloudpickle
import dill


def attempt(pickler, function):
    try:
        return dill.loads(pickler.dumps(function))(3)
    except AttributeError as error:
        return f"AttributeError: {error}"


for pickler in (dill, cloudpickle):
    print(pickler.__name__, "by name:", attempt(pickler, abs))
    print(pickler.__name__, "by value:", attempt(pickler, lambda x: x + 1))
EOF
cat >seen <<'EOF'
dill by name: 3
dill by value: AttributeError: 'code' object has no attribute 'co_lnotab'
cloudpickle by name: 3
cloudpickle by value: 4
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
