"""Reported numbers: any scalar as a Python number, with the text that prose shows."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from vitscope.runs.record import Number

Spread = float | tuple[float, float] | None


def make_number(
    key: str,
    value: Any,
    *,
    spread: Spread = None,
    n: int | None = None,
    unit: str | None = None,
    text: str | None = None,
) -> Number:
    """A `Number` from a Python, NumPy or torch scalar. Errors name `key`.

    >>> make_number("gap", 0.1234, spread=0.01, unit="%").text
    '0.123 ± 0.01%'
    """
    return Number(
        value=_plain_number(key, value),
        spread=_plain_spread(spread),
        n=n,
        unit=unit,
        text=text or _number_text(key, value, spread, unit),
    )


def _plain_number(key: str, value: Any) -> float | int | None:
    """A Python number: NumPy and torch scalars do not survive gluing or JSON."""
    if value is None:
        return None
    value = value.item() if callable(getattr(value, "item", None)) else value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{key}: expected a number or None, got {value!r}")
    return int(value) if isinstance(value, Integral) else float(value)


def _plain_spread(spread: Spread) -> Spread:
    if isinstance(spread, tuple):
        low, high = spread
        return float(low), float(high)
    return None if spread is None else float(spread)


def _number_text(key: str, value: Any, spread: Any, unit: str | None) -> str:
    if value is None:
        raise ValueError(f"{key}: a value of None needs a text that says why")
    number = _plain_number(key, value)
    text = f"{number:,}" if isinstance(number, int) else f"{number:.3g}"
    if isinstance(spread, tuple):
        text += f" ({spread[0]:.3g} to {spread[1]:.3g})"
    elif spread is not None:
        text += f" ± {spread:.2g}"
    return f"{text} {unit}" if unit and unit != "%" else text + (unit or "")
