"""The environment: ``os.environ`` and ``os.environb``, which stay the objects that they are.

What is patched and why there: the primitives of their class, ``os._Environ``. All other ways of reading and writing
(``get``, ``in``, ``pop``, ``setdefault``, ``update``, ``|=``, ``copy``, ``items``, ``==``, ``os.getenv``, …) are built
on these, in every version. ``clear`` is one of them in 3.15, and has to know more than single deletions say in any
version. A name that is not declared costs one look into a set. ``os.reload_environ`` (3.14) may bring new names of the
claim's.

What escapes: ``os.putenv``, ``os.unsetenv`` and C's ``getenv``, which know of no context; a deep copy of
``os.environ``, which has data of its own; ``os.exec*`` without an environment where nobody has forked, which
hands on C's. What a child process gets is the business of `otelctx.children`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from otelctx import faults, scoped_env
from otelctx.env_view import Real
from otelctx.interruption import pass_on
from otelctx_instrumentation.patching import Active, Patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otelctx.config import Config


def patches(settings: Config) -> tuple[Patch, ...]:
    """The patches that `settings` ask for: none where the scoped environment is off."""
    return () if settings.scoped_env.mode == "off" else PATCHES


def _is_ours(environ: Any) -> bool:
    """Whether `environ` is the process's, by whichever of its two objects, and somebody is to be told apart in it."""
    return scoped_env.mode != "off" and environ._data is scoped_env.data()


def _declared(environ: Any, key: Any) -> str | None:
    """The name that `key` means, if it is declared. The originals say what is wrong with a key that is none."""
    try:
        name: str = os.environ.decodekey(environ.encodekey(key))
        return name if _is_ours(environ) and scoped_env.declares(name) else None
    except Exception as exc:
        pass_on(exc)
        return None


def _getitem(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def __getitem__(self: Any, key: Any) -> Any:  # noqa: N807
        if not active.on or (type(key) is str and key not in scoped_env.names):
            return original(self, key)
        name = _declared(self, key)
        if name is None:
            return original(self, key)
        try:
            seen = scoped_env.read(name)
        except Exception as exc:
            faults.internal_error("environment", exc)
            return original(self, key)
        if isinstance(seen, Real):
            return original(self, key)
        if seen is None:
            raise KeyError(key)
        return self.decodevalue(os.environ.encodevalue(seen))

    return __getitem__


def _setitem(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def __setitem__(self: Any, key: Any, value: Any) -> None:  # noqa: N807
        name = _declared(self, key) if active.on else None
        if name is None:
            original(self, key, value)
            return
        text = os.environ.decodevalue(self.encodevalue(value))
        if "\0" in text:
            raise ValueError("embedded null byte")  # as putenv does
        if _outcome(name, text) == "real":
            original(self, key, value)

    return __setitem__


_delete: Callable[[Any, Any], None] = os._Environ.__delitem__
"""The method without our patch, for what `clear` deletes in the real environment."""


def _delitem(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    global _delete
    _delete = original

    def __delitem__(self: Any, key: Any) -> None:  # noqa: N807
        name = _declared(self, key) if active.on else None
        if name is None:
            original(self, key)
            return
        outcome = _outcome(name, None)
        if outcome == "absent":
            raise KeyError(key)
        if outcome == "real":
            original(self, key)

    return __delitem__


def _outcome(name: str, value: str | None) -> scoped_env.Outcome:
    try:
        return scoped_env.write(name, value)
    except Exception as exc:
        faults.internal_error("environment", exc)
        return "real"


def _iter(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807
        keys = list(original(self))
        yield from _seen_of(self, keys) if active.on and _is_ours(self) else keys

    return __iter__


def _seen_of(environ: Any, keys: list[Any]) -> list[Any]:
    """Of the real environment's `keys`, those that the current context sees, and the ones that only it sees."""
    try:
        seen = {
            environ.decodekey(os.environ.encodekey(name)): value is not None
            for name, value in scoped_env.looked().items()
        }
    except Exception as exc:
        faults.internal_error("environment", exc)
        return keys
    real = set(keys)
    return [
        *(key for key in keys if seen.get(key, True)),
        *(key for key, there in seen.items() if there and key not in real),
    ]


def _len(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def __len__(self: Any) -> int:  # noqa: N807
        length: int = original(self)
        if not active.on or not _is_ours(self):
            return length
        try:
            for name, value in scoped_env.overlay().items():
                if value is None:
                    length -= 1
                elif scoped_env.real(name) is None:
                    length += 1
        except Exception as exc:
            faults.internal_error("environment", exc)
        return length

    return __len__


def _repr(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def __repr__(self: Any) -> str:  # noqa: N807
        if not active.on or not _is_ours(self) or not scoped_env.overlay():
            return str(original(self))
        return f"environ({{{', '.join(f'{key!r}: {value!r}' for key, value in self.items())}}})"

    return __repr__


def _clear(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def clear(self: Any) -> None:
        if not active.on or not _is_ours(self):
            original(self)
            return
        try:
            doomed = scoped_env.clear()
        except Exception as exc:
            faults.internal_error("environment", exc)
            original(self)
            return
        present = [(key, os.environ.decodekey(key)) for key in list(self._data)]
        going = [key for key, name in present if name in doomed or name not in scoped_env.names]
        if len(going) == len(present) and original.__module__ == "os":
            original(self)  # which clears the C environment as a whole
            return
        for key in going:
            try:
                _delete(self, self.decodekey(key))
            except KeyError:
                pass  # another thread was faster

    return clear


def _reload(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def reload_environ() -> None:
        original()
        if active.on:
            scoped_env.expand()

    return reload_environ


PATCHES = (
    Patch("os", "_Environ.__getitem__", _getitem),
    Patch("os", "_Environ.__setitem__", _setitem),
    Patch("os", "_Environ.__delitem__", _delitem),
    Patch("os", "_Environ.__iter__", _iter),
    Patch("os", "_Environ.__len__", _len),
    Patch("os", "_Environ.__repr__", _repr),
    Patch("os", "_Environ.clear", _clear),
    Patch("os", "reload_environ", _reload),
)
