"""Numbers with their units as short text, for tables that compare what is far apart."""

from __future__ import annotations

NOTHING = "–"
_DIGITS = 3
_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


def number(value: float) -> str:
    """Three significant digits, with words for millions and billions.

    >>> number(1_281_167), number(86_420.0), number(0.01234), number(3e9), number(999_600)
    ('1.28 million', '86,400', '0.0123', '3 billion', '1 million')
    """
    value = float(f"{value:.{_DIGITS - 1}e}")
    for word, size in ((" billion", 1e9), (" million", 1e6)):
        if value >= size:
            return (f"{value / size:,.0f}" if value >= 1000 * size else f"{value / size:.{_DIGITS}g}") + word
    return f"{value:,.0f}" if value >= 100 else f"{value:.{_DIGITS}g}"


def si(value: float, unit: str) -> str:
    """Three significant digits with a decimal prefix.

    >>> si(55_100_430_336, "B"), si(312e12, "FLOP/s"), si(115e3, "B"), si(999_999, "B")
    ('55.1 GB', '312 TFLOP/s', '115 kB', '1 MB')
    """
    value, step = float(f"{value:.{_DIGITS - 1}e}"), 0
    while value >= 1000 and step < len(_PREFIXES) - 1:
        value, step = float(f"{value / 1000:.{_DIGITS}g}"), step + 1
    return f"{value:.{_DIGITS}g} {_PREFIXES[step]}{unit}"


def hours(values: tuple[float, float] | float | None) -> str:
    """One number of hours or a range, the smaller first.

    >>> hours((0.5, 0.25)), hours(None), hours((2.0, 2.0)), hours(1234.5)
    ('0.25 to 0.5', '–', '2', '1,230')
    """
    if values is None:
        return NOTHING
    low, high = sorted(values) if isinstance(values, tuple) else (values, values)
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def spread(median: float, low: float, high: float, form: str = ".3g") -> str:
    """A median with its range, or alone where all are one number.

    >>> spread(1.0, 0.987, 1.1, ".2f"), spread(4.0, 4.0, 4.0)
    ('1.00 (0.99 to 1.10)', '4')
    """
    shown = [format(value, form) for value in (median, low, high)]
    return shown[0] if low == high else f"{shown[0]} ({shown[1]} to {shown[2]})"
