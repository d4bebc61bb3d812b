"""A grid file is checked whole before anything starts, and every mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitscope.runs.layout import Project
from vitscope.sweeps.grid import GridError, load, plan

FIT = "fit: {heads: [VFusion]}\nprofile: smoke\nresults: out\n"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def grid(tmp_path):
    def from_text(text: str):
        path = tmp_path / "grid.yml"
        path.write_text(text, encoding="utf-8")
        return load(path)

    return from_text


@pytest.fixture(scope="module")
def project():
    return Project(ROOT)


def test_the_product_goes_the_first_parameter_slowest(grid):
    found = grid(FIT + "grid: {backbone: [twin_s, twin_b], seed: [0, 1]}").combinations()
    assert [(one["backbone"], one["seed"]) for one in found] == [
        ("twin_s", 0), ("twin_s", 1), ("twin_b", 0), ("twin_b", 1),
    ]  # fmt: skip


def test_exclude_takes_from_the_product_and_include_adds(grid):
    found = grid(
        FIT + "grid: {backbone: [twin_s, twin_b], seed: [0, 1]}\n"
        "exclude: [{backbone: twin_b, seed: 1}, {seed: 0}]\n"
        "include: [{backbone: twin_b, seed: 1}, {seed: 7}]"
    ).combinations()
    assert found == [{"backbone": "twin_s", "seed": 1}, {"backbone": "twin_b", "seed": 1}, {"seed": 7}]


def test_include_alone_is_a_grid(grid):
    assert grid(FIT + "include: [{seed: 3}]").combinations() == [{"seed": 3}]


def test_what_is_left_out_has_its_default(grid):
    read = grid("notebook: 04_vfusion\ngrid: {seed: [0]}\nresults: out")
    assert (read.profile, read.retries, read.timeout) == ("course", 2, None)
    assert (read.cluster.kind, read.cluster.workers, read.cluster.memory) == ("local", None, "auto")


def test_a_cluster_without_a_kind_is_local(grid):
    assert grid(FIT + "grid: {seed: [0]}\ncluster: {workers: 3}").cluster.workers == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "holds no keys; expected notebook or fit, grid, results and others"),
        ("a: [", "is no YAML"),
        ("!!python/object/apply:os.system [ls]", "is no YAML"),
        (FIT + "gird: {seed: [0]}", "Unknown key 'gird'. Did you mean 'grid'?"),
        (FIT + "notebook: 04_vfusion\ngrid: {seed: [0]}", "give either `notebook` or `fit`"),
        ("results: out\ngrid: {seed: [0]}", "give either `notebook` or `fit`"),
        ("fit: {}\ngrid: {seed: [0]}", "results: Field required"),
        ("fit: {}\ngrid: {seed: [0]}\nresults: ''", "results: String should have at least 1 character"),
        (FIT, "neither `grid` nor `include` names a combination"),
        (FIT + "grid: {seed: []}", "grid: no value for seed"),
        (FIT + "grid: {seed: 3}", "grid.seed: Input should be a valid list"),
        (FIT + "grid: {seed: [0]}\nfixed: {seed: 1}", "both in `grid` and in `fixed`: seed"),
        (FIT.replace("smoke", "smok") + "grid: {seed: [0]}", "Unknown profile 'smok'. Did you mean 'smoke'?"),
        (FIT + "grid: {seed: [0]}\nretries: 11", "retries: Input should be less than or equal to 10"),
        (FIT + "grid: {seed: [0]}\nretries: '2'", "retries: Input should be a valid integer"),
        (FIT + "grid: {seed: [0]}\ntimeout: 0", "timeout: Input should be greater than 0"),
        (FIT + "grid: {seed: [0]}\ncluster: {kind: slum}", "kind of cluster 'slum'. Did you mean 'slurm'?"),
        (FIT + "grid: {seed: [0]}\ncluster: {worker: 2}", "Unknown key 'worker'. Did you mean 'workers'?"),
        (FIT + "grid: {seed: [0]}\ncluster: {workers: 0}", "cluster.local.workers: Input should be greater"),
        (FIT + "grid: {seed: [0]}\ncluster: {kind: scheduler}", "cluster.scheduler.address: Field required"),
        (FIT + "grid: {seed: [0]}\ncluster: {kind: scheduler, address: here}", "cluster.scheduler.address"),
        (FIT + "grid: {seed: [0]}\ncluster: {kind: slurm, queu: a}", "Did you mean 'queue'?"),
        (
            FIT + "grid: {seed: [0]}\ncluster: {kind: slurm, walltime: 12:00:00}",
            "cluster.slurm.walltime: put the time in quotes",
        ),
    ],
)
def test_mistakes_in_the_file_are_named(grid, text, message):
    with pytest.raises(GridError) as caught:
        grid(text)
    assert message in str(caught.value)
    assert "grid.yml" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(GridError, match=r"none\.yml cannot be read \(No such file"):
        load(tmp_path / "none.yml")


def test_every_problem_is_a_line(grid):
    with pytest.raises(GridError) as caught:
        grid("fit: {}\ngrid: {seed: 1}\nretries: -1")
    assert len(str(caught.value).splitlines()) == 3  # grid, retries, results


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exclude: [{seed: 9}]", "exclude: no combination has seed=9"),
        ("exclude: [{}]", "exclude: no combination has"),
        ("exclude: [{seed: 0}]", "exclude leaves no combination"),
    ],
)
def test_exclusions_that_make_no_sense(grid, text, message):
    with pytest.raises(GridError, match=message):
        grid(FIT + "grid: {seed: [0]}\n" + text).combinations()


def test_a_plan_is_complete_and_its_tasks_differ(grid, project):
    tasks = plan(grid(FIT + "grid: {backbone: [twin_s, twin_b], seed: [0, 1]}"), project, ROOT)
    assert [one.words for one in tasks][:2] == ["backbone=twin_s, seed=0", "backbone=twin_s, seed=1"]
    assert len({one.id for one in tasks}) == len({one.key for one in tasks}) == 4
    assert tasks[3].given == {"heads": ["VFusion"], "backbone": "twin_b", "seed": 1}
    assert tasks[3].parameters["backbone"] == "twin_b"
    assert tasks[3].parameters["profile"] == "smoke"
    assert tasks[3].parameters["dataset"] == "emoji_group"  # what nothing was said of


def test_an_id_does_not_hang_on_the_order_of_the_file(grid, project):
    one = plan(grid(FIT + "grid: {seed: [0, 1]}\nfixed: {latent: 32}"), project, ROOT)
    other = plan(grid(FIT + "grid: {latent: [32], seed: [1, 0]}"), project, ROOT)
    assert {task.id: task.key for task in one} == {task.id: task.key for task in other}


def test_the_key_of_a_notebook_task_is_that_of_its_run(grid, project):
    from vitscope.runs import runner

    text = "notebook: 04_vfusion\nprofile: smoke\ngrid: {backbone: [twin_s], seed: [5]}\nresults: out"
    (task,) = plan(grid(text), project, ROOT)
    job = runner.plan("04_vfusion", "smoke", {"backbone": "twin_s", "seed": 5}, project=project)
    assert task.name == "04_vfusion"
    assert task.key == job.inputs.key == task.job().inputs.key
    assert task.job().parameters == job.parameters


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid: {sed: [0]}", "combination 1 (sed=0): Unknown parameter 'sed'. Did you mean 'seed'"),
        ("grid: {seed: [0, -1]}", "combination 2 (seed=-1): seed: got -1; expected an integer from 0"),
        ("grid: {backbone: [twin_z]}", "combination 1 (backbone=twin_z): Unknown backbone 'twin_z'. Did you"),
        ("grid: {dataset: [digit]}", "combination 1 (dataset=digit): "),
        ("grid: {heads: [[VFusio]]}", "Did you mean 'VFusion'"),
        ("grid: {seed: [0, 0]}", "combination 2 (seed=0) is there twice"),
        ("grid: {profile: [course]}", "the profile is a key of the grid file, no parameter"),
    ],
)
def test_mistakes_in_a_combination_are_named_before_anything_starts(grid, project, text, message):
    with pytest.raises(GridError) as caught:
        plan(grid(FIT + text), project, ROOT)
    assert message in str(caught.value)


def test_many_problems_are_cut_short(grid, project):
    values = ", ".join(str(-n) for n in range(1, 12))
    with pytest.raises(GridError) as caught:
        plan(grid(FIT + f"grid: {{seed: [{values}]}}"), project, ROOT)
    lines = str(caught.value).splitlines()
    assert len(lines) == 9
    assert lines[-1] == "and 3 more like these"


def test_mistakes_in_a_notebooks_combination(grid, project):
    text = "notebook: 04_vfusion\nprofile: smoke\ngrid: {sed: [0]}\nresults: out"
    with pytest.raises(GridError, match=r"combination 1 \(sed=0\): .*Did you mean 'seed'"):
        plan(grid(text), project, ROOT)


def test_an_unknown_notebook(grid, project):
    with pytest.raises(ValueError, match="Did you mean '04_vfusion'"):
        plan(grid("notebook: 04_vfuson\ngrid: {seed: [0]}\nresults: out"), project, ROOT)
