"""What keeps `tuner ui` from serving is said at once."""

import socket
from pathlib import Path

import pytest

from tuner.bad_input import BadInputError
from tuner.mlflow_ui import serve


def test_a_taken_port_is_refused_at_once(tmp_path: Path) -> None:
    """MLflow's own server would start its worker over and over."""
    store = tmp_path / "mlflow.db"
    store.touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BadInputError, match=f"port {port} must be free"):
            serve(f"sqlite:///{store}", tmp_path, port=port)
