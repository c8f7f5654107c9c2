"""Child processes: ``subprocess.Popen``, ``os.posix_spawn``, ``os.spawn*``, ``os.system``, multiprocessing's spawn.

What is patched and why there: each of these decides what environment the child gets. ``run``, ``os.popen`` and
``asyncio.create_subprocess_*`` are built on ``Popen``. The ones that would inherit the C environment (``os.spawnv``,
``os.system``, multiprocessing's spawn by ``_posixsubprocess.fork_exec``) are given an environment of their own where it
has to differ. The process's environment is never written.

``os.exec*`` is a child's where the process has been forked (`pty.spawn` and its like); all of them end in ``execv`` or
``execve``. A process that was not forked is about to begin anew (a reloader), as everybody's: it keeps its environment,
whoever asks for that. A forked server's worker that begins anew is not told from a child.

What escapes: ``os.fork`` (the child is this process, with its identity), whatever forks in C. In observe nothing is
said of an ``exec``: a lock that an exporter needs may be held by a thread that the forked process does not have.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from otelctx import children, cron, forks, scoped_env
from otelctx_instrumentation import owners
from otelctx_instrumentation.patching import Active, Hook, Patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_WITHIN_POPEN: Final[ContextVar[bool]] = ContextVar("otelctx.popen", default=False)
"""Whether `Popen` starts a child: it may go through `posix_spawn`, whose environment has been seen to by then."""


def _popen(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    # Popen(args, bufsize, executable, stdin, stdout, stderr, preexec_fn, close_fds, shell, cwd, env, …)
    position = 10

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if not active.on:
            original(self, *args, **kwargs)
            return
        given = args[position] if len(args) > position else kwargs.get("env")
        changed = children.environment(given, scoped_env.process())
        if changed is not None:
            if len(args) > position:
                args = (*args[:position], changed, *args[position + 1 :])
            else:
                kwargs["env"] = changed
        within = _WITHIN_POPEN.set(True)
        try:
            original(self, *args, **kwargs)
        finally:
            _WITHIN_POPEN.reset(within)
        if active.on:
            owners.spawned(self)

    return __init__


def _posix_spawn(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def posix_spawn(path: Any, argv: Any, env: Any, /, **kwargs: Any) -> Any:
        seen_to = not active.on or _WITHIN_POPEN.get()
        changed = None if seen_to else children.environment(env, scoped_env.process())
        return original(path, argv, env if changed is None else changed, **kwargs)

    return posix_spawn


def _spawn_without_environment(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """``os.spawnv`` and ``spawnvp``, by the function of the same name that takes an environment."""
    name = f"{original.__name__}e"

    def spawn(mode: int, file: Any, args: Any) -> Any:
        changed = children.environment(None, scoped_env.process()) if active.on else None
        if changed is None:
            return original(mode, file, args)
        with_environment = getattr(os, name)
        return getattr(with_environment, "__wrapped__", with_environment)(mode, file, args, changed)

    return spawn


def _spawn_with_environment(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def spawn(mode: int, file: Any, args: Any, env: Any) -> Any:
        changed = children.environment(env, scoped_env.process()) if active.on else None
        return original(mode, file, args, env if changed is None else changed)

    return spawn


def _environment_after_fork(given: Any, active: Active) -> dict[str, str] | None:
    if not active.on or not forks.is_child():
        return None
    return children.environment(given, scoped_env.process(), may_tell=False)


def _execv(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def execv(path: Any, argv: Any, /) -> Any:
        changed = _environment_after_fork(None, active)
        if changed is None:
            return original(path, argv)
        return getattr(os.execve, "__wrapped__", os.execve)(path, argv, changed)

    return execv


def _execve(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def execve(path: Any, argv: Any, env: Any) -> Any:
        changed = _environment_after_fork(env, active)
        return original(path, argv, env if changed is None else changed)

    return execve


def _system(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    def system(command: Any) -> int:
        changed = children.environment(None, scoped_env.process()) if active.on else None
        if changed is None or not hasattr(os, "posix_spawn"):
            return int(original(command))
        return _system_in(command, changed)

    return system


def _system_in(command: Any, environment: dict[str, str]) -> int:
    """`os.system` in an `environment`: as POSIX has it, the parent ignores SIGINT and SIGQUIT meanwhile."""
    import signal
    import threading

    ignored = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGQUIT):
            # A handler that Python does not know (faulthandler's) could not be put back.
            if signal.getsignal(number) not in (None, signal.SIG_IGN):
                ignored[number] = signal.signal(number, signal.SIG_IGN)
    try:
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", command], environment, setsigdef=list(ignored))
        return os.waitpid(pid, 0)[1]
    finally:
        for number, handler in ignored.items():
            signal.signal(number, handler)


_INFRASTRUCTURE = ("from multiprocessing.forkserver import", "from multiprocessing.resource_tracker import")


def _is_infrastructure(arguments: Iterable[Any]) -> bool:
    """Whether the child serves everybody for as long as the process lives, whoever starts it."""
    return any(os.fsdecode(argument).startswith(_INFRASTRUCTURE) for argument in arguments)


def _fork_exec(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    # fork_exec(args, executable_list, close_fds, pass_fds, cwd, env, …); an env of None is the C environment.
    position = 5

    def fork_exec(*args: Any) -> Any:
        seen_to = not active.on or _WITHIN_POPEN.get()
        if not seen_to and len(args) > position and args[position] is None and not _is_infrastructure(args[0]):
            changed = children.environment(None, scoped_env.process())
            if changed is not None:
                encoded = [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in changed.items()]
                args = (*args[:position], encoded, *args[position + 1 :])
        return original(*args)

    return fork_exec


def _spawner(original: Callable[..., Any], active: Active) -> Callable[..., Any]:
    if isinstance(original, classmethod | staticmethod):
        return type(original)(_spawner(original.__func__, active))
    if cron.is_asynchronous(original):

        @wraps(original)
        async def spawn_async(*args: Any, **kwargs: Any) -> Any:
            if not active.on:
                return await original(*args, **kwargs)
            with children.spawning():
                return await original(*args, **kwargs)

        return spawn_async

    @wraps(original)
    def spawn(*args: Any, **kwargs: Any) -> Any:
        if not active.on:
            return original(*args, **kwargs)
        with children.spawning():
            return original(*args, **kwargs)

    return spawn


def spawners(paths: Iterable[str]) -> Iterator[Patch]:
    """The patches for the declared dispatchers' spawn functions, ``module:function`` each."""
    for path in paths:
        module, _, name = path.partition(":")
        yield Patch(module, name, _spawner, is_declared=True)


_able: Final[set[Any]] = set()
"""What `_say_what_it_can` has put into ``os.supports_fd``."""


def _say_what_it_can(module: Any) -> None:
    """``os.supports_fd`` has functions in it, and is asked for the one that is in the original's place."""
    ours = getattr(module, "execve", None)
    if getattr(ours, "__wrapped__", None) in module.supports_fd and ours not in module.supports_fd:
        module.supports_fd.add(ours)
        _able.add(ours)


def _say_no_more(module: Any) -> None:
    module.supports_fd.difference_update(_able)
    _able.clear()


HOOKS = (Hook("os", _say_what_it_can, _say_no_more),)
PATCHES = (
    Patch("subprocess", "Popen.__init__", _popen),
    Patch("os", "posix_spawn", _posix_spawn),
    Patch("os", "posix_spawnp", _posix_spawn),
    Patch("os", "spawnv", _spawn_without_environment),
    Patch("os", "spawnvp", _spawn_without_environment),
    Patch("os", "spawnve", _spawn_with_environment),
    Patch("os", "spawnvpe", _spawn_with_environment),
    Patch("os", "execv", _execv),
    Patch("os", "execve", _execve),
    Patch("os", "system", _system),
    Patch("_posixsubprocess", "fork_exec", _fork_exec),
)
