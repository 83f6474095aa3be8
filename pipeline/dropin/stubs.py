"""Stand-ins for classes of the predecessor that cannot be had: they import, and say so in use."""

from __future__ import annotations

from typing import Any, NoReturn

from pipeline.errors import NotImplementedByOpError


class Stub(type):
    """The class of the stand-ins; `advice` says what to do instead."""

    advice = ""

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        cls.refuse()

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):  # what the interpreter and pickle ask of any class
            raise AttributeError(name)
        cls.refuse()

    def refuse(cls) -> NoReturn:
        """Say that it is not there."""
        raise NotImplementedByOpError(
            f"{cls.__qualname__} of Paddle Serving is not in this library: {cls.advice} "
            "(docs/migration.md)"
        )


def stub(name: str, module: str, advice: str) -> Any:
    """Return a class of that name that raises NotImplementedByOpError when it is called."""
    return Stub(name, (), {"__module__": module, "advice": advice})
