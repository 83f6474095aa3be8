"""Names that NumPy has dropped since those scripts were written, put back for them."""

from __future__ import annotations

from typing import Any

import numpy as np

_FORMER = {
    "bool": bool,
    "complex": complex,
    "complex_": np.complex128,
    "float": float,
    "float_": np.float64,
    "Inf": np.inf,
    "infty": np.inf,
    "int": int,
    "NaN": np.nan,
    "object": object,
    "product": np.prod,
    "row_stack": np.vstack,
    "str": str,
    "string_": np.bytes_,
    "unicode_": np.str_,
}
_text_to_array = np.fromstring


def restore() -> None:
    """Add what this NumPy lacks of the names above, and `np.fromstring` of bytes. Idempotent."""
    for name, value in _FORMER.items():
        vars(np).setdefault(name, value)  # to ask by hasattr would be a warning
    np.fromstring = _fromstring  # type: ignore[assignment]  # it is overloaded there


def write_scalars_as_before() -> None:
    """Write `0.9` where NumPy 2 writes `np.float32(0.9)`, in this context.

    Scripts send `str()` of lists with NumPy's scalars in them, and their clients evaluate it.
    """
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # before it, they are written so anyway
        np.set_printoptions(legacy="1.25")


def _fromstring(
    string: Any, dtype: Any = float, count: int = -1, *, sep: str = "", **like: Any
) -> np.ndarray:
    """Without `sep` the bytes are the array's own, in a copy that may be written to."""
    if sep:
        return _text_to_array(string, dtype, count, sep=sep, **like)
    data = string.encode("latin-1") if isinstance(string, str) else string
    return np.frombuffer(data, dtype, count).copy()
