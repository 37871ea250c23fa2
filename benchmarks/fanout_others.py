"""Runs `python -c pass` on many hosts at once with another tool, for `benchmarks.fanout`. Runs in the tools' own venv.

Imports the standard library and the chosen tool only. The hosts are given as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def _fabric(box: dict[str, Any]) -> None:
    from fabric import Config, Connection

    options = {"key_filename": box["key"], "look_for_keys": False, "allow_agent": False, "banner_timeout": 60}

    def one(address: str) -> None:
        config = Config(overrides={"load_ssh_configs": False})  # threads cannot share one
        with Connection(address, port=box["port"], config=config, connect_kwargs=options) as connection:
            connection.client.load_host_keys(box["known_hosts"])
            connection.run(f"{box['python']} -c pass", hide=True, in_stream=False)

    with ThreadPoolExecutor(box["hosts"]) as pool:
        list(pool.map(one, box["addresses"]))


def _asyncssh(box: dict[str, Any]) -> None:
    import asyncssh

    options = {"port": box["port"], "client_keys": [box["key"]], "known_hosts": box["known_hosts"], "config": None}

    async def one(address: str) -> None:
        async with asyncssh.connect(address, login_timeout=60, **options) as connection:
            await connection.run(f"{box['python']} -c pass", check=True)

    async def everyone() -> None:
        await asyncio.gather(*map(one, box["addresses"]))

    asyncio.run(everyone())


if __name__ == "__main__":
    {"fabric": _fabric, "asyncssh": _asyncssh}[sys.argv[1]](json.loads(sys.argv[2]))
