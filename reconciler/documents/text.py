"""Are these bytes text that a reviewer sees as it is, before anyone reads them as YAML?

UTF-8, of bounded size, without characters that editors hide or YAML versions treat differently, and
the content itself instead of a pointer to it. What the text says is the loader's concern.
"""

from __future__ import annotations

import re
from typing import Final

from reconciler.errors import Diagnostic, Place, Severity
from reconciler.model.counting import counted

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_LFS_POINTERS: Final = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")
# Control characters (also DEL and the second block), line ends that only some YAML versions know,
# overrides of the writing direction, a byte order mark inside, noncharacters.
HIDDEN_CHARACTERS: Final = "\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff"
_HIDDEN: Final = re.compile(f"[\x00-\x08\x0b\x0c\x0e-\x1f{HIDDEN_CHARACTERS}]|\r(?!\n)")


def without_mark(content: bytes, file: str) -> tuple[bytes, tuple[Diagnostic, ...]]:
    """The content without a leading UTF-8 byte order mark, and a warning if one was there."""
    if not content.startswith(BYTE_ORDER_MARK):
        return content, ()
    warning = Diagnostic(
        code="ByteOrderMark",
        summary="File starts with a byte order mark",
        detail="The three bytes EF BB BF before the first character were skipped.",
        place=Place(file, 1, 1),
        remedy="Save the file as UTF-8 without BOM.",
        severity=Severity.WARNING,
    )
    return content[len(BYTE_ORDER_MARK) :], (warning,)


def unreadable(content: bytes, file: str, max_bytes: int) -> Diagnostic | None:
    """Why this content is no text to read, if so. Expects content without byte order mark."""
    if len(content) > max_bytes:
        return Diagnostic(
            code="TooLarge",
            summary="File is too large",
            detail=f"It has {counted(len(content), 'byte')}; at most {max_bytes} are read.",
            place=Place(file),
            remedy="Split it, or keep what is not desired state elsewhere.",
        )
    if content.startswith(_LFS_POINTERS):
        return Diagnostic(
            code="LfsPointer",
            summary="File is a Git LFS pointer, not its content",
            detail="Git holds only a Git LFS pointer here; documents are read from git itself, without LFS.",
            place=Place(file),
            remedy="Take the path out of .gitattributes, then run: git add --renormalize FILE",
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        return _not_utf8(content, file, error.start)
    hidden = _HIDDEN.search(text)
    return _hidden_character(text, hidden.start(), file) if hidden else None


def _not_utf8(content: bytes, file: str, offset: int) -> Diagnostic:
    before = content[:offset].decode("utf-8")
    guess = " The file looks like UTF-16." if content.startswith((b"\xff\xfe", b"\xfe\xff")) else ""
    return Diagnostic(
        code="NotUtf8",
        summary="File is not UTF-8",
        detail=f"Byte 0x{content[offset]:02X} at byte offset {offset} is not valid UTF-8, the expected encoding.{guess}",
        place=_place_after(before, file),
        remedy="Save the file as UTF-8.",
    )


def _hidden_character(text: str, at: int, file: str) -> Diagnostic:
    utf16 = text[at] == "\0" and text.count("\0") * 3 > len(text)
    guess = " The file looks like UTF-16; UTF-8 is expected." if utf16 else ""
    offset = len(text[:at].encode("utf-8"))
    return Diagnostic(
        code="ControlCharacter",
        summary="File holds a character that people cannot see",
        detail=f"U+{ord(text[at]):04X} at byte offset {offset}: editors and YAML versions treat it differently.{guess}",
        place=_place_after(text[:at], file),
        remedy='Remove it, or write it as an escape in double quotes, such as "\\u2028".',
    )


def _place_after(before: str, file: str) -> Place:
    return Place(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
