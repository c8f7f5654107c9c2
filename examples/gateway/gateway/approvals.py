"""Approval cards: a dangerous command waits until somebody in the channel has said yes."""

import itertools
import logging
from concurrent.futures import Future
from typing import Literal

from opentelemetry import trace

from .channels import Channels
from .session import get_session_key

Decision = Literal["approve", "deny"]

# Longer than a person takes to answer in a demonstration; a card that nobody sees must not hold its worker for ever.
PATIENCE_SECONDS = 60.0

_logger = logging.getLogger(__name__)
_tracer = trace.get_tracer(__name__)


class Approvals:
    """The cards that wait for an answer. `ask` runs in a tool's worker thread, `answer` in the event loop."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._numbers = itertools.count(1)
        self._waiting: dict[str, Future[Decision]] = {}

    def ask(self, command: str) -> Decision:
        """Show a card for `command` in the channel of the current session, and wait for the answer."""
        session_key = get_session_key()
        approval = f"approval-{next(self._numbers)}"
        attributes = {"gateway.approval": approval, "gateway.command": command, "gateway.channel": session_key}
        with _tracer.start_as_current_span("approval", attributes=attributes) as span:
            waiting: Future[Decision] = Future()
            self._waiting[approval] = waiting
            try:
                self._channels.send(session_key, {"type": "approval", "approval": approval, "command": command})
                decision = waiting.result(PATIENCE_SECONDS)
            except KeyError:
                _logger.warning("%s: no channel %r to ask in: denied", approval, session_key)
                decision = "deny"
            except TimeoutError:
                _logger.warning("%s: no answer from %s: denied", approval, session_key)
                decision = "deny"
            finally:
                del self._waiting[approval]
            span.set_attribute("gateway.decision", decision)
        return decision

    def answer(self, approval: str, decision: Decision) -> bool:
        """Answer a card. False where it does not wait, or waits no more."""
        waiting = self._waiting.get(approval)
        if waiting is None or waiting.done():
            return False
        waiting.set_result(decision)
        return True

    def close(self) -> None:
        """Deny whatever still waits, so that no worker outlives the gateway."""
        for approval in list(self._waiting):
            self.answer(approval, "deny")
