"""Pictures of a page have few colours: a repository keeps each version of them for ever."""

from pathlib import Path
from typing import Any

from PIL import Image


def of_few_colours(picture: Any, out: Path) -> None:
    """Write a picture, a path or an open file, with a palette."""
    with Image.open(picture) as image:
        few = image.convert("RGB").quantize(255, dither=Image.Dither.NONE)
        few.save(out, optimize=True)
    print(out)
