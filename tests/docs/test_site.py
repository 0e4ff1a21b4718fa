"""The site builds without a warning, and loads nothing from other hosts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.documents.pages import ROOT

# The build imports all of the package, for the reference.
pytestmark = pytest.mark.timeout(400)

# What a browser fetches by itself; links that a reader may follow are not among it.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["'](?:https?:)?//[^"']*"""
    r"""|<link\b(?=[^>]*\brel=["'](?:stylesheet|preload|preconnect|icon))[^>]*\bhref=["'](?:https?:)?//[^"']*"""
    r"""|url\(["']?(?:https?:)?//[^)]*|@import\s+["'](?:https?:)?//[^"']*"""
)


def build(source: Path, to: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does."""
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--nitpicky", "--builder", "html"]
    command = [sys.executable, "-m", "sphinx", *options, str(source), str(to)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs", folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_the_site_has_each_page_of_the_folder(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix("") for page in ROOT.glob("docs/**/*.md")}
    built = {page.relative_to(site).with_suffix("") for page in site.glob("**/*.html")}
    assert pages <= built


def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    loaded = {
        f"{file.relative_to(site)}: {found}"
        for file in site.glob("**/*")
        if file.suffix in (".html", ".css")
        for found in LOADED.findall(file.read_text(encoding="utf-8"))
    }
    assert loaded == set()


def test_a_link_to_a_heading_that_does_not_exist_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text(
        (ROOT / "docs/conf.py")
        .read_text()
        .replace("Path(__file__).resolve().parent\n", f"Path({str(ROOT / 'docs')!r})\n")
    )
    (tmp_path / "index.md").write_text("# Title\n\n[gone](#no-such-heading)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "no-such-heading" in done.stderr
