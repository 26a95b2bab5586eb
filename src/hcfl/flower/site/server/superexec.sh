#!/bin/sh
# Flower's SuperExec: runs the server's side of a run, apart from the SuperLink, so that each survives the other.
cd "$(dirname "$0")" && . ./environment || exit 1
exec flower-superexec \
    --runtime-api-address 127.0.0.1:{{port}} --root-certificates ca.crt \
    --superexec-auth-secret-file superexec.secret
