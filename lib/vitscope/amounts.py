"""Sizes and ages as people write and read them: 2GB, 512MiB, 30d, 12h."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for ending, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class AmountError(ValueError):
    """A size or an age that cannot be read; the message says what was given and what was expected."""


def parse_size(text: str, what: str = "size") -> int:
    """Bytes of "2GB" (2·10⁹), "512MiB" (512·2²⁰), "1.5 TB" or "4096"; `what` names the value in errors.

    >>> parse_size("2GB"), parse_size("1.5 KiB"), parse_size("0")
    (2000000000, 1536, 0)
    """
    number, unit = _split(text)
    if number is None or unit not in _UNITS:
        raise AmountError(f"{what} {text!r}: expected a number with a unit, such as 500MB, 2GB or 8GiB")
    return round(number * _UNITS[unit])


def parse_age(text: str, what: str = "age") -> float:
    """Seconds of "30d", "12h", "45m" or "2w"; `what` names the value in errors.

    >>> parse_age("30d"), parse_age("1.5h")
    (2592000.0, 5400.0)
    """
    number, unit = _split(text)
    if number is None or unit not in _AGES:
        raise AmountError(f"{what} {text!r}: expected a number with s, m, h, d or w, such as 12h or 30d")
    return number * _AGES[unit]


def _split(text: str) -> tuple[float | None, str]:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    return (float(found[1]), found[2]) if found else (None, "")


def size_text(count: int) -> str:
    """Bytes in words, in powers of 1000.

    >>> size_text(999), size_text(1_234_567), size_text(8 * 2**30)
    ('999 B', '1.2 MB', '8.6 GB')
    """
    if count < 1000:
        return f"{count} B"
    power = next((p for p in (1, 2, 3) if count < 999.95 * 1000**p), 4)
    return f"{count / 1000**power:.1f} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


def age_text(seconds: float) -> str:
    """A time span in its largest whole unit.

    >>> age_text(59), age_text(3 * 3600 + 5), age_text(86_400)
    ('59 s', '3 h', '1 day')
    """
    whole = max(0, int(seconds))
    for length, unit in ((86_400, "day"), (3600, "h"), (60, "min")):
        if whole >= length:
            count = whole // length
            return f"{count} {unit}" + ("s" if unit == "day" and count > 1 else "")
    return f"{whole} s"
