"""Play every experiment of a folder: NAME.yaml → NAME/."""

from pathlib import Path

from flwr.serverapp import ServerApp

from hcfl.flower import server_app
from hcfl.flower.run_settings import read

app = ServerApp()


@app.main()
def main(grid, context):
    for path in sorted(Path(context.run_config["folder"]).glob("*.yaml")):
        server_app.play(grid, read({"experiment": path.read_text(), "out": str(path.with_suffix(""))}))
