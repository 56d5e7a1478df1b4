#!/usr/bin/env bash
# A local cluster of three nodes in the background: Kafka 9092-9094, WAL 9291-9293, Raft 5001-5003,
# HTTP 10001-10003, logs in tests/cluster/logs/nodeN.log. Arguments are passed on to `chronik cluster up`.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
data=${CLUSTER_DIR:-$here/logs/data}

chronik() { PYTHONPATH="$root/src" "$python" -c 'from chronik.cli import main; main()' "$@"; }

mkdir -p "$here/logs"
for node in 1 2 3 4 5 6 7 8 9; do
    ln -sfn "$data/node$node/node.log" "$here/logs/node$node.log"
done
chronik cluster up --data-dir "$data" "$@"
find "$here/logs" -maxdepth 1 -xtype l -delete
