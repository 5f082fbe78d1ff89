"""Exports on request: at once, again for each line that comes in, and a last time at their end."""

import json
import threading
from collections.abc import Callable, Iterable
from typing import Protocol


class Answer(Protocol):
    """Where the one line of JSON goes that says how the last export went."""

    def write(self, text: str, /) -> object:
        """Take *text*."""


def export_on_request(
    export: Callable[[], str | None], requests: Iterable[str], answer: Answer
) -> None:
    """Call *export*, which returns what went wrong; requests that came meanwhile are one."""
    news, ended = threading.Event(), threading.Event()

    def listen() -> None:
        for _ in requests:
            news.set()
        ended.set()
        news.set()

    threading.Thread(target=listen, daemon=True).start()
    while True:
        news.clear()
        last = ended.is_set()  # before the export, so that it sees all that was asked for
        trouble = export()
        if last:
            break
        news.wait()
    answer.write(json.dumps({"trouble": trouble}) + "\n")
