#!/usr/bin/env bash
# Guess: redis-py 5.0 closes a client of redis.asyncio by aclose, so `redis>=5.0` is the bound for
#   code that calls it.
# True: 5.0.0 has only close; 5.0.1 has aclose as well, and its close warns. `async with` closes
#   both without a warning.
# Versions: redis==5.0.0, redis==5.0.1; Python 3.11; 2026-11-29
# We heed it in: pyproject.toml: the extra redis begins with 5.0.2.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
for version in 5.0.0 5.0.1; do
  env/bin/pip install --quiet --disable-pip-version-check --target $version redis==$version
done
cat >program.py <<'EOF'
import asyncio
import sys
import warnings
from importlib.metadata import version

sys.path.insert(0, sys.argv[1])

import redis.asyncio


async def main():
    client = redis.asyncio.Redis()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        await client.close()
    warned = [warning.category.__name__ for warning in caught]
    print(version("redis"), "aclose:", hasattr(client, "aclose"), "close warns:", warned)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with redis.asyncio.Redis():
            pass
    print("async with warns:", [warning.category.__name__ for warning in caught])


asyncio.run(main())
EOF
cat >seen <<'EOF'
5.0.0 aclose: False close warns: []
async with warns: []
5.0.1 aclose: True close warns: ['DeprecationWarning']
async with warns: []
EOF
for version in 5.0.0 5.0.1; do env/bin/python program.py $version; done 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
