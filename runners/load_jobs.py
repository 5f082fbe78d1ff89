"""The requests of a plan as bytes ready to send, slot by slot."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from runners.client_spec import ClientSpec
from runners.fillers import fresh


@dataclass(frozen=True, slots=True)
class Target:
    """Where the engine listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request of the plan, ready to send."""

    id: int
    phase: str
    slot: int
    round: int
    shape: int
    asked_tokens: int
    payload: bytes  # the whole HTTP request
    again: Callable[[int], bytes]  # the same after so many repeats, its own tokens turned


def target_of(base_url: str) -> Target:
    """Return the host and port of *base_url*; plain HTTP only, as engines speak it."""
    parts = urlsplit(base_url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ValueError(f"base_url must look like http://127.0.0.1:30000, found {base_url!r}")
    return Target(parts.hostname, parts.port or 80)


def read_jobs(spec: ClientSpec) -> list[list[Job]]:
    """Return the jobs of each slot in the order of the plan."""
    slots: list[list[Job]] = [[] for _ in range(spec.concurrency)]
    head = _head(spec)
    with Path(spec.plan_path).open("rb") as lines:
        for line in lines:
            request: dict[str, Any] = orjson.loads(line)
            slots[request["slot"]].append(_job(request, spec.model, head))
    return slots


def _head(spec: ClientSpec) -> str:
    target = target_of(spec.base_url)
    return (
        f"POST {spec.path} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n"
        "Content-Type: application/json\r\nAccept: text/event-stream\r\n"
    )


def _job(request: dict[str, Any], model: str, head: str) -> Job:
    prompt, prefix_tokens = request["prompt"], request["prefix_tokens"]

    def payload(times: int) -> bytes:
        body = orjson.dumps(
            {
                "model": model,
                "prompt": fresh(prompt, prefix_tokens, times),
                "max_tokens": request["output_tokens"],
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    return Job(
        id=request["id"],
        phase=request["phase"],
        slot=request["slot"],
        round=request["round"],
        shape=request["shape"],
        asked_tokens=request["output_tokens"],
        payload=payload(0),
        again=payload,
    )
