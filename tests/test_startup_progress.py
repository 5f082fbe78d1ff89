"""When a starting engine is given up, and what it was doing."""

from pathlib import Path

from runners.log_reader import MOST_BYTES, LogReader
from runners.startup_progress import READ_STEP, Observation, StartupProgress


def test_a_slow_start_that_moves_is_given_its_time() -> None:
    """Log lines, reading and GPU memory each count as movement, up to the hard limit."""
    progress = StartupProgress(0.0, limit_s=100.0, stall_s=10.0)
    progress.observe(Observation(new_lines=["Load weight begin."]), 9.0)
    assert progress.phase == "loading weights"
    progress.observe(Observation(read_bytes=READ_STEP), 18.0)
    progress.observe(Observation(read_bytes=READ_STEP, gpu_memory_mib=500), 27.0)
    assert progress.exceeded(36.0) is None
    assert progress.exceeded(37.5) == "startup_stall_s"
    assert progress.exceeded(100.5) == "startup_timeout_s"


def test_answers_to_our_own_questions_are_no_movement() -> None:
    """An engine that only logs our polls, and reads them, has stalled."""
    progress = StartupProgress(0.0, limit_s=100.0, stall_s=10.0)
    line = 'INFO: 127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable'
    progress.observe(Observation(new_lines=[line], read_bytes=4096), 9.0)
    assert progress.exceeded(11.0) == "startup_stall_s"


def test_a_log_is_read_line_by_line_and_a_burst_from_its_end(tmp_path: Path) -> None:
    """Half a line waits for its other half; of a long burst only a bounded end is read."""
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    reader = LogReader(path)
    assert reader.new_lines() == ["one"]
    with path.open("ab") as log:
        log.write(b"o\n")
    assert reader.new_lines() == ["two"]
    with path.open("ab") as log:
        log.write(b"x" * 99 + b"\n")
        log.write((b"x" * 99 + b"\n") * (8 * MOST_BYTES // 100) + b"last\n")
    lines = reader.new_lines()
    assert lines[-1] == "last"
    assert sum(map(len, lines)) <= MOST_BYTES
    assert reader.new_lines() == []
