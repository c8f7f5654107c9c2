"""Adopting queues: an item carries the identity of whoever puts it, and ``get`` adopts it.

What is patched and why there: the one queue, and nothing else of its kind. A queue that is `otelctx.adopting`, or that
``queues.adopt`` names, gets a subclass of its own class for its class, which looks and pickles like the class that it
was: so the methods of the application's own subclasses stay where they are, called as ever, and no other queue becomes
slower. In ``put`` an item departs; in ``_put`` and ``_get``, under the queue's own lock, its mark goes in and comes out
beside it (`otelctx.marks`); when ``get`` has the item, its mark is adopted.

An object that the application makes by the class of an adopting queue, or by a subclass of it, is a plain one.

Items are never wrapped: whoever reads ``queue.queue``, goes around us or compares priorities meets what was put. An
item of which nobody knows who put it (it was there before, or came by another way) arrives with nothing.

For `queue.Queue`, `asyncio.Queue` and their ``Lifo`` and ``Priority`` kinds. A `queue.SimpleQueue` is written in C: it
has no class that could be exchanged, no lock, and nobody can look into it. An object of a subclass stands in front of
it, and in its place where it is declared; whoever has the one behind it goes around us.

In a queue of `multiprocessing` there is no item to lie beside: a pipe has bytes. What departs is pickled with the item,
and whatever unpickles it gets the item alone (it has to be able to import otelctx, and need not have it on). A process
that is given the queue has an adopting one.

A declared queue is looked for when its module has been imported, and again whenever a thread is started: so one that is
made later, or another one in its place, is found before there is a worker for it.

What escapes: ``get`` in a task of its own (``asyncio.create_task(queue.get())``, and ``asyncio.wait_for`` on 3.11)
adopts in that task, which is over when somebody has the item; `multiprocessing.Manager` queues, which are proxies.
"""

from __future__ import annotations

import sys
from _thread import RLock
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce, wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otelctx import adoption, carrier, faults
from otelctx.keys import is_loading
from otelctx.marks import NOTHING, Get, Marks, Put
from otelctx.policy import QUEUE
from otelctx_instrumentation.patching import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otelctx.carrier import Hop

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


_declared: dict[str, _Declared] = {}


class _Declared:
    """A declared queue: ``module:attribute``, and which object it is by now."""

    __slots__ = ("is_told", "path", "plain", "queue")

    def __init__(self, path: str) -> None:
        self.path = path
        self.queue: Any = None
        self.plain: Any = None
        """What stands behind `queue`, where that is another object."""
        self.is_told = False

    def look(self, *, complete: bool = False) -> None:
        """Let the queue that is there adopt, if there is one; where it is `complete` and has none, say so."""
        module, _, attribute = self.path.partition(":")
        *owners, name = attribute.split(".")
        try:
            owner = reduce(getattr, owners, sys.modules[module])
            there = getattr(owner, name)
        except (KeyError, AttributeError):
            if complete:
                self._tell("is not there")
            return
        if there is self.queue or there is None:
            return
        try:
            queue = _adopting(there, name)
        except TypeError:
            self._tell(f"is a {type(there).__qualname__}, and no queue that can adopt")
            return
        if queue is not there:
            setattr(owner, name, queue)
            self.plain = there
        self.queue = queue

    def _tell(self, what: str) -> None:
        if not self.is_told:
            self.is_told = True
            faults.wrong_setting("queue", f"{self.path} is declared, and {what}")

    def undo(self) -> None:
        """Let it be as a plain queue again, and put the one behind it back where ours still stands for it."""
        queue, self.queue = self.queue, None
        if queue is None:
            return
        # Its class stays: another thread may be in one of its methods.
        queue._otelctx_marks.on = False
        if self.plain is None:
            return
        module, _, attribute = self.path.partition(":")
        *owners, name = attribute.split(".")
        try:
            owner = reduce(getattr, owners, sys.modules[module])
        except (KeyError, AttributeError):
            return
        if getattr(owner, name, None) is queue:
            setattr(owner, name, self.plain)


def turn_on(declared: Iterable[str]) -> None:
    """Let adopting queues adopt, and those that are `declared`, ``module:attribute`` each, be adopting ones."""
    global _is_on
    _is_on = True
    declared = tuple(declared)
    for path in [path for path in _declared if path not in declared]:
        _declared.pop(path).undo()
    for path in declared:
        if path not in _declared:
            one = _declared[path] = _Declared(path)
            module = path.partition(":")[0]
            # Where it is there already, and still running, more may come; the hook is then called at once.
            complete = module not in sys.modules or not is_loading(module)
            when_imported(module, lambda _, one=one, complete=complete: _imported(one, complete))  # type: ignore[misc]
    adoption.watch(look if _declared else None)


def _imported(one: _Declared, complete: bool) -> None:
    if _declared.get(one.path) is one:
        one.look(complete=complete)


def look() -> None:
    """Look for each declared queue again: it may be made by now, or be another one."""
    for one in [*_declared.values()]:
        one.look()


def turn_off() -> None:
    """Let adopting queues be plain ones, and those that were declared what they were."""
    global _is_on
    _is_on = False
    adoption.watch(None)
    while _declared:
        _declared.popitem()[1].undo()


def adopting(queue: Q) -> Q:
    """See `otelctx.adopting`."""
    return _adopting(queue, type(queue).__qualname__)


def _adopting(queue: Q, name: str) -> Q:
    for kind in _KINDS:
        module = sys.modules.get(kind.module)
        if module is not None and isinstance(queue, module.Queue):
            _mark(queue, name, kind, module)
            return queue
    module = sys.modules.get("multiprocessing.queues")
    if module is not None and _between_processes(queue, name, module):
        return queue
    module = sys.modules.get("queue")
    if module is not None and isinstance(queue, module.SimpleQueue):
        front: Q = _in_front_of(queue, name)
        return front
    wrong = type(queue).__name__
    raise TypeError(f"otelctx.adopting() takes a queue of queue, asyncio or multiprocessing, and not {wrong!r}")


def _mark(queue: Any, name: str, kind: _Kind, module: Any) -> None:
    known = vars(queue).get(_MARKS)
    if known is not None:
        known.on = True
        return
    base = _base_of(queue)
    classes = (module.Queue, module.LifoQueue, module.PriorityQueue)
    is_bare = all(getattr(base, method) in [getattr(known, method) for known in classes] for method in ("_put", "_get"))
    marks = Marks(name, attrgetter(kind.container), is_bare=is_bare, is_lifo=isinstance(queue, module.LifoQueue))
    # Not under the queue's lock, which this very thread may hold. Whatever comes and goes meanwhile is nobody's as
    # well, and is noticed by counting.
    marks.recount(queue, getattr(queue, kind.size)())
    if vars(queue).setdefault(_MARKS, marks) is marks:
        _set_class(queue, _class_for(base, kind))


def _base_of(queue: Any) -> type:
    """The class of `queue`, without us."""
    made = type(queue)
    base: type = vars(made).get(_BASE, made)
    return base


def _unmarked() -> Marks:
    """The marks of a queue that the application has made by the class of an adopting one: they are off."""
    marks = Marks("", lambda _: ())
    marks.on = False
    return marks


class _Blank: ...


def _subclass(base: type, attributes: dict[str, Any]) -> Any:
    """A subclass of `base` that looks like it, and of which it is not told: nobody has written one."""
    is_told = any("__init_subclass__" in vars(one) for one in base.__mro__[:-1])
    looks = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    meta: Any = type(base)
    made = meta(base.__name__, (_Blank if is_told else base,), {**looks, **attributes})
    if is_told:
        made.__bases__ = (base,)
    return made


def _class_for(base: type, kind: _Kind) -> type:
    """The class of the adopting queues among those of class `base`: the same one for all."""
    known: type
    for known in type.__subclasses__(base):
        if vars(known).get(_BASE) is base:
            return known
    size = kind.size

    def put(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        marks: Marks = self._otelctx_marks
        if not (_is_on and marks.on):
            marks.let_go()
            return getattr(super(made, self), kind.put)(*args, **kwargs)
        put = Put(marks, adoption.departing(marks.name))
        try:
            return getattr(super(made, self), kind.put)(*args, **kwargs)
        finally:
            put.end()
            marks.let_go()

    def get(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        marks: Marks = self._otelctx_marks
        if not (_is_on and marks.on):
            marks.let_go()
            return getattr(super(made, self), kind.get)(*args, **kwargs)
        get = Get(marks)
        try:
            item = getattr(super(made, self), kind.get)(*args, **kwargs)
        except BaseException:
            get.end()
            raise
        carried = get.end_with(item)
        marks.let_go()
        if carried is not NOTHING:
            adoption.adopt(carried, self)
        return item

    def _put(self: Any, item: Any, /, *args: Any, **kwargs: Any) -> Any:
        done = super(made, self)._put(item, *args, **kwargs)
        marks: Marks = self._otelctx_marks
        if _is_on and marks.on:
            marks.added(self, item, getattr(self, size)())
        elif marks:
            marks.forget()
        return done

    def _get(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        item = super(made, self)._get(*args, **kwargs)
        marks: Marks = self._otelctx_marks
        if _is_on and marks.on:
            marks.taken(self, item, getattr(self, size)())
        elif marks:
            marks.forget()
        return item

    def __reduce_ex__(self: Any, protocol: Any, /) -> Any:  # noqa: N807
        return _plain(super(made, self).__reduce_ex__(protocol), made)

    replaced = {kind.put: put, kind.get: get, "_put": _put, "_get": _get}
    made: Any = _subclass(
        base,
        {
            **{name: wraps(getattr(base, name))(method) for name, method in replaced.items()},
            "__reduce_ex__": __reduce_ex__,
            "__class__": property(lambda _: base),
            _MARKS: _unmarked(),
        },
    )
    type.__setattr__(made, _BASE, base)  # last, by which others find it: its methods have `made` now
    return made  # type: ignore[no-any-return]


def _in_front_of(plain: Any, name: str) -> Any:
    """What stands in front of the `queue.SimpleQueue` `plain`: put and got there is adopted."""
    base = type(plain)
    if _BASE in vars(base):
        plain._otelctx_marks.on = True
        return plain
    front = _front_for(base)()
    front._plain = plain
    front._otelctx_marks = marks = Marks(name, lambda _: ())
    marks.forget(unmarked=plain.qsize())
    return front


def _front_for(base: Any) -> Any:
    known: type
    for known in type.__subclasses__(base):
        if vars(known).get(_BASE) is base:
            return known

    def put(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        marks: Marks = self._otelctx_marks
        plain = self._plain
        if not (_is_on and marks.on):
            with self._lock:
                marks.forget(unmarked=plain.qsize() + 1)
                done = plain.put(*args, **kwargs)
        else:
            carried = adoption.departing(marks.name)
            with self._lock:
                done = plain.put(*args, **kwargs)
                marks.follow(args[0] if args else kwargs["item"], carried, lambda: plain.qsize() + self._waiting)
        marks.let_go()
        return done

    def get(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._waiting += 1
        try:
            item = self._plain.get(*args, **kwargs)
        except BaseException:
            with self._lock:
                self._waiting -= 1
            raise
        with self._lock:
            carried = self._otelctx_marks.lead(item)
            self._waiting -= 1  # now: a put in between, by a signal handler, counts the marks
        if _is_on and self._otelctx_marks.on:
            adoption.adopt(carried, self)
        return item

    def put_nowait(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return put(self, *args, **kwargs)

    def get_nowait(self: Any) -> Any:
        return get(self, block=False)

    def empty(self: Any) -> Any:
        return self._plain.empty()

    def qsize(self: Any) -> Any:
        return self._plain.qsize()

    def __new__(cls: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        front = base.__new__(cls)
        front._plain, front._waiting = base(*args, **kwargs), 0
        front._lock = RLock()  # a put may come in the middle of another, from a signal handler or a garbage collection
        front._otelctx_marks = _unmarked()
        return front

    def __reduce_ex__(self: Any, protocol: Any, /) -> Any:  # noqa: N807
        return self._plain.__reduce_ex__(protocol)

    methods = (put, get, put_nowait, get_nowait, empty, qsize)
    kind: Any = type(base)
    return kind(
        base.__name__,
        (base,),
        {
            **{method.__name__: _named_like(getattr(base, method.__name__), method) for method in methods},
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            "__slots__": ("_lock", _MARKS, "_plain", "_waiting"),
            "__new__": __new__,
            "__reduce_ex__": __reduce_ex__,
            "__class__": property(lambda _: base),
            _BASE: base,
        },
    )


def _named_like(original: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    named = wraps(original)(method)
    if (signature := getattr(original, "__text_signature__", None)) is not None:
        named.__dict__["__text_signature__"] = signature
    return named


# --- between processes -----------------------------------------------------------------------------------------------


class _Letter:
    """What goes through a pipe in an item's place, and is the item when it is unpickled, wherever that is."""

    __slots__ = ("hop", "item", "text")

    def __init__(self, item: Any, text: str, hop: Hop) -> None:
        self.item, self.text, self.hop = item, text, hop

    def __reduce__(self) -> tuple[Any, ...]:
        return opened, (self.item, self.text, self.hop)


_READING: Final[ContextVar[list[tuple[str, Hop]] | None]] = ContextVar("otelctx.reading", default=None)
"""What was with the item that an adopting ``get`` reads."""


def opened(item: Any, text: str, hop: Hop) -> Any:
    """The item of a letter; what was with it is for the adopting ``get`` that reads it, if it is one."""
    read = _READING.get()
    if read is not None:
        read.append((text, hop))
    return item


class _Outbox(deque[Any]):
    """A queue's buffer, from which a thread feeds the pipe: what is put into it by an adopting ``put`` is a letter."""

    marks: Marks

    def append(self, item: Any, /) -> None:
        departed = self.marks.departed()
        super().append(item if departed is NOTHING else _Letter(item, *departed))


def _between_processes(queue: Any, name: str, module: Any) -> bool:
    """Whether `queue` is one of `multiprocessing`, which adopts from now on."""
    if not isinstance(queue, module.Queue | module.SimpleQueue):
        return False
    known = vars(queue).get(_MARKS)
    if known is not None:
        known.on = True
        return True
    base: Any = _base_of(queue)
    is_simple = isinstance(queue, module.SimpleQueue)
    is_plain = base.put in (module.SimpleQueue.put, module.Queue.put, module.JoinableQueue.put)
    if not is_plain and (is_simple or queue._thread is not None):
        return False  # it would meet letters
    vars(queue)[_MARKS] = Marks(name, lambda _: ())
    if not is_simple and queue._thread is None:
        queue._buffer = _outbox(queue)
    _set_class(queue, _class_between_processes(base, is_simple=is_simple))
    return True


def _outbox(queue: Any) -> _Outbox:
    buffer = _Outbox()
    buffer.marks = queue._otelctx_marks
    return buffer


def _class_between_processes(base: type, *, is_simple: bool) -> type:
    known: type
    for known in type.__subclasses__(base):
        if vars(known).get(_BASE) is base:
            return known

    def put(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        marks: Marks = self._otelctx_marks
        departed = _departing(marks.name) if _is_on and marks.on else None
        if departed is None:
            return super(made, self).put(*args, **kwargs)
        if is_simple or getattr(self._buffer, "marks", None) is not marks:  # the feeder was there before us
            if args:
                args = (_Letter(args[0], *departed), *args[1:])
            elif "obj" in kwargs:
                kwargs["obj"] = _Letter(kwargs["obj"], *departed)
            return super(made, self).put(*args, **kwargs)
        put = Put(marks, departed)
        try:
            return super(made, self).put(*args, **kwargs)
        finally:
            put.end()

    def get(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not (_is_on and self._otelctx_marks.on):
            return super(made, self).get(*args, **kwargs)
        read: list[tuple[str, Hop]] = []
        token = _READING.set(read)
        try:
            item = super(made, self).get(*args, **kwargs)
        finally:
            _READING.reset(token)
        adoption.adopt(carrier.received(*read[-1]) if read else None, self)
        return item

    def _reset(self: Any, /, *args: Any, **kwargs: Any) -> None:
        super(made, self)._reset(*args, **kwargs)
        self._buffer = _outbox(self)

    def _on_queue_feeder_error(exc: Any, item: Any) -> Any:
        return base._on_queue_feeder_error(exc, item.item if isinstance(item, _Letter) else item)  # type: ignore[attr-defined]

    def __reduce_ex__(self: Any, protocol: Any, /) -> Any:  # noqa: N807
        marks: Marks = self._otelctx_marks
        reduced = _plain(super(made, self).__reduce_ex__(protocol), made)
        if _is_on and marks.on and carrier.can_arrive("spawn"):
            return adopting_there, (base, marks.name), *reduced[2:]
        return reduced

    methods: dict[str, Any] = {"put": put, "get": get}
    if not is_simple:
        methods["_reset"] = _reset
    attributes: dict[str, Any] = {name: wraps(getattr(base, name))(method) for name, method in methods.items()}
    if isinstance(_as_it_lies(base, "_on_queue_feeder_error"), staticmethod):
        attributes["_on_queue_feeder_error"] = staticmethod(_on_queue_feeder_error)
    made: Any = _subclass(
        base,
        {
            **attributes,
            "__reduce_ex__": __reduce_ex__,
            "__class__": property(lambda _: base),
            _MARKS: _unmarked(),
        },
    )
    type.__setattr__(made, _BASE, base)  # last, by which others find it: its methods have `made` now
    return made  # type: ignore[no-any-return]


def _as_it_lies(base: type, name: str) -> Any:
    return next((vars(one)[name] for one in base.__mro__ if name in vars(one)), None)


def _departing(name: str) -> tuple[str, Hop] | None:
    try:
        departing = adoption.departing(name)
        return carrier.packed(departing, QUEUE) if departing is not None and carrier.can_arrive("spawn") else None
    except Exception as exc:
        faults.internal_error("queue", exc)
        return None


def adopting_there(base: type, name: str) -> Any:
    """A queue of the class `base` that is adopting where it is unpickled, in a process that was given it."""
    queue: Any = object.__new__(base)
    vars(queue)[_MARKS] = Marks(name, lambda _: ())
    _set_class(queue, _class_between_processes(base, is_simple=not hasattr(base, "_reset")))
    return queue


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
