#!/bin/sh
# SuperLink, SuperExec and the front, each started again whenever it ends. With systemd, use the units instead.
cd "$(dirname "$0")" || exit 1
trap 'kill $children 2>/dev/null; wait; exit 0' TERM INT
for program in superlink superexec front; do
    ./supervise.sh "./$program.sh" &
    children="$children $!"
done
wait
