"""Ports that launches hold: never shared, never taken from others."""

import socket
from pathlib import Path

import pytest

from runners import listener
from runners.errors import MachineFaultError
from runners.port_reservation import reserve, runtime_folder


def test_two_launches_never_hold_the_same_port(tmp_path: Path) -> None:
    """A reserved port is not given out again before it is let go."""
    with reserve(folder=tmp_path) as first, reserve(folder=tmp_path) as second:
        assert first != second
        assert listener.holder(first) is None
        with (
            pytest.raises(MachineFaultError, match="another launch"),
            reserve(first, folder=tmp_path),
        ):
            pass
    with reserve(first, folder=tmp_path) as again:
        assert again == first


def test_a_port_somebody_listens_on_is_passed_over(tmp_path: Path) -> None:
    """The pool gives the next one; a port that was asked for by number is a fault."""
    with reserve(folder=tmp_path) as taken:
        pass
    with socket.create_server(("127.0.0.1", taken)):
        with reserve(folder=tmp_path) as other:
            assert other != taken
        with (
            pytest.raises(MachineFaultError, match=f"port {taken} is held"),
            reserve(taken, folder=tmp_path),
        ):
            pass


def test_the_locks_lie_in_a_folder_of_the_user_alone(tmp_path: Path) -> None:
    """Other users cannot hold our ports back by holding our files."""
    folder = runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
