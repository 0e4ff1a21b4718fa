"""Links between documents lead to files and headings that exist."""

from pathlib import Path

import pytest

from support.documents.pages import find_dead_links, list_pages, name_page


@pytest.mark.parametrize("page", list_pages(), ids=name_page)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert find_dead_links(page) == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `heading`: two\n\n"
        "[here](#a-heading-two) [gone](#a-heading) [file](none.md) `[code](none.md)`\n"
        "[there](https://example.org/none.md)\n\n"
        "```\n[block](none.md)\n```\n"
    )
    assert find_dead_links(page) == ["#a-heading", "none.md"]
