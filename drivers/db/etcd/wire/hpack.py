"""Header blocks of HTTP/2 (RFC 7541), read by a receiver that has forbidden the dynamic table.

So nothing has to be remembered from one block to the next.  Of the static table only the status is of interest here.
"""

from __future__ import annotations

_FIRST_STATUS = 8
_STATUSES = ("200", "204", "206", "304", "400", "404", "500")
"""Of the static table, from that place on."""
_STATIC_LAST = 61
_END_OF_TEXT = 256
_PADDING_BITS_MAX = 7

# The code is canonical: how long each code is, for bytes 0 to 255 and the end of text, says all.
_CODE_LENGTHS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b080606060505050606060606"
    "060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d0e060f050605060506060605070706060605"
    "06070605050607070707070f0b0e0d1c141614141616161716171717171718171818161718171717171516171617171816151416161717151"
    "716161815161717151516151716171714161616171616171a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b14"
    "181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)


def _codes() -> dict[tuple[int, int], int]:
    """(Length, code) -> byte."""
    found: dict[tuple[int, int], int] = {}
    code = before = 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(_CODE_LENGTHS)):
        if before:
            code = (code + 1) << (length - before)
        before = length
        found[length, code] = symbol
    return found


_CODES = _codes()


def read_headers(block: bytes) -> dict[str, str]:
    """The status and all headers whose names are spelt out.  Raises ValueError for what is no header block."""
    headers: dict[str, str] = {}
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:  # a name and a value of the table
            place, at = _read_number(block, at, 7)
            _check_place(place)
            if _FIRST_STATUS <= place < _FIRST_STATUS + len(_STATUSES):
                headers[":status"] = _STATUSES[place - _FIRST_STATUS]
            continue
        if first & 0xE0 == 0x20:  # the size of the dynamic table, which is 0
            size, at = _read_number(block, at, 5)
            if size:
                raise ValueError("a header block uses a dynamic table, which was forbidden")
            continue
        place, at = _read_number(block, at, 6 if first & 0x40 else 4)
        name = ""
        if place == 0:
            name, at = _read_text(block, at)
        elif _FIRST_STATUS <= place < _FIRST_STATUS + len(_STATUSES):
            name = ":status"
        _check_place(place or 1)
        value, at = _read_text(block, at)
        if name:
            headers[name] = value
    return headers


def _check_place(place: int) -> None:
    if not 0 < place <= _STATIC_LAST:
        raise ValueError("a header block names a place that its table does not have")


def _read_number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """The number that begins in the last bits of a byte, and where the next thing begins."""
    limit = (1 << bits) - 1
    number = block[at] & limit
    at += 1
    if number < limit:
        return number, at
    for shift in range(0, 28, 7):
        byte = _byte(block, at)
        at += 1
        number += (byte & 0x7F) << shift
        if not byte & 0x80:
            return number, at
    raise ValueError("a header block has a number without an end")


def _read_text(block: bytes, at: int) -> tuple[str, int]:
    is_coded = bool(_byte(block, at) & 0x80)
    length, at = _read_number(block, at, 7)
    text = block[at : at + length]
    if len(text) < length:
        raise ValueError("a header block ends too soon")
    return (_decode(text) if is_coded else text).decode("utf-8", "replace"), at + length


def _byte(block: bytes, at: int) -> int:
    if at >= len(block):
        raise ValueError("a header block ends too soon")
    return block[at]


def _decode(text: bytes) -> bytes:
    """Huffman's code.  Few blocks are read: what comes again and again is known to the caller."""
    found = bytearray()
    code = length = 0
    for byte in text:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            length += 1
            symbol = _CODES.get((length, code))
            if symbol is not None:
                if symbol == _END_OF_TEXT:
                    raise ValueError("a header block has an end of text within a text")
                found.append(symbol)
                code = length = 0
    if length > _PADDING_BITS_MAX or code != (1 << length) - 1:
        raise ValueError("a header block has a text that does not end")
    return bytes(found)
