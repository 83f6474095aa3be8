"""`python -m fuzz.coverage`: the parsers of `fuzz.parsers`, by a fuzzer that sees their branches.

Needs atheris. Each parser has a process of its own and an equal share of the time. Inputs that
reach new branches are kept in build/fuzz, from where the next run continues. A finding has the
exception, and a command that repeats it with the input, which is kept there too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import math
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from fuzz.campaign import CANNOT_RUN

_CORPORA = Path(__file__).parents[2] / "build" / "fuzz"
_MOST_S = 10  # of one input, on a busy machine
_MOST_MIB = 4096
_STOP_S = 60.0  # for the start of a process, and its last input
_INPUTS = re.compile(rb"stat::number_of_executed_units: (\d+)")
_KEPT = re.compile(rb"Test unit written to (.+)")
_SHOWN = 1000  # of a finding: characters at its begin, and at its end


def fuzz(name: str, seconds: float, seed: int, kept: Path | None = None) -> None:
    """Fuzz one parser, or parse one `kept` input.

    Ends the process, with a status other than 0 after a finding.
    """
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

    # 0 stands for no limit, and for a random seed, there.
    most_s = max(1, math.ceil(seconds))
    flags = {"max_total_time": most_s, "seed": seed % 2**31 + 1, "max_len": MOST_BYTES}
    limits = {"timeout": _MOST_S, "rss_limit_mb": _MOST_MIB, "print_final_stats": 1}
    words = [f"-{key}={value}" for key, value in {**flags, **limits}.items()]
    atheris.Setup([name, *words, f"-artifact_prefix={corpus.parent}/", str(kept or corpus)], parse)
    atheris.Fuzz()


def is_clean(name: str, seed: int, seconds: float) -> bool:
    """Fuzz a parser in a process that ends with this one; print how many inputs it had.

    Print also what it found. A process that does not end has found something too.
    """
    command = ["-m", "fuzz.coverage", f"--parser={name}", f"--seed={seed}", f"--seconds={seconds}"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.cluster.leashed", *command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            timeout=seconds + _STOP_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"{name}: did not end within {seconds + _STOP_S:.0f} s", flush=True)
        return False
    inputs = _INPUTS.search(done.stdout)
    print(f"{name}: {int(inputs[1]) if inputs else 0:,} inputs", flush=True)
    if done.returncode:
        print(finding(command, done.stdout), flush=True)
    return not done.returncode


def finding(command: list[str], output: bytes) -> str:
    """Return the command that repeats a finding, and the begin and the end of its text.

    `command`: arguments of Python that found it; `output`: what that printed.
    """
    kept = _KEPT.search(output)
    repeat = shlex.join(["python", *command, *([kept[1].decode()] if kept else [])])
    text = output[output.find(b" === ") + 1 :].decode(errors="replace")
    if len(text) > 2 * _SHOWN:
        text = f"{text[:_SHOWN]}\n...\n{text[-_SHOWN:]}"
    return f"PYTHONPATH=tests {repeat}\n{text}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.coverage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parser", help="only this one, in this process")
    parser.add_argument("kept", type=Path, nargs="?", help="with --parser: only this input")
    given = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("not run: needs atheris, which `pip install atheris` brings to some Pythons")
        return CANNOT_RUN
    if given.parser:
        fuzz(given.parser, given.seconds, given.seed, given.kept)
    from fuzz.parsers import PARSERS

    ends, start_s, bad = time.monotonic() + given.seconds, 0.0, []
    for left, name in zip(range(len(PARSERS), 0, -1), PARSERS, strict=True):
        began = time.monotonic()
        own_s = max(1.0, (ends - began) / left - start_s)
        if not is_clean(name, given.seed, own_s):
            bad.append(name)
        start_s = time.monotonic() - began - own_s
    print(f"FOUND in {', '.join(bad)}" if bad else f"nothing found in {given.seconds:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
