"""How are people's files changed without losing what they wrote beside the values? Comments, quotes and order stay.

One value is put in by its place in the text (`splice`) wherever that is possible, else the file is written anew in
ruamel's round-trip form. Both are only ways to write: before and after each edit the strict loader is asked what the
file says, and an edit that would say anything else than intended is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, Final

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from reconciler.documents import splice
from reconciler.documents.check import fields_of
from reconciler.documents.loader import Tree, load
from reconciler.documents.positions import Path
from reconciler.documents.scalars import is_plain_text, read_plain
from reconciler.documents.schema import KINDS
from reconciler.errors import GangOpsError, InvalidInput, NotFound
from reconciler.model.counting import counted

_WIDTH: Final = 1 << 16  # never re-wrap what someone laid out
_INDENTS: Final = ((4, 2), (2, 0))  # (sequence, offset of the dash): ours first, then the other common way


def format_text(content: bytes, file: str = "") -> bytes:
    """The file in our layout: two spaces, dashes indented, fields in the order of the schema. Comments stay.

    Fields are left in their order where a comment on a line of its own stands between them: it would move to another
    field. Formatting twice changes nothing more. Raises: InvalidInput, for a file that the strict loader refuses.
    """
    before = _trees(content, file)
    documents = _round_trip(content)
    for document in documents:
        kind = document.get("kind") if isinstance(document, CommentedMap) else None
        if isinstance(kind, str) and kind in KINDS:
            _order(document, KINDS[kind])
    written = _written(documents, _INDENTS[0])
    again = _written(_round_trip(written), _INDENTS[0])  # comments may settle in other columns once
    formatted = _head_of(content) + again
    if sorted(_comments_in(formatted)) != sorted(_comments_in(content)):
        raise _refused("a comment would be lost")
    return _checked(formatted, before)


def set_value(content: bytes, path: Path, value: Tree, *, index: int = 0, file: str = "") -> bytes:
    """The file with `value` at `path` of its document number `index`; missing mappings on the way are made.

    The value takes the place of what was there, or goes where the schema has its field; every other byte stays, unless
    the file has to be laid out anew for it. Raises: InvalidInput for a file that is refused; GangOpsError(EditRefused), when more than that value would
    change; NotFound(PathNotFound), when the path leads through a value that is
    no mapping or past the end of a list.
    """
    wanted = _trees(content, file)
    kind = _kind_of(_document(wanted, index))
    _put(_document(wanted, index), path, value)
    if (spliced := _spliced(content, index, path, value, kind)) is not None and _says(spliced, wanted):
        return spliced
    documents = _round_trip(content)
    _put(documents[index], path, _styled(value))
    return _checked(_head_of(content) + _written(documents, _indent_of(content)), wanted)


def remove_value(content: bytes, path: Path, *, index: int = 0, file: str = "") -> bytes:
    """The file without what is at `path`. Raises: InvalidInput; NotFound(PathNotFound), when nothing is there."""
    wanted = _trees(content, file)
    _take(_document(wanted, index), path)
    if (spliced := splice.removed(content, index, path)) is not None and _says(spliced, wanted):
        return spliced
    documents = _round_trip(content)
    _take(documents[index], path)
    return _checked(_head_of(content) + _written(documents, _indent_of(content)), wanted)


def new_document(tree: Mapping[str, Tree], comments: Sequence[str] = ()) -> bytes:
    """A document as a person would lay it out: a field of `spec` a line, and an item a line where items are mappings.

    `comments` stand above it. Raises: GangOpsError(EditRefused), when the strict loader would read something else.
    """
    document = CommentedMap((key, _styled(value)) for key, value in tree.items())
    spec = tree.get("spec")
    if isinstance(spec, Mapping):
        document["spec"] = CommentedMap((key, _laid_out(value)) for key, value in spec.items())
    head = "".join(f"# {line}".rstrip() + "\n" for line in comments).encode()
    return _checked(head + _written([document], _INDENTS[0]), [tree])


def _laid_out(value: Any) -> Any:
    if not _is_rows(value):
        return _styled(value)
    return CommentedSeq(
        CommentedMap((key, _laid_out(inner)) for key, inner in item.items())
        if any(_is_rows(inner) for inner in item.values())
        else _styled(item)
        for item in value
    )


def _is_rows(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(item, Mapping) for item in value)


# --- reading and writing --------------------------------------------------------------------------------------------


def _trees(content: bytes, file: str) -> list[Any]:
    loaded = load(content, file)
    if not loaded.ok:
        raise InvalidInput(loaded.diagnostics)
    return [document.value for document in loaded.documents]


def _yaml(indent: tuple[int, int]) -> YAML:
    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = _WIDTH
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    yaml.indent(mapping=2, sequence=indent[0], offset=indent[1])
    return yaml


_HEAD: Final = re.compile(rb"((?:[ \t]*(?:#[^\n]*)?\n)+)---[ \t]*\n")
_COMMENT: Final = re.compile(rb"(?:^|(?<=[ \t]))#[^\n]*", re.MULTILINE)


def _head_of(content: bytes) -> bytes:
    """Comments above the first `---`, which ruamel would drop; that mark is not needed and goes."""
    found = _HEAD.match(_plain_lines(content))
    return found[1].lstrip(b"\n") if found else b""


def _comments_in(content: bytes) -> list[bytes]:
    """All that could be a comment; what only looks like one stands in a text, which stays as well."""
    return [found.rstrip() for found in _COMMENT.findall(_plain_lines(content))]


def _plain_lines(content: bytes) -> bytes:
    return content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")


def _round_trip(content: bytes) -> list[Any]:
    text = _plain_lines(content).decode()
    if head := _HEAD.match(_plain_lines(content)):
        text = _plain_lines(content)[head.end() :].decode()
    try:
        # Documents that are nothing but `---` were warned about; they are not kept.
        return [document for document in _yaml(_INDENTS[0]).load_all(text) if document is not None]
    except YAMLError as err:
        raise _refused(f"it cannot be read for editing: {err}") from err


def _written(documents: Sequence[Any], indent: tuple[int, int]) -> bytes:
    stream = StringIO()
    for number, document in enumerate(documents):
        yaml = _yaml(indent)
        one = StringIO()
        yaml.dump(document, one)
        text = one.getvalue()
        if number and not _starts_document(text):
            text = f"---\n{text}"
        stream.write(text)
    return "\n".join(line.rstrip() for line in stream.getvalue().rstrip("\n").split("\n")).encode() + b"\n"


def _starts_document(text: str) -> bool:
    first = next((line for line in text.split("\n") if line.strip() and not line.startswith("#")), "")
    return first.startswith("---")


def _indent_of(content: bytes) -> tuple[int, int]:
    """The indentation that reproduces the file as it is, so that an edit changes one line; else ours."""
    documents = _round_trip(content)
    return next((indent for indent in _INDENTS if content.endswith(_written(documents, indent))), _INDENTS[0])


def _checked(written: bytes, wanted: list[Any]) -> bytes:
    if not _says(written, wanted):
        raise _refused("the edit would have changed more than it should")
    return written


def _says(written: bytes, wanted: list[Any]) -> bool:
    loaded = load(written, "")
    return loaded.ok and [document.value for document in loaded.documents] == wanted


def _refused(why: str) -> GangOpsError:
    return GangOpsError(
        f"the file was left as it is: {why}", code="EditRefused", remedy="Make this change with an editor, and tell us."
    )


# --- one value in the text ------------------------------------------------------------------------------------------


def _spliced(content: bytes, index: int, path: Path, value: Tree, kind: str) -> bytes | None:
    """The file with one value put in by its place in the text; None when that cannot be done."""
    fresh = splice.replaced(content, index, path, _one_line(value))
    if fresh is not None:
        return fresh
    for depth in reversed(range(len(path))):
        steps = path[depth:]
        if not all(isinstance(step, str) for step in steps):
            return None

        def entry(indent: str, steps: Path = steps) -> str:
            return _entry(steps, value, indent)

        fresh = splice.added(content, index, path[:depth], entry, _fields_at(kind, path[:depth]))
        if fresh is not None:
            return fresh
    return None


def _entry(steps: Path, value: Tree, indent: str) -> str:
    """A key with its value; keys inside each other on lines of their own, where there is an indentation."""
    if not indent:
        for step in reversed(steps[1:]):
            value = {str(step): value}
        return f"{_key(steps[0])}: {_one_line(value)}"
    heads = [f"{indent}{'  ' * depth}{_key(step)}:" for depth, step in enumerate(steps)]
    return "\n".join(heads) + f" {_one_line(value)}"


def _key(step: str | int) -> str:
    return _written([CommentedMap([(_styled(step), 0)])], _INDENTS[0]).decode().removesuffix(": 0\n")


def _one_line(value: Tree) -> str:
    """The value as it stands behind its key."""
    return _written([CommentedMap(v=_styled(value))], _INDENTS[0]).decode().removeprefix("v:").strip()


def _kind_of(document: Any) -> str:
    kind = document.get("kind") if isinstance(document, dict) else None
    return kind if isinstance(kind, str) and kind in KINDS else ""


def _fields_at(kind: str, path: Path) -> tuple[str, ...]:
    """The fields of the mapping at a path of such a document, in the order of the schema; none where keys are free."""
    model = KINDS.get(kind)
    for step in path:
        model = fields_of(model).get(step) if model is not None and isinstance(step, str) else None
    return tuple(fields_of(model)) if model is not None else ()


# --- values ---------------------------------------------------------------------------------------------------------


def _document(documents: list[Any], index: int) -> Any:
    if not 0 <= index < len(documents):
        raise NotFound(f"the file has {counted(len(documents), 'document')}, not {index + 1}", code="PathNotFound")
    return documents[index]


def _put(root: Any, path: Path, value: Any) -> None:
    if not path:
        raise NotFound("a document is not replaced as a whole", code="PathNotFound")
    at = root
    for step in path[:-1]:
        if isinstance(at, dict) and isinstance(step, str):
            at = at.setdefault(step, CommentedMap() if isinstance(root, CommentedMap) else {})
        else:
            at = _step(at, step, path)
    last = path[-1]
    if isinstance(at, dict) and isinstance(last, str):
        at[last] = value
    else:
        _step(at, last, path)
        at[last] = value


def _take(root: Any, path: Path) -> None:
    at = root
    for step in path[:-1]:
        at = _step(at, step, path)
    _step(at, path[-1] if path else "", path)
    del at[path[-1]]


def _step(at: Any, step: str | int, path: Path) -> Any:
    if isinstance(at, dict) and step in at:
        return at[step]
    if isinstance(at, list) and isinstance(step, int) and 0 <= step < len(at):
        return at[step]
    raise NotFound(f"there is no {'.'.join(map(str, path))} in the file", code="PathNotFound")


def _styled(value: Any) -> Any:
    """The value as ruamel should write it: short collections on one line, text in quotes where YAMLs disagree."""
    if isinstance(value, Mapping):
        mapping = CommentedMap((_styled(key), _styled(inner)) for key, inner in value.items())
        mapping.fa.set_flow_style()
        return mapping
    if isinstance(value, (list, tuple)):
        sequence = CommentedSeq(_styled(inner) for inner in value)
        sequence.fa.set_flow_style()
        return sequence
    if isinstance(value, str) and not is_plain_text(value):
        return value if _reads_as_itself(value) else DoubleQuotedScalarString(value)
    return value


def _reads_as_itself(text: str) -> bool:
    """Durations and the like need no quotes: `30m`, `12h`, `80GiB`."""
    simple = text.isascii() and text.isalnum() and text[:1].isdigit()
    return simple and type(read_plain(text, 18)) is str


# --- order ----------------------------------------------------------------------------------------------------------


def _order(node: Any, model: type[BaseModel]) -> None:
    """Put the fields of this mapping, and of those inside it, in the order the schema has them."""
    if isinstance(node, CommentedSeq):
        for item in node:
            _order(item, model)
        return
    if not isinstance(node, CommentedMap):
        return
    fields = fields_of(model)
    for key, inner in node.items():
        if key in fields and fields[key] is not None:
            for child in _models_below(inner, fields[key]):
                _order(child, fields[key])
    places = {name: place for place, name in enumerate(fields)}
    wanted = sorted(node, key=lambda key: places.get(key, len(places)))
    if wanted != list(node) and not _has_line_comments(node):
        for key in wanted:
            node.move_to_end(key)


def _models_below(inner: Any, model: type[BaseModel]) -> list[Any]:
    """The mappings that are such a model: this one, or the values of a mapping with free keys."""
    if isinstance(inner, CommentedMap) and not set(inner) & set(fields_of(model)):
        return list(inner.values())
    return [inner]


def _has_line_comments(node: Any) -> bool:
    """Whether a comment on a line of its own, or a blank line, stands anywhere in this mapping.

    ruamel hangs such lines to the value before them: they would move with it.
    """
    tokens = [token for entry in node.ca.items.values() for token in _flat(entry)]
    tokens += list(_flat(node.ca.comment)) if node.ca.comment else []
    if any(
        "\n" in token.value.rstrip("\n") or token.value.startswith("\n") or token.value.endswith("\n\n")
        for token in tokens
    ):
        return True
    children = node.values() if isinstance(node, CommentedMap) else node
    return any(_has_line_comments(child) for child in children if isinstance(child, (CommentedMap, CommentedSeq)))


def _flat(entry: Any) -> list[Any]:
    if entry is None:
        return []
    return [t for part in entry for t in _flat(part)] if isinstance(entry, (list, tuple)) else [entry]
