"""MLflow's own pages on the store a study writes to."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tuner.bad_input import BadInputError
from tuner.mlflow_pages import Pages, pages_of
from tuner.switches import set_switches

SQLITE = "sqlite:///"


def serve(uri: str, folder: Path, *, port: int) -> int:
    """Serve the pages on the loopback interface until interrupted; return the exit code.

    First says where the launches of the study in *folder* are.

    Raises:
        BadInputError: the store is a server already or does not exist yet, or the port is taken.
    """
    if uri.startswith(("http://", "https://")):
        raise BadInputError(f"the runs are on a tracking server: open {uri} in a browser")
    if uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).exists():
        raise BadInputError(
            f"nothing is recorded yet: {uri} does not exist; run 'tuner tune' first"
        )
    _refuse_taken(port)
    if (pages := Pages.read(folder)) is not None:
        sys.stdout.write(f"launches:   {pages.runs(pages_of(uri, port))}\n")
        sys.stdout.write(f"comparison: {pages.compare(pages_of(uri, port))}\n")
        sys.stdout.flush()
    environment = dict(os.environ)
    set_switches(environment, local_ray=True)
    environment.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    words = ["-m", "mlflow", "ui", "--backend-store-uri", uri, "--host", "127.0.0.1"]
    try:
        ended = subprocess.run(
            [sys.executable, *words, "--port", str(port), "--workers", "1"],
            env=environment,
            check=False,
        )
    except KeyboardInterrupt:
        return 0
    return ended.returncode


def _refuse_taken(port: int) -> None:
    """Refuse a port at which MLflow's server would try again for ever."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise BadInputError(
                f"port {port} must be free, found: {error.strerror}; name another one with --port"
            ) from error
