"""Beside a queue: whose each of its items is.

An item has no place for its putter's identity, and none is made: items are the application's. So a queue has *marks*,
found by the item itself (``is``), which come and go with it under the queue's own lock: that survives priorities, many
getters at once, and one object in the queue several times.

There are as many marks as items, *unless* somebody has gone around the queue's methods (``queue.queue.clear()``). That
is seen by counting, at the next item, and the marks are then compared with what is there. Where it cannot be told whose
an item is, it is nobody's: rather no key than somebody else's.
"""

from __future__ import annotations

from collections import Counter, deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from otelctx import adoption, faults
from otelctx.departure import Departure
from otelctx.interruption import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otelctx.adoption import Carried

_Mark: TypeAlias = "tuple[Any, Carried | None]"
"""An item, which is kept alive so that no other object gets its number, and what departed with it."""

NOTHING: Final = object()
"""Stands for what departed where nothing was put or got, or where it was adopted by now."""


class Put:
    """One adopting ``put``, for as long as it lasts: what departs with what is put into the queue of `marks`.

    It lies in a ContextVar: threads have one context each at a time, and so have the greenlets that share a thread.
    """

    __slots__ = ("_token", "carried", "marks")

    def __init__(self, marks: Marks, carried: Any) -> None:
        self.marks: Marks | None = marks
        self.carried = carried
        self._token = _PUTTING.set(self)

    def end(self) -> None:
        """It is over, also for a task that began in the middle of it, with a copy of its context."""
        self.marks = self.carried = None
        _PUTTING.reset(self._token)


class Get:
    """One adopting ``get``, for as long as it lasts: what it has taken out of the queue of `marks`, and whose it is."""

    __slots__ = ("_taken", "_token", "marks")

    def __init__(self, marks: Marks) -> None:
        self.marks: Marks | None = marks
        self._taken: list[_Mark] = []
        self._token = _GETTING.set(self)

    def took(self, item: Any, carried: Any) -> None:
        """`carried` departed with `item`."""
        self._taken.append((item, carried))

    def end(self) -> None:
        """It is over, also for a task that began in the middle of it, with a copy of its context."""
        self.marks = None
        self._taken = []
        _GETTING.reset(self._token)

    def end_with(self, item: Any) -> Any:
        """It is over, and returns `item`: what is to be adopted, `NOTHING` where that has been done.

        A subclass's ``get`` may drop some items, unpack them, take many at once and return them one by one. Of what
        it has not taken in this call, nobody knows whose it is.
        """
        marks, taken = self.marks, self._taken
        self.end()
        found = [mark for mark in taken if _is_of(item, mark[0])] or taken
        outer = _GETTING.get()
        if outer is not None and outer.marks is marks:  # its class gets by calling itself
            outer.took(item, NOTHING)
        return found[0][1] if found and _are_one_identitys(found) else None


_PUTTING: Final[ContextVar[Put | None]] = ContextVar("otelctx.putting", default=None)
_GETTING: Final[ContextVar[Get | None]] = ContextVar("otelctx.getting", default=None)


def _is_of(item: Any, taken: Any) -> bool:
    return item is taken or (type(taken) in (tuple, list) and any(part is item for part in taken))


class Marks:
    """The marks of one queue.

    `added`, `taken` and `recount` are called under the queue's lock. What they let go of is kept until `let_go`,
    outside of it: it may be the last reference to an item, whose finalizer may put something into the same queue.
    """

    __slots__ = (
        "_by_id",
        "_contents",
        "_count",
        "_gone",
        "_is_bare",
        "_is_lifo",
        "_unmarked",
        "name",
        "on",
    )

    def __init__(
        self, name: str, contents: Callable[[Any], Iterable[Any]], *, is_bare: bool = True, is_lifo: bool = False
    ) -> None:
        self.name = name
        """What the queue is called in spans and trails."""
        self.on = True
        """Whether the queue is to adopt: one that was declared is, until otelctx is uninstalled."""
        self._contents = contents
        self._is_bare = is_bare
        """Whether the queue's container has the very items; a subclass may keep something else there."""
        self._is_lifo = is_lifo
        self._by_id: dict[int, _Mark | deque[_Mark]] = {}
        self._count = 0
        self._unmarked = 0
        """How many items are in the queue besides those that have a mark."""
        self._gone: deque[object] = deque()

    def __len__(self) -> int:
        """How many items have a mark."""
        return self._count

    def let_go(self) -> None:
        """Let go of what is not needed any more. Not to be called under the queue's lock."""
        if self._gone:
            self._gone.clear()

    def departed(self) -> Any:
        """What departs with what is being put here; `NOTHING` where that is no adopting put."""
        put = _PUTTING.get()
        return put.carried if put is not None and put.marks is self else NOTHING

    def added(self, queue: Any, item: Any, size: int) -> None:
        """`item` has been put into `queue`, which now has `size` items. Never raises: the item is there by now."""
        try:
            carried: Any = self.departed()
            if carried is NOTHING:  # by a subclass's own way, and under the lock: nothing may be logged here
                with faults.unlogged():
                    carried = adoption.departing(self.name)
            if self._count + self._unmarked != size - 1:
                self.recount(queue, size - 1, without=item)
            self._add(item, carried)
        except Exception as exc:
            self._lost_count(exc, size)

    def taken(self, queue: Any, item: Any, size: int) -> None:
        """`item` has been taken out of `queue`, which now has `size` items. Never raises: nobody else has the item."""
        try:
            if self._count + self._unmarked != size + 1:
                self.recount(queue, size + 1, with_=item)
            carried, get = self._take(item), _GETTING.get()
            if get is not None and get.marks is self:  # else whoever takes it does not get it: `shutdown`
                get.took(item, carried)
        except Exception as exc:
            self._lost_count(exc, size)

    def _lost_count(self, exc: Exception, size: int) -> None:
        self.forget(unmarked=size)
        with faults.unlogged():
            faults.internal_error("queue", exc)

    def recount(self, queue: Any, size: int, *, without: object = NOTHING, with_: object = NOTHING) -> None:
        """Compare the marks with what is in `queue`, which has `size` items, with `without` left out, `with_` added."""
        try:
            items = list(self._contents(queue))
        except Exception as exc:  # a subclass's container that cannot be looked at, or is not there
            pass_on(exc)
            items = []
        present = Counter(map(id, items))
        if without is not NOTHING:
            present[id(without)] -= 1
        if with_ is not NOTHING:
            items.append(with_)
            present[id(with_)] += 1
        known, self._by_id, self._count = self._by_id, {}, 0
        self._gone.append(known)
        for number, found in known.items():
            marks = list(found) if isinstance(found, deque) else [found]
            there = present.pop(number, 0)
            if there != len(marks) and (there > len(marks) or not _are_one_identitys(marks)):
                marks = [(marks[0][0], None)]
            for place in range(there):
                self._add(*marks[min(place, len(marks) - 1)])
        if self._is_bare:
            for item in items:
                if present[id(item)] > 0:
                    present[id(item)] -= 1
                    self._add(item, None)
        self._unmarked = max(0, size - self._count)

    def follow(self, item: Any, carried: Carried | None, size: Callable[[], int]) -> None:
        """`item` has been put behind all others. More marks than `size` are not to be relied on."""
        self._add(item, carried)
        count = self._count  # before the size: a signal handler may put something in between
        if count > (at_most := size()):
            self.forget(at_most)

    def lead(self, item: Any) -> Carried | None:
        """`item` has been got; what departed with it. Items of unknown origin were in front."""
        if self._unmarked:
            self._unmarked -= 1
            return None
        return self._take(item)

    def forget(self, unmarked: int = 0) -> None:
        """Keep nothing: there are `unmarked` items, and they are nobody's."""
        self._gone.append(self._by_id)
        self._by_id, self._count, self._unmarked = {}, 0, unmarked

    def _add(self, item: Any, carried: Carried | None) -> None:
        number = id(item)
        known = self._by_id.get(number)
        if known is None:
            self._by_id[number] = (item, carried)
        elif isinstance(known, deque):
            known.append((item, carried))
        else:
            self._by_id[number] = deque((known, (item, carried)))
        self._count += 1

    def _take(self, item: Any) -> Carried | None:
        number = id(item)
        known = self._by_id.get(number)
        if known is None:
            self._unmarked = max(0, self._unmarked - 1)
            return None
        self._count -= 1
        if isinstance(known, deque):
            carried = (known.pop() if self._is_lifo else known.popleft())[1]
            if not known:
                self._by_id.pop(number, None)
            return carried
        self._by_id.pop(number, None)  # a signal handler's put may have been here, and forgotten it
        return known[1]


def _are_one_identitys(marks: list[_Mark]) -> bool:
    """Whether it does not matter which of the `marks`, of one object, are those that are left."""
    first = _departed(marks[0][1])
    return all(_departed(carried) is first for _, carried in marks)


def _departed(carried: Carried | None) -> object:
    return carried.snapshot if isinstance(carried, Departure) else carried
