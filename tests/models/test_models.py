"""Networks: shapes, defaults, heads as one product, and what is refused."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hcfl.errors import InputError
from hcfl.models import MODELS, Network, check_pair, default_model
from hcfl.models.ensemble import forward, initialise, rows

SHAPES = {
    "mlp": [(5,), (4, 3), (8, 8, 1)],
    "cnn": [(8, 8, 1), (32, 32, 3), (28, 20, 2), (1, 1, 1)],
    "cnn1d": [(50, 3), (1, 1)],
}


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name, shapes in SHAPES.items() for shape in shapes])
def test_models_map_inputs_to_one_logit_per_class(name, shape):
    extractor, head = MODELS[name](shape, 7)
    check_pair((extractor, head), shape, 7)
    assert isinstance(head, nn.Linear)


@pytest.mark.parametrize("length", [1, 7, 50])
def test_series_as_images_of_one_row_are_convolved_pooled_and_trained_as_series(length):
    extractor, _ = MODELS["cnn1d"]((length, 3), 4)
    layers = [nn.Conv1d(*widths, 5, padding=2) for widths in ((3, 32), (32, 64), (64, 128))]
    for layer, parameters in zip(layers, zip(*[iter(extractor.parameters())] * 2, strict=True), strict=True):
        layer.weight.data, layer.bias.data = (parameter.detach().clone() for parameter in parameters)
    x = torch.randn(5, length, 3, generator=torch.Generator().manual_seed(0))
    plain = x.mT
    for layer in layers:
        plain = nn.functional.max_pool1d(layer(plain).relu(), 2, ceil_mode=True)
    plain = plain.mean(dim=2)
    assert_close(extractor(x), plain)
    mine, theirs = (
        torch.autograd.grad(features.square().sum(), parameters)
        for features, parameters in (
            (extractor(x), list(extractor.parameters())),
            (plain, [parameter for layer in layers for parameter in layer.parameters()]),
        )
    )
    assert_close(mine, theirs)


@pytest.mark.parametrize(
    ("shape", "name"), [((9,), "mlp"), ((50, 3), "cnn1d"), ((32, 32, 3), "cnn"), ((8, 8, 1), "mlp")]
)
def test_each_kind_of_data_has_a_default_model(shape, name):
    assert default_model(shape) == name
    check_pair(MODELS[name](shape, 3), shape, 3)


@pytest.mark.parametrize(
    "head", [nn.Linear(6, 3), nn.Linear(6, 3, bias=False), nn.Sequential(nn.ReLU(), nn.Linear(6, 3))]
)
def test_all_heads_as_one_product_equal_each_head_by_itself(head):
    with torch.no_grad():
        _, ensemble = initialise((nn.Linear(5, 6), head), (5,), 3, "split", 4, seed=0)
        network = Network(nn.Linear(5, 6), head)
        features = torch.randn(9, 6)
        together = network.logits(ensemble.heads, features)
        for k in range(4):
            head.load_state_dict({name: tensor[k] for name, tensor in ensemble.heads.items()})
            assert_close(together[:, k], head(features))


@pytest.mark.parametrize("topology", ["split", "full"])
def test_initial_heads_differ_and_the_extractor_is_shared_only_in_the_split_topology(topology):
    _, ensemble = initialise(MODELS["mlp"], (4,), 3, topology, 3, seed=5)
    assert not torch.equal(ensemble.heads["weight"][0], ensemble.heads["weight"][1])
    assert len(ensemble.extractors["1.weight"]) == (1 if topology == "split" else 3)
    if topology == "full":
        assert not torch.equal(ensemble.extractors["1.weight"][0], ensemble.extractors["1.weight"][1])


def test_a_pair_of_modules_keeps_its_extractor_for_every_cluster():
    extractor, head = nn.Linear(4, 6), nn.Linear(6, 3)
    weight = extractor.weight.detach().clone()
    _, ensemble = initialise((extractor, head), (4,), 3, "full", 2, seed=0)
    for k in range(2):
        assert torch.equal(ensemble.extractors["weight"][k], weight)
    assert not torch.equal(ensemble.heads["weight"][0], ensemble.heads["weight"][1])


def test_initialisation_depends_on_the_seed_and_on_nothing_else():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    _, one = initialise(MODELS["mlp"], (4,), 3, "split", 2, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    _, two = initialise(MODELS["mlp"], (4,), 3, "split", 2, seed=5)
    _, other = initialise(MODELS["mlp"], (4,), 3, "split", 2, seed=6)
    assert torch.equal(one.heads["weight"], two.heads["weight"])
    assert not torch.equal(one.heads["weight"], other.heads["weight"])


@pytest.mark.parametrize("topology", ["split", "full"])
def test_forward_gives_every_cluster_s_logits(topology):
    network, ensemble = initialise(MODELS["mlp"], (4,), 3, topology, 3, seed=0)
    inputs = torch.randn(6, 4)
    features, logits = forward(network, ensemble, inputs)
    assert (features is None) == (topology == "full")
    for k in range(3):
        z = network.embed(ensemble.extractor(k), inputs)
        assert_close(logits[:, [k]], network.logits(rows(ensemble.heads, [k]), z))


class CountsCalls(nn.Module):
    calls = 0

    def forward(self, x):
        CountsCalls.calls += 1
        return x


def test_the_shared_extractor_runs_once_whatever_the_number_of_heads():
    network, ensemble = initialise(
        (nn.Sequential(CountsCalls(), nn.Linear(4, 6)), nn.Linear(6, 3)), (4,), 3, "split", 5, 0
    )
    CountsCalls.calls = 0
    forward(network, ensemble, torch.randn(6, 4))
    assert CountsCalls.calls == 1


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ((nn.Flatten(), nn.Linear(4, 5)), "output has 5 values per sample, but the data need 3"),
        ((nn.Flatten(), nn.Linear(9, 3)), "cannot read inputs of shape"),
        ((nn.Identity(), nn.Linear(2, 3)), "flat vector"),
        ((nn.Flatten(), nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))), "head has buffers"),
    ],
)
def test_models_that_do_not_fit_are_refused_with_the_reason(pair, words):
    with pytest.raises(InputError, match=words):
        check_pair(pair, (2, 2), 3)


class Raises(nn.Module):
    def forward(self, x):
        raise KeyError


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (nn.Linear(4, 3), "must be a pair of modules"),
        ((nn.Flatten(),), "must be a pair of modules"),
        (None, "not NoneType"),
        ((Raises(), nn.Linear(4, 3)), "KeyError"),
        ((nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), nn.Identity()), "head has no parameters"),
    ],
)
def test_what_is_no_model_at_all_is_refused(pair, words):
    with pytest.raises(InputError, match=words):
        check_pair(pair, (2, 2), 3)


class SameHead(nn.Module):
    """A head that does not draw itself anew."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4))

    def forward(self, x):
        return x @ self.weight.T


def test_heads_that_start_equal_are_refused_unless_the_server_assigns():
    pair = (nn.Flatten(), SameHead())
    with pytest.raises(InputError, match="would never separate"):
        initialise(pair, (4,), 3, "split", 2, seed=0)
    initialise(pair, (4,), 3, "split", 1, seed=0)
    initialise(pair, (4,), 3, "full", 2, seed=0, identical=True)


def test_convolutions_refuse_other_shapes():
    with pytest.raises(InputError, match="reads images"):
        MODELS["cnn"]((5,), 3)
    with pytest.raises(InputError, match="reads series"):
        MODELS["cnn1d"]((5,), 3)
