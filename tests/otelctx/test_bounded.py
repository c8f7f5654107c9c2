"""Tables that forget, while other threads change them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otelctx.bounded import make_room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Changing(dict[int, None]):
    """A table that another thread changes at the worst moment: when its first entry is being looked for."""

    change: Callable[[Changing], object] | None = None

    def __iter__(self) -> Iterator[int]:
        first = super().__iter__()
        if self.change is not None:
            change, self.change = self.change, None
            change(self)
        return first


def test_what_came_first_goes() -> None:
    table = dict.fromkeys(range(10))
    make_room(table, 4)
    assert list(table) == [7, 8, 9]


def test_room_is_made_while_another_thread_puts_something_in_or_takes_everything_out() -> None:
    table = Changing(dict.fromkeys(range(10)))
    table.change = lambda changing: changing.update({10: None})
    make_room(table, 4)
    assert list(table) == [8, 9, 10]
    table.change = Changing.clear
    make_room(table, 2)
    assert not table
