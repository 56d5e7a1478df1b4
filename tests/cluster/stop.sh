#!/usr/bin/env bash
# Stops what start.sh started. The data and the logs stay; `stop.sh --clean` removes them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
data=${CLUSTER_DIR:-$here/logs/data}
clean=
if [ "${1:-}" = "--clean" ]; then
    clean=1
    shift
fi

PYTHONPATH="$root/src" "$python" -c 'from chronik.cli import main; main()' cluster down --data-dir "$data" "$@"
if [ -n "$clean" ]; then
    rm -rf "$here/logs"
fi
