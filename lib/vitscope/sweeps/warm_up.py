"""What a sweep fetches once, before workers would all fetch it: weights and datasets of the hub.

Everything embedded or local is there already. It is fetched where the sweep is started, into the caches of
the hub's libraries, which workers share with it (on a cluster: a home that all nodes see).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from vitscope.runs.parameters import Parameters


def wanted(parameters: Iterable[Parameters], folder: Path) -> tuple[list[str], list[str]]:
    """Backbones and datasets that are neither embedded nor local; relative paths start at `folder`."""
    from vitscope import backbones, data

    models: dict[str, None] = {}
    sets: dict[str, None] = {}
    zoo = backbones.zoo_names()
    for one in parameters:
        if not one.named("weights"):
            models |= dict.fromkeys(
                name
                for name in one.named("backbone")
                if name.partition("@")[0] not in zoo and not (folder / name).is_file()
            )
        sets |= dict.fromkeys(
            name
            for name in one.named("dataset")
            if not data.is_embedded(name) and not (folder / Path(name).expanduser()).exists()
        )
    return list(models), list(sets)


def fetch(models: Sequence[str], sets: Sequence[str], say: Callable[[str], None]) -> None:
    """Fetch each once. What cannot be fetched is said; the tasks that need it will fail and say so."""
    from vitscope import backbones, data

    for name in models:
        say(f"fetching {name}")
        try:
            backbones.load(name, device="cpu")
        except (OSError, RuntimeError, ValueError) as error:
            say(f"! {name}: {error}")
    for name in sets:
        say(f"fetching {name}")
        for split in ("train", "test"):
            try:
                data.load(name, split, limit=1)
            except (OSError, RuntimeError, ValueError) as error:
                say(f"! {name}, {split}: {error}")
