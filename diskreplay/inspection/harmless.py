"""Text of a stranger, as it may be shown."""

# Controls, which a terminal obeys, what changes the direction of all that follows, and bytes of a
# path that are no UTF-8. They come from paths and metadata, which may be a stranger's.
_HARMFUL = dict.fromkeys(
    {
        *(set(range(0x20)) - {ord("\n"), ord("\t")}), *range(0x7F, 0xA0),
        *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000),
    },
    "\N{REPLACEMENT CHARACTER}",
)  # fmt: skip


def harmless(text: str) -> str:
    """The text, with a replacement character for each that does more than to be read."""
    return text if text.isprintable() else text.translate(_HARMFUL)
