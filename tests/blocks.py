"""The code blocks of a document, as its readers paste them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
)


def blocks(document):
    """``(language, text)`` of each block, in order; `document` is relative to the root."""
    text = (ROOT / document).read_text()
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def paste(block, name, variables):
    """Run a block among these variables; errors name `name`."""
    exec(compile(block, name, "exec"), variables)
