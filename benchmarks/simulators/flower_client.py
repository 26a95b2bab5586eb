"""Flower: what a client does in a round. A module of its own: Ray's workers import it once and keep the data."""

import os
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from workload import LEARNING_RATE, MOMENTUM, WEIGHT_DECAY, CountedLoss, load, network

app = ClientApp()
model_of = lru_cache(network)
"""A worker builds the model once; every message brings the parameters."""


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train from the model that was received, with batches drawn by index: faster than a DataLoader."""
    settings = message.content["config"]
    torch.set_num_threads(1)
    x, y = load(str(settings["data"]))
    client = int(context.node_config["partition-id"])
    model, loss = model_of(str(settings["model"])), CountedLoss()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM, weight_decay=WEIGHT_DECAY)
    steps = 0
    for _ in range(int(settings["epochs"])):
        for batch in torch.split(torch.randperm(y.shape[1]), int(settings["batch"])):
            optimizer.zero_grad()
            loss(model(x[client, batch]), y[client, batch]).backward()
            optimizer.step()
            steps += 1
    metrics = MetricRecord({"num-examples": y.shape[1], "steps": steps, "process": os.getpid()})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
