"""Networks as extractor + head; nothing federated in here."""

from hcfl.models.dropout import drop
from hcfl.models.layers import BatchNorm, write_out
from hcfl.models.mobile import efficientnet_lite0, mobilenet_v2
from hcfl.models.network import Builder, Network, Pair, Params, built_for, check_pair, parameters_of
from hcfl.models.resnet import resnet_18
from hcfl.models.trained_part import TrainedPart
from hcfl.models.zoo import IMAGE_NETWORK_OPTIONS, IMAGE_NETWORKS, MODELS, cnn, cnn1d, default_model, mlp

__all__ = [
    "IMAGE_NETWORKS",
    "IMAGE_NETWORK_OPTIONS",
    "MODELS",
    "BatchNorm",
    "Builder",
    "Network",
    "Pair",
    "Params",
    "TrainedPart",
    "built_for",
    "check_pair",
    "cnn",
    "cnn1d",
    "default_model",
    "drop",
    "efficientnet_lite0",
    "mlp",
    "mobilenet_v2",
    "parameters_of",
    "resnet_18",
    "write_out",
]
