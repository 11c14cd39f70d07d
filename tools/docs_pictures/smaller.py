"""Pictures of a page have few colours: a repository keeps each version of them for ever."""

from pathlib import Path
from typing import Any

from PIL import Image, ImageChops

MOST = 6  # of 255, that a palette may be off
METHODS = Image.Quantize.MEDIANCUT, Image.Quantize.MAXCOVERAGE  # gradients; small marks


def of_few_colours(picture: Any, out: Path) -> None:
    """Write a picture, a path or an open file, with a palette where one comes near to it."""
    with Image.open(picture) as image:
        whole = image.convert("RGB")
    few = [whole.quantize(255, method, dither=Image.Dither.NONE) for method in METHODS]
    nearest = min(few, key=lambda each: off(whole, each))
    (nearest if off(whole, nearest) <= MOST else whole).save(out, optimize=True)
    print(out)


def off(whole: Image.Image, few: Image.Image) -> int:
    """By how much the worst pixel of the worst channel is off."""
    extrema = ImageChops.difference(whole, few.convert("RGB")).getextrema()
    return max(high for _low, high in extrema)
