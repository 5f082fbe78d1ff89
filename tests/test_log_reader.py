"""What is new in a log that a process is still writing."""

from pathlib import Path

from runners.log_reader import LogReader


def test_each_whole_line_comes_once(tmp_path: Path) -> None:
    """A line that is cut in half comes when it is whole."""
    path = tmp_path / "log"
    path.touch()
    reader = LogReader(path)
    assert reader.new_lines() == []
    path.write_text("one\ntw")
    assert reader.new_lines() == ["one"]
    path.write_text("one\ntwo\nthree\n")
    assert reader.new_lines() == ["two", "three"]
    assert reader.new_lines() == []


def test_a_burst_costs_no_more_than_its_end(tmp_path: Path) -> None:
    """Of 48 MiB at once only the end is read, so that a look stays cheap."""
    path = tmp_path / "log"
    path.write_text("begun and nev")
    reader = LogReader(path)
    assert reader.new_lines() == []
    path.write_bytes(b"begun and never ended\n" + (b"y" * 79 + b"\n") * 600_000 + b"last words\n")
    lines = reader.new_lines()
    assert lines[-1] == "last words"
    assert not any("begun" in line for line in lines)
    assert sum(map(len, lines)) < 1024**2
    assert reader.new_lines() == []


def test_a_log_that_was_cut_begins_anew(tmp_path: Path) -> None:
    """What was printed into a truncated file is read from its start; half a line is forgotten."""
    path = tmp_path / "log"
    path.write_text("one\ntwo\nhal")
    reader = LogReader(path)
    assert reader.new_lines() == ["one", "two"]
    path.write_text("x\n")
    assert reader.new_lines() == ["x"]
