"""What a context has written to its view of the environment, and where an undo belongs.

A view holds *decisions*: for a name, at a *place* (an identity), the value that the context gave it, or None where it
removed it. The place None is the process's real environment, which holds no decisions: it is written as ever.

**An undo goes where the write went.** A save-and-restore bracket (``monkeypatch.setenv``, ``mock.patch.dict``) may be
entered at one place and left at another, with a bind in between. So a context remembers its *open* writes, the newest
last. A write that puts back what was there before one of them is its undo, and takes effect at that write's place.
Only the context itself may undo so: a copy of it (a task that it started) is somebody else, and inherits decisions.
"""

from __future__ import annotations

import weakref
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Place: TypeAlias = "tuple[Any, ...] | None"
"""Where a write goes: an identity, or None for the process's real environment."""


class Real:
    """The type of `REAL`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<the real environment's>"


REAL: Final = Real()
"""In place of a value: nothing was decided, and the real environment says what it is."""

Decision: TypeAlias = "str | Real | None"
"""A value, None (absent), or `REAL`."""

PLACES: Final = 128
"""How many identities' decisions a context remembers: the ones that it wrote last."""
WRITES: Final = 32
"""How many open writes of one name a context remembers: the first one, and the newest."""


class Write(NamedTuple):
    """One open write of a name."""

    place: Place
    before: str | None
    """What the context saw before it: what a bracket saves, and puts back."""
    found: Decision
    """What was decided at its place before it."""
    after: str | None
    cleared: bool = False
    """Whether it was part of a `clear`."""
    real: Decision = REAL
    """Of a `clear`: what the real environment had meanwhile, which a bracket that was entered there has saved."""


class View:
    """One context's view. Never changed once it is set, so that copies of a context may share it."""

    __slots__ = ("decided", "epoch", "home", "looked", "open")

    def __init__(
        self,
        epoch: int,
        decided: Mapping[Place, Mapping[str, str | None]],
        open_writes: Mapping[str, tuple[Write, ...]],
        looked: Mapping[str, tuple[Place, str | None]],
        home: weakref.ref[Context] | None,
    ) -> None:
        self.epoch = epoch
        """Which installation it was made under."""
        self.decided = decided
        self.open = open_writes
        self.looked = looked
        """What the context saw when it last looked at the whole environment and saw something else than is real."""
        self.home = home
        """The context whose open writes these are. Weak: a view travels further, and must not keep it alive."""


VIEW: Final[ContextVar[View | None]] = ContextVar("otelctx.environment", default=None)
"""The context's view; None is the same as absent."""

_probe: Final[ContextVar[None]] = ContextVar("otelctx.probe")

epoch = 0
"""How many installations there have been."""

_since: Mapping[str, int] = {}
"""The installation since which each name is declared. Replaced as a whole, never changed."""


def declare(names: Iterable[str]) -> None:
    """A new installation declares `names`, and no others: what was decided for these counts on, all else no more."""
    global epoch, _since
    started = epoch + 1
    _since = {name: _since.get(name, started) for name in names}
    epoch = started


def declare_too(name: str) -> None:
    """The installation declares `name` from now on."""
    global _since
    _since = {**_since, name: epoch}


def counts(name: str, view: View) -> bool:
    """Whether what `view` says of `name` counts: whether the name has been declared ever since."""
    since = _since.get(name)
    return since is not None and since <= view.epoch


def decision(place: Place, name: str) -> Decision:
    """What the current context has decided for `name` at `place`."""
    view = VIEW.get()
    if view is None:
        return REAL
    names = view.decided.get(place)
    return REAL if names is None or name not in names or not counts(name, view) else names[name]


def _this_context() -> Context | None:
    # There is no other way to tell a context from its copy: a token knows the one that it was made in.
    from gc import get_referents

    token = _probe.set(None)
    try:
        return next((referent for referent in get_referents(token) if type(referent) is Context), None)
    finally:
        _probe.reset(token)


class Draft:
    """The current context's view, to be changed and then kept."""

    __slots__ = ("_context", "_epoch", "decided", "looked", "open")

    def __init__(self) -> None:
        self._epoch = epoch
        view = VIEW.get()
        self._context = _this_context()
        self.decided: dict[Place, Mapping[str, str | None]] = {}
        self.open: dict[str, tuple[Write, ...]] = {}
        self.looked: Mapping[str, tuple[Place, str | None]] = {}
        if view is None:
            return
        is_own = view.home is not None and self._context is not None and view.home() is self._context
        if view.epoch == self._epoch:
            self.decided.update(view.decided)
            if is_own:
                self.open.update(view.open)
                self.looked = view.looked
            return
        for place, names in view.decided.items():
            if kept := {name: value for name, value in names.items() if counts(name, view)}:
                self.decided[place] = kept
        if is_own:
            self.open.update({name: writes for name, writes in view.open.items() if counts(name, view)})
            self.looked = {name: seen for name, seen in view.looked.items() if counts(name, view)}

    def keep(self) -> None:
        """Make it the current context's view."""
        home = None if self._context is None else weakref.ref(self._context)
        VIEW.set(View(self._epoch, self.decided, self.open, self.looked, home))

    def decision(self, place: Place, name: str) -> Decision:
        """What is decided for `name` at `place`."""
        names = self.decided.get(place)
        return REAL if names is None else names.get(name, REAL)

    def decide(self, place: Place, name: str, decision: Decision) -> None:
        """Decide for `name` at `place`; `REAL` takes the decision back. At the real environment there is none."""
        if place is None:
            return
        names = dict(self.decided.pop(place, {}))
        if isinstance(decision, Real):
            names.pop(name, None)
        else:
            names[name] = decision
        if names:
            self.decided[place] = names  # as the newest
        while len(self.decided) > PLACES:
            del self.decided[next(iter(self.decided))]

    def top(self, name: str) -> Write | None:
        """The newest open write of `name`."""
        writes = self.open.get(name)
        return writes[-1] if writes else None

    def push(self, name: str, write: Write) -> None:
        """Remember an open write."""
        writes = (*self.open.get(name, ()), write)
        # The first one is what the outermost bracket puts back.
        self.open[name] = writes if len(writes) <= WRITES else (writes[0], *writes[2:])

    def undone_by(
        self, here: Place, name: str, value: str | None, *, seen: str | None, real: str | None
    ) -> Write | None:
        """The open write of which `value`, written from `here`, is the undo; it and what came after it is taken back.

        `seen` is what the context sees at `here`: a deletion of something that is there for another reason than a write
        elsewhere is no undo of that. `real` is what the real environment has now: an undo reaches it only where it
        still has what this context wrote.
        """
        writes = self.open.get(name, ())
        found: int | None = None
        for index in reversed(range(len(writes))):
            write = writes[index]
            saved = value == write.before or value == write.real
            if value is None and seen is not None and here is not None and write.place not in (None, here):
                continue
            if saved and (write.place is not None or real == write.after):
                if write.place != here or not write.cleared:
                    found = index
                    break
                if found is None:
                    found = index  # unless an older write is undone: a bracket clears as it is left, too
            if write.place is None and here is None:
                break  # the name was last written in the real environment, and is so again: as ever
        if found is None:
            return None
        self._take_back(name, found, here)
        return writes[found]

    def take_back(self, name: str) -> None:
        """Take back the newest open write of `name`, which is no write to the real environment."""
        self._take_back(name, len(self.open[name]) - 1, self.open[name][-1].place)

    def _take_back(self, name: str, index: int, here: Place) -> None:
        writes = self.open[name]
        # What was written since at a third place stays, and so do writes to the real environment, whose own brackets
        # are still open.
        places = {writes[index].place, here} - {None}
        later = writes[index + 1 :]
        for write in reversed(later):
            if write.place in places:
                self.decide(write.place, name, write.found)
        self.decide(writes[index].place, name, writes[index].found)
        kept = (*writes[:index], *(write for write in later if write.place not in places))
        if kept:
            self.open[name] = kept
        else:
            del self.open[name]
