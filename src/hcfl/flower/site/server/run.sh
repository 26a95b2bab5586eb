#!/bin/sh
# Start a run of app/ on the nodes that are connected and follow it. Settings are in app/pyproject.toml;
# ./run.sh --run-config 'rounds=20' changes some of them for one run.
cd "$(dirname "$0")" && . ./environment || exit 1
./connection.sh
exec flwr run app site --stream "$@"
