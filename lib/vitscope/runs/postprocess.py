"""From what papermill wrote to what is published: checked, described, free of timings and paths."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from vitscope.runs.notebook import Promise, code_cells, tags

INJECTED_TAG = "injected-parameters"


class OutputError(RuntimeError):
    """An executed notebook does not show what it should; the message lists every breach."""


def check_outputs(executed: NotebookNode, promised: list[Promise]) -> None:
    """Raise `OutputError` on an error, a cell that did not run, or a promised figure or table not shown."""
    problems = []
    shown = {cell.get("id"): _shown(cell) for cell in code_cells(executed)}
    for number, cell in enumerate(code_cells(executed), start=1):
        if any(output.output_type == "error" for output in cell.outputs):
            problems.append(f"code cell {number} holds an error")
        if cell.execution_count is None:
            problems.append(f"code cell {number} did not run")
        if len(shown[cell.get("id")].get("alt", [])) > 1:
            problems.append(
                f"code cell {number} shows several figures; one a cell, so that each gets its own alt text"
            )
        problems += [
            f"code cell {number} shows a widget; show its result" for o in cell.outputs if _is_widget(o)
        ]
    for promise in promised:
        if not shown.get(promise.cell, {}).get(promise.kind):
            problems.append(f"cell {promise.cell} calls run.{promise.kind}, but shows none")
    if problems:
        raise OutputError("\n".join(problems))


def _shown(cell: NotebookNode) -> dict[str, list[str]]:
    """Names of figures and tables among a cell's outputs, and the alt texts of its figures."""
    found: dict[str, list[str]] = {}
    for output in cell.outputs:
        for kind, value in output.get("metadata", {}).get("vitscope", {}).items():
            found.setdefault(kind, []).append(value)
    return found


def _is_widget(output: NotebookNode) -> bool:
    return "application/vnd.jupyter.widget-view+json" in output.get("data", {})


def cell_seconds(executed: NotebookNode) -> dict[str, float]:
    """Seconds of every code cell, by cell id, from papermill's timings."""
    found = {}
    for cell in code_cells(executed):
        seconds = cell.metadata.get("papermill", {}).get("duration")
        if seconds is not None:
            found[cell.get("id", "")] = round(float(seconds), 3)
    return found


def publishable(executed: NotebookNode, kernel_version: str, private: dict[str, str]) -> NotebookNode:
    """The executed notebook as the book takes it.

    Alt texts become cell metadata (the only place where myst-nb looks), the injected cell is folded away,
    timings and run paths are dropped, the kernel is the one really used, and `private` texts (paths of this
    machine) are replaced in outputs.
    """
    for cell in executed.cells:
        if cell.cell_type != "code":
            continue
        for volatile in ("papermill", "execution", "ExecuteTime"):
            cell.metadata.pop(volatile, None)
        if INJECTED_TAG in tags(cell):
            cell.metadata["tags"] = sorted({*tags(cell), "hide-input"})
            cell["id"] = INJECTED_TAG
        alt = _shown(cell).get("alt", [])
        if alt:
            cell.metadata.setdefault("mystnb", {}).setdefault("image", {})["alt"] = alt[0]
        for output in cell.outputs:
            _scrub(output, private)
    executed.metadata.pop("papermill", None)
    executed.metadata["kernelspec"] = {
        "name": "python3", "display_name": f"Python {kernel_version}", "language": "python",
    }  # fmt: skip
    return executed


def _scrub(output: NotebookNode, private: dict[str, str]) -> None:
    def clean(text: Any) -> Any:
        if isinstance(text, str):
            for path, name in private.items():
                text = text.replace(path, name)
        return text

    if "text" in output:
        output["text"] = clean(output["text"])
    for kind, value in output.get("data", {}).items():
        if kind.startswith("text/"):
            output["data"][kind] = clean(value)


def private_paths(root: Path) -> dict[str, str]:
    """Paths of this machine and what stands for them, longest first."""
    known = {str(root): ".", str(Path.home()): "~"}
    return {path: name for path, name in sorted(known.items(), key=lambda x: -len(x[0])) if len(path) > 1}


def mark_failed(partial: NotebookNode | None, message: str, notebook: str) -> NotebookNode:
    """What was executed of a failed run, with the reason on top; papermill's own banners are replaced."""
    from nbformat.v4 import new_markdown_cell, new_notebook

    node = partial or new_notebook()
    node.cells = [c for c in node.cells if "papermill-error-cell-tag" not in tags(c)]
    when = datetime.now().isoformat(sep=" ", timespec="seconds")
    reason = f"**This run failed and is no result.** {notebook}, {when}\n\n```\n{message}\n```"
    node.cells.insert(0, new_markdown_cell(reason))
    return node
