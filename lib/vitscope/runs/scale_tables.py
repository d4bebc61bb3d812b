"""The tables of the page on scale: measured growth and unit costs, and plans computed from them.

Every cell is text with its unit, so that a table means the same on the page and in the file it offers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields

import pandas as pd

from vitscope import scale
from vitscope.runs.quantities import NOTHING, hours, number, si, spread
from vitscope.runs.scale_results import Results
from vitscope.runs.schema import resolve
from vitscope.runs.speed_results import Row
from vitscope.scale import BILLION, IMAGENET_1K, IMAGENET_21K, VITS, Collection, Site, UnitCosts, Vit

SITE = Site()
_KEPT: tuple[tuple[scale.Kept, str], ...] = (("vectors", "vectors"), ("tokens", "all tokens"))
COLLECTIONS = (IMAGENET_1K, IMAGENET_21K, BILLION)

SITE_WORDS: dict[str, tuple[str, Callable[..., str]]] = {
    "gpu_peak": ("peak of a GPU in bfloat16, dense: data sheet of NVIDIA's A100", lambda v: si(v, "FLOP/s")),
    "gpu_peak_float32": ("its peak in float32, without tensor cores", lambda v: si(v, "FLOP/s")),
    "utilisation": ("share of the peak that a forward pass reaches", lambda v: f"{v[0]:.0%} to {v[1]:.0%}"),
    "cores": ("CPU cores of a node", str),
    "cores_per_gpu": ("CPU cores beside each GPU", str),
    "memory": ("memory of a node", lambda v: si(v, "B")),
    "disk": ("disk for features", lambda v: si(v, "B")),
    "files": ("files that one may have: a common quota", lambda v: number(v)),
    "network": ("from storage to a node: 10 Gbit/s", lambda v: si(v, "B/s")),
    "image_bytes": ("a JPEG of ImageNet's training part, on average", lambda v: si(v, "B")),
    "gpu_hours_between_failures": (
        "for each unexpected interruption: near Llama 3's training, 419 in 54 days of 16,384 GPUs",
        lambda v: f"{number(v)} GPU-hours",
    ),
}  # fmt: skip
THEN = {
    "tokens": "keep vectors, or tokens of a sample; compute the rest again when it is needed",
    "capture": "capture a shard at a time, and write each shard's features before the next",
    "probes": "ridge from summed moments, exactly; logistic regression in minibatches; or a sample",
    "files": "shards: pictures in tar or Parquet files of about a gigabyte",
    "vectors": "fewer states, or a larger disk: features in shards, read one after the other",
    "cpu_day": "a GPU, or more nodes: shards are independent",
    "probe_day": "ridge from summed moments, a GPU, or a sample of images",
    "gpu_day": "more GPUs: shards are independent, nothing is exchanged",
    "failure": "a finished shard is a checkpoint: run again what is missing",
}
"""What to do beyond each limit."""
SHORT = {
    "tokens": "tokens on disk", "capture": "capture in memory", "probes": "probes in memory",
    "files": "number of files", "vectors": "vectors on disk", "cpu_day": "a day of CPUs",
    "probe_day": "a day of probes", "gpu_day": "a day of one GPU", "failure": "no interruption",
}  # fmt: skip
"""The limits in a word or two, as in the figure."""


def growth(results: Results) -> pd.DataFrame:
    """Exponents of cost over size."""
    return _frame(
        {
            "cost": _with_seconds(row),
            "against": row.against,
            "exponent, median (range)": _range(row, "z.2f"),
            "between the two largest": _decimals(row.values.get("at_the_end")),
            "expected": row.values.get("expected") or NOTHING,
            "sizes": row.values.get("sizes") or NOTHING,
            "setting": row.setting or NOTHING,
        }
        for row in _rows(results, exponents=True)
    )


def unit_costs(results: Results) -> pd.DataFrame:
    """What one unit of work takes."""
    return _frame(
        {
            "cost": row.what,
            "for each": row.against,
            "median (range)": _range(row, ".3g"),
            "unit": row.unit,
            "setting": row.setting or NOTHING,
        }
        for row in _rows(results, exponents=False)
    )


def _rows(results: Results, *, exponents: bool) -> list[Row]:
    rows = results.costs.rows if results.costs else []
    return [row for row in rows if row.ratio and (row.unit == "exponent") == exponents]


def _with_seconds(row: Row) -> str:
    return row.what if row.what.startswith("memory") else f"seconds of {row.what}"


def _range(row: Row, form: str) -> str:
    assert row.ratio is not None
    return spread(row.ratio.median, row.ratio.min, row.ratio.max, form)


def _decimals(value: float | str | None) -> str:
    return f"{value:z.2f}" if isinstance(value, float) else NOTHING


def attention_sentence(results: Results) -> str:
    """From how many tokens on attention statistics take more time than all else, as far as was measured."""
    rows = [row for row in _rows(results, exponents=False) if row.what == scale.ATTENTION_SHARE]
    shares = [(row.against, row.ratio.median) for row in rows if row.ratio]
    if not shares:
        return ""
    more = [(tokens, share) for tokens, share in shares if share >= 0.5]
    if more:
        return (
            f"Statistics of attention take over, with half of all seconds or more, at {more[0][0]}: "
            f"{more[0][1]:.0%} there, {shares[0][1]:.0%} at {shares[0][0]}."
        )
    return (
        f"Statistics of attention take over nowhere in this range: they are {shares[0][1]:.0%} of all "
        f"seconds at {shares[0][0]} and {shares[-1][1]:.0%} at {shares[-1][0]}."
    )


def assumed(site: Site = SITE) -> pd.DataFrame:
    """Every number of the site."""
    return _frame(
        {"assumed": words, "value": text(getattr(site, f.name))}
        for f in fields(site)
        for words, text in [SITE_WORDS[f.name]]
    )


def architectures() -> pd.DataFrame:
    """Operations and bytes of one image."""
    return _frame(
        {
            "ViT at 224 pixels": vit.name,
            "width": str(vit.width),
            "states": str(vit.states),
            "multiply–adds": si(vit.macs, "MAC"),
            "operations": si(vit.flops, "FLOP"),
            "vectors, float16": si(vit.bytes_kept("vectors", 2), "B"),
            "vectors, float32": si(vit.bytes_kept("vectors", 4), "B"),
            "all tokens, float16": si(vit.bytes_kept("tokens", 2), "B"),
            "all tokens, float32": si(vit.bytes_kept("tokens", 4), "B"),
        }
        for vit in VITS
    )


def paper_profile(vit: Vit) -> Collection:
    """What chapters 01 and 02 read of ImageNet-1k with the `paper` profile, controls left out."""
    values = resolve("02_information_scrambling", "paper").model_dump()
    passes = (
        scale.scrambling_passes(vit, values["isi_images"]) + values["isi_images"]
    )  # and one for attention
    return Collection("paper profile", values["images"] + values["test_images"], IMAGENET_1K.classes, passes)


def _pairs() -> Iterable[tuple[Collection, Vit]]:
    for vit in VITS:
        yield paper_profile(vit), vit
    for collection in COLLECTIONS:
        for vit in VITS:
            yield collection, vit


def time(units: UnitCosts, site: Site = SITE) -> pd.DataFrame:
    """Operations and hours of a pass over each collection with each ViT, and what reading and probes add."""
    rows = []
    for collection, vit in _pairs():
        found = scale.estimate(collection, vit, site, units)
        rows.append({
            "pictures": collection.name,
            "ViT": vit.name,
            "image passes": number(collection.images + collection.more_passes),
            "FLOP": si(found.flops, "FLOP"),
            "GPU-hours, bfloat16": hours(found.gpu_hours),
            "rate": "measured" if found.gpu_measured else "assumed",
            "GPU-hours, float32": hours(found.gpu_hours_float32),
            "CPU core-hours": hours(found.cpu_core_hours),
            "reading, core-hours": hours(found.decode_core_hours),
            "logistic probes, core-hours": hours(found.probe_core_hours),
        })  # fmt: skip
    return _frame(rows)


def storage(site: Site = SITE) -> pd.DataFrame:
    """Bytes of pictures and features, and how many of the assumed disks all tokens fill."""
    return _frame(
        {
            "pictures": collection.name,
            "images": number(collection.images),
            "ViT": vit.name,
            "JPEG": si(collection.images * site.image_bytes, "B"),
            **{
                f"{words}, float{8 * item}": si(collection.images * vit.bytes_kept(kept, item), "B")
                for kept, words in _KEPT
                for item in (2, 4)
            },
            f"disks of {si(site.disk, 'B')}": number(
                collection.images * vit.bytes_kept("tokens", 2) / site.disk
            ),
        }
        for collection, vit in _pairs()
    )


def memory(units: UnitCosts) -> pd.DataFrame:
    """What a probe of one token needs at once, and what the moments of a ridge probe need for any N."""
    return _frame(
        {
            "pictures": collection.name,
            "classes": number(collection.classes),
            "ViT": vit.name,
            "features in memory": si(collection.images * vit.bytes_kept("vectors", 4) / scale.VECTORS, "B"),
            "logistic probes": si(collection.images * scale.probe_bytes(vit, collection.classes, units), "B"),
            "moments for ridge": si(scale.gram_bytes(vit, collection.classes), "B"),
            "operations for moments": f"{scale.gram_flops(vit, 1) / vit.flops:.3%} of a forward pass",
        }
        for collection, vit in _pairs()
    )


def feeding(units: UnitCosts, site: Site = SITE) -> pd.DataFrame:
    """What one GPU asks of everything around it."""
    rows = []
    for vit in VITS:
        found = scale.feed(vit, site, units)
        cores = NOTHING if found.decode_cores is None else number(found.decode_cores)
        rows.append({
            "ViT": vit.name,
            "images a second": number(found.images_per_s),
            "GPU": "measured" if vit.name in units.gpu_images_per_s else "assumed, at its fastest",
            "cores to read pictures": cores,
            "cores beside it": str(site.cores_per_gpu),
            "pictures read": si(found.read_bytes_per_s, "B/s"),
            "vectors written, float16": si(found.written_bytes_per_s, "B/s"),
            f"GPUs that fill {si(site.network, 'B/s')}": number(found.gpus_per_link),
        })  # fmt: skip
    return _frame(rows)


def limits(units: UnitCosts, site: Site = SITE, classes: int = IMAGENET_1K.classes) -> pd.DataFrame:
    """How many images each limit allows; in the order in which ViT-B reaches them."""
    by_vit = {v.name: {x.key: x for x in scale.limits(v, site, units, classes)} for v in VITS}
    return _frame(
        {
            "limit": f"{SHORT[key]}: {limit.what}",
            **{f"{name}, images": number(found[key].images) for name, found in by_vit.items()},
            "beyond it": THEN[key],
        }
        for key, limit in by_vit[VITS[1].name].items()
    )


def broken(units: UnitCosts, site: Site = SITE) -> pd.DataFrame:
    """Which limits each collection is beyond, in the order in which they are met."""
    rows = []
    for collection, vit in _pairs():
        found = scale.limits(vit, site, units, collection.classes)
        met = [SHORT[limit.key] for limit in found if limit.images < collection.images]
        rows.append({
            "pictures": collection.name,
            "ViT": vit.name,
            "breaks first": met[0] if met else "nothing",
            "then": ", ".join(met[1:]) or NOTHING,
        })  # fmt: skip
    return _frame(rows)


def measured_or_not(results: Results) -> str:
    """One sentence on which numbers of the page were measured, where, and which are assumed."""
    if results.costs is None:
        cpu = (
            "No unit costs have been measured yet (python benchmarks/costs.py writes them): hours of CPU "
            "cores are left out."
        )
    else:
        cpu = (
            f"Unit costs were measured on {results.costs.machine.get('cpu', 'an unnamed CPU')} on "
            f"{results.costs.date} with {results.costs.machine.get('threads', 1)} thread."
        )
    rates = results.units.gpu_images_per_s
    if rates:
        assert results.gpu is not None
        name = results.gpu.machine.get("gpu", "a GPU")
        return f"{cpu} GPU-hours of {', '.join(rates)} come from images a second measured on {name}."
    return f"{cpu} No GPU was measured: GPU-hours are FLOP / (peak × utilisation), both assumed below."


def _frame(rows: Iterable[Mapping[str, object]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows))
