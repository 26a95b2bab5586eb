#!/bin/sh
# Let the nodes in whose public keys are in keys/, each under the name of its file. Once is enough; again does no harm.
cd "$(dirname "$0")" && . ./environment || exit 1
./connection.sh
for key in keys/*.pub; do
    name="$(basename "$key" .pub)"
    if said="$(flwr supernode register "$key" site --name "$name" 2>&1)"; then
        echo "$name: is let in"
    else
        case "$said" in
            *"already in use"*) echo "$name: was let in before" ;;
            *) echo "$name: $said" >&2; exit 1 ;;
        esac
    fi
done
