"""A steady load for a gateway: ``load.py URL REQUESTS_PER_SECOND SECONDS``. Writes one line of JSON at the end.

Each turn is two requests: a message, and the model's answer to it (a search). A turn begins when its time has come,
whether the earlier ones are over or not, so a gateway that stands still is not spared.
"""

import asyncio
import itertools
import json
import sys
import time

import aiohttp

CHANNELS = ("slack:ops", "telegram:family")


async def main(url: str, rate: float, seconds: float) -> None:
    """Send the load, and say what became of it."""
    failed: list[str] = []
    answered = 0

    async def post(path: str, body: object) -> dict[str, str]:
        nonlocal answered
        try:
            async with http.post(path, json=body) as answer:
                text = await answer.text()
                if answer.status >= 400:
                    raise OSError(f"HTTP {answer.status}: {text}")
                answered += 1
                found: dict[str, str] = json.loads(text) if text else {}
                return found
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            failed.append(f"{path}: {type(exc).__name__}: {exc}")
            return {}

    async def turn(key: str) -> None:
        begun = await post(f"/sessions/{key}/messages", {"text": "what is new?"})
        if begun:
            calls = [{"tool": "search", "argument": "news"}]
            await post(f"/turns/{begun['turn']}/completion", {"calls": calls})

    async def follow(key: str) -> None:
        async with http.get(f"/sessions/{key}/events", timeout=aiohttp.ClientTimeout(None)) as events:
            async for _ in events.content:
                pass

    timeout = aiohttp.ClientTimeout(30)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=aiohttp.TCPConnector(limit=64)) as http:
        followers = [asyncio.create_task(follow(key)) for key in CHANNELS]
        turns: set[asyncio.Task[None]] = set()
        began = time.monotonic()
        for number, key in zip(itertools.count(), itertools.cycle(CHANNELS), strict=False):
            due = began + number * 2 / rate
            if due - began >= seconds:
                break
            await asyncio.sleep(due - time.monotonic())
            task = asyncio.create_task(turn(key))
            turns.add(task)
            task.add_done_callback(turns.discard)
        if turns:
            await asyncio.wait(turns)
        took = time.monotonic() - began
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
    print(json.dumps({"answered": answered, "failed": failed, "seconds": took}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
