"""Shrinks a case that shows a finding to as few requests as still show it."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.case import Case

_MOST_RUNS = 120


def shrunk(case: Case, run: Callable[[Case], list[str]]) -> tuple[Case, list[str]]:
    """Return the smallest case found with findings of the same kind, and these findings."""
    findings = run(case)
    wanted = kind_of(findings[0]) if findings else ""
    runs, chunk = 0, max(1, case.count // 2)
    while chunk and findings:
        numbers = [request.number for one in case.pipelines for request in one.requests]
        for begin in range(0, len(numbers), chunk):
            smaller = case.only(numbers[:begin] + numbers[begin + chunk :])
            if not smaller.count or runs >= _MOST_RUNS:
                continue
            runs += 1
            found = [each for each in run(smaller) if kind_of(each) == wanted]
            if found:
                case, findings = smaller, found
                break
        else:
            chunk //= 2
    return case, findings


def kind_of(finding: str) -> str:
    """Return the words of a finding without names and numbers: equal for one cause."""
    words = finding.split("{", 1)[0].split("(", 1)[0].split(":", 1)[0].split()
    return " ".join(word for word in words if word.isalpha() or "-" in word)[:60]
