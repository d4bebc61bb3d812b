"""How much a reader's browser loads when it opens a page: the document and all it asks for by itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from site_pages import PAGES

MOST = 3_000_000
SPARE = 300_000
"""Bytes that the smoke site leaves, since pages of the course hold more rows and pictures."""


def weight(addresses: list[str]) -> Counter:
    """Uncompressed bytes by kind of file; what is asked for twice is loaded once."""
    files = {Path(unquote(urlsplit(a).path)) for a in addresses if a.startswith("file:")}
    found: Counter = Counter()
    for file in files:
        found[file.suffix] += file.stat().st_size
    return found


@pytest.mark.parametrize("name", PAGES)
def test_first_load_is_light(site, visit, name):
    path = site / f"{name}.html"
    loaded = weight(visit(path).loaded)
    assert loaded[".html"] == path.stat().st_size
    assert loaded.total() <= MOST - SPARE, dict(loaded)
