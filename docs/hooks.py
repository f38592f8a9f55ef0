"""Hooks of MkDocs: charts, tables of settings, help of the commands, equations as MathML, pages of the root folder."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path

from charts import MARKER, replace_markers
from latex2mathml.converter import convert
from mkdocs.structure.files import File

from cstformer.cli import build_parser
from cstformer.training.settings import PRESETS, setting_fields

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {"RESULTS.md": "results.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
MARKERS = {
    "<!-- table of settings -->": lambda: settings_table(),
    "<!-- table of presets -->": lambda: presets_table(),
    "<!-- help of every command -->": lambda: command_help(),
}


def on_files(files, config):
    """Add the pages that are in the root folder of the repository."""
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    # Charts of experiments that this version has not run show the numbers of the version before.
    results = (ROOT / "RESULTS.md").read_text() + (ROOT / "docs" / "results_0.1.0.md").read_text()
    for page in [file for file in files.documentation_pages() if MARKER.search(file.content_string)]:
        text, images = replace_markers(page.content_string, results)
        files.remove(page)
        files.append(File.generated(config, page.src_uri, content=text))
        for path, content in images.items():
            files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown, page, **_):
    """Replace the markers by generated text, and point links between docs/ and the root folder to pages of the site."""
    for marker, text in MARKERS.items():
        if marker in markdown:
            markdown = markdown.replace(marker, text())
    if page.file.src_uri in ROOT_PAGES.values():
        markdown = markdown.replace("](docs/", "](")
    for name, target in ROOT_PAGES.items():
        markdown = re.sub(rf"\]\((\.\./)?{re.escape(name)}", f"]({target}", markdown)
    return markdown


def on_page_content(html, **_):
    r"""Turn TeX between \( \) and \[ \] into MathML."""
    html = re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', lambda m: _equation(m[1], "inline"), html)
    block = r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>'
    return re.sub(block, lambda m: f'<div class="equation">{_equation(m[1], "block")}</div>', html, flags=re.DOTALL)


def _equation(tex: str, display: str) -> str:
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        tex = tex.replace(entity, character)
    return convert(tex.strip(), display=display)


def settings_table() -> str:
    """Return a table of all settings: default, allowed values, meaning."""
    rows = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for name, field in setting_fields().items():
        about = field.metadata
        allowed = [f"`{choice}`" for choice in about["choices"]]
        low, high = about["low"], about["high"]
        if high is not None:
            allowed.append(f"{low:g} to {high:g}")
        elif low is not None:
            allowed.append(f"≥ {low:g}")
        kind = str(field.type)
        allowed += ["`None`"] if "None" in kind else ["`True`, `False`"] if kind == "bool" else []
        meaning = about["help"].replace("|", r"\|")
        rows.append(f"| `{name}` | `{field.default}` | {', '.join(allowed)} | {meaning} |")
    return "\n".join(rows)


def presets_table() -> str:
    """Return a table of the settings that each preset changes."""
    presets = [name for name, changes in PRESETS.items() if changes]
    rows = [f"| setting | default | {' | '.join(presets)} |", "|---" * (2 + len(presets)) + "|"]
    for name, field in setting_fields().items():
        if any(name in PRESETS[preset] for preset in presets):
            cells = [f"`{PRESETS[preset][name]}`" if name in PRESETS[preset] else "" for preset in presets]
            rows.append(f"| `{name}` | `{field.default}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def command_help() -> str:
    """Return the help of every command, as `--help` prints it."""
    os.environ["COLUMNS"] = "80"  # the width to which argparse wraps
    parts = [f"## {parser.prog}\n\n```text\n{parser.format_help().strip()}\n```" for parser in _walk(build_parser())]
    return "\n\n".join(parts)


def _walk(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _walk(child)
