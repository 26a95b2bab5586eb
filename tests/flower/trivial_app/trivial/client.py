from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(message, context):
    said = ConfigRecord({"name": context.node_config["name"]})
    return Message(RecordDict({"said": said}), reply_to=message)
