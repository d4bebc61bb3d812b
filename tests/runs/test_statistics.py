"""The page on how the pages were made: tables from planted records, and a small book that shows them."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import docutils_namespace

from vitscope.runs import claims, run_statistics, statistics_page
from vitscope.runs.layout import Project
from vitscope.runs.record import Model, Number, Record, Shown, Volatile

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = claims.published_records()


def record(notebook: str, *, numbers: int = 0, seed: int = 0, profile: str = "course", **volatile) -> Record:
    made = {"started": "2026-03-01T10:20:30+00:00", "platform": "Linux x86_64", "threads": 2}
    return Record(
        complete=True,
        notebook=notebook,
        profile=profile,
        parameters={"profile": profile, "seed": seed},
        numbers={f"n{i}": Number(value=i, text=str(i)) for i in range(numbers)},
        models=[Model(name="twin_s", digest="ab", source={}, device="cpu", dtype="float32")],
        figures=[Shown(name="line", text="A line", rows=2, csv_sha256="0")],
        versions={"python": "3.11.7", "torch": "2.14.1"},
        volatile=Volatile(**{**made, **volatile}),
    )


FIRST = record(
    "01_first", numbers=2, seconds=60.25, peak_rss_mib=1234.5, commit="a" * 40, modified=False,
    cell_seconds={"imports": 2.5, "measure": 40.0}, features_computed=800, features_found=0,
)  # fmt: skip
SECOND = record(
    "02_second", numbers=1, seconds=1200.0, peak_rss_mib=900.0, commit="b" * 40, modified=True,
    cell_seconds={"imports": 3.0}, features_computed=200, features_found=1600,
)  # fmt: skip
RUNS = {"notebooks/01_first": FIRST, "notebooks/02_second": SECOND}
PUBLISHED = [record("02_second", seed=1, seconds=100.0), record("02_second", seconds=99.0), FIRST]


# --- tables ----------------------------------------------------------------------------------------------


def test_what_runs_took():
    first, second = run_statistics.took(RUNS, {"notebooks/01_first": "Curves"}).to_dict("records")
    assert first == {
        "notebook": "01_first", "date": "2026-03-01", "seconds": 60.25, "slowest cell (s)": 40.0,
        "under the heading": "Curves",
    }  # fmt: skip
    assert second["slowest cell (s)"] == 3.0
    assert pd.isna(second["under the heading"])


def test_what_runs_needed():
    old = record("03_old", peak_rss_mib=None)  # from before features were counted
    table = run_statistics.needed({**RUNS, "notebooks/03_old": old})
    assert table.columns.tolist() == [
        "notebook", "peak memory (MiB)", "threads", "device",
        "features computed (images)", "features found (images)",
    ]  # fmt: skip
    assert table.iloc[1].tolist() == ["02_second", 900, 2, "cpu", 200, 1600]
    assert table.isna().sum().tolist() == [0, 1, 0, 0, 1, 1]
    assert table.to_csv(index=False).splitlines()[1:] == [
        "01_first,1234,2,cpu,800,0", "02_second,900,2,cpu,200,1600", "03_old,,2,cpu,,",
    ]  # fmt: skip


def test_a_gpu_has_a_column_once_a_run_used_one():
    on_gpu = record("03_third", gpu="A GPU", peak_gpu_mib=2000.4)
    table = run_statistics.needed({**RUNS, "notebooks/03_third": on_gpu})
    assert table["peak GPU memory (MiB)"].tolist()[2] == 2000
    assert table["peak GPU memory (MiB)"].isna().tolist() == [True, True, False]
    machine = run_statistics.published([on_gpu])["machine"].item()
    assert machine == "Linux x86_64, A GPU"


def test_what_pages_show():
    table = run_statistics.shown(RUNS, {"notebooks/01_first": 10_240})
    assert table.to_csv(index=False).splitlines() == [
        "notebook,numbers,figures,tables,page (KiB)", "01_first,2,1,0,10", "02_second,1,1,0,",
    ]  # fmt: skip


def test_totals():
    found = run_statistics.totals(RUNS, {"notebooks/01_first": 2**20, "notebooks/02_second": 2**19})
    assert found == {
        "Profile": "course",
        "Notebooks": "2",
        "Seconds of all runs": "1,260, added up; runs may overlap",
        "Peak memory of one run": "1,234 MiB, 01_first",
        "Shown": "3 numbers, 2 figures, 0 tables",
        "Features": "of 1,000 images computed, of 1,600 found in the cache",
        "Pages": "1.5 MiB with their pictures",
        "Machine": "Linux x86_64",
        "Threads of a run": "2",
        "Commit": "aaaaaaaaaa or bbbbbbbbbb with changes",
        "Versions": "python 3.11.7, torch 2.14.1",
    }
    other = FIRST.model_copy(update={"versions": {"python": "3.11.7", "torch": "2.15.0"}})
    assert run_statistics.totals({**RUNS, "x": other}, {})["Versions"].endswith("torch 2.14.1 or 2.15.0")


def test_published_records_are_ordered_and_name_their_profile():
    table = run_statistics.published([*PUBLISHED, record("02_second", profile="paper", seed=10)])
    assert table[["notebook", "profile", "seed"]].values.tolist() == [
        ["01_first", "course", 0], ["02_second", "course", 0], ["02_second", "course", 1],
        ["02_second", "paper", 10],
    ]  # fmt: skip
    assert table["date"].unique().tolist() == ["2026-03-01"]
    assert run_statistics.published([]).empty


def test_the_shipped_records_fill_the_table():
    table = run_statistics.published(SHIPPED)
    assert len(table) == len(SHIPPED)
    assert (table["seconds"] > 0).all()
    assert table[["date", "commit", "peak memory (MiB)"]].notna().all(axis=None)
    assert not table.duplicated(["notebook", "profile", "seed"]).any()


def test_records_go_through_the_staging_tree(tmp_path):
    assert run_statistics.load(tmp_path) is None
    run_statistics.save(tmp_path, RUNS)
    assert run_statistics.load(tmp_path) == RUNS
    assert list(run_statistics.load(tmp_path)) == list(RUNS)
    before = (tmp_path / run_statistics.FILE).read_bytes()
    run_statistics.save(tmp_path, RUNS)
    assert (tmp_path / run_statistics.FILE).read_bytes() == before
    (tmp_path / run_statistics.FILE).write_text('{"runs": {"a": {}}}')
    with pytest.raises(ValueError, match=r"does not hold the records of a build: runs\.a\.notebook"):
        run_statistics.load(tmp_path)


def write_notebook(path: Path) -> Path:
    made = new_notebook(metadata={"language_info": {"name": "python"}})
    made.cells = [
        new_code_cell("1", id="imports"),
        new_markdown_cell("# A {term}`cliff`\n\nText, # no heading", id="a"),
        new_markdown_cell("Text alone.", id="b"),
        new_code_cell("2", id="load"),
        new_markdown_cell("## What `p` and {term}`CLS <cls>` do\n\nText", id="c"),
        new_code_cell("3", id="measure"),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, path)
    return path


@pytest.mark.parametrize(
    ("cell", "expected"),
    [("imports", ""), ("load", "A cliff"), ("measure", "What p and CLS do"), ("none", "")],
)
def test_headings_are_those_above_the_cell(tmp_path, cell, expected):
    assert run_statistics.heading(write_notebook(tmp_path / "x.ipynb"), cell) == expected


# --- in a small book -------------------------------------------------------------------------------------

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PAGES = {
    "index.md": "# Tiny\n\n```{toctree}\nnotebooks/01_first\nnotebooks/02_second\nbook/statistics\n```\n",
    "notebooks/01_first.md": "# One\n\n![A small picture of one pixel](pixel.png)\n",
    "notebooks/02_second.md": "# Two\n\nWords.\n",
    "book/statistics.md": "# How\n\n```{run-statistics}\n```\n\nThen\n\n```{record-statistics}\n```\n",
}


@pytest.fixture(autouse=True)
def published(monkeypatch):
    monkeypatch.setattr(claims, "published_records", lambda: PUBLISHED)


def built(folder: Path, builder: str = "html", runs: dict[str, Record] | None = RUNS) -> Path:
    """The output folder of a small book; Sphinx warns of nothing."""
    source = folder / "source"
    for name, text in PAGES.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (source / "notebooks" / "pixel.png").write_bytes(PICTURE)
    write_notebook(source / "notebooks" / "01_first.ipynb")
    if runs is not None:
        run_statistics.save(source, runs)
    warnings, out = io.StringIO(), folder / builder
    settings = {
        "extensions": ["myst_parser", "vitscope.runs.statistics_page"],
        "exclude_patterns": ["**.ipynb"],
    }
    with docutils_namespace():
        app = Sphinx(
            source, None, out, folder / "doctrees", builder, settings, status=None, warning=warnings,
            freshenv=True,
        )  # fmt: skip
        app.build()
    assert warnings.getvalue() == ""
    return out


def page(out: Path) -> BeautifulSoup:
    return BeautifulSoup((out / "book" / "statistics.html").read_text(encoding="utf-8"), "html.parser")


def carried(found: BeautifulSoup, name: str) -> pd.DataFrame:
    """The CSV that a table of the page offers."""
    address = found.select_one(f"a[download='{name}.csv']")["href"]
    return pd.read_csv(io.BytesIO(base64.b64decode(address.partition("base64,")[2])))


def test_the_page_shows_runs_and_records_with_their_data(tmp_path):
    out = built(tmp_path)
    found = page(out)
    assert [t["data-table"] for t in found.select("[data-table]")] == [
        "runs_took", "runs_needed", "runs_shown", "published_records",
    ]  # fmt: skip
    cells = [[c.get_text() for c in row.select("td")] for row in found.select("#table-runs_took tbody tr")]
    assert cells == [
        ["01_first", "2026-03-01", "60.2", "40.0", "What p and CLS do"],
        ["02_second", "2026-03-01", "1200.0", "3.0", "–"],
    ]
    links = [a["href"] for a in found.select(".vitscope-table a")]
    assert links == ["../notebooks/01_first.html", "../notebooks/02_second.html"] * 3
    facts = found.select_one(".vitscope-facts").get_text(" ")
    assert "1,260, added up" in facts
    assert re.search(r"jupyter-book \d", facts)
    assert statistics_page.MARK not in str(found)
    assert carried(found, "runs_took")["seconds"].tolist() == [60.25, 1200.0]
    assert carried(found, "published_records")["seconds"].tolist() == [60.25, 99.0, 100.0]


def test_a_page_weighs_what_its_file_and_pictures_weigh(tmp_path):
    out = built(tmp_path)
    html = out / "notebooks" / "01_first.html"
    size = html.stat().st_size + len(PICTURE)
    assert statistics_page.page_size(html) == size
    assert carried(page(out), "runs_shown")["page (KiB)"].tolist()[0] == round(size / 1024)
    twice = html.read_text(encoding="utf-8").replace("</body>", '<img src="../_images/pixel.png"></body>')
    html.write_text(twice, encoding="utf-8")
    assert statistics_page.page_size(html) == html.stat().st_size + len(PICTURE)


@pytest.mark.parametrize("runs", [None, {}])
def test_without_our_build_the_page_says_so(tmp_path, runs):
    found = page(built(tmp_path, runs=runs))
    assert "built without the command vitscope build" in found.get_text()
    assert [t["data-table"] for t in found.select("[data-table]")] == ["published_records"]


def test_without_published_records_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "published_records", list)
    assert statistics_page.NO_RECORDS in page(built(tmp_path)).get_text()


def test_other_builders_say_where_the_tables_are(tmp_path):
    text = (built(tmp_path, "text") / "book" / "statistics.txt").read_text(encoding="utf-8")
    assert text.count("The tables are in the HTML edition") == 2
    assert "data-statistics" not in text


def test_what_cannot_be_read_stops_the_build(tmp_path, monkeypatch):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / run_statistics.FILE).write_text("{}")
    with pytest.raises(ExtensionError, match="does not hold the records of a build"):
        built(tmp_path, runs=None)

    def unreadable():
        raise claims.ClaimError("x.json is no record")

    monkeypatch.setattr(claims, "published_records", unreadable)
    with pytest.raises(ExtensionError, match=r"cannot be read: x\.json is no record"):
        built(tmp_path / "other")


def test_the_book_loads_the_extension_and_has_the_page():
    assert "vitscope.runs.statistics_page" in (ROOT / "_config.yml").read_text(encoding="utf-8")
    assert "book/statistics" in Project(ROOT).pages
    text = (ROOT / "book" / "statistics.md").read_text(encoding="utf-8")
    assert "```{run-statistics}" in text
    assert "```{record-statistics}" in text
    assert "(statistics.md)" in (ROOT / "book" / "how_to_read.md").read_text(encoding="utf-8")
