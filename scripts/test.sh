#!/usr/bin/env bash
# Set up, install the real SGLang for the CPU beside us (once, in the user's cache folder), and
# run every check and test. Further words go to pytest: scripts/test.sh -m 'not sglang'
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh dev
case " $* " in
  *"not sglang"*) ;;
  *) if command -v python3.11 >/dev/null; then
       SGL_TUNER_SGLANG_PYTHON=$(bash scripts/install_sglang_cpu.sh | tail -n 1)
       export SGL_TUNER_SGLANG_PYTHON
     else
       echo "no python3.11 here, which SGLang's CPU build needs: its tests are skipped" >&2
     fi ;;
esac
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/lint-imports
.venv/bin/pytest "$@"
