"""Reading notebooks as sources: their parameters, what they read, and what their cells promise to show."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from vitscope.errors import unknown
from vitscope.runs.parameters import Parameters

PARAMETERS_TAG = "parameters"
INSTALL_TAG = "install"
_ADDRESS = re.compile(r'^REPOSITORY = "[^"\n]*"$', re.M)


class NotebookError(ValueError):
    """A notebook breaks a rule that a run depends on; the message lists every breach."""


@dataclass(frozen=True)
class Promise:
    """A code cell that calls `run.figure` or `run.table` must show one."""

    cell: str
    kind: str


def read(path: Path) -> NotebookNode:
    """A notebook in format 4.5 or newer, with cell ids."""
    try:
        notebook = nbformat.read(path, as_version=4)
    except (ValueError, nbformat.ValidationError) as error:
        raise NotebookError(f"{path.name} is not a notebook: {error}") from error
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def digest(notebook: NotebookNode) -> str:
    """SHA-256 of what is executed and read: cells and tags, without outputs, counts and kernel names.

    The address in the cell that installs vitscope is left out: where a run is possible it does nothing.
    """
    content = [
        [cell.get("id"), cell.cell_type, _without_address(cell), tags(cell)] for cell in notebook.cells
    ]
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()


def _without_address(cell: NotebookNode) -> str:
    return _ADDRESS.sub('REPOSITORY = ""', cell.source) if INSTALL_TAG in tags(cell) else cell.source


def declared(notebook: NotebookNode) -> dict[str, Any]:
    """Names and defaults of the one cell tagged `parameters`, which may hold literals only."""
    cells = [cell for cell in code_cells(notebook) if PARAMETERS_TAG in tags(cell)]
    if len(cells) != 1:
        raise NotebookError(
            f"expected exactly one code cell tagged '{PARAMETERS_TAG}', found {len(cells)}; "
            "without it an injected value is overwritten by the notebook's own default"
        )
    values = {}
    for statement in ast.parse(cells[0].source).body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a text that explains
        name, value = _assignment(statement)
        try:
            values[name] = ast.literal_eval(value)
        except ValueError:
            raise NotebookError(
                f"parameter {name} = {ast.unparse(value)} is derived: it would keep the default of what it "
                "is derived from; move it to a later cell"
            ) from None
    return values


def _assignment(statement: ast.stmt) -> tuple[str, ast.expr]:
    if (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    ):
        return statement.targets[0].id, statement.value
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        return statement.target.id, statement.value
    raise NotebookError(
        f"the parameters cell may hold only `name = value` lines, found: {ast.unparse(statement)}"
    )


def check(notebook: NotebookNode, schema: type[Parameters]) -> None:
    """Raise `NotebookError` unless the notebook declares its schema's names and defaults, and reads them."""
    values = declared(notebook)
    problems = [
        str(unknown("parameter", name, schema.model_fields))
        for name in values
        if name not in schema.model_fields
    ]
    problems += [
        f"parameter {name} is in the schema but not declared"
        for name in schema.model_fields
        if name not in values
    ]
    if not problems:
        course = schema.validate_all({**schema.OVERRIDES.get("course", {}), "profile": "course"}).model_dump()
        problems += [
            f"parameter {name} defaults to {value!r}, the course profile has {course[name]!r}"
            for name, value in values.items()
            if value != course[name] or type(value) is not type(course[name])
        ]
    unread = sorted(set(values) - names_read(notebook) - {"profile"})
    problems += [f"parameter {name} is declared but nothing reads it" for name in unread]
    if problems:
        raise NotebookError("\n".join(problems))


def names_read(notebook: NotebookNode) -> set[str]:
    """Names that cells other than the parameters cell use, passing on to `begin` not counted.

    `run.params.x` counts as x, and so does `p.x` after `p = run.params`.
    """
    found: set[str] = set()
    holders = {"params"}
    for cell in code_cells(notebook):
        if PARAMETERS_TAG in tags(cell):
            continue
        for node in _walk_outside_begin(_tree(cell.source)):
            if isinstance(node, ast.Assign) and _last_name(node.value) in holders:
                holders |= {_last_name(target) for target in node.targets}
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and _last_name(node.value) in holders:
                found.add(node.attr)
    return found


def promises(notebook: NotebookNode) -> list[Promise]:
    """The figures and tables that the sources announce: one entry for each cell and kind."""
    found = []
    for cell in code_cells(notebook):
        calls = {
            node.func.attr
            for node in ast.walk(_tree(cell.source))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and _last_name(node.func.value) == "run"
        }
        found += [Promise(cell.id, kind) for kind in ("figure", "table") if kind in calls]
    return found


def _walk_outside_begin(tree: ast.AST) -> Iterator[ast.AST]:
    yield tree
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.Call) and _last_name(child.func) == "begin"):
            yield from _walk_outside_begin(child)


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _tree(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError:  # magics and shell lines
        from IPython.core.inputtransformer2 import TransformerManager

        return ast.parse(TransformerManager().transform_cell(source))
