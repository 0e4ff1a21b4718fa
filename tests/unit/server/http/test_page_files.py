"""Files of the page: what is vendored is as published, and nothing is loaded from elsewhere."""

import hashlib
import re
from importlib import resources
from pathlib import Path

import pytest

from allhands_server.http.page.assets import Assets

STATIC = Path(str(resources.files("allhands_server.http.page") / "static"))
UPLOT = {
    "uPlot.esm.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""SHA-256 of files of uplot 1.6.32, as npm has it: a new release brings new ones."""
OWN = [one for one in STATIC.iterdir() if one.name not in UPLOT]


@pytest.mark.parametrize("name", UPLOT)
def test_uplot_is_as_it_was_published(name: str) -> None:
    assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == UPLOT[name]
    assert "1.6.32" in (STATIC / "uPlot.esm.js").read_text()[:400]


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.name)
def test_our_files_load_nothing_from_elsewhere_and_make_no_html_of_text(file: Path) -> None:
    text = file.read_text()
    text = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|['\"(]//", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    if file.suffix == ".html":
        assert not re.search(r"<style|\sstyle=|\son\w+=", text)
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))


def test_files_have_the_headers_that_browsers_obey() -> None:
    found = Assets().make_response("page.js")
    assert found is not None
    policy = found.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["referrer-policy"] == "no-referrer"
    assert found.headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("name", ["uPlot.LICENSE", "../assets.py", "nothing.js", ""])
def test_other_files_are_not_served(name: str) -> None:
    assert Assets().make_response(name) is None
