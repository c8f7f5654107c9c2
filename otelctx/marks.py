"""Beside a queue: whose each of its items is.

An item has no place for its putter's identity, and none is made: items are the application's. So a queue has *marks*,
found by the item itself (``is``), which come and go with it under the queue's own lock: that survives priorities, many
getters at once, and one object in the queue several times.

There are as many marks as items, *unless* somebody has gone around the queue's methods (``queue.queue.clear()``). That
is seen by counting, at the next item, and the marks are then compared with what is there. Where it cannot be told whose
an item is, it is nobody's: rather no key than somebody else's.
"""

from __future__ import annotations

from _thread import get_ident
from collections import Counter, deque
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
"""Stands for what departed where nothing was got, or where it is not known yet."""


class Marks:
    """The marks of one queue.

    `added`, `taken`, `recount` and `forget` are called under the queue's lock; the others by the thread that puts or
    gets, outside of it.
    """

    __slots__ = (
        "_by_id",
        "_contents",
        "_count",
        "_getting",
        "_is_bare",
        "_is_lifo",
        "_putting",
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
        self._putting: dict[int, object] = {}
        self._getting: dict[int, object] = {}

    def __len__(self) -> int:
        """How many items have a mark."""
        return self._count

    # --- outside of the queue's lock ---------------------------------------------------------------------------------

    def putting(self, carried: object) -> object:
        """`carried` departs with what the current thread puts from now on; returns what departed until now."""
        thread = get_ident()
        before = self._putting.get(thread, NOTHING)
        if carried is NOTHING:
            self._putting.pop(thread, None)
        else:
            self._putting[thread] = carried
        return before

    def getting(self) -> None:
        """The current thread wants to know whose the item is that it is about to get."""
        self._getting[get_ident()] = NOTHING

    def got(self) -> Any:
        """What departed with the item that the current thread has got last; `NOTHING` where it has got none."""
        return self._getting.pop(get_ident(), NOTHING)

    def departed(self) -> Any:
        """What departs with what the current thread is putting; None where that is no adopting put."""
        return self._putting.get(get_ident())

    # --- under it ----------------------------------------------------------------------------------------------------

    def added(self, queue: Any, item: Any, size: int) -> None:
        """`item` has been put into `queue`, which now has `size` items. Never raises: the item is there by now."""
        try:
            carried: Any = self._putting.get(get_ident(), NOTHING)
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
            carried = self._take(item)
            thread = get_ident()
            if thread in self._getting:  # else whoever takes it does not get it: `shutdown`
                self._getting[thread] = carried
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

    def follow(self, item: Any, at_most: int) -> None:
        """`item` has been put behind all others. More than `at_most` marks are not to be relied on."""
        self._add(item, self._putting.get(get_ident()))  # type: ignore[arg-type]
        if self._count > at_most:
            self.forget(at_most)

    def lead(self, item: Any) -> Carried | None:
        """`item` has been got; what departed with it. Items of unknown origin were in front."""
        if self._unmarked:
            self._unmarked -= 1
            return None
        return self._take(item)

    def forget(self, unmarked: int = 0) -> None:
        """Keep nothing: there are `unmarked` items, and they are nobody's."""
        self._by_id.clear()
        self._count, self._unmarked = 0, unmarked

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
                del self._by_id[number]
            return carried
        del self._by_id[number]
        return known[1]


def _are_one_identitys(marks: list[_Mark]) -> bool:
    """Whether it does not matter which of the `marks`, of one object, are those that are left."""
    first = _departed(marks[0][1])
    return all(_departed(carried) is first for _, carried in marks)


def _departed(carried: Carried | None) -> object:
    return carried.snapshot if isinstance(carried, Departure) else carried
