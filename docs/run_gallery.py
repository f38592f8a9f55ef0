"""Run the scripts of docs/gallery and write the page and the picture of each: `make gallery`, part of `make docs`.

The docstring of a script is the text of its page, and the first line its title. The script runs in an empty folder
and saves `picture.png` there; what it prints is shown on the page.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

FOLDER = Path(__file__).parent / "gallery"


def main(names: list[str]) -> None:
    """Run the scripts of these names, all of them by default."""
    for script in sorted(FOLDER.glob("*.py")):
        if not names or script.stem in names:
            print(f"gallery: {script.stem}", flush=True)
            run(script)


def run(script: Path) -> None:
    """Run one script, and write its page and picture once it has ended well."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "COLUMNS": "100"}
        done = subprocess.run(
            [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"{script}:\n{done.stderr}")
        picture = Image.open(Path(folder) / "picture.png").convert("RGB")
        picture = picture.quantize(256, Image.Quantize.FASTOCTREE)  # a palette takes a third of the bytes
        picture.save(script.with_suffix(".png"), optimize=True)
    script.with_suffix(".md").write_text(page(script, done.stdout))


def page(script: Path, printed: str) -> str:
    """Markdown of a page: text, picture, script, what it printed."""
    title, text, code = parts(script)
    blocks = [f"# {title}", text, f"![{title}]({script.stem}.png)", f"```python\n{code}```"]
    blocks += ["It prints:", f"```text\n{printed.strip()}\n```"]
    return "\n\n".join(blocks) + "\n"


def parts(script: Path) -> tuple[str, str, str]:
    """Title, text and code of a script."""
    source = script.read_text()
    tree = ast.parse(source)
    title, _, text = (ast.get_docstring(tree) or "").partition("\n")
    code = "".join(source.splitlines(keepends=True)[tree.body[0].end_lineno or 0 :])
    return title.rstrip("."), text.strip(), code.lstrip()


if __name__ == "__main__":
    main(sys.argv[1:])
