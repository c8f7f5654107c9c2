"""Tokens of ContextVars, given back at the end of a block that may end in another context than it began in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextvars import Token


def give_back(*tokens: Token[Any] | None) -> None:
    """Reset the variable of each of `tokens`, in this order.

    Whoever closes a generator, or a coroutine that nobody goes on with, does so in a context of his own. What was set
    is not there, the tokens are refused, and there is nothing to be done.
    """
    for token in tokens:
        if token is not None:
            try:
                token.var.reset(token)
            except ValueError:
                pass
