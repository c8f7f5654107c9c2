"""Runs the bot twice, without otelctx and with it, and shows whom it has asked: ``python run.py``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
SEND = """
import bot
bot.switch.delay("telegram:family")
token = bot.CURRENT.set("slack:ops")
bot.run.delay("rm -rf build")
bot.CURRENT.reset(token)
"""


def asked(folder: Path, enabled: str) -> list[str]:
    """Whom a bot asks that runs in `folder`; `enabled`: with otelctx."""
    environ = {**os.environ, "BOT_FOLDER": str(folder), "OTELCTX_ENABLED": enabled}
    environ |= {"OTELCTX_CONFIG": str(HERE / "otelctx.toml"), "PYTHONPATH": str(HERE)}
    for name in ("queue", "control"):
        (folder / name).mkdir()
    subprocess.run([sys.executable, "-c", SEND], env=environ, check=True)
    command = [sys.executable, "-m", "celery", "-A", "bot", "worker", "--beat", "--concurrency", "1"]
    with (folder / "log").open("wb") as log:
        worker = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
    said: list[str] = []
    try:
        deadline = time.monotonic() + 60
        while not {"'rm -rf build'", "'rm -rf old'"} <= {line.partition(":")[0] for line in said}:
            if worker.poll() is not None or time.monotonic() > deadline:
                sys.exit((folder / "log").read_text())
            time.sleep(0.1)
            said = (folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(20)
        finally:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
    return sorted(set(said))


if __name__ == "__main__":
    for title, enabled in {"Without otelctx": "false", "With otelctx": "true"}.items():
        with tempfile.TemporaryDirectory() as folder:
            print(f"{title}:", *asked(Path(folder), enabled), sep="\n  ", flush=True)
