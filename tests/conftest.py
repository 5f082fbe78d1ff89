"""What several test files need: the real engine's python, and a model it can serve."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.tuner_process")

SCRIPTS = Path(__file__).parent.parent / "scripts"
INSTALL = SCRIPTS / "install_sglang_cpu.sh"


@pytest.fixture(scope="session")
def sglang_python() -> Path:
    """Return the python of a real SGLang for the CPU; skip without one."""
    if named := os.environ.get("SGL_TUNER_SGLANG_PYTHON"):
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = hashlib.sha256(INSTALL.read_bytes()).hexdigest()[:12]
    folder = cache / "sgl-tuner" / "engines" / f"sglang-cpu-{version}"
    if not (folder / ".finished").exists():
        pytest.skip("the real engine is not installed: run scripts/install_sglang_cpu.sh first")
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def tiny_model(sglang_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model of a few hundred thousand random weights."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    maker = SCRIPTS / "make_tiny_model.py"
    subprocess.run([sglang_python, maker, folder], check=True, stdout=subprocess.DEVNULL)
    return folder
