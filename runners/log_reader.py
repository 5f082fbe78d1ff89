"""Reads what an engine printed since the last look, a bounded piece at a time."""

import os
from pathlib import Path

MOST_BYTES = 256 * 1024  # a look; of a burst only its end is read
LONGEST_LINE = 2000  # characters: our patterns take long over lines of hundreds of kB


class LogReader:
    """Follows a log that another process writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        """Return the lines finished since the last look; of a long burst only the last ones.

        A progress bar's carriage return ends a line, too.
        """
        more = self._more()
        done, newline, self._rest = _split(self._rest + more)
        if len(self._rest) > MOST_BYTES:
            self._rest = self._rest[:LONGEST_LINE]
        if not newline:
            return []
        return [line[:LONGEST_LINE] for line in done.decode(errors="replace").splitlines()]

    def _more(self) -> bytes:
        with self._path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            if size < self._at:  # somebody cut the file: it begins anew
                self._at, self._rest = 0, b""
            start = max(self._at, size - MOST_BYTES)
            if start > self._at:
                self._rest = b""  # its end was left out
            log.seek(start)
            data = log.read(MOST_BYTES)
        self._at = start + len(data)
        return data


def _split(data: bytes) -> tuple[bytes, bytes, bytes]:
    end = max(data.rfind(b"\n"), data.rfind(b"\r"))
    return data[: end + 1], data[end : end + 1] if end >= 0 else b"", data[end + 1 :]
