#!/usr/bin/env bash
# Installs the real SGLang 0.5.23 for the CPU into an environment of its own, for the tests that
# start a real engine without a GPU. About 2.3 GB; instant when it is there already.
#
#   scripts/install_sglang_cpu.sh      the last line it prints is the path of the engine's python
#
# It needs Python 3.11 on x86_64, and a CPU build of torch: from what pip is configured to look at,
# else from PyTorch's index of CPU wheels, or the one that SGL_TUNER_TORCH_INDEX names.
set -euo pipefail

fail() { echo "install_sglang_cpu.sh: $*" >&2; exit 1; }

[[ $(uname -sm) == "Linux x86_64" ]] || fail "needs Linux on x86_64, found $(uname -sm)"

version=$(sha256sum "${BASH_SOURCE[0]}" | cut -c1-12)
engines="${XDG_CACHE_HOME:-$HOME/.cache}/sgl-tuner/engines"
venv="$engines/sglang-cpu-$version"
finished="$venv/.finished"

mkdir -p "$engines"
exec 9>"$engines/sglang-cpu.lock"
if ! flock -n 9; then
  echo "another install is running, waiting for it" >&2
  flock -w 1800 9 || fail "another install still holds $engines/sglang-cpu.lock after 30 minutes"
fi
if [[ -e $finished ]]; then
  echo "$venv/bin/python"
  exit 0
fi

python=$(command -v python3.11 || true)
[[ -n $python ]] || fail "needs python3.11 (this SGLang's wheels are tested with no other), found none on PATH"

echo "installing SGLang 0.5.23 for the CPU into $venv (2.3 GB, some minutes)" >&2
rm -rf "$venv" # what an interrupted install left
"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip install -qq --disable-pip-version-check)

# From where pip looks by itself; PyPI has no CPU build for Linux, PyTorch's own index has.
torch="torch==2.13.0+cpu"
index=${SGL_TUNER_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
"${pip[@]}" "$torch" 2>/dev/null || "${pip[@]}" "$torch" --index-url "$index" \
  || fail "found no $torch at $index; set SGL_TUNER_TORCH_INDEX to an index of CPU wheels"

# Without their own requirements, which would bring CUDA along: kernels that a CPU never calls.
"${pip[@]}" --no-deps sglang==0.5.23 torchvision==0.28.0 triton==3.7.1

# What SGLang imports when it serves a text model. pip's complaints about the rest are expected, and
# kept for the case that it fails.
log="$venv/pip.log"
"${pip[@]}" >"$log" 2>&1 \
  torch==2.13.0 \
  transformers==5.19.0 tokenizers==0.23.2 sentencepiece==0.2.1 compressed-tensors==0.20.1 \
  gguf==0.19.0 xgrammar==0.2.7 apache-tvm-ffi==0.1.11 openai==2.8.0 openai-harmony==0.0.4 \
  aiohttp==3.14.5 fastapi==0.165.0 uvicorn==0.54.0 uvloop==0.23.0 orjson==3.13.0 msgspec==0.23.0 \
  pyzmq==27.3.0 psutil==7.2.2 pybase64==1.5.1 pydantic==2.14.4 python-multipart==0.0.34 \
  requests==2.34.2 setproctitle==1.3.8 numpy==2.4.6 pillow==13.0.0 prometheus-client==0.26.0 \
  dill==0.4.1 jsonschema==4.26.0 soundfile==0.14.0 \
  einops interegular ipython packaging partial-json-parser regex tqdm xxhash zstandard \
  || { cat "$log" >&2; fail "pip could not install SGLang's requirements"; }

# PyPI's torchvision is built for CUDA and cannot load its operators beside a CPU torch; importing it
# then fails on two of them, which only detection models call. Their schemas are enough.
"$venv/bin/python" - <<'PY'
import pathlib
import sysconfig

path = pathlib.Path(sysconfig.get_paths()["purelib"], "torchvision", "extension.py")
path.write_text(
    path.read_text()
    + """

if not _has_ops():  # added by sgl-tuner's install_sglang_cpu.sh
    _schemas = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _schemas.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
)
PY

HF_HUB_OFFLINE=1 "$venv/bin/python" -W ignore -c "import torch, torchvision, sglang" \
  || fail "SGLang was installed, but cannot be imported"
touch "$finished"
echo "$venv/bin/python"
