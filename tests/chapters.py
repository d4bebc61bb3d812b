"""Chapters run in this process, without a kernel: their cells, one after the other, with profile `smoke`."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitscope.runs import notebook as nb
from vitscope.runs import preflight, runner, session
from vitscope.runs.record import Record


def run_chapter(name: str, folder: Path, cache: Path, **parameters) -> Record:
    """Run a chapter's cells with the profile `smoke`, features kept in `cache`."""
    job = runner.plan(name, "smoke", parameters)
    preflight.check(job.parameters, job.source.parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(job.source.parent)
        patch.setenv(session.RUN_DIR, str(folder))
        patch.delenv(session.PREFIX, raising=False)
        patch.setattr(session, "find_spec", lambda _: None)  # gluing needs a kernel
        patch.setattr(session, "_show", lambda *_: None)
        patch.setattr(session.Run, "cache", cache)
        names: dict[str, object] = {"__name__": "__main__"}
        for cell in nb.code_cells(nb.read(job.source)):
            exec(compile(cell.source, f"{name}:{cell.id}", "exec"), names)
            if nb.PARAMETERS_TAG in nb.tags(cell):
                names |= job.parameters.model_dump(mode="json")
    return Record.load(folder)
