import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_nodes())) < 3:
        time.sleep(0.5)
    names = {node.node_id: node.name for node in nodes}
    asked = [
        Message(RecordDict({"asked": ConfigRecord({"for": "a name"})}), dst_node_id=node, message_type="query")
        for node in names
    ]
    replies = grid.send_and_receive(asked, timeout=60)
    said = {
        names[reply.metadata.src_node_id]: reply.content["said"]["name"] for reply in replies if reply.has_content()
    }
    unfinished = Path(context.run_config["file"] + ".unfinished")
    unfinished.write_text(json.dumps(said))
    unfinished.rename(context.run_config["file"])
