"""Builds the documentation site: `make docs`.

Sphinx reads a copy of the pages, in which links lead to where the pages are on the site. Then the built pages are
checked: every link leads somewhere, and no page asks another host for anything.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from sphinx.cmd.build import build_main

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import reference  # noqa: E402  it stands beside this file, which is no package

GENERATED = {
    "reference/python.md": (
        "Classes and functions",
        "every public class and method, from the docstrings",
        reference.python_api,
    ),
    "reference/commands.md": ("Commands and their options", "what each command prints for --help", reference.commands),
}
_LINK = re.compile(r"(\]\()([^)\s#]+)?(#[^)\s]*)?(\))")
_FENCE = re.compile(r"^```python([^\n]*)$", re.MULTILINE)


def pages() -> dict[Path, str]:
    """Return the pages of the repository, and where each one is on the site."""
    found = {path: path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    found[ROOT / "docs" / "README.md"] = "index.md"
    for path in (*ROOT.glob("*.md"), *(ROOT / "examples").glob("*.md"), *(ROOT / "bench").rglob("*.md")):
        found[path] = "about.md" if path == ROOT / "README.md" else path.relative_to(ROOT).as_posix()
    return found


def stage(folder: Path) -> None:
    """Write the source of the site."""
    where = pages()
    for path, name in where.items():
        text = _FENCE.sub(_fence, path.read_text("utf-8"))
        if name == "index.md":
            text = _with_generated(text)
            text = f"{text}\n{_toctrees(text, where)}"
        elif name == "about.md":
            text = f"---\norphan: true\n---\n\n{text}"
        else:
            text = _with_orphan(text, name)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_relinked(text, path, name, where, folder), "utf-8")
    for name, (_, _, make) in GENERATED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(make(), "utf-8")


def _fence(match: re.Match[str]) -> str:
    """Show the name of a file above it; the other words say how tests run the block."""
    file = next((word.partition("=")[2] for word in match[1].split() if word.startswith("file=")), None)
    return "```python" if file is None else f"```{{code-block}} python\n:caption: {file}\n"


def _with_generated(text: str) -> str:
    lines = "".join(f"- [{title}]({name}): {what}.\n" for name, (title, what, _) in GENERATED.items())
    return text.replace("## Reference\n\n", f"## Reference\n\n{lines}")


def _with_orphan(text: str, name: str) -> str:
    listed = "/" not in name and name not in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    listed = listed or name in ("examples/README.md", "adr/README.md")
    return text if listed else f"---\norphan: true\n---\n\n{text}"


def _toctrees(index: str, where: dict[Path, str]) -> str:
    """Return the navigation: the sections of the index, in its order."""
    parts = []
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, rest = section.partition("\n")
        for group in re.split(r"^### ", rest, flags=re.MULTILINE):
            caption = title if group is rest or group == rest.partition("\n### ")[0] else group.partition("\n")[0]
            targets = re.findall(r"^- \[[^\]]*\]\(([^)#]+)\)", group, re.MULTILINE)
            names = [target if target in GENERATED else where[(ROOT / "docs" / target).resolve()] for target in targets]
            names = [name.removesuffix(".md") for name in dict.fromkeys(names)]
            if names:
                parts += ["```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```", ""]
    return "\n".join(parts)


def _relinked(text: str, path: Path, name: str, where: dict[Path, str], folder: Path) -> str:
    """Let each link lead to where its target is on the site; files that are no pages come along."""
    here = Path(name).parent

    def one(match: re.Match[str]) -> str:
        target, anchor = match[2], match[3] or ""
        if not target or target.startswith(("http://", "https://", "mailto:")) or target in GENERATED:
            return match[0]
        found = (path.parent / unquote(target)).resolve()
        found = found / "README.md" if found.is_dir() else found
        if found in where:
            return f"{match[1]}{os.path.relpath(where[found], here)}{anchor}{match[4]}"
        if found.is_file():
            copied = Path("files") / found.relative_to(ROOT)
            (folder / copied).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found, folder / copied)
            return f"{match[1]}{os.path.relpath(copied, here)}{match[4]}"
        return match[0]

    fences = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else _LINK.sub(one, part) for part in fences)


def llms_txt(out: Path) -> None:
    """Write an index of the pages for programs that read text: https://llmstxt.org."""
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    intro = "> Background jobs and durable workflows in Python that survive the death of their worker."
    where = pages()

    def source(match: re.Match[str]) -> str:
        target, _, _ = match[2].partition("#")
        return f"[{match[1]}](_sources/{where[(ROOT / 'docs' / target).resolve()]}.txt)"

    lines = re.sub(r"\[([^\]]*)\]\(([^)]+)\)", source, index.partition("\n")[2])
    (out / "llms.txt").write_text(f"# Holdfast\n\n{intro}\n{lines}", "utf-8")


class _Page(HTMLParser):
    """The addresses in one page: those that a reader may follow, and those that a browser asks for by itself."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev", "index", "search"):
            self.loads.append(given.get("href", ""))
        elif "src" in given:
            self.loads.append(given["src"])


def problems(out: Path) -> Iterator[str]:
    """Yield links that lead nowhere, and what would be asked of another host."""
    parsed = cache(_Page)
    for file in sorted(out.rglob("*.html")):
        page, name = parsed(file), file.relative_to(out).as_posix()
        for address in (*page.links, *page.loads):
            if address in page.loads and re.match(r"(https?:)?//", address):
                yield f"{name} loads {address}"
            if re.match(r"[a-z]+:|//", address):
                continue
            path, _, anchor = address.partition("#")
            target = (file.parent / unquote(path.partition("?")[0])).resolve() if path else file
            if not target.is_file():
                yield f"{name} links to {address}, which is not there"
            elif anchor and target.suffix == ".html" and unquote(anchor) not in parsed(target).ids:
                yield f"{name} links to {address}, which has no such heading"
    for file in sorted(out.rglob("*.css")):
        for address in re.findall(r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)", file.read_text("utf-8")):
            yield f"{file.relative_to(out)} loads {address}"


def build(folder: Path) -> list[str]:
    """Build the site into `folder`/site; return its problems."""
    shutil.rmtree(folder, ignore_errors=True)
    source, out = folder / "source", folder / "site"
    stage(source)
    options = ["-q", "-W", "--keep-going", "-b", "html", "-c", str(HERE), "-d", str(folder / "doctrees")]
    if build_main([*options, str(source), str(out)]) != 0:
        return ["Sphinx has warned; see above"]
    llms_txt(out)
    return [*problems(out)]


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "docs")
    found = build(target)
    print(*found, sep="\n", file=sys.stderr)
    print(f"the site is in {target / 'site'}: open index.html" if not found else f"{len(found)} problems")
    sys.exit(bool(found))
