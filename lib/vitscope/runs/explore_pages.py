"""A Sphinx extension that adds the script of the explorers to the pages that have one, and to no others.

The script lies below `extra/`, which is copied into the site as it is: jupyter-book would put anything below
`_static` on every page. It loads Vega only when a reader opens an explorer.
"""

from __future__ import annotations

from typing import Any

from vitscope.runs.explore_cards import CLASS

SCRIPT = "../explore/explore.js"
"""As seen from `_static`, where Sphinx looks for scripts."""


def _with_script(app: Any, pagename: str, templatename: str, context: dict, doctree: Any) -> None:
    if f'class="{CLASS}"' in (context.get("body") or ""):
        app.add_js_file(SCRIPT, loading_method="defer")


def setup(app: Any) -> dict[str, bool]:
    app.connect("html-page-context", _with_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
