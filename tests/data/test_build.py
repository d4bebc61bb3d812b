"""How the embedded data is made: which identities are kept and held out, and what the builders write."""

import gzip
import io
import json
import struct

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from helpers import encoded
from vitscope.data import build, embedded, emoji


def entry(code: str, order: int, *, group="Animals", subgroup="cat", name=None) -> dict:
    return {
        "unified": code, "name": (name or f"NAME {code}"), "category": group, "subcategory": subgroup,
        "sort_order": order, "image": f"{code.lower()}.png",
    }  # fmt: skip


def picture(shade: int) -> bytes:
    return encoded(Image.new("RGBA", (64, 64), (shade, 0, 0, 255)), "PNG")


def pictures_of(codes, shades) -> dict[str, bytes]:
    return {code: picture(shade) for code, shade in zip(codes, shades, strict=True)}


# --- identities -------------------------------------------------------------------------------------------


def test_order_names_and_exclusions():
    entries = [
        entry("B", 2),
        entry("A", 1, name="SMILING CAT"),
        entry("F", 3, group="Flags"),
        entry("S", 4, group="Component"),
    ]
    table = build._identities(entries, {"noto": pictures_of("AB", [1, 2])})
    assert table["code"].tolist() == ["A", "B"]
    assert table["name"].tolist() == ["smiling cat", "name b"]


def test_codes_with_the_same_picture_in_any_style_are_dropped():
    codes = ["A", "B", "C", "D"]
    styles = {"noto": pictures_of(codes, [1, 1, 3, 4]), "twemoji": pictures_of(codes, [1, 2, 3, 3])}
    table = build._identities([entry(c, i) for i, c in enumerate(codes)], styles)
    assert table["code"].tolist() == ["A", "C"]


@pytest.mark.parametrize(("size", "held_out"), [(1, 0), (2, 1), (4, 1), (5, 1), (8, 2), (20, 4), (33, 7)])
def test_a_fifth_of_each_subgroup_is_held_out(size, held_out):
    codes = [f"C{i:03d}" for i in range(size)]
    table = build._identities(
        [entry(c, i) for i, c in enumerate(codes)], {"x": pictures_of(codes, range(size))}
    )
    assert table["held_out"].sum() == held_out


def test_who_is_held_out_does_not_depend_on_order_or_on_other_subgroups():
    codes = [f"C{i:03d}" for i in range(30)]
    entries = [entry(c, i, subgroup="cat" if i < 20 else "dog") for i, c in enumerate(codes)]
    images = {"x": pictures_of(codes, range(30))}
    whole = build._identities(entries, images)
    shuffled = build._identities(entries[::-1], images)
    pd.testing.assert_frame_equal(whole, shuffled)
    cats = build._identities(entries[:20], {"x": {c: images["x"][c] for c in codes[:20]}})
    assert cats["held_out"].tolist() == whole["held_out"][:20].tolist()


def test_published_identities_follow_the_rule():
    """The table that the repository carries, checked against a second statement of the rule."""
    import hashlib

    table = emoji.identities()
    for _, members in table.groupby(["group", "subgroup"]):
        wanted = max(round(len(members) / 5), int(len(members) > 1))
        ranked = sorted(members["code"], key=lambda code: hashlib.sha256(code.encode()).hexdigest())
        assert set(members["code"][members["held_out"]]) == set(ranked[:wanted])


# --- files ------------------------------------------------------------------------------------------------


def test_parquet_is_written_whole_and_opens_with_its_features(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = pd.DataFrame({"image": [{"bytes": picture(9), "path": "a.png"}], "label": np.array([1])})
    features = {"image": {"_type": "Image"}, "label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    build._write(rows, tmp_path / "deep" / "x.parquet", features)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["x.parquet"]
    read = datasets.Dataset.from_parquet(str(tmp_path / "deep" / "x.parquet"))
    assert read.features["label"].names == ["no", "yes"]
    assert read[0]["image"].getpixel((0, 0)) == (
        9,
        0,
        0,
        255,
    )
    first = (tmp_path / "deep" / "x.parquet").read_bytes()
    build._write(rows, tmp_path / "deep" / "x.parquet", features)
    assert (tmp_path / "deep" / "x.parquet").read_bytes() == first, "the same rows give the same bytes"


def test_idx_files_and_png_round_trip(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    labels = np.array([7, 0, 9], dtype=np.uint8)
    content = {
        "train-images-idx3-ubyte.gz": struct.pack(">IIII", 2051, 3, 28, 28) + images.tobytes(),
        "train-labels-idx1-ubyte.gz": struct.pack(">II", 2049, 3) + labels.tobytes(),
    }
    for name, data in content.items():
        (tmp_path / name).write_bytes(gzip.compress(data))
    found, named = build._idx(tmp_path, "train")
    assert (found == images).all()
    assert (named == labels).all()
    assert (np.asarray(Image.open(io.BytesIO(build._png(images[1])))) == images[1]).all()


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """Stand-ins for the two npm packages: seven cats in two styles."""
    codes = [f"C{i}" for i in range(7)]

    def fetch(package, scratch):
        folder = tmp_path / package
        style = package.rpartition("-")[2]
        (folder / "img" / style / "64").mkdir(parents=True)
        (folder / "emoji.json").write_text(json.dumps([entry(c, i) for i, c in enumerate(codes)]))
        for i, code in enumerate(codes):
            (folder / "img" / style / "64" / f"{code.lower()}.png").write_bytes(
                picture(i + 100 * (style == "google"))
            )
        return folder

    monkeypatch.setattr(build, "_npm", fetch)


def test_emoji_of_both_styles_list_the_same_identities(packages, tmp_path):
    written = build.build("emoji", tmp_path / "out")
    assert [str(p) for p in written] == ["emoji/noto.parquet", "emoji/twemoji.parquet"]
    tables = [pd.read_parquet(tmp_path / "out" / p) for p in written]
    assert tables[0]["code"].tolist() == tables[1]["code"].tolist()
    assert len(tables[0]) == 7
    assert tables[0]["image"][3]["bytes"] == picture(103)
    assert tables[1]["image"][3]["bytes"] == picture(3)


def test_verify_compares_with_the_manifest(packages, tmp_path):
    assert build.verify("emoji", tmp_path / "out") == {
        "emoji/noto.parquet": False,
        "emoji/twemoji.parquet": False,
    }


def test_verify_accepts_what_is_listed(monkeypatch, tmp_path):
    listed = embedded.verified("fashion_mnist/test.parquet")

    def copy(target):
        (target / "fashion_mnist").mkdir(parents=True)
        (target / "fashion_mnist/test.parquet").write_bytes(listed.read_bytes())
        return [listed.relative_to(embedded.root())]

    monkeypatch.setitem(build.BUILDERS, "fashion_mnist", copy)
    assert build.verify("fashion_mnist", tmp_path) == {"fashion_mnist/test.parquet": True}


def test_missing_tools_failed_fetches_and_unknown_names(monkeypatch, tmp_path):
    with pytest.raises(
        build.BuildError, match="unknown embedded set 'emojis'; there are emoji, fashion_mnist"
    ):
        build.build("emojis", tmp_path)
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with pytest.raises(build.BuildError, match="npm is needed to fetch emoji-datasource-google"):
        build.build("emoji", tmp_path)
    with pytest.raises(build.BuildError, match="apt-get and dpkg-deb are needed"):
        build.build("fashion_mnist", tmp_path)
    monkeypatch.setattr(build.shutil, "which", lambda name: name)
    failed = build.subprocess.CompletedProcess([], 1, "", "E: Unable to locate package")
    monkeypatch.setattr(build.subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(build.BuildError, match="failed: E: Unable to locate package"):
        build.build("fashion_mnist", tmp_path)
    assert list(tmp_path.iterdir()) == []
