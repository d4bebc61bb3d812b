"""A Sphinx extension that keeps thebe off the pages: it would fetch its scripts and a kernel from elsewhere.

jupyter-book always loads sphinx-thebe, and a build that reads its sources twice declares it twice, which
browsers report as an error on every page.
"""

from __future__ import annotations

from typing import Any

AFTER_OTHERS = 900


def _without_thebe(app: Any, pagename: str, templatename: str, context: dict, doctree: Any) -> None:
    context["script_files"] = [s for s in context.get("script_files", []) if not _is_thebe(s)]


def _is_thebe(script: Any) -> bool:
    text = f"{getattr(script, 'filename', '') or ''} {getattr(script, 'attributes', {}).get('body', '')}"
    return "thebe" in text.lower()


def setup(app: Any) -> dict[str, bool]:
    app.connect("html-page-context", _without_thebe, priority=AFTER_OTHERS)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
