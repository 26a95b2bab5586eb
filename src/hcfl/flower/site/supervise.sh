#!/bin/sh
# Start a program again whenever it ends, until this script is told to stop (TERM or Ctrl-C).
#
# It never gives up: after a crash, the server takes a node for connected for another minute and refuses it until then.
# What a program started ends with it; Flower's SuperNode would leave a process behind each time it is refused.
child=
trap 'kill -TERM "-$child" 2>/dev/null; wait "$child"; kill -KILL "-$child" 2>/dev/null; exit 0' TERM INT
while true; do
    setsid "$@" &
    child=$!
    wait "$child"
    code=$?
    kill -KILL "-$child" 2>/dev/null
    echo "supervise: $1 ended with code $code; starting it again in ${PAUSE:-5} s" >&2
    setsid sleep "${PAUSE:-5}" &
    child=$!
    wait "$child"
done
