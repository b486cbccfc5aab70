"""Pages can be found, and what they link to is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").glob("*.md")])


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def links_of(page: Path) -> Iterator[tuple[Path, str]]:
    """Files that a page links to, and the place in them."""
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", without_code(page)):
        path, _, anchor = link.partition("#")
        yield (page.parent / path).resolve() if path else page, anchor


def anchors_of(page: Path) -> set[str]:
    """What headings can be linked to as, by the rules that forges share."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in links_of(page):
        assert target.exists(), f"{target} is not there"
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target), f"{name_of(target)} has no heading for #{anchor}"


def test_every_page_can_be_found_from_the_index() -> None:
    found: set[Path] = set()
    ahead = [DOCS / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in found:
            continue
        found.add(page)
        for target, _ in links_of(page):
            ahead += sorted(target.glob("*.md")) if target.is_dir() else [target] if target.suffix == ".md" else []
    assert [name_of(page) for page in PAGES if page not in found] == []


def test_what_is_not_published_is_installed_from_a_clone_or_a_wheel() -> None:
    """On the index, `penstock` is another library; and `penstock-mq` is not there yet."""
    lines = [(name_of(page), line) for page in PAGES for line in page.read_text().splitlines()]
    told = [(page, found) for page, line in lines for found in re.findall(r"pip install (?:-\S+ )*'?([^\s'`]+)", line)]
    ours = {(page, what) for page, what in told if "penstock" in what or what.startswith(".")}
    assert len(ours) > 5
    decision = "docs/decisions/0025-one-distribution-with-extras.md"
    wrong = [
        each for each in ours if not re.match(r"\.(\[|$)|\S*penstock_mq-\S+\.whl", each[1]) and each[0] != decision
    ]
    assert wrong == []
    assert [(page, line) for page, line in lines if re.search(r"penstock\[", line)] == []


def test_every_example_is_listed() -> None:
    listed = {target.name for target, _ in links_of(ROOT / "examples" / "README.md")}
    assert {path.name for path in (ROOT / "examples").glob("*.py")} <= listed
