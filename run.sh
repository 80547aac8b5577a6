#!/usr/bin/env bash
# ./run.sh COMMAND [options]: python -m odb_example.run COMMAND, after making sure that there is an environment for it.
#
# An active environment (PYTHON, VIRTUAL_ENV or conda) that satisfies the requirements is used as it is; otherwise a
# virtual environment is made in .venv beside this file and kept. Nothing outside the checkout is changed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here"
command=${1:-odb-enable}
[ $# -gt 0 ] && shift
extras=()
if [ "$command" = test ]; then extras=(test); fi
if [ -e /dev/nvidiactl ]; then extras+=(deepspeed); fi # on GPUs training shards with DeepSpeed by default

say() { echo "run.sh: $*" >&2; }

satisfied() { "$1" odb_example/requirements.py ${extras[@]+"${extras[@]}"} >/dev/null 2>&1; }

active_python() {
  if [ -n "${PYTHON:-}" ]; then echo "$PYTHON"
  elif [ -n "${VIRTUAL_ENV:-}" ]; then echo "$VIRTUAL_ENV/bin/python"
  elif [ -n "${CONDA_PREFIX:-}" ]; then echo "$CONDA_PREFIX/bin/python"
  fi
}

base_python() {
  local name
  for name in "$(active_python)" python3.11 python3.12 python3.13 python3.10 python3; do
    if [ -n "$name" ] && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  say "error: Python 3.10 or newer was not found; install one or set PYTHON"
  exit 2
}

python=$(active_python)
if [ -z "$python" ] || ! satisfied "$python"; then
  python=$here/.venv/bin/python
  if ! satisfied "$python"; then
    if ! "$python" -m pip --version >/dev/null 2>&1; then # absent, or an earlier attempt was cut off
      base=$(base_python)
      say "making a virtual environment in .venv with $base"
      rm -rf .venv
      "$base" -m venv .venv || { say "error: $base cannot make a virtual environment; install its venv package"; exit 2; }
    fi
    say "installing the requirements into .venv (once; torch is large)"
    # By requirement, not by project: the commands run from this checkout.
    "$python" odb_example/requirements.py ${extras[@]+"${extras[@]}"} > .venv/missing.txt || true
    "$python" -m pip install --quiet --disable-pip-version-check -r .venv/missing.txt \
      || { say "error: pip could not install the requirements; its words stand above"; exit 2; }
  fi
fi

export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m odb_example.run "$command" "$@"
