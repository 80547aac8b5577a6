"""What pages, messages and docstrings point at is there: files of the checkout, links, sections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [path for folder in ("odb_example", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
FILE = re.compile(r"\b(?:docs|tests|benchmarks|odb_example)/[\w./-]*\w\.(?:md|py|json|yaml|toml)\b")


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The names under which a page's headings can be linked to, as code hosts make them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(page)}


def prose(path: Path) -> str:
    """A page without its blocks of code, which show what a user's own files may be called; a source as it is."""
    return re.sub(r"(?ms)^```.*?^```", "", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        aim = page.parent / name if name else page
        assert aim.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(aim), f"{page.name} links to {target}"


def test_files_that_are_named_exist() -> None:
    """The changelog aside: it may name what is gone."""
    missing = {
        f"{path.relative_to(ROOT)} names {name}"
        for path in (*PAGES, *SOURCES)
        for name in FILE.findall(prose(path))
        if not (ROOT / name).exists()
    }
    assert not missing


def test_sections_that_are_named_exist() -> None:
    named = re.compile(r"(\w+\.md)\)?,\s+\"([^\"]+)\"")
    found = {section for path in (*PAGES, *SOURCES) for section in named.findall(path.read_text(encoding="utf-8"))}
    assert found
    for page, section in found:
        assert any(heading.startswith(section) for heading in headings(ROOT / "docs" / page)), f"{page}: {section}"
