"""The documentation site: it builds without a warning, its links lead somewhere, and it needs no other host."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "site" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(ROOT / "docs" / "site"))
    return module


@pytest.mark.slow  # Sphinx reads sixty pages
@pytest.mark.filterwarnings("default")  # those of Sphinx and its theme are not ours
def test_the_site_builds_and_every_link_leads_somewhere(builder: ModuleType, tmp_path: Path) -> None:
    assert builder.build(tmp_path / "docs") == []
    site = tmp_path / "docs" / "site"
    index = (site / "index.html").read_text("utf-8")
    order = [index.index(f'<span class="caption-text">{name}</span>') for name in ("Start", "Reference", "Explanation")]
    assert order == sorted(order)
    assert "App.enqueue_many" in (site / "reference" / "python.html").read_text("utf-8")
    assert "holdfast jobs retry" in (site / "reference" / "commands.html").read_text("utf-8")
    assert (site / "searchindex.js").stat().st_size > 100_000
    listed = (site / "llms.txt").read_text("utf-8")
    assert "](_sources/tutorial.md.txt): run a job" in listed
    sources = [line.partition("](")[2].partition(")")[0] for line in listed.splitlines() if "](_sources" in line]
    assert sources
    assert all((site / source).is_file() for source in sources)


def test_a_broken_link_and_a_request_to_another_host_are_found(builder: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="top">A</h1><a href="b.html#top">b</a><a href="https://example.org">c</a>')
    (tmp_path / "b.html").write_text(
        '<link rel="stylesheet" href="https://cdn.example.org/x.css"><script src="//cdn.example.org/y.js"></script>'
        '<a href="gone.html">d</a><a href="a.html#nowhere">e</a>'
    )
    (tmp_path / "c.css").write_text("@import 'https://fonts.example.org/f.css'; a { background: url(local.png) }")
    assert sorted(builder.problems(tmp_path)) == [
        "a.html links to b.html#top, which has no such heading",
        "b.html links to a.html#nowhere, which has no such heading",
        "b.html links to gone.html, which is not there",
        "b.html loads //cdn.example.org/y.js",
        "b.html loads https://cdn.example.org/x.css",
        "c.css loads https://fonts.example.org/f.css",
    ]
