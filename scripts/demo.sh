#!/usr/bin/env bash
# Set up, then run the main job on the EMULATED engine: from a study file to a report and MLflow.
# Run again after an interruption and it goes on; remove studies/emulated-chat to begin anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
[ -e demo.toml ] || .venv/bin/tuner init demo.toml --emulated
.venv/bin/tuner check demo.toml
.venv/bin/tuner tune demo.toml
echo "compare the launches in MLflow: .venv/bin/tuner ui demo.toml"
