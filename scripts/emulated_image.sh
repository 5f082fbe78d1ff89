#!/usr/bin/env bash
# Build a container image of the emulated engine: scripts/emulated_image.sh [TAG] [BASE]
# BASE is any image with a python3 of version 3.11 (default: python:3.11-slim). Needs .venv (scripts/setup.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tag=${1:-sgl-tuner-emulated:1} base=${2:-python:3.11-slim}
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
install=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --target "$context/packages")
# what the engine imports, for the image's Python whatever ours is
"${install[@]}" --python-version 3.11 --only-binary=:all: orjson httptools numpy
"${install[@]}" --no-deps --ignore-requires-python .
cat >"$context/Dockerfile" <<END
FROM $base
COPY packages /opt/sgl-tuner
ENV PYTHONPATH=/opt/sgl-tuner PYTHONDONTWRITEBYTECODE=1
END
docker build --quiet --tag "$tag" "$context"
