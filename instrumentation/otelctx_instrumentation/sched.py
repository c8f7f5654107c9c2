"""The standard library's ``sched``.

What is patched and why there: ``scheduler.enterabs``, which ``enter`` goes through, is where an event departs. ``run``
calls the event's action by itself, so the action is one that arrives. It inherits from whoever entered it, without the
claim. One that its own run enters again, with the same arguments, is a recurring job: each such run is minted.

What is to be seen of it: the ``action`` of an event is an object of otelctx's, which equals the application's function,
has its attributes, and is that function once it was pickled or copied.
"""

from __future__ import annotations

from operator import getitem
from typing import TYPE_CHECKING, Any, Final

from otelctx import cron, faults, place, policy, rearmed, snapshot
from otelctx.departure import Departure
from otelctx.runs import Arrival
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

RUNNER: Final = "sched"


class _Action:
    """An action that arrives when it is first called, as its event departed."""

    __slots__ = ("__wrapped__", "departure")

    def __init__(self, action: Callable[..., Any], departure: Departure) -> None:
        self.__wrapped__ = action
        self.departure: Departure | None = departure

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        departure, self.departure = self.departure, None  # an application may keep its events
        action = self.__wrapped__
        try:
            if departure is None:
                return action(*args, **kwargs)
            return Arrival(departure, action).run(_running, action, args, kwargs)
        finally:
            del departure, args, kwargs

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == (other.__wrapped__ if isinstance(other, _Action) else other))

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        # An event that is pickled or copied has the application's function, also where otelctx is not known.
        return getitem, ((self.__wrapped__,), 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


def _running(action: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with rearmed.running(action, args, kwargs):
        return action(*args, **kwargs)


def _enterabs(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def enterabs(self: Any, *args: Any, **kwargs: Any) -> Any:
        if active.on:
            try:
                args, kwargs = _carrying(args, kwargs)
            except Exception as exc:
                faults.internal_error("sched", exc)
        return original(self, *args, **kwargs)

    return enterabs


_ACTION: Final = 2
"""Where `enterabs` has the action: time, priority, action, argument, kwargs."""


def _carrying(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = {**dict(zip(("time", "priority", "action", "argument", "kwargs"), args, strict=False)), **kwargs}
    if not callable(given.get("action")):
        return args, kwargs  # the original, or the run, says what is wrong
    action = given["action"]
    named = given.get("kwargs")
    named = named if isinstance(named, dict) else {}  # `enter` hands a sentinel on, for none
    carrying = _Action(action, _departing(action, given.get("argument", ()), named))
    if len(args) > _ACTION:
        return (*args[:_ACTION], carrying, *args[_ACTION + 1 :]), kwargs
    return args, {**kwargs, "action": carrying}


def _departing(action: Any, argument: Any, kwargs: Any) -> Departure:
    if isinstance(action, _Action):  # somebody enters an event's own action again
        action = action.__wrapped__
    if rearmed.is_again(action, argument, kwargs):
        return cron.departure(RUNNER, place.name_of(action), action)
    return Departure(snapshot.depart_as(policy.DEFERRED), policy.DEFERRED, called=action)


PATCHES = (Patch("sched", "scheduler.enterabs", _enterabs),)
