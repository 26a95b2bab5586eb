"""What several test files share."""

from dataclasses import replace

import numpy as np
import torch
from torch.testing import assert_close

from hcfl.config import AdmissionConfig, Config, TrainingConfig
from hcfl.core import rounds
from hcfl.core.client import take_part
from hcfl.core.local_plan import train
from hcfl.core.setting import RoundTask, Setting
from hcfl.core.sgd import LocalSGD
from hcfl.engines import Sequential
from hcfl.models import MODELS
from hcfl.models.ensemble import initialise
from hcfl.tiers import Assigned, Participants
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.distance import half_prototypes, prototypes


def blobs(classes: int = 4, per_class: int = 120, features: int = 8, seed: int = 0):
    """Well-separated Gaussian classes: (x, y)."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes, features)) * 4
    y = np.repeat(np.arange(classes), per_class)
    x = centres[y] + generator.normal(size=(len(y), features))
    return x.astype(np.float32), y


def with_halves(features, labels, classes, clients, members=None) -> Participants:
    """Clients 1, 4, 7, … in round 1, with equally many samples: prototypes of all of them and of first halves."""
    segments = Segments((len(labels) // clients,) * clients)
    return Participants(
        clients=tuple(3 * client + 1 for client in range(clients)),
        members=torch.tensor(members or [0] * clients),
        weights=torch.ones(clients),
        prototypes=prototypes(features, labels, classes, segments),
        halves=half_prototypes(features, labels, classes, segments),
        round=1,
    )


def start(federation, method, seed=0):
    """The network and the initial models."""
    clusters = federation.clients if method.clusters is None else method.clusters
    identical = isinstance(method.weighting, Assigned)
    shape, classes = federation.shape, federation.classes
    return initialise(MODELS["mlp"], shape, classes, method.topology, clusters, seed, identical)


def local_sgd(batch=128, epochs=1, proximal=0.0, **changes) -> LocalSGD:
    """How clients train, with the configuration's defaults."""
    return replace(
        LocalSGD.of(TrainingConfig(batch=batch, epochs=epochs, order="heads-first")), proximal=proximal, **changes
    )


def setting_of(federation, method, network, engine=None, sgd=None, **changes) -> Setting:
    """A setting with the configuration's defaults."""
    config = Config()
    chosen = Setting(
        federation=federation,
        method=method,
        network=network,
        engine=engine or Sequential(),
        sgd=sgd or local_sgd(),
        admission=AdmissionConfig(),
        participation=config.training.participation,
        newcomers=config.evaluation.newcomers,
        plain_newcomers=config.evaluation.plain_newcomers,
        evaluate_every=config.evaluation.evaluate_every,
        seed=0,
    )
    return replace(chosen, **changes)


def setting(federation, method, **changes) -> Setting:
    """Small steps that a test can afford."""
    network, _ = start(federation, method)
    return replace(setting_of(federation, method, network, sgd=local_sgd(lr=0.1, batch=16, epochs=2)), **changes)


def take_part_with(method, network, sgd, data, broadcast, clients, states, seed=0, trainer=train):
    """What some clients do in a round with data that are in no federation."""
    chosen = setting_of(None, method, network, sgd=sgd, seed=seed)
    return take_part(RoundTask(chosen, broadcast, clients, states), trainer, data)


def play(federation, method, number=3, **changes):
    """Return the final state and all records."""
    chosen = setting(federation, method, **changes)
    _, ensemble = start(federation, method, chosen.seed)
    played = list(rounds.play(chosen, rounds.begin(chosen, ensemble), number))
    return played[-1][0], [record for _, record in played]


def same(one, two):
    assert one.keys() == two.keys()
    for name in one:
        assert_close(one[name], two[name], rtol=0, atol=0, equal_nan=True)


def tiny_language_model(path):
    """Save a language model of eight words, with its tokenizer; return its name. It needs the package transformers."""
    import torch
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    known = ("[PAD]", "[UNK]", "good", "bad", "day", "night", "a", "very")
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(known)}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    fast.save_pretrained(path)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(known), max_position_embeddings=12, **sizes)
    transformers.BertModel(config).save_pretrained(path)
    return f"hf-model:{path}"
