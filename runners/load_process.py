"""Starts the load client beside a trial, watches it, and leaves nothing running."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from runners.client_spec import ClientSpec
from runners.errors import MachineFaultError
from runners.records import ClientReport, RequestRecord, read_records
from runners.spec import LoadSpec

WATCH_S = 0.2
START_S = 120.0  # to start the client, read the plan and write the records
SLACK_S = 10.0  # a round may take longer than its time-out: connecting, and a pause after it
LAST_WATCH_S = 1.0  # an engine that died under us may need a moment until its end is seen
FRAME = " |+-"  # that Python draws around the errors of a group of tasks
# -P: a file of the user's folder must not stand in for one of ours
COMMAND = (sys.executable, "-P", "-m", "runners.load_client")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What the client wrote down: each request, and how the client itself fared."""

    records: tuple[RequestRecord, ...]
    report: ClientReport


def run_load(  # noqa: PLR0913 - all by name, and none belongs to another
    *,
    base_url: str,
    model: str,
    plan_path: Path,
    load: LoadSpec,
    folder: Path,
    on_progress: Callable[[str, int, int], None],
    watch: Callable[[], None],
) -> LoadResult:
    """Send the plan at *plan_path* to the engine at *base_url* from a process of its own.

    *on_progress* hears of each phase and of progress; *watch* is called about five times a second
    and may raise, for instance because the engine died: the client is killed and the error goes
    on to the caller. A client that crashes or hangs is a `MachineFaultError`.
    """
    spec = ClientSpec(
        base_url=base_url,
        model=model,
        plan_path=str(plan_path),
        concurrency=load.concurrency,
        first_token_timeout_s=load.first_token_timeout_s,
        stall_timeout_s=load.stall_timeout_s,
        total_timeout_s=load.total_timeout_s,
        records_path=str(folder / "requests.jsonl"),
        report_path=str(folder / "client.json"),
    )
    log = folder / "client.log"
    with _client(spec, log) as client:
        _follow(client, _longest_s(load), on_progress, watch)
        code = client.wait()
    if code != 0:
        raise MachineFaultError(_crash(code, log))
    report = ClientReport(**orjson.loads(Path(spec.report_path).read_bytes()))
    if report.gave_up is not None:
        _watch_for(LAST_WATCH_S, watch)
    return LoadResult(records=tuple(read_records(Path(spec.records_path))), report=report)


@contextmanager
def _client(spec: ClientSpec, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the client; it ends with the block, or with us, whatever happens.

    It has a session of its own, so that Ctrl-C reaches it through us alone.
    """
    with log.open("wb") as errors:
        client = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    try:
        _send(client, spec)
        yield client
    finally:
        client.kill()
        client.wait()
        for pipe in (client.stdin, client.stdout):
            if pipe is not None:
                pipe.close()


def _send(client: subprocess.Popen[bytes], spec: ClientSpec) -> None:
    """Send the orders; stdin stays open, because its end tells the client that we are gone."""
    assert client.stdin is not None  # noqa: S101 - it is a pipe
    try:
        client.stdin.write(spec.to_line())
        client.stdin.flush()
    except BrokenPipeError:
        return  # it died at once: its exit status and its log say more


def _follow(
    client: subprocess.Popen[bytes],
    longest_s: float,
    on_progress: Callable[[str, int, int], None],
    watch: Callable[[], None],
) -> None:
    """Pass on what the client says until it has no more to say."""
    assert client.stdout is not None  # noqa: S101 - it is a pipe
    deadline = time.monotonic() + longest_s
    rest = b""
    while (read := _read(client.stdout.fileno(), WATCH_S)) != b"":
        *lines, rest = (rest + (read or b"")).split(b"\n")
        for line in lines:
            said: dict[str, Any] = orjson.loads(line)
            on_progress(said["phase"], said["done"], said["of"])
        watch()
        if time.monotonic() > deadline:
            raise MachineFaultError(f"the load client must end within {longest_s:g} s, it did not")


def _read(pipe: int, seconds: float) -> bytes | None:
    """Return what comes within *seconds*, None if nothing does, and b"" at the end."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return os.read(pipe, 65536) if poll.poll(1000 * seconds) else None


def _watch_for(seconds: float, watch: Callable[[], None]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        watch()
        time.sleep(WATCH_S)
    watch()


def _longest_s(load: LoadSpec) -> float:
    """No honest run takes longer: every round of the slowest slot timed out."""
    rounds = load.warmup_rounds + load.rounds
    return START_S + rounds * (load.total_timeout_s + SLACK_S)


def _crash(code: int, log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [words for line in lines if (words := line.strip(FRAME))]
    last = told[-1] if told else "it wrote no error"
    return f"the load client must end with status 0, it ended with {code}: {last} (see {log})"
