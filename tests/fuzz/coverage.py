"""`python -m fuzz.coverage`: the parsers of `fuzz.parsers`, by a fuzzer that sees their branches.

Needs atheris. Each parser has a process of its own and an equal share of the time. Inputs that
reach new branches are kept in build/fuzz, from where the next run continues. A finding has the
exception and the input.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import re
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from fuzz.campaign import parser_of

_CORPORA = Path(__file__).parents[2] / "build" / "fuzz"
_MOST_S = 10  # of one input, on a busy machine
_MOST_MIB = 4096
_INPUTS = re.compile(rb"stat::number_of_executed_units: (\d+)")
_MOST_SHOWN = 2000


def fuzz(name: str, seconds: float, seed: int) -> None:
    """Fuzz one parser; ends the process, with a status other than 0 after a finding."""
    import atheris

    with atheris.instrument_imports(include=["pipeline", "yaml"]):
        from fuzz.parsers import MOST_BYTES, PARSERS

    logging.disable(logging.CRITICAL)
    parser = PARSERS[name]
    corpus = _CORPORA / name.replace(" ", "-")
    corpus.mkdir(parents=True, exist_ok=True)
    for number, sample in enumerate(parser.samples):
        (corpus / f"sample-{number}").write_bytes(sample)

    def parse(data: bytes) -> None:
        with contextlib.suppress(*parser.errors):
            parser.parse(data)

    # 0 stands for a random seed there.
    flags = {"max_total_time": int(seconds), "seed": seed % 2**31 + 1, "max_len": MOST_BYTES}
    limits = {"timeout": _MOST_S, "rss_limit_mb": _MOST_MIB, "print_final_stats": 1}
    words = [f"-{key}={value}" for key, value in {**flags, **limits}.items()]
    atheris.Setup([name, *words, f"-artifact_prefix={corpus.parent}/", str(corpus)], parse)
    atheris.Fuzz()


def is_clean(name: str, given: Namespace, seconds: float) -> bool:
    """Fuzz a parser in a process of its own; print how many inputs it had, or what it found."""
    command = [sys.executable, "-m", "fuzz.coverage", f"--parser={name}", f"--seed={given.seed}"]
    done = subprocess.run(
        [*command, f"--seconds={seconds}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False,
    )  # fmt: skip
    inputs = _INPUTS.search(done.stdout)
    print(f"{name}: {int(inputs[1]) if inputs else 0:,} inputs", flush=True)
    if done.returncode:
        found = done.stdout[done.stdout.find(b" === ") + 1 :][:_MOST_SHOWN]
        print(f"python {' '.join(command[1:])}\n{found.decode(errors='replace')}", flush=True)
    return not done.returncode


def main() -> int:
    parser: ArgumentParser = parser_of("coverage", __doc__)
    parser.add_argument("--parser", help="only this one, in this process")
    given = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("not run: needs atheris, which `pip install atheris` brings to some Pythons")
        return 0
    given.seed = given.seed or 0
    if given.parser:
        fuzz(given.parser, given.seconds, given.seed)
    from fuzz.parsers import PARSERS

    each_s = given.seconds / len(PARSERS)
    bad = [name for name in PARSERS if not is_clean(name, given, each_s)]
    print(f"FOUND in {', '.join(bad)}" if bad else f"nothing found: {each_s:.0f} s each")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
