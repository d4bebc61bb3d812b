"""Workers, their threads and their GPUs; the script of a Slurm job. Nothing is started here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from processes import environment
from vitscope.sweeps import SweepError, cluster
from vitscope.sweeps.cluster import Elsewhere, Local, Slurm

FULL = Slurm(
    kind="slurm", workers=3, queue="gpu", account="lab", walltime="12:00:00", cores=8, memory="32GB",
    gres="gpu:1", job_extra=["-o log.txt"], prologue=["module load cuda"], python="/opt/python",
)  # fmt: skip


@pytest.mark.parametrize(
    ("visible", "devices"),
    [("0,1", ["0", "1"]), ("3", ["3"]), (" 2 , 0 ", ["2", "0"]), ("", []), ("-1", []), ("GPU-a", ["GPU-a"])],
)
def test_gpus_are_those_the_process_may_use(monkeypatch, visible, devices):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert cluster.visible_gpus() == devices


def test_without_the_variable_all_gpus_of_the_machine(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert cluster.visible_gpus() == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("local", "devices", "cores", "expected"),
    [
        (Local(), [], 8, (8, 1)),
        (Local(workers=2), [], 8, (2, 4)),
        (Local(workers=2, threads=1), [], 8, (2, 1)),
        (Local(workers=4), [], 2, (4, 1)),
        (Local(), ["0", "1"], 8, (2, 4)),
        (Local(workers=1), ["0", "1"], 8, (1, 8)),
    ],
)
def test_a_worker_for_each_gpu_or_core_which_share_the_cores(local, devices, cores, expected):
    assert cluster.sizes(local, devices, cores) == expected


def test_more_workers_than_gpus_are_refused():
    with pytest.raises(SweepError, match=r"3 workers for 2 GPUs.*at most 2, or set `gpus: false`"):
        cluster.sizes(Local(workers=3), ["0", "1"], 8)


def test_each_worker_sees_one_gpu_of_its_own():
    seen = [cluster.worker_environment(["5", "GPU-x"], number, 2, True) for number in range(2)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["5", "GPU-x"]
    assert seen[0]["OMP_NUM_THREADS"] == seen[0]["MKL_NUM_THREADS"] == "2"


def test_gpus_can_be_hidden():
    assert cluster.worker_environment([], 0, 1, False)["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in cluster.worker_environment([], 0, 1, True)


def _seen() -> tuple[str | None, str | None, int]:
    return os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("OMP_NUM_THREADS"), os.getpid()


def test_worker_processes_have_their_gpu_in_their_environment(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,3")
    with cluster.started(Local(threads=2), 0) as running:
        running.client.wait_for_workers(2, timeout=30)
        found = running.client.run(_seen)
        names = {i["name"] for i in running.client.scheduler_info()["workers"].values()}
    assert running.words == "2 local workers, 2 threads each, a GPU each"
    assert running.threads == 2
    assert {one[:2] for one in found.values()} == {("7", "2"), ("3", "2")}
    assert names == {0, 1}
    for *_, process in found.values():
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)  # none is left


def test_a_job_of_slurm_has_one_worker_on_all_its_cores_and_its_gpu():
    lines = cluster.job_script(FULL).splitlines()
    for line in (
        "#SBATCH -J vitscope-sweep",
        "#SBATCH -p gpu",
        "#SBATCH -A lab",
        "#SBATCH -t 12:00:00",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --gres=gpu:1",
        "#SBATCH -o log.txt",
        "export OMP_NUM_THREADS=8",
        "module load cuda",
    ):
        assert line in lines
    last = lines[-1]
    assert last.startswith("/opt/python -m distributed.cli.dask_worker tcp://SCHEDULER:PORT --name WORKER")
    assert "--nthreads 1 " in last
    assert "--nanny" in last


def test_ctrl_c_stays_what_it_was_where_slurm_is_used():
    code = """
import signal
from vitscope.sweeps.cluster import Slurm, job_script
job_script(Slurm(kind="slurm"))
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGINT)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


def test_what_slurm_is_not_told_is_not_in_the_script():
    script = cluster.job_script(Slurm(kind="slurm"))
    assert "--gres" not in script
    assert "#SBATCH -p" not in script
    assert sys.executable in script


def test_without_jobqueue_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(SweepError, match=r"need dask-jobqueue: pip install 'vitscope\[cluster\]'"):
        cluster.job_script(FULL)


def test_a_scheduler_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(cluster, "_CONNECT", 0.2)
    gone = Elsewhere(kind="scheduler", address="tcp://127.0.0.1:1")
    with (
        pytest.raises(SweepError, match=r"no Dask scheduler answers at tcp://127.0.0.1:1 in 2 attempts"),
        cluster.started(gone, 1),
    ):
        pass
