#!/bin/sh
# Flower's SuperLink: keeps messages in a database and never runs anybody's code itself.
# It listens on this machine only; nodes come in through the front.
cd "$(dirname "$0")" && . ./environment || exit 1
exec flower-superlink \
    --host 127.0.0.1 --port {{port}} \
    --ssl-certfile server.crt --ssl-keyfile server.key --ssl-ca-certfile ca.crt \
    --enable-supernode-auth \
    --isolation process --superexec-auth-secret-file superexec.secret \
    --database state/superlink.db \
    --disable-runtime-dependency-installation
