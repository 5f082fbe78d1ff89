"""Follows a container engine's account of a pull, and says now and then how far it is."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from runners.docker_trouble import fault

NEWS_S = 2.0  # between two lines
GIB = 1024**3

Say = Callable[[str], None]


def follow(events: Iterable[Mapping[str, Any]], say: Say) -> None:
    """Read *events* to their end.

    Raises:
        MachineFaultError: one of them is an error.
    """
    done: dict[str, tuple[int, int]] = {}
    next_s = time.monotonic() + NEWS_S
    for event in events:
        if "error" in event:
            raise fault(str(event["error"]))
        detail = event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and "total" in detail:
            done[event["id"]] = (detail["current"], detail["total"])
        if done and time.monotonic() >= next_s:
            next_s = time.monotonic() + NEWS_S
            have, of = (sum(part) / GIB for part in zip(*done.values(), strict=True))
            say(f"pulling image, {have:.2f} of {of:.2f} GiB seen so far")
