#!/usr/bin/env bash
# Guess: argparse gives the class that add_subparsers(parser_class=...) names what the caller gives
#   to add_parser.
# True: From Python 3.14 on it also gets `color`, which nobody passed. A class or function with a
#   signature of its own fails there, and only there.
# Versions: CPython 3.14.10; 2026-11-29
# We heed it in: pipeline/cli/completion.py: the function that stands for the class takes any
#   keyword.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3.14}" -m venv env
# Nothing to install: the standard library.
cat >program.py <<'EOF'
import argparse


def parser(prog, **more):
    print(sorted(more))
    return argparse.ArgumentParser(prog)


def strict(prog):
    return argparse.ArgumentParser(prog)


argparse.ArgumentParser("x").add_subparsers(parser_class=parser).add_parser("one")
try:
    argparse.ArgumentParser("x").add_subparsers(parser_class=strict).add_parser("one")
except TypeError as error:
    print(error)
EOF
cat >seen <<'EOF'
['color']
strict() got an unexpected keyword argument 'color'
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
