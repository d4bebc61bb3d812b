"""16 fits of fusion heads by `vitscope sweep`'s own path: two workers against one, one thread each.

    python benchmarks/sweep.py

A fit is what a task of a sweep does: features of a frozen backbone, members out of fold, VFusion and Super
Learner, numbers of the test part. Features are computed before the clock runs, as a second sweep over heads
finds them; heads are fitted in every round. Starting the workers is part of a sweep, and of the seconds.
"""

import shutil
import tempfile
from pathlib import Path

import common

from vitscope.runs.layout import Project
from vitscope.sweeps import grid as grids
from vitscope.sweeps.cluster import Local
from vitscope.sweeps.sweep import sweep

TARGET = 1.7


def tasks(args, project: Project) -> list:
    """A seed each, so that no fit is another's; sizes of the course profile, or of a test."""
    read = grids.Grid.model_validate(
        {
            "fit": {"heads": ["SuperLearner", "VFusion"], "dataset": "emoji_subgroup"},
            "profile": "smoke" if args.quick else "course",
            "grid": {"seed": list(range(args.fits))},
            "fixed": {} if args.quick else {"steps": args.steps},
            "results": "unused",
        }
    )
    return grids.plan(read, project, Path.cwd())


def run(todo: list, project: Project, workers: int) -> float:
    """Seconds of one sweep, whose fits none has kept."""
    for entry in project.cache.glob("fit-*"):
        entry.unlink()
    with tempfile.TemporaryDirectory() as folder:
        done = sweep(todo, Local(workers=workers, threads=1, gpus=False), Path(folder))
    if not done.whole:
        raise RuntimeError("\n".join(done.lines()))
    return done.worked


def main() -> None:
    parser = common.parser(__doc__, fits=16, rounds=3, steps=300)
    args = common.parse(parser, fits=2, rounds=1)
    home = Project.find()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "book"  # a state folder of its own, so that nobody's results are touched
        root.mkdir()
        for path in home.root.iterdir():
            if path.name not in (".vitscope", "_build"):
                (root / path.name).symlink_to(path)
        project = Project(root)
        todo = tasks(args, project)
        worked: dict[int, list[float]] = {1: [], 2: []}
        runs = {n: lambda n=n: worked[n].append(run(todo, project, n)) for n in (1, 2)}
        run(todo, project, 2)  # features
        seconds = common.alternate(runs, args.rounds, warm_up=False)
        shutil.rmtree(root / ".vitscope", ignore_errors=True)
    found = common.row(
        f"sweep of {args.fits} fits, two workers",
        "one worker",
        common.ratio(seconds, 1, 2),
        setting=f"VFusion and Super Learner on emoji_subgroup, {todo[0].profile} profile, one thread each",
        target=None if args.quick else TARGET,
        seconds_of_one=common.spread(seconds[1])["median"],
        seconds_of_two=common.spread(seconds[2])["median"],
        seconds_of_a_fit=common.spread([w / args.fits for w in worked[1]])["median"],
    )
    common.write("sweep", [found], args)


if __name__ == "__main__":
    main()
