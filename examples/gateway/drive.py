"""Send the demonstration's traffic to a gateway that runs somewhere: ``python drive.py --url http://localhost:8000``."""

import argparse
import asyncio

import httpx

from otelctx.cli.demo.traffic import drive

# Seconds that a round may take; a card that nobody answers ends after 60.
_PATIENCE = 120.0


def main() -> None:
    """Drive the gateway, a round at a time, for ever or as often as `--rounds` says."""
    parser = argparse.ArgumentParser(prog="python drive.py", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the gateway listens")
    parser.add_argument("--rounds", type=int, default=0, help="how many; 0: until it is interrupted")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two rounds")
    arguments = parser.parse_args()
    try:
        asyncio.run(_drive(arguments.url, arguments.rounds, arguments.pause))
    except KeyboardInterrupt:
        pass


async def _drive(url: str, rounds: int, pause: float) -> None:
    number = 0
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
        while not rounds or number < rounds:
            number += 1
            async with asyncio.timeout(_PATIENCE):
                outcome = await drive(http, 1, lambda: None)
            print(
                f"round {number}: {len(outcome.cards)} approval cards, {len(outcome.misrouted)} to the wrong channel; "
                f"{len(outcome.wake_ups)} wake-ups, {len(outcome.misled)} to the wrong channel; "
                f"{len(outcome.tasks)} task, {len(outcome.stolen)} closed by a job",
                flush=True,
            )
            await asyncio.sleep(pause)


if __name__ == "__main__":
    main()
