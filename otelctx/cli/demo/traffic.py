"""The traffic: clients of two chat channels, and a worker, whose work overlaps in a way that is the same every time.

In each round both channels have a turn under way before either turn's tools run, and the channel that began last is the
one whose key the gateway's environment holds. So a tool that asks the environment gets the last channel's key, for
certain: half of the approvals go astray where nothing carries the key. Both turns leave a background process behind, of
one name, before either of these ends. And while a worker works on its task, a cron job is due in its process. No
sleeping, no luck.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

CHANNELS = ("slack:ops", "telegram:family")
JOB = "nightly"
WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Card:
    """An approval card that somebody saw: the command, the channel that asked for it, the channel that was shown it."""

    approval: str
    command: str
    asked_by: str
    shown_to: str

    @property
    def misrouted(self) -> bool:
        """Whether the card was shown to a channel that had not asked."""
        return self.asked_by != self.shown_to


@dataclass(frozen=True, slots=True)
class WakeUp:
    """The end of a background process: the channel that it belongs to, and the one that was woken."""

    process: str
    owner: str
    woken: str

    @property
    def misrouted(self) -> bool:
        """Whether a channel was woken for a process that is not its own."""
        return self.owner != self.woken


@dataclass(frozen=True, slots=True)
class Task:
    """A worker's task: who closed it (None: nobody), and what its heartbeats said that they were for."""

    name: str
    closed_by: str | None
    heartbeats: tuple[str | None, ...]

    @property
    def stolen(self) -> bool:
        """Whether somebody else than its worker closed it."""
        return self.closed_by not in (WORKER, None)

    @property
    def held(self) -> bool:
        """Whether the worker's heartbeat beat, and was for this task each time."""
        return set(self.heartbeats) == {self.name}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the traffic: how many approvals were needed and the cards that were seen; wake-ups; tasks."""

    approvals: int
    cards: tuple[Card, ...]
    wake_ups: tuple[WakeUp, ...]
    tasks: tuple[Task, ...]

    @property
    def misrouted(self) -> tuple[Card, ...]:
        """The cards that reached the wrong channel."""
        return tuple(card for card in self.cards if card.misrouted)

    @property
    def unseen(self) -> int:
        """How many approvals were shown to nobody."""
        return self.approvals - len(self.cards)

    @property
    def misled(self) -> tuple[WakeUp, ...]:
        """The wake-ups that reached the wrong channel."""
        return tuple(wake_up for wake_up in self.wake_ups if wake_up.misrouted)

    @property
    def stolen(self) -> tuple[Task, ...]:
        """The tasks that were closed by a job that does not own them."""
        return tuple(task for task in self.tasks if task.stolen)


async def drive(http: httpx.AsyncClient, rounds: int, on_round: Callable[[], None]) -> Outcome:
    """Send `rounds` rounds of traffic (one turn for each channel) and one task to the gateway behind `http`.

    `on_round` is called after each round. Raises `httpx.HTTPError` when the gateway fails or goes away, and does not
    return before everything has its end: put a timeout around it.
    """
    seen = _Seen()
    clients = [_Client(http, key, seen) for key in CHANNELS]
    everything = asyncio.create_task(_everything(clients, rounds, on_round))
    tasks = [everything, *(asyncio.create_task(client.listen()) for client in clients)]
    try:
        # A listener ends only by a failure, which ends the traffic as well.
        finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Outcome(
        len(seen.commands),
        tuple(seen.cards),
        tuple(WakeUp(process, owner, seen.woken[process]) for process, owner in seen.processes.items()),
        tuple(Task(task, seen.closed.get(task), tuple(seen.heartbeats)) for task in seen.tasks),
    )


async def _everything(clients: list["_Client"], rounds: int, on_round: Callable[[], None]) -> None:
    first = clients[0]
    # A worker takes a moment to start: the rounds go on meanwhile.
    task = await first.dispatch()
    # A process that is no turn's: whose it is, nobody can know, and the gateway is to do as it was told.
    backup = await first.start_process("backup")
    for number in range(rounds):
        # Each channel in turn is the last to write the environment.
        await _round(clients if number % 2 == 0 else clients[::-1], number)
        on_round()
    await first.end_process(backup)
    await first.night_at_work(task)


async def _round(clients: list["_Client"], number: int) -> None:
    turns = [await client.begin(number) for client in clients]
    # Both turns are under way and wait for the model; now it answers one, and then the other.
    processes = [await client.complete(turn, number) for client, turn in zip(clients, turns, strict=True)]
    # And now that both have left a process behind, those come to their ends.
    for client, process in zip(clients, processes, strict=True):
        await client.end_process(process)


@dataclass(slots=True)
class _Seen:
    """What has happened so far, in all channels."""

    commands: dict[str, str] = field(default_factory=dict)
    """The commands that need an approval, and the channels that asked for them."""
    cards: list[Card] = field(default_factory=list)
    processes: dict[str, str] = field(default_factory=dict)
    """The background processes, and the channels that they belong to."""
    woken: dict[str, str] = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)
    closed: dict[str, str] = field(default_factory=dict)
    heartbeats: list[str | None] = field(default_factory=list)
    results: dict[str, list[str]] = field(default_factory=dict)
    """What the tools of a turn gave."""
    happened: defaultdict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    """By what one waits for: a turn's start and its reply, a process's end, the end of a run in the worker."""


class _Client:
    """The people in one channel, and the model that their agent asks."""

    def __init__(self, http: httpx.AsyncClient, key: str, seen: _Seen) -> None:
        self._http = http
        self._key = key
        self._seen = seen

    async def begin(self, number: int) -> str:
        """Send a message, and return its turn once that is under way."""
        text = f"Please clean up after build {number}, and build again."
        turn = (await self._post(f"/sessions/{self._key}/messages", {"text": text}))["turn"]
        await self._until(f"{turn} started")
        return turn

    async def complete(self, turn: str, number: int) -> str:
        """Answer as the model would: remove the build, begin a new one; return that one's process.

        No two turns ask for the same command, and all of them call their process ``build``.
        """
        command = f"rm -rf /srv/{self._key.replace(':', '-')}/build-{number}"
        self._seen.commands[command] = self._key
        calls = [
            {"tool": "shell", "argument": command},
            {"tool": "background", "argument": "build"},
        ]
        await self._post(f"/turns/{turn}/completion", {"calls": calls})
        await self._until(f"{turn} replied")
        process = self._seen.results.pop(turn)[-1].partition(":")[0]
        self._seen.processes[process] = self._key
        return process

    async def start_process(self, name: str) -> str:
        """Start a background process outside of all turns, for this channel."""
        process = (await self._post("/processes", {"name": name, "wake": self._key}))["process"]
        self._seen.processes[process] = self._key
        return process

    async def end_process(self, process: str) -> None:
        """Let a process come to its end, and wait until somebody has been woken."""
        await self._post(f"/processes/{process}/end")
        await self._until(f"{process} ended")

    async def dispatch(self) -> str:
        """Give a task to a worker."""
        task = (await self._post(f"/sessions/{self._key}/tasks", {"text": "Write the release notes."}))["task"]
        self._seen.tasks.append(task)
        return task

    async def night_at_work(self, task: str) -> None:
        """While the worker is at work, a job is due in its process; after that, the worker is done."""
        await self._post(f"/tasks/{task}/jobs", {"job": JOB})
        await self._until(f"{JOB} finished")
        await self._post(f"/tasks/{task}/completion")
        await self._until(f"{WORKER} finished")

    async def listen(self) -> None:
        """Follow what the channel is shown, and answer its cards, until cancelled."""
        async with self._http.stream("GET", f"/sessions/{self._key}/events", timeout=None) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    await self._on_event(json.loads(line.removeprefix("data:")))
        raise httpx.RemoteProtocolError(f"the events of {self._key} ended")

    async def _on_event(self, event: dict[str, str]) -> None:
        seen = self._seen
        match event["type"]:
            case "turn.started":
                seen.happened[f"{event['turn']} started"].set()
            case "reply":
                seen.results[event["turn"]] = list(event["results"])
                seen.happened[f"{event['turn']} replied"].set()
            case "approval":
                card = Card(event["approval"], event["command"], seen.commands[event["command"]], self._key)
                seen.cards.append(card)
                await self._post(f"/approvals/{card.approval}", {"decision": "deny" if card.misrouted else "approve"})
            case "wake-up":
                seen.woken[event["process"]] = self._key
                seen.happened[f"{event['process']} ended"].set()
            case "task.heartbeat":
                seen.heartbeats.append(event["task"])
            case "task.closed":
                seen.closed[event["task"]] = event["by"]
                seen.happened[f"{event['by']} finished"].set()
            case "task.refused" | "report":
                seen.happened[f"{event['by']} finished"].set()

    async def _until(self, what: str) -> None:
        await self._seen.happened[what].wait()

    async def _post(self, path: str, body: object = None) -> dict[str, str]:
        response = (await self._http.post(path, json=body)).raise_for_status()
        answer: dict[str, str] = response.json() if response.content else {}
        return answer
