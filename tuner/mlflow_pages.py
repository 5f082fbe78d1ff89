"""Where in MLflow's own pages the launches of a study are."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

FILE = "mlflow.json"  # in the study's folder
LOCAL_PORT = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What the addresses are made of."""

    experiment_id: str
    measured_run_ids: tuple[str, ...]

    def compare(self, base: str) -> str:
        """Return the address of the page that sets the measured launches side by side."""
        runs = quote(json.dumps(list(self.measured_run_ids)))
        experiments = quote(json.dumps([self.experiment_id]))
        return f"{base}/#/compare-runs?runs={runs}&experiments={experiments}"

    def runs(self, base: str) -> str:
        """Return the address of the list of runs."""
        return f"{base}/#/experiments/{self.experiment_id}/runs"

    def write(self, folder: Path) -> None:
        """Keep them in the study's *folder*."""
        (folder / FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return what was kept in the study's *folder*, None when nothing was exported yet."""
        path = folder / FILE
        if not path.exists():
            return None
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            experiment_id=data["experiment_id"], measured_run_ids=tuple(data["measured_run_ids"])
        )


def pages_of(uri: str, port: int = LOCAL_PORT) -> str:
    """Return the address under which the pages of the store at *uri* are served."""
    if uri.startswith(("http://", "https://")):
        return uri.rstrip("/")
    return f"http://127.0.0.1:{port}"
