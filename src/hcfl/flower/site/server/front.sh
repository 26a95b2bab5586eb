#!/bin/sh
# The door for nodes: nginx, which lets them reach the fleet's path and nothing else.
cd "$(dirname "$0")" && . ./environment || exit 1
exec nginx -p "$PWD" -c "$PWD/nginx.conf" -e stderr
