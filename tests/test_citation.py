"""How to cite: the page, CITATION.cff and the bibliography say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pybtex.database import BibliographyData, parse_string

ROOT = Path(__file__).resolve().parents[1]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
PAGE = (ROOT / "book" / "references.md").read_text(encoding="utf-8")
ARXIV = ["2511.21635", "2607.10391", "2605.23868"]


def parsed(text: str) -> BibliographyData:
    return parse_string(text, "bibtex")


BLOCKS = [parsed(block) for block in re.findall(r"```bibtex\n(.*?)```", PAGE, re.S)]
SHOWN = {key: entry for block in BLOCKS for key, entry in block.entries.items()}
BIBLIOGRAPHY = parsed((ROOT / "book" / "references.bib").read_text(encoding="utf-8")).entries


def plain(text: str) -> str:
    return " ".join(text.replace("{", "").replace("}", "").split())


def names(entry) -> list[str]:
    people = entry.persons["author"]
    return [
        plain(" ".join([*p.first_names, *p.middle_names, *p.prelast_names, *p.last_names])) for p in people
    ]


def cff_names(reference: dict) -> list[str]:
    return [
        author.get("name") or " ".join(filter(None, (author.get("given-names"), author["family-names"])))
        for author in reference["authors"]
    ]


def test_every_block_is_one_entry():
    assert [len(block.entries) for block in BLOCKS] == [1, 1, 1, 1]
    assert [entry.fields["eprint"] for entry in SHOWN.values() if "eprint" in entry.fields] == ARXIV


@pytest.mark.parametrize("reference", CITATION["references"], ids=lambda r: r["title"][:20])
def test_papers_are_the_same_in_all_three(reference):
    (identifier,) = reference["identifiers"]
    number = identifier["value"].removeprefix("arXiv:")
    (key,) = [key for key, entry in SHOWN.items() if entry.fields.get("eprint") == number]
    for entry in (SHOWN[key], BIBLIOGRAPHY[key]):
        assert plain(entry.fields["title"]) == reference["title"]
        assert names(entry) == cff_names(reference)
        assert int(entry.fields["year"]) == reference["year"]
        assert entry.fields["eprint"] == number
        assert entry.fields["url"].startswith(f"https://arxiv.org/abs/{number}")


def test_the_book_is_the_same_in_both():
    (entry,) = [entry for key, entry in SHOWN.items() if key not in BIBLIOGRAPHY]
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert plain(entry.fields["title"]) == CITATION["title"]
    assert names(entry) == cff_names(CITATION)
    assert entry.fields["version"] == CITATION["version"]
    assert entry.fields["license"] == CITATION["license"]
    assert entry.fields["year"] == config["copyright"]
    assert entry.fields["title"].startswith(config["title"])


def test_citation_file_has_what_its_format_asks_for():
    assert CITATION["cff-version"] == "1.2.0"
    assert {"authors", "cff-version", "message", "title"} <= CITATION.keys()
    assert CITATION["type"] in ("software", "dataset")
    for one in [CITATION, *CITATION["references"]]:
        assert one["authors"]
        assert one["title"].strip()
        for author in one["authors"]:
            assert set(author) <= {"name", "given-names", "family-names"}, "an entity or a person"
            assert ("name" in author) != ("family-names" in author)
    for reference in CITATION["references"]:
        assert {"authors", "title", "type"} <= reference.keys()
        assert all(one["type"] in ("doi", "url", "swh", "other") for one in reference["identifiers"])
