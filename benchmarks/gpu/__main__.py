"""`python -m benchmarks.gpu`: runs everything that needs a card, and prints a table.

Each check runs in a process of its own with a limit of time; what it needs and is not there is
said. Without a card the doubles of onnxruntime and Paddle are tested instead, and with --rehearse
all checks run on the processor with small models: the same code.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu.checks import CHECKS, Check
from benchmarks.gpu.place import MissingError, Place, cards
from benchmarks.gpu.runs import FAILED, OK, SKIPPED, Outcome, run_apart, run_tests, told

_DOUBLES = ("tests/unit/predictors/onnx", "tests/unit/predictors/paddle")
_DOUBLES_LIMIT_S = 600.0
_BEGIN, _END = "<!-- gpu: begin -->", "<!-- gpu: end -->"
_PACKAGES = ("tensorrt", "paddlepaddle-gpu", "numpy")

Row = tuple[str, str, str, Outcome]


def main() -> int:
    arguments = _arguments()
    place = Place(arguments.rehearse, arguments.seconds)
    chosen = [check for check in CHECKS if not arguments.only or check.name in arguments.only]
    if arguments.inside:
        print(told(_inside(chosen[0], place)), flush=True)
        return 0
    has_card = bool(cards())
    if not (has_card or arguments.rehearse):
        _say("no NVIDIA card here: the checks are not run, the doubles are tested")
    rows = _rows(chosen, arguments)
    if not has_card and not arguments.only:
        doubles = run_tests(_DOUBLES, _DOUBLES_LIMIT_S)
        rows.append(("doubles", "tests with doubles of onnxruntime and Paddle", "pytest", doubles))
    report = table(rows)
    print(f"{facts()}\n\n{report}")
    if arguments.write and has_card and not arguments.rehearse:
        write(f"{facts()}\n\n{report}", arguments.write)
        _say(f"written to {arguments.write}")
    return 1 if any(outcome.state == FAILED for *_, outcome in rows) else 0


def _rows(chosen: Sequence[Check], arguments: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for check in chosen:
        _say(f"{check.name}: {check.what} ...")
        command = [sys.executable, "-m", "benchmarks.gpu", "--inside", "--only", check.name]
        command += ["--seconds", str(arguments.seconds), *["--rehearse"] * arguments.rehearse]
        outcome = run_apart(command, check.limit_s)
        _say(f"  {outcome.state}: {outcome.text}")
        rows.append((check.name, check.what, check.needs, outcome))
    return rows


def _inside(check: Check, place: Place) -> Outcome:
    """Run a check here: this is the process that is its own."""
    try:
        return Outcome(OK, check.run(place))
    except MissingError as missing:
        return Outcome(SKIPPED, f"needs {missing}")
    except Exception as error:  # whatever a driver, a library or ours raises
        return Outcome(FAILED, f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")


def table(rows: Sequence[Row]) -> str:
    """Return the rows in Markdown."""
    lines = ["| check | what | needs | outcome |", "|---|---|---|---|"]
    for name, check, needs, outcome in rows:
        text = f"{outcome.state}: {outcome.text}".replace("|", "\\|")
        lines.append(f"| `{name}` | {check} | {needs} | {text} |")
    return "\n".join(lines)


def facts() -> str:
    """Return what this machine has, in one paragraph."""
    lines = []
    if importlib.util.find_spec("onnxruntime") is not None:  # of several packages of this name
        lines.append(f"onnxruntime {importlib.import_module('onnxruntime').__version__}")
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            lines.append(f"{package} {version(package)}")
    where = "; ".join(cards()) or "no NVIDIA card"
    day = datetime.now(UTC).date()
    return f"{day}: {where}; Python {platform.python_version()}, {', '.join(lines)}."


def write(report: str, path: Path) -> None:
    """Put the report between the marks of a page, on lines of their own. ValueError: none there."""
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(f"\n{_BEGIN}\n")
    _, end, after = rest.partition(f"{_END}\n")
    if not begin or not end:
        raise ValueError(f"{path} has no lines {_BEGIN} and {_END}")
    path.write_text(f"{before}{begin}{report}\n{end}{after}", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    names = [check.name for check in CHECKS]
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="CHECK")
    parser.add_argument("--rehearse", action="store_true", help="on the processor, small models")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (5)")
    parser.add_argument("--write", type=Path, help="a page that gets the table, if a card is here")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
