#!/usr/bin/env python3
"""The pages that readers have, and the blocks that they print. Nobody else lists them.

    tests/guide/pages.py PAGE BEGIN      prints the block of that page whose first line begins so

Scripts that try what `make test` does not make (a package, an image, a chart) take their commands from a page so: what they run is what is printed.
"""

import dataclasses
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^\s*```(\w*)\s*$")


@dataclasses.dataclass(frozen=True)
class Block:
    page: pathlib.Path
    # Of the fence, from 1.
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def first(self) -> str:
        """The first line, by which a block is named in blocks.py."""
        return self.text.strip().splitlines()[0].strip() if self.text.strip() else ""


def pages() -> list[pathlib.Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs/guide").rglob("*.md"))]


def of(page: pathlib.Path) -> list[Block]:
    """All blocks of a page, in their order."""
    found = []
    fence, lines = None, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        match = FENCE.match(line)
        if match and fence is None:
            fence, lines = (number, match[1]), []
        elif match:
            found.append(Block(page, fence[0], fence[1], "\n".join(lines)))
            fence = None
        else:
            lines.append(line)
    if fence is not None:
        raise SystemExit(f"guide: FAILED: {page}:{fence[0]}: a block without an end")
    return found


def blocks() -> list[Block]:
    """All of them but configurations (toml), which a test of the crate `kingpost` reads (what_the_guide_prints_is_accepted)."""
    return [block for page in pages() for block in of(page) if block.language != "toml"]


def text(page: str, begin: str) -> str:
    """The one block of a page whose first line begins so."""
    found = [block for block in of(ROOT / page) if block.first.startswith(begin)]
    if len(found) != 1:
        raise SystemExit(f"pages.py: {len(found)} blocks of {page} begin with {begin!r}, and one was expected")
    return found[0].text


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(text(*sys.argv[1:]))
