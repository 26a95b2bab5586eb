"""Networks as extractor + head; nothing federated in here."""

from hcfl.models.network import Builder, Network, Pair, Params, check_pair, parameters_of
from hcfl.models.zoo import MODELS, cnn, cnn1d, default_model, mlp

__all__ = [
    "MODELS",
    "Builder",
    "Network",
    "Pair",
    "Params",
    "check_pair",
    "cnn",
    "cnn1d",
    "default_model",
    "mlp",
    "parameters_of",
]
