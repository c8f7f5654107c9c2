"""What the agent can do. The shell asks before it does something dangerous; no command is ever executed."""

import re
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context

from .approvals import Approvals
from .processes import Processes
from .session import get_session_key

_DANGEROUS = re.compile(r"\brm\s+-[a-z]*r[a-z]*f|\brm\s+-[a-z]*f[a-z]*r|\bmkfs\b|\bdd\s+if=")

_tracer = trace.get_tracer(__name__)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the model asks for: a tool's name and its argument."""

    tool: str
    argument: str


class Tools:
    """The tools by name, each a function from its argument to a text. Called from many worker threads at once."""

    def __init__(self, approvals: Approvals, processes: Processes) -> None:
        self._approvals = approvals
        self._processes = processes
        self._tools = {
            "search": self._search,
            "read_file": self._read_file,
            "shell": self._shell,
            "background": self._background,
        }

    def run(self, call: ToolCall, turn: Context) -> str:
        """Run one call. `turn` is the OpenTelemetry context of the turn, so that the tool's span is in its trace."""
        attributes = {"gateway.argument": call.argument, "gateway.channel": get_session_key()}
        with _tracer.start_as_current_span(f"tool {call.tool}", context=turn, attributes=attributes):
            tool = self._tools.get(call.tool)
            return f"no such tool: {call.tool}" if tool is None else tool(call.argument)

    def _search(self, query: str) -> str:
        return f"3 results for {query!r}"

    def _read_file(self, path: str) -> str:
        return f"{path}: 12 lines"

    def _shell(self, command: str) -> str:
        if _DANGEROUS.search(command) and self._approvals.ask(command) != "approve":
            return f"denied: {command}"
        return f"done: {command}"

    def _background(self, name: str) -> str:
        return f"{self._processes.start(name, get_session_key())}: {name} is running"
