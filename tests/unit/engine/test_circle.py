"""The largest circle of imports in the engine, including imports for types."""

from __future__ import annotations

from unit.test_layers import edges

MAX_FILES = 3


def circles(edges: set[tuple[str, str]]) -> list[set[str]]:
    """Groups of modules that import each other, directly or through others; largest first."""
    readers: dict[str, set[str]] = {}
    for module, target in edges:
        readers.setdefault(module, set()).add(target)
        readers.setdefault(target, set())
    reach = {module: reached(module, readers) for module in readers}
    results = {frozenset(b for b in reach[a] | {a} if b == a or a in reach[b]) for a in reach}
    return sorted((set(group) for group in results), key=len, reverse=True)


def reached(start: str, readers: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        for target in readers[todo.pop()] - seen:
            seen.add(target)
            todo.append(target)
    return seen


def edges_of(package: str) -> set[tuple[str, str]]:
    inside = f"{package}."
    return {
        (edge.module, edge.target)
        for edge in edges()
        if edge.module.startswith(inside) and edge.target.startswith(inside)
    }


def test_a_circle_of_imports_is_reported():
    assert circles({("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")})[0] == {"a", "b", "c"}


def test_the_engine_has_no_large_circle_of_imports():
    largest = circles(edges_of("engine"))[0]
    assert len(largest) <= MAX_FILES, sorted(largest)
