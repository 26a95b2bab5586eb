#!/bin/sh
# Tell the `flwr` command where this site's SuperLink is; it wants a full path, so this is done where the folder is.
cd "$(dirname "$0")" && . ./environment || exit 1
cat > "$FLWR_HOME/config.toml" <<END
[superlink]
default = "site"

[superlink.site]
address = "127.0.0.1:{{port}}"
root-certificates = "$PWD/ca.crt"
END
