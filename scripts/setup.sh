#!/usr/bin/env bash
# Make .venv with the tuner in it: scripts/setup.sh [EXTRA]. Does nothing when all is there already.
# PYTHON=... chooses the interpreter (3.11 to 3.13).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
extra=${1:-}

supported() {
  command -v "$1" >/dev/null 2>&1 &&
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

find_python() {
  local name
  for name in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3 python; do
    if supported "$name"; then
      echo "$name"
      return
    fi
  done
  echo "setup needs Python 3.11, 3.12 or 3.13, found none of them; set PYTHON=/path/to/python" >&2
  exit 2
}

python=$(find_python)
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  echo "setup needs Python's venv module, which $python lacks (Debian: apt-get install python3-venv)" >&2
  exit 2
fi
mark=.venv/installed-$(cat pyproject.toml scripts/setup.sh | "$python" -c \
  'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:12])')${extra:+-$extra}
if [ ! -e "$mark" ]; then
  echo "setting up .venv with $("$python" --version); a few minutes the first time" >&2
  "$python" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${extra:+[$extra]}"
  touch "$mark"
fi
