"""Installing otelctx at the last moment that is early enough.

Before it is installed, each method that makes a hop (``HOPS``) has a stand-in: a plain function that installs otelctx
when it is first called, and then calls the patched method. A post-import hook cannot do this: what the installation
imports imports ``threading`` and ``logging`` in its turn, which are half imported at that moment. For the same reason
nothing is installed while this thread is inside the import of a module of the standard library, OpenTelemetry or wrapt.

Nothing here raises into the application. Where the installation fails, one line says so on standard error, the original
methods are back in place, and the program runs as if otelctx were not there.
"""

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False  # not typing's: that would be nine tenths of what a start costs
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType
    from typing import Any, Final

__all__ = [
    "HOPS",
    "MONKEY_PATCHERS",
    "activate",
    "complain",
    "disarm",
    "may_activate",
    "original_of",
    "pending",
    "stand_in",
]

HOPS: Final = {
    "threading": ("Thread", "start"),
    "concurrent.futures.thread": ("ThreadPoolExecutor", "submit"),
    "concurrent.futures._base": ("Future", "add_done_callback"),
}
"""Module, class and method of each hop that a program can make with the standard library alone."""

MONKEY_PATCHERS: Final = frozenset({"gevent", "eventlet", "greenlet", "zope"})
"""Libraries, and what they are made of, that replace parts of the standard library and want to be imported first."""

_NOT_INSIDE = frozenset({"otelctx", "otelctx_instrumentation", "wrapt", "opentelemetry"})
_NOT_INSIDE |= sys.stdlib_module_names | MONKEY_PATCHERS

# Seconds. The other thread may need an import lock that the waiting one holds, so the wait has an end.
_PATIENCE: Final = 5.0


def activate() -> None:
    """Install otelctx by the environment, once for the process.

    Returns when it is installed, has failed, or is taking another thread longer than a few seconds. At once where it is
    over already, and for a call from inside the installation. Safe in any thread; never raises.
    """
    _activation.run()


def pending() -> bool:
    """Say whether the installation is still to come: not begun, not over, and not made needless by :func:`disarm`."""
    return not (_activation.closed or _activation.owner is not None)


def disarm() -> None:
    """Put the original methods back where a stand-in is left, and let nothing activate from now on.

    An installation calls this when its patches are applied. Safe in any thread, armed or not, as often as one likes.
    """
    _activation.closed = True
    _put_back()


def original_of(function: Any, owner: object) -> Any:
    """Return what ``function`` stands in for, or ``function`` itself where it is no stand-in.

    Whoever patches a method of the class ``owner`` asks this for what to call, and to put back one day. The patch takes
    the stand-in's place in one step, so that no other thread's hop slips through in between.
    """
    for known in _stand_ins:
        if function is known.function:
            return known.give_way(owner)
    return function


def may_activate(*, after_site: bool) -> bool:
    """Say whether this thread is inside no import that an installation would run into.

    ``after_site`` also says no as long as the interpreter is starting: ``.pth`` lines and ``sitecustomize`` are not the
    application.
    """
    if sys.is_finalizing():
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if name == "site":
            if after_site:
                return False
        elif frame.f_code.co_name == "<module>" and isinstance(name, str) and name.partition(".")[0] in _NOT_INSIDE:
            return False
        frame = frame.f_back
    return True


def stand_in(module: ModuleType) -> None:
    """Give the method that ``HOPS`` names for this module its stand-in, unless it has one, or nothing is pending."""
    if not pending():  # another thread has begun since this module was looked up, and patches it
        return
    class_name, attribute = HOPS[module.__name__]
    owner = getattr(module, class_name, None)
    if not isinstance(owner, type):
        return
    original = vars(owner).get(attribute)
    if callable(original) and all(original is not known.function for known in _stand_ins):
        new = _StandIn(owner, attribute, original)
        setattr(owner, attribute, new.function)
        _stand_ins.append(new)


def complain(what: str, error: BaseException) -> None:
    """Write one line to standard error: ``logging`` may be half imported, or not wanted by this program.

    Raises nothing but what is not ours (`otelctx.interruption`).
    """
    from otelctx.interruption import pass_on

    pass_on(error)
    try:
        sys.stderr.write(f"otelctx: {what}: {type(error).__name__}: {' '.join(str(error).split())}\n")
    except Exception:
        return  # there is no standard error, or it is closed: nobody can be told


class _Activation:
    """The one run of the installation: who runs it, who waits for it, and that it is over."""

    __slots__ = ("_finished", "_guard", "_process", "closed", "owner")

    def __init__(self) -> None:
        self._guard = _thread.allocate_lock()  # for the fields below; never held while anything is imported
        self._finished = _thread.allocate_lock()  # held by the thread that runs it, from start to end
        self._process = 0
        self.owner: int | None = None
        self.closed = False

    def renew_guard(self) -> None:
        """In a forked child: a thread that is gone may hold it."""
        self._guard = _thread.allocate_lock()

    def run(self) -> None:
        me = _thread.get_ident()
        with self._guard:
            running, process = self.owner, self._process
            if running is None:
                if self.closed:
                    return
                self.owner, self._process = me, os.getpid()
                self._finished.acquire()
        if running is None:
            try:
                _install()
            finally:
                self.closed = True
                self.owner = None
                self._finished.release()
        # A child that was forked in the middle of it has no such thread, and import locks that nobody will release.
        elif running != me and process == os.getpid() and self._finished.acquire(timeout=_PATIENCE):
            self._finished.release()


def _install() -> None:
    try:
        from otelctx.installation import install_from_environment

        install_from_environment()  # the stand-ins are still there: another thread's hop waits
    except (Exception, SystemExit) as error:
        complain("not installed", error)
    finally:
        _put_back()
        for known in _stand_ins:
            known.settle()


def _put_back() -> None:
    for known in _stand_ins:
        known.put_back()


class _StandIn:
    """What a method's stand-in replaced, and what it calls."""

    __slots__ = ("_attribute", "_gave_way", "_original", "_owner", "_target", "function")

    def __init__(self, owner: type, attribute: str, original: Callable[..., Any]) -> None:
        from functools import wraps  # not at interpreter start; the module of the method has imported it long since

        self._owner = owner
        self._attribute = attribute
        self._original = original
        self._target = original
        self._gave_way = False

        @wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            if not _over() and may_activate(after_site=False):
                inheriting = self._inheriting(args)
                activate()
                for class_ in inheriting:  # one that has been given a method of its own: what ours does is not for it
                    if attribute in vars(class_):
                        return vars(class_)[attribute](*args, **kwargs)
            return self._target(*args, **kwargs)

        self.function: Callable[..., Any] = function

    def _inheriting(self, args: tuple[Any, ...]) -> list[type]:
        """The classes of the instance in ``args`` that have the method from the owner, the most derived first."""
        classes = type(args[0]).__mro__ if args else ()
        if self._owner not in classes:
            return []
        below = classes[: classes.index(self._owner)]
        return [class_ for class_ in below if self._attribute not in vars(class_)]

    def put_back(self) -> None:
        """Restore the original. A stand-in that someone has wrapped since stays inside, and calls the original."""
        if vars(self._owner).get(self._attribute) is self.function:
            setattr(self._owner, self._attribute, self.give_way(self._owner))

    def give_way(self, owner: object) -> Callable[..., Any]:
        """Return the original for ``owner`` to have instead. A subclass, which inherits the stand-in, leaves it be."""
        self._gave_way = self._gave_way or owner is self._owner
        return self._original

    def settle(self) -> None:
        """Have calls that are under way, or that come by a reference someone kept, go to the patched method.

        To that function, not to whatever the class has at the time: who keeps the stand-in as the "original", and puts
        a wrapper of it on the class later, would call himself for ever.
        """
        if self._gave_way:
            self._target = getattr(self._owner, self._attribute)


def _over() -> bool:
    return _activation.closed and _activation.owner is None


_activation = _Activation()
_stand_ins: list[_StandIn] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_activation.renew_guard)
