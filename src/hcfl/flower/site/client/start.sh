#!/bin/sh
# Take part in the federation: ./start.sh --data FILE. The file stays here; it is an .npz with x and y.
# The node is started again whenever it ends. With systemd, write DATA=FILE into node.env and use the unit.
cd "$(dirname "$0")" && . ./environment || exit 1
if [ -f node.env ]; then . ./node.env; fi
if [ "$1" = --data ] && [ $# = 2 ]; then DATA="$2"; shift 2; fi
if [ $# != 0 ] || [ -z "$DATA" ]; then echo "start.sh: usage: ./start.sh --data FILE" >&2; exit 2; fi
case "$DATA" in
    *\'*) echo "start.sh: --data $DATA: a path with a quote cannot be passed on; rename the file" >&2; exit 2 ;;
    /*) ;;
    *) echo "start.sh: --data $DATA: must be a full path, beginning with /" >&2; exit 2 ;;
esac
if [ ! -r "$DATA" ]; then echo "start.sh: --data $DATA: cannot be read" >&2; exit 2; fi
exec ./supervise.sh flower-supernode \
    --superlink {{address}} --root-certificates ca.crt \
    --auth-supernode-private-key node.key \
    --host 127.0.0.1 --port {{node_port}} \
    --node-config "name='{{name}}' data='$DATA' state='$PWD/state'"
