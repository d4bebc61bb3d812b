"""Explorers: valid charts, the numbers of their tables, honest words, and what is refused."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import altair as alt
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from vitscope import explore, explore_shift, plotting
from vitscope.dense.pca import PcaMaps
from vitscope.errors import UnknownName
from vitscope.explore import Explorer
from vitscope.explore_curves import read_off
from vitscope.explore_gallery import by_block, pca, scores
from vitscope.explore_levels import bars_at, curve_at
from vitscope.explore_phases import BANDS, SHARES, TOLERANCES, of_similarity, thresholds
from vitscope.explore_pictures import Tiles, pictures
from vitscope.phases import detect_phases
from vitscope.shifted import METHODS

SMALL = '{"mark":"bar","data":{"values":[]}}'
WORDS = "Choose a state from 0 to 3; it starts at 2."


def curves(**changed) -> pd.DataFrame:
    rows = [
        {"model": m, "kind": k, "state": s, "value": 10 * i + s + 0.5 * (k == "b"), "low": s, "high": 40.0}
        for i, m in enumerate(("m1", "m2"))
        for k in ("a", "b")
        for s in range(-1, 3 + i)
    ]
    return pd.DataFrame(rows).assign(**changed)


def read(explorer: Explorer) -> dict:
    """The chart, after Altair's own schema has found nothing to object to."""
    spec = json.loads(explorer.spec)
    alt.Chart.from_dict(spec | {"$schema": alt.SCHEMA_URL}, validate=True)
    assert explore.spec_problem(explorer.spec) is None
    return spec


def controls(spec: dict) -> dict[str, dict]:
    return {p["name"]: p for p in spec["params"] if "bind" in p}


# --- what an explorer is ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"title": " "}, "needs a title"),
        ({"words": "too short, 1"}, "in 20 characters or more"),
        ({"words": "a text of some length without any number"}, "with numbers"),
        ({"spec": "{"}, "is not JSON"),
        ({"spec": "[1]"}, "is not a JSON object"),
        ({"spec": '{"data": 1}'}, "is no Vega-Lite chart"),
        ({"spec": '{"mark": "bar", "data": {"url": "https://example.org/x.csv"}}'}, "outside address: https"),
        ({"spec": '{"mark": "bar", "data": {"url": "//example.org/x.csv"}}'}, "outside address: //example"),
        ({"spec": json.dumps({"mark": "bar", "name": "x" * 400_000})}, r"takes 400,\d+ bytes, 400,000 are"),
    ],
)
def test_what_is_no_explorer_is_refused(changed, said):
    with pytest.raises(ValueError, match=said):
        Explorer(**({"title": "t", "words": WORDS, "spec": SMALL} | changed))


def test_a_picture_within_is_no_outside_address():
    held = {"mark": "image", "data": {"values": [{"u": "data:image/png;base64,//abc+/d=="}]}}
    assert explore.spec_problem(json.dumps(held)) is None


def test_numbers_are_short_and_what_is_missing_is_null():
    table = pd.DataFrame({"v": [np.pi, np.nan, np.inf], "n": np.array([1, 2, 3]), "t": ["a", None, "c"]})
    assert explore.records(table) == [
        {"v": 3.14159, "n": 1, "t": "a"}, {"v": None, "n": 2, "t": None}, {"v": None, "n": 3, "t": "c"},
    ]  # fmt: skip


def test_training_and_the_command_line_do_without_altair():
    program = (
        "import sys, vitscope.cli, vitscope.pretrain, vitscope.figures, vitscope.plotting;"
        "print('altair' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- curves to read off -------------------------------------------------------------------------------------


def test_curves_are_read_off_at_a_state():
    explorer = read_off(
        curves(), y="value", x="state", series="model", panel="kind", band=("low", "high"), title="t",
        reference={"a": (5.0, "five")}, ylabel="points",
    )  # fmt: skip
    spec = read(explorer)
    given = controls(spec)
    assert given["at"]["bind"] == {"input": "range", "min": -1, "max": 3, "step": 1, "name": "state"}
    assert given["at"]["value"] == 2, "the last state that both curves have"
    assert given["panel"]["bind"]["options"] == ["a", "b"]
    assert given["marked"]["bind"]["options"] == ["all", "m1", "m2"]
    rows = [r for r in spec["datasets"]["curves"] if r["i"] == 1 and r["p"] == "b"]
    assert [(r["s"], r["y"], r["l"], r["h"], r["c"]) for r in rows] == [
        ("m1", 1.5, 1, 40, plotting.PALETTE[0].lower()), ("m2", 11.5, 1, 40, plotting.PALETTE[1].lower()),
    ]  # fmt: skip
    assert spec["datasets"]["lines"] == [{"p": "a", "y": 5.0, "label": "five"}]
    meta = spec["usermeta"]["vitscope"]
    assert meta["readout"]["where"] == {"i": "at", "p": "panel"}
    assert meta["texts"] == {}
    assert "At the start (a; state 2): m2 12.00, m1 2.00." in explorer.words
    assert "$schema" not in spec


def test_uneven_places_are_numbered_and_called_by_their_values():
    table = pd.DataFrame({"images": [300, 100, 30000], "v": [2.0, 1.0, 3.0]})
    spec = read(read_off(table, x="images", y="v", title="t"))
    assert controls(spec)["at"]["bind"]["max"] == 2
    assert spec["usermeta"]["vitscope"]["texts"] == {"at": ["100", "300", "30,000"]}
    assert sorted((r["x"], r["i"]) for r in spec["datasets"]["curves"]) == [(100, 0), (300, 1), (30000, 2)]
    assert "marked" not in controls(spec), "one curve needs nothing to stand out"


def test_the_same_table_gives_the_same_text():
    first, second = (read_off(curves()[lambda t: t["kind"] == "a"], y="value", series="model", title="t")
                     for _ in range(2))  # fmt: skip
    assert first.spec == second.spec
    assert first.words == second.words


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"y": "values"}, UnknownName, "Did you mean 'value'"),
        ({"y": "value"}, ValueError, "rows repeat a place"),
        ({"y": "value", "panel": "kind", "series": "model", "start": 9}, ValueError, "start must be a value"),
        ({"y": "value", "x": "model"}, ValueError, "must be numeric"),
    ],
)
def test_tables_that_cannot_be_read_off(options, error, said):
    with pytest.raises(error, match=said):
        read_off(curves(), title="t", **options)


def test_an_empty_table_says_so():
    with pytest.raises(ValueError, match="nothing to explore"):
        read_off(curves(value=np.nan), y="value", title="t")


def test_a_figure_of_curves_brings_its_explorer():
    table = curves()[lambda t: t["kind"] == "a"]
    figure = plotting.layer_curves(table, y="value", hue="model", band=("low", "high"), explore=True)
    assert figure.explorer is not None
    shown = read(figure.explorer)["datasets"]["curves"]
    assert [r["y"] for r in shown] == figure.data["value"].tolist()
    assert plotting.layer_curves(table, y="value", hue="model").explorer is None


# --- one level at a time ------------------------------------------------------------------------------------


def test_bars_stand_at_a_level_and_of_a_choice():
    table = pd.DataFrame(
        [
            {"set": s, "severity": k, "method": m, "acc": 90.0 - 10 * k - i, "lo": 1.0, "hi": 99.0}
            for s in ("x", "y")
            for k in (0, 3, 5)
            for i, m in enumerate(("probe", "fused"))
        ]
    )
    explorer = bars_at(
        table, value="acc", bar="method", slider="severity", selects=["set"], band=("lo", "hi"), unit="%",
        order=["fused", "probe"], title="t",
    )  # fmt: skip
    spec = read(explorer)
    given = controls(spec)
    assert (given["at"]["bind"]["max"], given["at"]["value"]) == (2, 0)
    assert given["k0"]["bind"] == {"input": "select", "options": ["x", "y"], "name": "set"}
    meta = spec["usermeta"]["vitscope"]
    assert meta["texts"] == {"at": ["0", "3", "5"]}
    assert meta["readout"]["where"] == {"k0": "k0", "i": "at"}
    at = [r for r in spec["datasets"]["rows"] if r["k0"] == "y" and r["i"] == 2]
    assert {r["n"]: r["v"] for r in at} == {"probe": 40, "fused": 39}
    assert "probe 90.00, fused 89.00" in explorer.words
    with pytest.raises(ValueError, match=r"rows repeat a place \(method=probe, severity=0\)"):
        bars_at(table, value="acc", bar="method", slider="severity", unit="%", title="t")
    with pytest.raises(UnknownName, match="Did you mean 'severity'"):
        bars_at(table, value="acc", bar="method", slider="severities", unit="%", title="t")


def test_a_curve_at_each_state_shares_one_axis():
    table = pd.DataFrame({"a": [0, 0, 1, 1], "b": [0, 1, 0, 1], "cka": [1.0, 0.5, 0.5, 1.0]})
    spec = read(curve_at(table, x="b", y="cka", slider="a", title="t"))
    assert [r["n"] for r in spec["datasets"]["rows"]] == ["0", "1"] * 2
    assert curve_at(table[table["a"] == 0], x="b", y="cka", slider="a", title="t") is None, (
        "nothing to choose"
    )
    assert spec["layer"][-1]["encoding"]["y"]["scale"]["domain"] == [0.5, 1.0]


def under_shift(sets: int) -> dict[str, list]:
    """Answers to 60 pictures with three corruptions; the last method is always right."""

    class Part(SimpleNamespace):
        def __len__(self) -> int:
            return 60

    rng = np.random.default_rng(0)
    right = {(m, k): rng.random(60) < 0.6 for m in METHODS for k in (0, 1, 3, 5)}
    right |= {(METHODS[-1], k): np.ones(60, bool) for k in (0, 1, 3, 5)}
    kinds = np.array([f"kind_{i % 3}" for i in range(60)])
    one = SimpleNamespace(
        chosen=SimpleNamespace(severities=(1, 3, 5)), clusters=np.arange(60),
        shifted=[SimpleNamespace(task=SimpleNamespace(test=Part(extras={"corruption": kinds})))],
        right_at=lambda m, k: right[m, k],
    )  # fmt: skip
    return {f"set {n}": [one] for n in range(sets)}


def test_corruptions_are_told_apart_and_nothing_but_hits_has_no_interval():
    found = under_shift(2)
    spec = read(explore_shift.severities(found))
    given = controls(spec)
    assert given["k0"]["bind"]["options"] == ["set 0", "set 1"]
    assert given["k1"]["bind"]["options"] == ["all", *(f"kind {k} (20 pictures)" for k in range(3))]
    rows = pd.DataFrame(spec["datasets"]["rows"])
    chosen = rows.query("k0 == 'set 1' and k1 == 'kind 2 (20 pictures)' and i == 3").set_index("n")
    one = found["set 1"][0]
    wanted = {m: 100 * one.right_at(m, 5)[2::3].mean() for m in METHODS}
    assert chosen["v"].to_dict() == pytest.approx(wanted, rel=1e-5)
    assert chosen["l"].isna().to_dict() == {m: v in (0, 100) for m, v in wanted.items()}


def test_too_many_corruptions_for_a_page_are_shown_together(monkeypatch):
    monkeypatch.setattr(explore, "LARGEST", 15_000)
    assert "k1" not in controls(read(explore_shift.severities(under_shift(2))))


# --- phases -------------------------------------------------------------------------------------------------

CURVE = [0.020, -0.002, -0.001, -0.002, -0.001, 0.00, -0.001, 0.04, 0.09, 0.16, 0.25]


def similarities() -> pd.DataFrame:
    rows = [
        {"backbone": b, "statistic": s, "state": k - 1, "mean": v, "low": v - 0.01, "high": v + 0.01}
        for b, values in (("one", CURVE), ("two", [-v for v in CURVE]))
        for s in ("raw", "centred")
        for k, v in enumerate(values)
    ]
    return pd.DataFrame(rows)


def test_phases_at_every_threshold_are_those_of_the_detector():
    table = similarities()
    explorer = thresholds(table[table["statistic"] == "centred"], title="t")
    spec = read(explorer)
    rows = pd.DataFrame(spec["datasets"]["phases"])
    assert len(rows) == 2 * 3 * len(TOLERANCES) * len(BANDS) * len(SHARES)
    for t, b, q in ((1, 1, 1), (4, 3, 3), (0, 0, 0)):
        wanted = detect_phases(CURVE, tolerance=TOLERANCES[t], band=BANDS[b], band_share=SHARES[q])
        at = rows[(rows["m"] == "one") & (rows["t"] == t) & (rows["b"] == b) & (rows["q"] == q)].set_index(
            "n"
        )
        assert at["x"].notna().to_dict() == {
            phase: getattr(wanted, phase) is not None for phase in ("cliff", "plateau", "climb")
        }
        if wanted.plateau:
            assert at.loc["plateau", ["x", "x2"]].tolist() == [wanted.plateau.start, wanted.plateau.end]
    values = {name: p["value"] for name, p in controls(spec).items()}
    assert values == {"m": "one", "t": 1, "b": 1, "q": 1}, "the detector's own defaults"
    assert "from state 6 on, by 0.25" in explorer.words
    words = spec["usermeta"]["vitscope"]["readout"]["words"]
    assert any(text.startswith("not found: ") for text in words)


def test_of_many_curves_the_first_fit_a_page():
    one = similarities()[lambda t: (t["backbone"] == "one") & (t["statistic"] == "centred")]
    many = pd.concat([one.assign(backbone=f"a backbone of some long name, {k}") for k in range(20)])
    options = controls(read(thresholds(many, title="t")))["m"]["bind"]["options"]
    assert options == [f"a backbone of some long name, {k}" for k in range(8)]


def test_each_form_of_similarity_has_its_explorer():
    table = similarities()
    raw = of_similarity(table, "raw", ["one", "two"])
    assert controls(read(raw))["panel"]["bind"]["options"] == [
        "cosine of patch tokens, raw", "cosine of patch tokens, centred",
    ]  # fmt: skip
    assert of_similarity(table, "centred", ["one", "two"]).title.startswith("cliff, plateau and climb")
    assert of_similarity(table, "centred by dataset", ["one", "two"]) is None
    assert of_similarity(table[table["state"] < 2], "centred", ["one", "two"]) is None, "too short"


# --- pictures -----------------------------------------------------------------------------------------------


def opened(address: str) -> np.ndarray:
    content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def some_pictures(count: int = 2, side: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def test_tiles_are_kept_pixel_by_pixel():
    tiles = [Tiles(row, step, some_pictures(seed=step), f"note {step}") for row in "ab" for step in (2, 5)]
    explorer = pictures(some_pictures(), tiles, title="t", label="state", what="maps", head=("a", "b"))
    spec = read(explorer)
    at = [r for r in spec["datasets"]["tiles"] if r["i"] == 1 and r["r"] == "b"]
    assert [r["n"] for r in at] == [1, 2]
    assert (opened(at[1]["u"]) == some_pictures(seed=5)[1]).all()
    assert controls(spec)["at"]["value"] == 1, "the last step"
    assert spec["usermeta"]["vitscope"]["texts"] == {"at": ["2", "5"]}
    assert spec["layer"][1]["mark"]["smooth"] is False
    assert "At the start (state 5), b: a note 5; b note 5." in explorer.words


def test_tiles_that_do_not_fit_are_refused():
    good = Tiles("a", 1, some_pictures(), "n")
    options = {"title": "t", "label": "state", "what": "maps", "head": ("a", "b")}
    with pytest.raises(ValueError, match="3 tiles for 2 pictures"):
        pictures(some_pictures(), [Tiles("a", 1, some_pictures(3), "n")], **options)
    with pytest.raises(ValueError, match="tiles must be uint8"):
        pictures(some_pictures(), [Tiles("a", 1, some_pictures().astype(float), "n")], **options)
    with pytest.raises(ValueError, match="same step, choice and row"):
        pictures(some_pictures(), [good, good], **options)
    with pytest.raises(ValueError, match="start must be a step"):
        pictures(some_pictures(), [good], start=7, **options)


def test_a_gallery_too_large_for_a_page_is_thinned_out():
    tiles = [Tiles("a", step, some_pictures(8, 24, step), f"note {step}") for step in range(1, 33)]
    explorer = pictures(
        some_pictures(8), tiles, title="t", label="state", what="maps", head=("a", "b"), start=31
    )
    spec = read(explorer)
    assert len(explorer.spec) < explore.LARGEST
    steps = spec["usermeta"]["vitscope"]["texts"]["at"]
    assert (steps[0], "31" in steps, len(steps) < 32) == ("1", True, True)
    assert steps[controls(spec)["at"]["value"]] == "31"
    assert len(spec["datasets"]["originals"]) == 8


def test_galleries_show_the_colours_and_hits_they_are_given():
    rgb = np.random.default_rng(1).random((3, 2, 4, 4, 3)).astype(np.float32)
    maps = PcaMaps(rgb, np.full((3, 3), 0.2), np.array([1.0, 0.5, 0.25]), ("x", "y", "z"))
    places = [("m", 2), ("m", 0), ("m", 1)]
    spec = read(pca(some_pictures(), maps, places, title="t"))
    first = next(r for r in spec["datasets"]["tiles"] if r["i"] == 2)
    assert (opened(first["u"]) == np.rint(255 * rgb[0, 0])).all()
    assert {r["i"]: r["t"] for r in spec["datasets"]["notes"]}[1] == "60 % of variance, agreement 0.25"
    cosines = np.array([[[0.1, 0.9], [0.3, 0.2]]])
    owned = np.array([[False, True], [False, True]])
    found = scores(some_pictures(), cosines, [3], (1, 2), owned, name="m")
    assert "cosines 0.10 to 0.90; most alike patch in the box in 1 of 2" in found.words


def test_maps_of_blocks_are_drawn_for_the_pictures_and_noted_over_all():
    maps = np.random.default_rng(2).random((3, 5, 4))
    explorer = by_block(
        some_pictures(), {"one": maps}, (2, 2), title="t", what="maps", head=("a", "b"),
        note=lambda m: f"{len(m)} pictures",
    )  # fmt: skip
    spec = read(explorer)
    assert len(spec["datasets"]["tiles"]) == 3 * 2
    assert [r["t"] for r in spec["datasets"]["notes"]] == ["5 pictures"] * 3


# --- what is served -----------------------------------------------------------------------------------------

SERVED = Path(__file__).resolve().parents[1] / "extra" / "explore"


def test_the_libraries_are_those_that_the_provenance_names():
    import hashlib

    text = (SERVED / "README.md").read_text(encoding="utf-8")
    for name in ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js"):
        assert hashlib.sha256((SERVED / name).read_bytes()).hexdigest() in text, name


def test_the_grammar_is_that_which_altair_writes():
    wanted = alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2]
    text = (SERVED / "README.md").read_text(encoding="utf-8")
    found = next(line for line in text.splitlines() if line.startswith("| vega-lite "))
    assert found.split("|")[2].strip().split(".")[:2] == wanted
