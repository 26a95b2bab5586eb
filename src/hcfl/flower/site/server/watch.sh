#!/bin/sh
# The live page of this server's runs and nodes, for its operator: on this machine only, and with the token in
# watch.token. From your own machine: ssh -L {{watch_port}}:127.0.0.1:{{watch_port}} {{host}}
cd "$(dirname "$0")" && . ./environment || exit 1
mkdir -p runs
exec hcfl watch runs --port {{watch_port}} --token-file watch.token
