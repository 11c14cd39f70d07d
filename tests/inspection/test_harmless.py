"""Text of a stranger is shown, and does nothing else."""

import unicodedata

from diskreplay.inspection.harmless import harmless
from diskreplay.inspection.plain import plain


def test_what_is_only_read_stays():
    text = "Größe 観測 🙂\n\tnext"
    assert harmless(text) is text or harmless(text) == text


def test_controls_and_what_turns_lines_round_are_replaced():
    for number in [
        *range(0x20),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        0xDCFF,
    ]:
        if chr(number) not in "\n\t":
            assert harmless(f"a{chr(number)}b") == "a\N{REPLACEMENT CHARACTER}b", hex(number)
    turning = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    for number in range(0x110000):
        if unicodedata.bidirectional(chr(number)) in turning:
            assert harmless(chr(number)) != chr(number), hex(number)


def test_texts_of_a_document_with_its_keys():
    given = {"a\x1b": ["\x00", {"b\u202e": 1.5}], "n": float("nan")}
    assert plain(given, harmless) == {"a\ufffd": ["\ufffd", {"b\ufffd": 1.5}], "n": None}
    assert plain(given) == {"a\x1b": ["\x00", {"b\u202e": 1.5}], "n": None}
