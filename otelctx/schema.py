"""A small schema for settings: what each accepts, how it is read, and one clear line for what is wrong.

A `Node` describes a place in a configuration: a `Value`, a `Table` (its names are the fields of a dataclass) or a `Map`
(its names are the user's). `settings_in` walks what was given beside its node, yields what is usable, and writes into a
`Report` what is not: where it is, what is wrong, and the nearest right name. Which settings there are: `config.py`.

Nothing here raises for what it is given. A list loses only its wrong items, and is wrong itself when none is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final, NamedTuple

Path = tuple[str | int, ...]
INVALID: Final = object()
_PREFIX: Final = "OTELCTX_"
_WORDS: Final = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)


class Report:
    """The lines so far, and the names that exist anywhere, among which the nearest right one is looked for."""

    __slots__ = ("lines", "settings", "variables")

    def __init__(self, settings: Iterable[Path], variables: Iterable[Path]) -> None:
        self.lines: list[str] = []
        self.settings: dict[str, Path] = {"_".join(map(str, path)): path for path in settings}
        self.variables: dict[str, Path] = self.settings | {"_".join(map(str, path)): path for path in variables}
        """The same, and the variables that set nothing."""

    def add(self, place: object, what: str, near: str = "") -> None:
        """Add the line that says `what` is wrong at `place`, and which name is `near` the one that was meant."""
        self.lines.append(f"{place}: {what}{near and f'; did you mean {near}?'}")


class Spot:
    """A place in what was given, printed as the user wrote it: ``otelctx.toml: keys.session.sources[1].env``."""

    __slots__ = ("origin", "path", "report", "variable")

    def __init__(self, report: Report, origin: str, path: Path = (), variable: Path = ()) -> None:
        self.report, self.origin, self.path = report, origin, path
        self.variable = variable
        """The path that the environment variable's name spells; empty outside the environment."""

    def at(self, part: str | int) -> Spot:
        """Return the place of a name, or of an item, in this one."""
        return Spot(self.report, self.origin, (*self.path, part), self.variable)

    def __str__(self) -> str:
        rest = dotted(self.path[len(self.variable) :])
        if not rest:
            return self.origin
        return self.origin + (": " if not self.variable else "" if rest[0] == "[" else ".") + rest

    def wrong(self, what: str, near: str = "") -> object:
        """Report this place and return `INVALID`."""
        self.report.add(self, what, near)
        return INVALID

    def unknown(self, names: Iterable[str]) -> object:
        """Report this place as a name that does not exist beside `names`; the right one may be at another level."""
        depth = len(self.path)
        anywhere = self.report.variables if self.variable else self.report.settings
        known = anywhere | {name: (*self.path[:-1], name) for name in names}
        right = known.get(_nearest(str(self.path[-1]), known))
        if right is None:
            return self.wrong("unknown name")
        in_name = depth <= len(self.variable)
        near = printable(variable((*right, *self.variable[depth:]))) if in_name else dotted(right)
        return self.wrong("unknown name", near)


class Value:
    """One value: what it looks like, in words, and the function that reads it (or returns `INVALID`)."""

    def __init__(self, expects: str, read: Callable[[Any, Spot], object]) -> None:
        self.expects, self.read = expects, read


class Table:
    """A table whose names are the fields of a dataclass that have a ``node`` and a ``doc`` in their metadata."""

    def __init__(self, shape: type) -> None:
        self.shape = shape
        self.members: dict[str, tuple[Node, str]] = {
            each.name: (each.metadata["node"], each.metadata["doc"]) for each in fields(shape) if each.metadata
        }


class Map:
    """A table whose names are the user's, each a `name` with a node of its own."""

    def __init__(self, name: Value, each: Node) -> None:
        self.name, self.each = name, each
        self.expects = "table" if isinstance(each, Table | Map) else f"{name.expects} = {each.expects}"


Node = Value | Table | Map


class Setting(NamedTuple):
    """A usable value (None for a table, which is there by being named), and the place that it came from."""

    path: Path
    value: Any
    place: str


def settings_in(given: object, node: Node, spot: Spot) -> Iterator[Setting]:
    """Yield every usable setting that `given` has for `node`."""
    if isinstance(node, Value):
        value = node.read(given, spot)
        if value is not INVALID:
            yield Setting(spot.path, value, str(spot))
        return
    if spot.variable and isinstance(given, str):
        given = _parsed(given)
    if not isinstance(given, Mapping):
        spot.wrong(f"must be a table, not {shown(given)}")
        return
    yield Setting(spot.path, None, str(spot))
    for name, item in given.items():
        if not isinstance(name, str):
            spot.wrong(f"names must be strings, not {shown(name)}")
        elif isinstance(node, Map):
            if node.name.read(name, spot.at(name)) is not INVALID:
                yield from settings_in(item, node.each, spot.at(name))
        elif name in node.members:
            yield from settings_in(item, node.members[name][0], spot.at(name))
        else:
            spot.at(name).unknown(node.members)


def one_of(names: tuple[str, ...], expects: str = "") -> Value:
    """Make the node of a choice; in the environment its case does not matter."""
    expects = expects or " | ".join(names)

    def read(value: object, spot: Spot) -> object:
        if not isinstance(value, str):
            return spot.wrong(f"must be {expects}, not {shown(value)}")
        value = value.strip().lower() if spot.variable else value
        if value in names:
            return value
        near = _nearest(value.lower(), names)
        return spot.wrong(f"must be {expects}, not {shown(value)}", near and repr(near))

    return Value(expects, read)


def text(expects: str, fits: Callable[[str], object], near: Callable[[str], str] = lambda value: "") -> Value:
    """Make the node of a string for which `fits` is true; `near` may name the string that was meant."""

    def read(value: object, spot: Spot) -> object:
        if isinstance(value, str):
            return value if fits(value) else spot.wrong(f"must be {expects}, not {shown(value)}", near(value))
        return spot.wrong(f"must be {expects}, not {shown(value)}")

    return Value(expects, read)


def optional(each: Value) -> Value:
    """Let a layer take a string away again: an empty one (and, in code, None) is none."""
    return Value(each.expects, lambda value, spot: None if value is None or value == "" else each.read(value, spot))


def list_of(each: Value) -> Value:
    """Make the node of a list, which in the environment may be separated by commas."""

    def read(value: object, spot: Spot) -> object:
        if spot.variable and isinstance(value, str):
            array = value.lstrip().startswith("[")
            value = _parsed(value) if array else [item.strip() for item in value.split(",") if item.strip()]
        if not isinstance(value, list | tuple):
            return spot.wrong(
                f"must be a list, not {shown(value)}",
                f"[{shown(value)}]" if isinstance(value, str) and not spot.variable else "",
            )
        items = [each.read(item, spot.at(index)) for index, item in enumerate(value)]
        usable = tuple(item for item in items if item is not INVALID)
        return usable if usable or not items else INVALID

    return Value(f"list, each item {each.expects}", read)


def switch(also: str = "") -> Value:
    """Make the node of true or false, in the environment the usual words; `also` is a third choice."""
    expects = f"{also} | true | false" if also else "true | false"

    def read(value: object, spot: Spot) -> object:
        if spot.variable and isinstance(value, str):
            word = value.strip().lower()
            value = _WORDS.get(word, word)
        if isinstance(value, bool) or (also and isinstance(value, str) and value == also):
            return value
        return spot.wrong(f"must be {expects}, not {shown(value)}")

    return Value(expects, read)


def _count(value: object, spot: Spot) -> object:
    if spot.variable and isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,18}\s*", value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return spot.wrong(f"must be {count.expects}, not {shown(value)}")


count: Final = Value("a whole number above 0", _count)


def dotted(path: Path) -> str:
    """Return ``keys.session.sources[1]``; parts that a TOML file would have to quote are quoted."""
    written = ""
    for part in path:
        if isinstance(part, int):
            written += f"[{part}]"
        else:
            written += ("." if written else "") + (part if re.fullmatch("[A-Za-z0-9_<>-]+", part) else shown(part))
    return written


def variable(path: Path) -> str:
    """Return the name of a setting's environment variable."""
    return _PREFIX + "__".join(map(str, path)).upper()


def path_of(name: str) -> Path | None:
    """Return the path that an environment variable names, if it starts as ours do."""
    return tuple(name.removeprefix(_PREFIX).lower().split("__")) if name.startswith(_PREFIX) else None


def shown(value: object) -> str:
    """Put a value into a message: short, on one line, and without calling any code of its type."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**18):
        return format(value)
    return f"a value of type {type(value).__name__}"


def printable(text: str) -> str:
    """Put a file's path or a variable's name into a message: on one line."""
    return text if text.isprintable() else repr(text)


def _nearest(name: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(names), n=1)), "")


def _parsed(written: str) -> object:
    """Return the TOML or JSON value that an environment variable holds, or the text itself where it is neither."""
    import json
    import tomllib

    try:
        document = tomllib.loads(f"value = {written}")
        if document.keys() == {"value"}:
            return document["value"]
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return written
