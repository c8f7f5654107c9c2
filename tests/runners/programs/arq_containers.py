"""For arq's own tests, in the place of ``testcontainers.redis``: the server that is there, at Redis's usual port."""

from __future__ import annotations

from typing import Self


class RedisContainer:
    port = 6379

    def __init__(self, image: str) -> None:
        self.image = image

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def get_container_host_ip(self) -> str:
        return "127.0.0.1"

    def get_exposed_port(self, port: int) -> int:
        return port
