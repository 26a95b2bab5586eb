#!/bin/sh
# Let the nodes in whose public keys are in keys/, each under the name of its file, and put out those that were revoked
# or replaced. Once is enough; again does no harm. A name has one key: ./register.sh --replace NAME puts out all others.
cd "$(dirname "$0")" && . ./environment || exit 1
./connection.sh
python="$(dirname "$(command -v flwr)")/python"
if [ ! -x "$python" ]; then python=python3; fi
exec "$python" -m hcfl.flower.register "$@"
