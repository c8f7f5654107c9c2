"""Adopting queues: an item carries the identity of whoever puts it, and ``get`` adopts it.

What is patched and why there: the one queue, and nothing else of its kind. A queue that is `otelctx.adopting`, or that
``queues.adopt`` names, gets a subclass of its own class for its class, which looks and pickles like the class that it
was: so the methods of the application's own subclasses stay where they are, called as ever, and no other queue becomes
slower. In ``put`` an item departs; in ``_put`` and ``_get``, under the queue's own lock, its mark goes in and comes out
beside it (`otelctx.marks`); when ``get`` has the item, its mark is adopted.

Items are never wrapped: whoever reads ``queue.queue``, goes around us or compares priorities meets what was put. An
item of which nobody knows who put it (it was there before, or came by another way) arrives with nothing.

For `queue.Queue`, `asyncio.Queue` and their ``Lifo`` and ``Priority`` kinds.

What escapes: ``get`` in a task of its own (``asyncio.create_task(queue.get())``, and ``asyncio.wait_for`` on 3.11)
adopts in that task, which is over when somebody has the item; `multiprocessing.Manager` queues, which are proxies.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otelctx import adoption
from otelctx.marks import NOTHING, Marks

if TYPE_CHECKING:
    from collections.abc import Callable

Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A library's queues: the names of what its class ``Queue`` does under a lock and outside of it."""

    module: str
    put: str
    get: str
    container: str
    size: str


_KINDS: Final = (
    _Kind("queue", put="put", get="get", container="queue", size="_qsize"),
    # Its coroutines `put` and `get` end in these two.
    _Kind("asyncio.queues", put="put_nowait", get="get_nowait", container="_queue", size="qsize"),
)

_MARKS: Final = "_otelctx_marks"
"""Where an adopting queue has its marks, among its attributes."""

_BASE: Final = "_otelctx_base"
"""Where an adopting class says what it stands for."""

_set_class: Final[Callable[[Any, type], None]] = vars(object)["__class__"].__set__

_is_on = False


def turn_on() -> None:
    """Let adopting queues adopt."""
    global _is_on
    _is_on = True


def turn_off() -> None:
    """Let adopting queues be plain ones."""
    global _is_on
    _is_on = False


def adopting(queue: Q) -> Q:
    """See `otelctx.adopting`."""
    return _adopting(queue, type(queue).__qualname__)


def _adopting(queue: Q, name: str) -> Q:
    for kind in _KINDS:
        module = sys.modules.get(kind.module)
        if module is not None and isinstance(queue, module.Queue):
            _mark(queue, name, kind, module)
            return queue
    wrong = type(queue).__name__
    raise TypeError(f"otelctx.adopting() takes a queue of queue or asyncio, and not {wrong!r}")


def _mark(queue: Any, name: str, kind: _Kind, module: Any) -> None:
    base = type(queue)
    if _BASE in vars(base):
        return
    classes = (module.Queue, module.LifoQueue, module.PriorityQueue)
    is_bare = all(getattr(base, method) in [getattr(known, method) for known in classes] for method in ("_put", "_get"))
    marks = Marks(name, attrgetter(kind.container), is_bare=is_bare, is_lifo=isinstance(queue, module.LifoQueue))
    with getattr(queue, "mutex", _NO_LOCK):
        if _MARKS not in vars(queue):
            marks.recount(queue, getattr(queue, kind.size)())
            vars(queue)[_MARKS] = marks
            _set_class(queue, _class_for(base, kind))


class _NoLock:
    """Stands where the queues of one loop have no lock."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


_NO_LOCK: Final = _NoLock()


def _class_for(base: type, kind: _Kind) -> type:
    """The class of the adopting queues among those of class `base`: the same one for all."""
    known: type
    for known in type.__subclasses__(base):
        if vars(known).get(_BASE) is base:
            return known
    size = kind.size

    def put(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not _is_on:
            return getattr(super(made, self), kind.put)(*args, **kwargs)
        marks: Marks = self._otelctx_marks
        before = marks.putting(adoption.departing(marks.name))
        try:
            return getattr(super(made, self), kind.put)(*args, **kwargs)
        finally:
            marks.putting(before)

    def get(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not _is_on:
            return getattr(super(made, self), kind.get)(*args, **kwargs)
        marks: Marks = self._otelctx_marks
        marks.getting()
        try:
            item = getattr(super(made, self), kind.get)(*args, **kwargs)
        except BaseException:
            marks.got()
            raise
        carried = marks.got()
        if carried is not NOTHING:
            adoption.adopt(carried, self)
        return item

    def _put(self: Any, item: Any, /, *args: Any, **kwargs: Any) -> Any:
        done = super(made, self)._put(item, *args, **kwargs)
        marks: Marks = self._otelctx_marks
        if _is_on:
            marks.added(self, item, getattr(self, size)())
        elif marks:
            marks.forget()
        return done

    def _get(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        item = super(made, self)._get(*args, **kwargs)
        marks: Marks = self._otelctx_marks
        if _is_on:
            marks.taken(self, item, getattr(self, size)())
        elif marks:
            marks.forget()
        return item

    def __reduce_ex__(self: Any, protocol: Any, /) -> Any:  # noqa: N807
        return _plain(super(made, self).__reduce_ex__(protocol), made)

    replaced = {kind.put: put, kind.get: get, "_put": _put, "_get": _get}
    named = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    made: Any = type(base)(
        base.__name__,
        (base,),
        {
            **named,
            **{name: wraps(getattr(base, name))(method) for name, method in replaced.items()},
            "__reduce_ex__": __reduce_ex__,
            "__class__": property(lambda _: base),
            _BASE: base,
        },
    )
    return made  # type: ignore[no-any-return]


def _plain(reduced: Any, made: type) -> Any:
    """What a copy or a pickle is made from, without a trace of us: it is a plain queue."""
    if not isinstance(reduced, tuple):
        return reduced
    base = vars(made)[_BASE]
    make, arguments, *rest = reduced
    arguments = tuple(base if argument is made else argument for argument in arguments)
    if rest and isinstance(rest[0], dict):
        rest[0] = {name: value for name, value in rest[0].items() if name != _MARKS}
    return base if make is made else make, arguments, *rest
