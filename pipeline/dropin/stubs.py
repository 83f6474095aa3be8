"""Stand-ins for classes of the predecessor that this library lacks; using one is an error."""

from __future__ import annotations

from typing import Any, NoReturn

from pipeline.errors import NotImplementedByOpError


class Stub(type):
    """Class of the stand-ins; `advice` says what to do instead."""

    advice = ""

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        cls.refuse()

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):  # the interpreter and pickle look these up on any class
            raise AttributeError(name)
        cls.refuse()

    def refuse(cls) -> NoReturn:
        """Raise NotImplementedByOpError."""
        raise NotImplementedByOpError(
            f"{cls.__qualname__} of Paddle Serving is not in this library: {cls.advice} "
            "(docs/migration.md)"
        )


def stub(name: str, module: str, advice: str) -> Any:
    """Return a class of that name that raises NotImplementedByOpError when it is called."""
    return Stub(name, (), {"__module__": module, "advice": advice})
