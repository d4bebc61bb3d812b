"""Where the book is published, and what follows from it: its buttons, and the cell that installs vitscope.

The address is `repository.url` of `_config.yml`, empty until the book has one. With an address every
notebook's page gets Colab's button and every page those of the repository; without, none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import yaml

from vitscope.runs.layout import Project
from vitscope.runs.notebook import INSTALL_TAG

COLAB = "https://colab.research.google.com"
INSTALL_ID = "install"
INSTALL_TAGS = [INSTALL_TAG, "remove-cell"]

_GITHUB = re.compile(
    r"https://github\.com/[A-Za-z0-9](?:[A-Za-z0-9-]{0,37}[A-Za-z0-9])?/[A-Za-z0-9._-]{1,100}"
)
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]*")
_BUTTONS = ("use_repository_button", "use_edit_page_button", "use_issues_button")
_CELL = Template("""
# Where vitscope is missing, as on Colab, this installs it; where it is there, nothing happens.
import importlib.util
import subprocess
import sys

REPOSITORY = "$address"
if importlib.util.find_spec("vitscope") is None:
    if not REPOSITORY:
        raise ModuleNotFoundError(
            "vitscope is not installed here, and this notebook names no address to get it from: run `make "
            "book` in a clone and take its .venv as the kernel, or set REPOSITORY to the address on GitHub"
        )
    source = f"vitscope @ git+{REPOSITORY}@$branch"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", source], check=True)
    print("vitscope is installed; if an import fails below, restart the session once and run all cells")
""")


class AddressError(ValueError):
    """An address that the book cannot be launched from; the message says what was expected."""


@dataclass(frozen=True)
class Repository:
    """The book's repository: `url` without a slash at its end, empty if there is none, and the `branch`."""

    url: str
    branch: str

    @classmethod
    def of(cls, project: Project, url: str | None = None) -> Repository:
        """As `_config.yml` says, or with another address. Errors: `AddressError`."""
        content = yaml.safe_load((project.root / "_config.yml").read_text(encoding="utf-8")) or {}
        given = content.get("repository") or {}
        branch = str(given.get("branch") or "main")
        if not _BRANCH.fullmatch(branch):
            raise AddressError(f"_config.yml: repository.branch is {branch!r}; expected the name of a branch")
        return cls(checked(str(given.get("url") or "") if url is None else url), branch)

    def colab(self, file: str) -> str:
        """Where Colab opens a notebook of the repository.

        >>> Repository("https://github.com/OWNER/NAME", "main").colab("notebooks/a.ipynb")
        'https://colab.research.google.com/github/OWNER/NAME/blob/main/notebooks/a.ipynb'
        """
        return f"{COLAB}/github/{self.url.removeprefix('https://github.com/')}/blob/{self.branch}/{file}"


def checked(url: str) -> str:
    """An address as it is written everywhere; an empty one stays empty.

    Raises AddressError for what is not the https address of a repository on GitHub.

    >>> checked("https://github.com/OWNER/NAME.git/")
    'https://github.com/OWNER/NAME'
    """
    short = url.strip().removesuffix("/").removesuffix(".git")
    if short and (not _GITHUB.fullmatch(short) or short.endswith(("/.", "/.."))):
        raise AddressError(
            f"{url!r} is no address that Colab can open notebooks from; expected a repository on GitHub, as "
            "https://github.com/OWNER/NAME"
        )
    return short


def configure(config: Path, repository: Repository) -> None:
    """Turn the buttons on in a copy of `_config.yml`; without an address the file stays as it is."""
    if not repository.url:
        return
    content: dict[str, Any] = yaml.safe_load(config.read_text(encoding="utf-8")) or {}
    content["repository"] = {"url": repository.url, "branch": repository.branch, "path_to_book": ""}
    content["html"] = {**(content.get("html") or {}), **dict.fromkeys(_BUTTONS, True)}
    content["launch_buttons"] = {"colab_url": COLAB}
    config.write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), encoding="utf-8")


def install_cell(repository: Repository) -> str:
    """The source of the cell that installs vitscope where it is missing: the same in every notebook."""
    return _CELL.substitute(address=repository.url, branch=repository.branch).strip("\n")


def problems(links: list[str], file: str, root: Path, repository: Repository) -> Iterator[str]:
    """What is wrong with the buttons of one page, which lead to `links`.

    `file` is the page's source, relative to `root`: the tree that the addresses must lead into. Nothing is
    asked of any other machine.
    """
    wanted = [repository.colab(file)] if repository.url and file.endswith(".ipynb") else []
    if wanted and wanted[0] not in links:
        yield f"has no button that leads to {wanted[0]}"
    for link in links:
        if not repository.url:
            yield f"has a button that leads to {link}, though the book has no address"
        elif link.startswith(COLAB):
            yield from _wrong(link, repository.colab(""), wanted, root)
        elif link.startswith(f"{repository.url}/edit/"):
            yield from _wrong(link, f"{repository.url}/edit/{repository.branch}/", None, root)
        elif link != repository.url and not link.startswith(f"{repository.url}/issues/new?"):
            yield f"has a button that leads to {link}, which is not in {repository.url}"


def _wrong(link: str, beginning: str, wanted: list[str] | None, root: Path) -> Iterator[str]:
    if not link.startswith(beginning):
        yield f"has a button that leads to {link}; expected an address that begins with {beginning}"
    elif not (root / link.removeprefix(beginning)).is_file():
        yield f"has a button that leads to {link}, but there is no file {link.removeprefix(beginning)}"
    elif wanted is not None and link not in wanted:
        yield f"has a button that leads to {link}; expected {wanted[0] if wanted else 'no such button here'}"
