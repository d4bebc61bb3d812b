"""The page on scale: tables from planted results, and a small book that shows them."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
from bs4 import BeautifulSoup
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import docutils_namespace

from vitscope import scale
from vitscope.runs import scale_figure, scale_page, scale_results, scale_tables
from vitscope.runs.layout import Project
from vitscope.runs.scale_results import ResultError, Results
from vitscope.runs.stage import stage
from vitscope.scale import MEASURED, VITS, Site, UnitCosts

ROOT = Path(__file__).resolve().parents[2]
UNITS = UnitCosts(seconds_per_gflop=0.02, decode_seconds=0.008, probe_seconds=2e-9, probe_memory=5.0)


def line(what: str, against: str, median: float, unit: str, **values) -> dict:
    ratio = {"median": median, "min": 0.9 * median, "max": 1.1 * median}
    return {"what": what, "against": against, "setting": "planted", "ratio": ratio, "better": "lower",
            "target": None, "reached": None, "values": {"unit": unit, **values}}  # fmt: skip


ROWS = [
    line("capture", "images", 1.01, "exponent", at_the_end=1.0, expected="1", sizes="64 to 512"),
    line("memory of capture", "images", 0.02, "exponent", expected="0"),
    line(MEASURED["seconds_per_gflop"], "ViT-S/16", 0.015, "s / GFLOP"),
    line(MEASURED["seconds_per_gflop"], "ViT-B/16", 0.025, "s / GFLOP"),
    line(MEASURED["decode_seconds"], "image", 0.008, "s", jpeg_bytes=84000),
    line(MEASURED["probe_seconds"], "image × state × class × feature", 2e-9, "s"),
    line(MEASURED["probe_memory"], "bytes of features", 5.0, "multiples"),
    line(scale.ATTENTION_SHARE, "65 tokens", 0.2, "share"),
    line(scale.ATTENTION_SHARE, "577 tokens", 0.6, "share"),
]
ON_GPU = [
    line("capture, tokens", "bare forward", 0.97, "", images_per_s=2000.0, model="vit_base_patch16_224"),
    line("capture, tokens", "ViT-B/16 at 224, bf16", 0.98, "", images_per_s=6000.0),
    line("capture with attention statistics", "ViT-B/16 at 224", 0.9, "", images_per_s=9000.0),
    line("capture", "ViT-B/14 at 518", 0.9, "", images_per_s=8000.0),
    line("bare forward", "ViT-S/16 at 224", 1.0, "", images_per_s=7000.0),
    line("capture", "floor", 2.0, "", images_per_s=5e2) | {"setting": "vit_small_patch16_224, 518 px"},
    line("capture", "floor", 2.0, "", images_per_s=9e2) | {"setting": "vit_large_patch16_224, 224 px"},
]  # fmt: skip


def document(rows: list[dict], **machine) -> str:
    where = {"cpu": "A planted CPU", "threads": 1, **machine}
    return json.dumps({"name": "x", "command": "python x.py", "date": "2026-03-01", "machine": where,
                       "note": "", "rows": rows})  # fmt: skip


def planted(folder: Path, costs: str | None = None, gpu: str | None = None) -> Path:
    results = folder / scale_results.FOLDER
    results.mkdir(parents=True)
    for name, text in ((scale_results.COSTS, costs), (scale_results.GPU, gpu)):
        if text is not None:
            named = text.replace('"name": "x"', f'"name": "{name.removesuffix(".json")}"')
            (results / name).write_text(named, encoding="utf-8")
    return folder


# --- results ---------------------------------------------------------------------------------------------


def test_unit_costs_come_from_their_rows(tmp_path):
    found = scale_results.load(planted(tmp_path, document(ROWS))).units
    assert found == UNITS  # two models of one unit: the mean


def test_the_fastest_capture_of_a_gpu_at_the_right_size_counts(tmp_path):
    found = scale_results.load(planted(tmp_path, None, document(ON_GPU))).units
    assert found == UnitCosts(gpu_images_per_s={"ViT-B/16": 6000.0, "ViT-L/16": 900.0})


def test_nothing_measured_is_no_error(tmp_path):
    assert scale_results.load(tmp_path) == Results(None, None)
    assert scale_results.load(tmp_path).units == UnitCosts()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "does not hold results of a benchmark: Invalid JSON"),
        ("[1]", "does not hold results of a benchmark"),
        (document([{"against": "y"}]), r"does not hold .*: rows\.0\.what Field required"),
        (document(ROWS[:3]), "has no row 'reading a picture': run python benchmarks/costs.py again"),
    ],
)  # fmt: skip
def test_other_files_are_named(tmp_path, text, message):
    with pytest.raises(ResultError, match=f"{scale_results.FOLDER}/costs.json {message}"):
        _ = scale_results.load(planted(tmp_path, text)).units


def test_rows_without_a_ratio_are_passed_over(tmp_path):
    absent = {
        "what": "peer",
        "against": "x",
        "setting": "",
        "ratio": None,
        "values": {},
        "absent": "not here",
    }
    results = scale_results.load(planted(tmp_path, document([absent, *ROWS])))
    assert len(scale_tables.unit_costs(results)) == 7


# --- tables ----------------------------------------------------------------------------------------------


def test_growth_and_unit_costs(tmp_path):
    results = scale_results.load(planted(tmp_path, document(ROWS)))
    first, second = scale_tables.growth(results).to_dict("records")
    assert first["cost"] == "seconds of capture"
    assert first["exponent, median (range)"] == "1.01 (0.91 to 1.11)"
    assert (first["between the two largest"], first["sizes"]) == ("1.00", "64 to 512")
    assert (second["cost"], second["between the two largest"]) == ("memory of capture", "–")
    assert scale_tables.unit_costs(results)["median (range)"].tolist()[0] == "0.015 (0.0135 to 0.0165)"
    said = scale_tables.attention_sentence(results)
    assert "at 577 tokens: 60% there, 20% at 65 tokens" in said
    fewer = scale_results.load(planted(tmp_path / "fewer", document(ROWS[:-1])))
    assert "take over nowhere in this range: they are 20%" in scale_tables.attention_sentence(fewer)


def test_time_of_imagenet_by_hand():
    table = scale_tables.time(UNITS)
    (row,) = table[(table["pictures"] == "ImageNet-1k") & (table["ViT"] == "ViT-B/16")].to_dict("records")
    # 1,281,167 images · 35.126 GFLOP = 45.0 PFLOP; at 312 TFLOP/s · 0.5 and 0.3
    assert row["FLOP"] == "45 PFLOP"
    assert row["GPU-hours, bfloat16"] == "0.0801 to 0.134"
    assert row["GPU-hours, float32"] == "1.28 to 2.14"
    assert row["CPU core-hours"] == "250"
    assert row["reading, core-hours"] == "2.85"
    assert row["rate"] == "assumed"
    assert set(scale_tables.time(UnitCosts())["CPU core-hours"]) == {"–"}


def test_the_paper_profile_is_that_of_the_schema():
    found = scale_tables.paper_profile(VITS[1])
    assert found.images == 110_000
    assert found.more_passes == 5000 * 15 + 5000  # one state at a time, the targets, and attention


def test_storage_by_hand():
    table = scale_tables.storage(Site(disk=5e12))
    (row,) = table[(table["pictures"] == "ImageNet-1k") & (table["ViT"] == "ViT-B/16")].to_dict("records")
    assert row["vectors, float16"] == "55.1 GB"
    assert row["all tokens, float16"] == "5.43 TB"
    assert row["all tokens, float32"] == "10.9 TB"
    assert row["disks of 5 TB"] == "1.09"


@pytest.mark.parametrize("units", [UnitCosts(), UNITS])
def test_the_prose_about_what_breaks_is_true(units):
    table = scale_tables.broken(units)
    by_set = dict(list(table.groupby("pictures", sort=False)))
    assert list(by_set) == ["paper profile", "ImageNet-1k", "ImageNet-21k", "10⁹ images"]
    assert set(by_set["paper profile"]["breaks first"]) == {"nothing"}
    assert (by_set["ImageNet-1k"]["breaks first"] != "nothing").all()
    assert by_set["ImageNet-21k"]["then"].str.contains("capture in memory").all()
    assert by_set["10⁹ images"]["then"].str.contains("vectors on disk").all()


def test_every_assumption_and_limit_has_words():
    assert set(scale_tables.SITE_WORDS) == {field.name for field in fields(Site)}
    assert set(scale_tables.SHORT) == set(scale_tables.THEN) == set(scale.LIMITS)
    assert len(scale_tables.limits(UNITS)) == len(scale.LIMITS)
    assert scale_tables.assumed()["value"].str.len().gt(0).all()


def test_the_sentence_says_what_was_measured(tmp_path):
    none = scale_tables.measured_or_not(Results(None, None))
    assert "No unit costs have been measured yet" in none
    assert "No GPU was measured" in none
    root = planted(tmp_path, document(ROWS), document(ON_GPU, gpu="A planted GPU"))
    both = scale_tables.measured_or_not(scale_results.load(root))
    assert "measured on A planted CPU on 2026-03-01 with 1 thread." in both
    assert "GPU-hours of ViT-B/16, ViT-L/16 come from images a second measured on A planted GPU" in both


def test_the_figure_says_its_numbers():
    figure = scale_figure.cost(UNITS)
    assert "ViT-B/16 62.5 to 104" in figure.alt
    assert "ViT-B/16 takes 195,000 core-hours" in figure.alt
    assert "tokens on disk at 2.36 million" in figure.alt
    assert "core-hours" not in scale_figure.cost(UnitCosts()).alt
    last = figure.data[figure.data["images"] == 10**9].set_index("ViT")
    assert last.loc["ViT-L/16", "GPU high"] == pytest.approx(1e9 * VITS[2].flops / (0.3 * 312e12) / 3600)


# --- in a small book -------------------------------------------------------------------------------------

NAMES = [*scale_page.TABLES, *scale_page.SENTENCES, scale_page.FIGURE]
TEXT = "# Scale\n\n" + "\n\n".join(f"```{{scale}} {name}\n```" for name in NAMES) + "\n"


def built(folder: Path, builder: str = "html", text: str = TEXT, **results: str) -> tuple[Path, str]:
    """The output folder of a small book, and what Sphinx warned of."""
    source = planted(folder / "source", **results)
    (source / "index.md").write_text(text, encoding="utf-8")
    warnings, out = io.StringIO(), folder / builder
    settings = {"extensions": ["myst_parser", "vitscope.runs.scale_page"]}
    with docutils_namespace():
        app = Sphinx(
            source, None, out, folder / "doctrees", builder, settings, status=None, warning=warnings,
            freshenv=True,
        )  # fmt: skip
        app.build()
    return out, warnings.getvalue()


def test_the_page_shows_tables_with_their_data_and_the_figure(tmp_path):
    out, warnings = built(tmp_path, costs=document(ROWS))
    assert warnings == ""
    page = BeautifulSoup((out / "index.html").read_text(encoding="utf-8"), "html.parser")
    shown = [table["data-table"] for table in page.select("[data-table]")]
    assert shown == [f"scale_{name}" for name in scale_page.TABLES]
    (image,) = page.select("img[src^='data:image/png']")
    assert "62.5 to 104" in image["alt"]
    address = page.select_one("a[download='scale_time.csv']")["href"]
    table = pd.read_csv(io.BytesIO(base64.b64decode(address.partition("base64,")[2])))
    assert table["CPU core-hours"].notna().all()
    assert "A planted CPU" in page.get_text()


def test_without_results_the_page_says_so(tmp_path):
    out, warnings = built(tmp_path)
    assert warnings == ""
    page = BeautifulSoup((out / "index.html").read_text(encoding="utf-8"), "html.parser")
    assert page.get_text().count("Nothing was measured yet") == 2
    assert not page.select("[data-table='scale_growth'], [data-table='scale_units']")
    assert page.select("[data-table='scale_storage'] td")


def test_other_builders_say_where_the_tables_are(tmp_path):
    out, _ = built(tmp_path, "text", costs=document(ROWS))
    assert (out / "index.txt").read_text(encoding="utf-8").count("in the HTML edition") == len(
        scale_page.TABLES
    )


def test_what_cannot_be_read_stops_the_build(tmp_path):
    with pytest.raises(ExtensionError, match=r"costs\.json does not hold results"):
        built(tmp_path, costs="{}")


def test_a_misspelled_table_is_a_warning_with_the_near_name(tmp_path):
    _, warnings = built(tmp_path, text="# X\n\n```{scale} storge\n```\n")
    assert "storge" in warnings
    assert "storage" in warnings


def test_the_book_has_the_page_and_its_results(tmp_path):
    assert "vitscope.runs.scale_page" in (ROOT / "_config.yml").read_text(encoding="utf-8")
    assert "book/scale" in Project(ROOT).pages
    text = (ROOT / "book" / "scale.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"```{{scale}} {name}\n" not in text] == []
    for name in ("_config.yml", "_toc.yml"):
        (tmp_path / name).write_text("format: jb-book\nroot: index\n", encoding="utf-8")
    (tmp_path / "index.md").write_text("# X\n", encoding="utf-8")
    planted(tmp_path, document(ROWS))
    staged = stage(Project(tmp_path), {}, tmp_path / "staged")
    assert scale_results.load(staged).units == UNITS
