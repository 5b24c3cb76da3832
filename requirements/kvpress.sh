#!/bin/sh
# Runs kvpress's policies on the embedded model: make kvpress. They need a transformers that the
# engine refuses, hence .venv-kvpress (about 1.5 GB), which is built once per version pinned here.
# make kvpress ARGS=--setup-only builds it and stops.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
env="$root/.venv-kvpress"
kvpress=0.5.5
torch=2.13.0
command -v nvidia-smi >/dev/null 2>&1 || torch="$torch+cpu"
wanted="kvpress==$kvpress torch==$torch"

if [ "$(cat "$env/kvbench-pins" 2>/dev/null)" != "$wanted" ]; then
    echo "building $env ($wanted) …" >&2
    rm -rf "$env"
    "$root/.venv/bin/python" -m venv "$env"
    # torchvision and its like come with no text model and break on another torch.
    "$env/bin/python" -m pip install --quiet --disable-pip-version-check \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "kvpress==$kvpress" "torch==$torch"
    echo "$wanted" >"$env/kvbench-pins"
fi

if [ "${1:-}" = --setup-only ]; then exit 0; fi

model=$("$root/.venv/bin/kvbench" model path "${MODEL:-smollm2-135m-instruct}")
export HF_HUB_DISABLE_PROGRESS_BARS=1 HF_HUB_OFFLINE=1
exec "$env/bin/python" "$root/harness/engines/kvpress_env/child.py" "$model" "$@"
