"""The blocks that the README and the guide print."""

import dataclasses
import pathlib
import re

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


def blocks() -> list[Block]:
    """All of them but configurations (toml), which a test of the crate `kingpost` reads (what_the_guide_prints_is_accepted)."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs/guide").rglob("*.md"))]:
        fence, lines = None, []
        for number, line in enumerate(page.read_text().splitlines(), 1):
            match = FENCE.match(line)
            if match and fence is None:
                fence, lines = (number, match[1]), []
            elif match:
                if fence[1] != "toml":
                    found.append(Block(page, fence[0], fence[1], "\n".join(lines)))
                fence = None
            else:
                lines.append(line)
        if fence is not None:
            raise SystemExit(f"guide: FAILED: {page}:{fence[0]}: a block without an end")
    return found
