"""The child process that runs one notebook through papermill: `python -m vitscope.runs.worker`.

It reads one line of JSON from its standard input (`source`, `output`, `parameters`, `folder`,
`start_timeout`) and writes one line of JSON for each cell that starts and one for the outcome. Its standard
input stays open as a lifeline: when the runner disappears, however that happens, the worker and its kernel
end too.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from vitscope.runs.process import KERNEL, TOKEN, end_all, transport

OK, CELL_FAILED, KERNEL_DIED, NOT_STARTED, STOPPED = (
    "ok",
    "cell failed",
    "kernel died",
    "not started",
    "stopped",
)


def main() -> int:
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_runner, daemon=True).start()
    started: list[int] = []

    def cell_starts(*, cell_index: int, **_: Any) -> None:
        started.append(cell_index)
        _say({"cell": cell_index})

    outcome, message = _execute(request, cell_starts)
    if outcome != OK and not started:
        outcome = NOT_STARTED
    _say({"outcome": outcome, "message": message})
    return 0 if outcome == OK else 1


def _execute(request: dict[str, Any], cell_starts: Any) -> tuple[str, str]:
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    runtime = Path(os.environ["JUPYTER_RUNTIME_DIR"])
    # sockets lie beside the connection file; without one, in the notebook's folder, where jobs would meet
    manager = {"transport": transport(runtime), "connection_file": str(runtime / "kernel.json")}
    try:
        papermill.execute_notebook(
            _literal(request["source"]),
            _literal(request["output"]),
            parameters=request["parameters"],
            kernel_name=KERNEL,
            language="python",
            cwd=request["folder"],
            start_timeout=request["start_timeout"],
            progress_bar=False,
            on_cell_execute=cell_starts,
            config=Config(KernelManager=manager),
        )
    except PapermillExecutionError as error:
        return CELL_FAILED, f"cell {error.cell_index + 1} raised {error.ename}: {error.evalue}"
    except DeadKernelError as error:
        return KERNEL_DIED, str(error)
    except Exception as error:  # the boundary of the process: whatever it was, the runner must hear of it
        return STOPPED, f"{type(error).__name__}: {error}"
    return OK, ""


def _literal(path: str) -> str:
    """papermill fills parameters into paths that hold braces; ours are to be taken as they are."""
    return path.replace("{", "{{").replace("}", "}}")


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _end_with_runner() -> None:
    sys.stdin.read()  # returns when the runner's end of the pipe is closed
    end_all(os.environ[TOKEN])
    shutil.rmtree(os.environ["JUPYTER_RUNTIME_DIR"], ignore_errors=True)
    os._exit(1)  # the main thread waits for a kernel that is gone


if __name__ == "__main__":
    sys.exit(main())
