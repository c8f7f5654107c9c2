"""The traffic: clients of two chat channels, whose turns overlap in a way that is the same every time.

In each round both channels have a turn under way before either turn's tools run, and the channel that began last is the
one whose key the gateway's environment holds. So a tool that asks the environment gets the last channel's key, for
certain: half of the approvals go astray where nothing carries the key. No sleeping, no luck.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

CHANNELS = ("slack:ops", "telegram:family")


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
class Outcome:
    """What came of the traffic: how many approvals were needed, and the cards that were seen."""

    approvals: int
    cards: tuple[Card, ...]

    @property
    def misrouted(self) -> tuple[Card, ...]:
        """The cards that reached the wrong channel."""
        return tuple(card for card in self.cards if card.misrouted)

    @property
    def unseen(self) -> int:
        """How many approvals were shown to nobody."""
        return self.approvals - len(self.cards)


async def drive(http: httpx.AsyncClient, rounds: int, on_round: Callable[[], None]) -> Outcome:
    """Send `rounds` rounds of traffic (one turn for each channel) to the gateway behind `http`.

    `on_round` is called after each. Raises `httpx.HTTPError` when the gateway fails or goes away, and does not return
    before every turn has its reply: put a timeout around it.
    """
    owners: dict[str, str] = {}
    clients = [_Client(http, key, owners) for key in CHANNELS]
    rounds_done = asyncio.create_task(_rounds(clients, rounds, on_round))
    tasks = [rounds_done, *(asyncio.create_task(client.listen()) for client in clients)]
    try:
        # A listener ends only by a failure, which ends the rounds as well.
        finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Outcome(len(owners), tuple(card for client in clients for card in client.cards))


async def _rounds(clients: list["_Client"], rounds: int, on_round: Callable[[], None]) -> None:
    for number in range(rounds):
        # Each channel in turn is the last to write the environment.
        await _round(clients if number % 2 == 0 else clients[::-1], number)
        on_round()


async def _round(clients: list["_Client"], number: int) -> None:
    turns = [await client.begin(number) for client in clients]
    # Both turns are under way and wait for the model; now it answers both.
    await asyncio.gather(*(client.complete(turn, number) for client, turn in zip(clients, turns, strict=True)))
    await asyncio.gather(*(client.reply(turn) for client, turn in zip(clients, turns, strict=True)))


@dataclass(slots=True)
class _Progress:
    started: asyncio.Event = field(default_factory=asyncio.Event)
    replied: asyncio.Event = field(default_factory=asyncio.Event)


class _Client:
    """The people in one channel, and the model that their agent asks."""

    def __init__(self, http: httpx.AsyncClient, key: str, owners: dict[str, str]) -> None:
        self.cards: list[Card] = []
        self._http = http
        self._key = key
        self._owners = owners
        self._turns: defaultdict[str, _Progress] = defaultdict(_Progress)

    async def begin(self, number: int) -> str:
        """Send a message, and return its turn once that is under way."""
        text = f"Please clean up after build {number}."
        response = await self._http.post(f"/sessions/{self._key}/messages", json={"text": text})
        turn = str(response.raise_for_status().json()["turn"])
        await self._turns[turn].started.wait()
        return turn

    async def complete(self, turn: str, number: int) -> None:
        """Answer as the model would: look around, and remove the build. No two turns ask for the same command."""
        workspace = f"/srv/{self._key.replace(':', '-')}/build-{number}"
        command = f"rm -rf {workspace}"
        self._owners[command] = self._key
        calls = [
            {"tool": "search", "argument": f"build {number}"},
            {"tool": "read_file", "argument": f"{workspace}/README"},
            {"tool": "shell", "argument": command},
        ]
        (await self._http.post(f"/turns/{turn}/completion", json={"calls": calls})).raise_for_status()

    async def reply(self, turn: str) -> None:
        """Wait for the turn's end."""
        await self._turns[turn].replied.wait()

    async def listen(self) -> None:
        """Follow what the channel is shown, and answer its cards, until cancelled."""
        async with self._http.stream("GET", f"/sessions/{self._key}/events", timeout=None) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    await self._on_event(json.loads(line.removeprefix("data:")))
        raise httpx.RemoteProtocolError(f"the events of {self._key} ended")

    async def _on_event(self, event: dict[str, str]) -> None:
        match event["type"]:
            case "turn.started":
                self._turns[event["turn"]].started.set()
            case "reply":
                self._turns[event["turn"]].replied.set()
            case "approval":
                card = Card(event["approval"], event["command"], self._owners[event["command"]], self._key)
                self.cards.append(card)
                decision = "deny" if card.misrouted else "approve"
                answer = await self._http.post(f"/approvals/{card.approval}", json={"decision": decision})
                answer.raise_for_status()
