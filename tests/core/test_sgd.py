"""Local training against PyTorch's own optimiser and against one head at a time: equations (6) and (7)."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from hcfl.core.sgd import (
    Supervision,
    descend,
    shuffle,
    train_extractor,
    train_heads,
    train_model,
    weighted_loss,
)
from hcfl.data.local_data import LocalData
from hcfl.models import Network, drop, mlp, parameters_of
from hcfl.models.ensemble import row, rows, stack
from hcfl.models.tasks import CLASSES, cross_entropy_per_cluster
from hcfl.tiers.client_segments import Segments
from helpers import local_sgd

SGD = local_sgd(lr=0.1, momentum=0.9, weight_decay=0.01, batch=4, epochs=2)


def batches_of(samples, sgd, seed=0, singles=True) -> list[torch.Tensor]:
    """The batches of a client alone."""
    return shuffle(Segments((samples,)), sgd, [torch.Generator().manual_seed(seed)], singles).of(0)


@pytest.fixture
def task():
    torch.manual_seed(0)
    extractor, head = mlp((5,), 3, hidden=(6,))
    heads = stack([parameters_of(nn.Linear(6, 3)) for _ in range(2)])
    data = LocalData.alone(torch.randn(10, 5), torch.randint(0, 3, (10,)), 3)
    gamma = torch.rand(10, 2)
    batches = batches_of(10, SGD, seed=1)
    return Network(extractor, head), parameters_of(extractor), heads, data, gamma, batches


def test_weighted_loss_by_hand():
    # Two clusters with uniform logits over two classes: CE = log 2 everywhere.
    losses = CLASSES.loss(torch.zeros(2, 2, 2), torch.tensor([0, 1]))
    loss = weighted_loss(losses, torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    assert loss.item() == pytest.approx(2 * 0.6931472 / 2)


def test_cross_entropy_per_cluster_is_that_of_each_cluster():
    logits, labels = torch.randn(7, 3, 4), torch.randint(0, 4, (7,))
    found = cross_entropy_per_cluster(logits, labels)
    for k in range(3):
        assert_close(found[:, k], cross_entropy(logits[:, k], labels, reduction="none"))


def test_descend_is_torch_s_sgd(task):
    network, extractor, heads, data, _, batches = task
    module = nn.Sequential(network.extractor, nn.Linear(6, 3))
    module[0].load_state_dict(extractor)
    module[1].load_state_dict(row(heads, 0))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for batch in batches:
        optimiser.zero_grad()
        cross_entropy(module(data.inputs[batch]), data.labels[batch]).backward()
        optimiser.step()

    found, head = train_model(
        network, extractor, rows(heads, [0]), data.inputs, Supervision(data.labels, torch.ones(10, 1), batches, SGD)
    )
    for name, tensor in module[0].state_dict().items():
        assert_close(found[name], tensor)
    for name, tensor in module[1].state_dict().items():
        assert_close(head[name][0], tensor)


def test_descend_leaves_its_start_alone():
    start = {"w": torch.ones(2)}
    moved = descend([start], lambda batch, p: (p["w"] ** 2).sum(), [torch.arange(1)], SGD)
    assert start["w"].tolist() == [1.0, 1.0]
    # one step: 1 − 0.1·(2 + 0.01)
    assert_close(moved[0]["w"], torch.full((2,), 1 - 0.1 * 2.01))


def test_heads_trained_together_equal_heads_trained_alone(task):
    network, extractor, heads, data, gamma, batches = task
    features = network.embed(extractor, data.inputs).detach()
    together = train_heads(network, heads, features, Supervision(data.labels, gamma, batches, SGD))
    for k in range(2):
        alone = train_heads(network, rows(heads, [k]), features, Supervision(data.labels, gamma[:, [k]], batches, SGD))
        for name in heads:
            assert_close(together[name][[k]], alone[name])


def test_extractor_training_holds_heads_fixed_and_sums_over_clusters(task):
    network, extractor, heads, data, gamma, _ = task
    one = local_sgd(lr=0.1, momentum=0.0, weight_decay=0.0, batch=10)
    everything = [torch.arange(10)]
    found = train_extractor(network, extractor, heads, data.inputs, Supervision(data.labels, gamma, everything, one))

    leaves = {name: tensor.clone().requires_grad_() for name, tensor in extractor.items()}
    features = torch.relu(data.inputs @ leaves["1.weight"].T + leaves["1.bias"])
    loss = sum(
        (gamma[:, k] * cross_entropy(features @ heads["weight"][k].T + heads["bias"][k], data.labels, reduction="none"))
        for k in range(2)
    ).mean()
    for (name, leaf), gradient in zip(leaves.items(), torch.autograd.grad(loss, leaves.values()), strict=True):
        assert_close(found[name], leaf.detach() - 0.1 * gradient)


def test_heads_and_extractor_together_take_one_step_down_the_same_loss(task):
    network, extractor, heads, data, gamma, _ = task
    one = local_sgd(lr=0.1, momentum=0.0, weight_decay=0.0, batch=10)
    found = train_model(
        network, extractor, heads, data.inputs, Supervision(data.labels, gamma, [torch.arange(10)], one)
    )

    leaves = [{name: tensor.clone().requires_grad_() for name, tensor in part.items()} for part in (extractor, heads)]
    features = torch.relu(data.inputs @ leaves[0]["1.weight"].T + leaves[0]["1.bias"])
    logits = [features @ leaves[1]["weight"][k].T + leaves[1]["bias"][k] for k in range(2)]
    loss = sum(gamma[:, k] * cross_entropy(logits[k], data.labels, reduction="none") for k in range(2)).mean()
    loss.backward()
    for part, before in zip(found, leaves, strict=True):
        for name, leaf in before.items():
            assert_close(part[name], leaf.detach() - 0.1 * leaf.grad)


def test_batches_of_one_are_used_when_that_is_the_batch_size_but_never_with_batch_normalisation():
    assert len(batches_of(5, local_sgd(batch=1))) == 5
    assert batches_of(1, local_sgd(batch=4), singles=False) == []


def test_what_the_user_froze_or_does_not_use_is_not_trained():
    extractor = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6))
    extractor[0].weight.requires_grad_(False)
    extractor.register_parameter("unused", nn.Parameter(torch.ones(2)))
    network = Network(extractor, nn.Linear(6, 3))
    received = parameters_of(extractor)
    data = LocalData.alone(torch.randn(10, 5), torch.randint(0, 3, (10,)), 3)
    plain = local_sgd(lr=0.1, weight_decay=0.0)
    heads = stack([parameters_of(network.head)])
    trained = train_extractor(
        network, received, heads, data.inputs, Supervision(data.labels, torch.ones(10, 1), [torch.arange(10)], plain)
    )
    assert torch.equal(trained["0.weight"], received["0.weight"])
    assert torch.equal(trained["unused"], received["unused"])
    assert not torch.equal(trained["2.weight"], received["2.weight"])


@pytest.mark.parametrize(("samples", "sizes"), [(9, [4, 4]), (10, [4, 4, 2]), (8, [4, 4]), (1, [1]), (4, [4])])
def test_a_last_batch_of_one_sample_is_left_out_unless_it_is_the_only_one(samples, sizes):
    batches = batches_of(samples, local_sgd(batch=4, epochs=1))
    assert [len(batch) for batch in batches] == sizes
    assert len(set(torch.cat(batches).tolist())) == sum(sizes)


def test_running_statistics_move_in_training_and_what_was_received_does_not():
    extractor = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6))
    network = Network(extractor, nn.Linear(6, 3))
    received = parameters_of(extractor)
    copy = {name: tensor.clone() for name, tensor in received.items()}
    data = LocalData.alone(torch.randn(10, 5) + 3, torch.randint(0, 3, (10,)), 3)
    heads = stack([parameters_of(network.head)])
    trained = train_extractor(
        network, received, heads, data.inputs, Supervision(data.labels, torch.ones(10, 1), [torch.arange(10)], SGD)
    )
    assert not torch.equal(trained["1.running_mean"], copy["1.running_mean"])
    assert trained["1.num_batches_tracked"] == 1
    for name, tensor in copy.items():
        assert torch.equal(received[name], tensor)


def test_the_proximal_term_by_hand():
    # f(w) = w², start 1, two full steps without momentum: g = 2w + λ(w − 1)
    sgd = local_sgd(lr=0.1, momentum=0.0, weight_decay=0.0, proximal=0.5)
    batches = [torch.arange(1)] * 2
    (moved,) = descend([{"w": torch.ones(1)}], lambda batch, p: (p["w"] ** 2).sum(), batches, sgd)
    first = 1 - 0.1 * 2
    assert moved["w"].item() == pytest.approx(first - 0.1 * (2 * first + 0.5 * (first - 1)))


def test_a_batch_takes_its_own_rows_of_gamma(task):
    network, extractor, heads, data, gamma, _ = task
    x, y, batch, everything = data.inputs, data.labels, torch.tensor([7, 2, 9]), [torch.arange(3)]
    few = x[batch], y[batch], gamma[batch]
    features = network.embed(extractor, x).detach()
    for name, tensor in train_heads(network, heads, features, Supervision(y, gamma, [batch], SGD)).items():
        expected = train_heads(network, heads, features[batch], Supervision(*few[1:], everything, SGD))
        assert_close(tensor, expected[name])
    for name, tensor in train_extractor(network, extractor, heads, x, Supervision(y, gamma, [batch], SGD)).items():
        assert_close(
            tensor, train_extractor(network, extractor, heads, few[0], Supervision(*few[1:], everything, SGD))[name]
        )
    head, column = rows(heads, [0]), gamma[:, :1]
    found, _ = train_model(network, extractor, head, x, Supervision(y, column, [batch], SGD))
    expected, _ = train_model(network, extractor, head, x[batch], Supervision(y[batch], column[batch], everything, SGD))
    for name, tensor in found.items():
        assert_close(tensor, expected[name])


def test_every_epoch_is_shuffled_anew():
    one, two, three = batches_of(20, local_sgd(batch=20, epochs=3))
    assert not torch.equal(one, two)
    assert not torch.equal(two, three)


def test_running_statistics_move_when_a_full_model_is_trained():
    extractor = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6))
    network = Network(extractor, nn.Linear(6, 3))
    data = LocalData.alone(torch.randn(10, 5) + 3, torch.randint(0, 3, (10,)), 3)
    head = stack([parameters_of(network.head)])
    start = parameters_of(extractor)
    trained, _ = train_model(
        network, start, head, data.inputs, Supervision(data.labels, torch.ones(10, 1), [torch.arange(10)], SGD)
    )
    assert not torch.equal(trained["1.running_mean"], start["1.running_mean"])
    assert trained["1.num_batches_tracked"] == 1


def split_epochs(samples, sgd, generator, singles) -> list[list[int]]:
    """Batches by hand: every epoch's order cut into pieces, a last one of a single sample left out."""
    batches = []
    for _ in range(sgd.epochs):
        epoch = torch.split(torch.randperm(samples, generator=generator), sgd.batch)
        wanted = singles and (len(epoch) == 1 or sgd.batch == 1)
        batches += [batch.tolist() for batch in epoch if len(batch) > 1 or wanted]
    return batches


def test_with_batch_normalisation_a_small_last_batch_is_left_out():
    """Of 128: fifteen are too few, sixteen are enough; a client's only batch may have any size above one."""
    sgd = local_sgd(batch=128)
    assert [len(batch) for batch in batches_of(128 + 15, sgd, singles=False)] == [128]
    assert [len(batch) for batch in batches_of(128 + 16, sgd, singles=False)] == [128, 16]
    assert [len(batch) for batch in batches_of(15, sgd, singles=False)] == [15]
    assert [len(batch) for batch in batches_of(128 + 15, sgd)] == [128, 15]


@pytest.mark.parametrize("singles", [True, False])
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("batch", [1, 4, 5, 100])
@pytest.mark.parametrize("sizes", [(9, 2, 12), (1, 30), (5, 5), (4, 1, 1, 7), (1, 1), (3,), (13,)])
def test_batches_in_a_group_are_those_of_each_client_alone(sizes, batch, epochs, singles):
    sgd, segments = local_sgd(batch=batch, epochs=epochs), Segments(sizes)
    together = shuffle(segments, sgd, [torch.Generator().manual_seed(seed) for seed in range(len(sizes))], singles)
    assert together.index.min() >= 0
    assert together.index.max() < segments.samples, "also where a row does not count"
    for client, samples in enumerate(sizes):
        mine = [[row - sum(sizes[:client]) for row in rows.tolist()] for rows in together.of(client)]
        assert mine == split_epochs(samples, sgd, torch.Generator().manual_seed(client), singles)
        assert mine == [rows.tolist() for rows in batches_of(samples, sgd, client, singles)]


def test_batches_in_a_group_are_lined_up_and_whoever_has_fewer_waits():
    sgd = local_sgd(batch=4, epochs=2)
    lined = shuffle(Segments((9, 2, 1)), sgd, [torch.Generator().manual_seed(seed) for seed in range(3)])
    # 9 samples: a last batch of one is left out. One sample is the only one of its client. Epochs start together.
    assert lined.sizes.tolist() == [[4, 4, 0] * 2, [2, 0, 0] * 2, [1, 0, 0] * 2]
    assert lined.index.shape == (3, 6, 4)


@pytest.mark.parametrize(
    ("samples", "sizes"),
    [(9, [4, 4]), (10, [4, 4]), (11, [4, 4]), (8, [4, 4]), (7, [4]), (5, [4]), (4, [4]), (3, [3]), (1, [1])],
)
def test_a_last_batch_that_is_not_full_is_left_out_if_asked_unless_it_is_the_only_one(samples, sizes):
    batches = batches_of(samples, local_sgd(batch=4, epochs=2, drop_last=True))
    assert [len(batch) for batch in batches] == sizes * 2
    whole = batches_of(samples, local_sgd(batch=4, epochs=2))
    assert all(any(torch.equal(batch, other) for other in whole) for batch in batches), "the others stay as they were"


def test_in_a_group_each_client_leaves_out_its_own_last_batch():
    sgd = local_sgd(batch=4, drop_last=True)
    lined = shuffle(Segments((11, 6, 3, 4)), sgd, [torch.Generator().manual_seed(seed) for seed in range(4)])
    assert lined.sizes.tolist() == [[4, 4, 0], [4, 0, 0], [3, 0, 0], [4, 0, 0]]
    alone = shuffle(Segments((3, 2)), sgd, [torch.Generator().manual_seed(seed) for seed in range(2)])
    assert alone.sizes.tolist() == [[3], [2]], "all of them smaller than a batch"


PLAIN = local_sgd(lr=0.1, momentum=0.0, weight_decay=0.0)


def step_by_hand(leaves, features, labels, gamma, heads):
    """One step of plain SGD down the weighted loss of K linear heads."""
    logits = [features @ heads["weight"][k].T + heads["bias"][k] for k in range(2)]
    loss = sum(gamma[:, k] * cross_entropy(logits[k], labels, reduction="none") for k in range(2)).mean()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {
        name: (leaf - 0.1 * gradient).detach() for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
    }


def leaves_of(params):
    return {name: tensor.clone().requires_grad_() for name, tensor in params.items()}


def test_heads_see_features_dropped_anew_in_every_step_and_one_mask_serves_all_heads(task):
    network, extractor, heads, data, gamma, _ = task
    network.extractor.feature_dropout = 0.4
    features, y, everything = network.embed(extractor, data.inputs).detach(), data.labels, [torch.arange(10)] * 2
    expected = heads
    for number in range(2):
        leaves = leaves_of(expected)
        expected = step_by_hand(leaves, drop(features, 0.4, 17, number), y, gamma, leaves)
    found = train_heads(network, heads, features, Supervision(y, gamma, everything, PLAIN, key=17))
    other = train_heads(network, heads, features, Supervision(y, gamma, everything, PLAIN, key=18))
    for name, tensor in expected.items():
        assert_close(found[name], tensor)
        assert not torch.allclose(other[name], tensor)


def test_extractors_learn_through_what_was_not_dropped(task):
    network, extractor, heads, data, gamma, _ = task
    network.extractor.feature_dropout = 0.4
    x, y, everything = data.inputs, data.labels, [torch.arange(10)] * 2
    alone, both = (extractor, {}), (extractor, heads)
    for number in range(2):
        leaves = leaves_of(alone[0])
        features = drop(torch.relu(x @ leaves["1.weight"].T + leaves["1.bias"]), 0.4, 17, number)
        alone = step_by_hand(leaves, features, y, gamma, heads), {}
        leaves = leaves_of(both[0] | both[1])
        features = drop(torch.relu(x @ leaves["1.weight"].T + leaves["1.bias"]), 0.4, 17, number)
        after = step_by_hand(leaves, features, y, gamma, leaves)
        both = {name: after[name] for name in extractor}, {name: after[name] for name in heads}
    found = train_extractor(network, extractor, heads, x, Supervision(y, gamma, everything, PLAIN, key=17))
    together = train_model(network, extractor, heads, x, Supervision(y, gamma, everything, PLAIN, key=17))
    for name, tensor in alone[0].items():
        assert_close(found[name], tensor)
    for part, expected in zip(together, both, strict=True):
        for name, tensor in expected.items():
            assert_close(part[name], tensor)


def test_a_client_without_samples_has_no_batches_and_points_at_none_that_are_not_there():
    lined = shuffle(Segments((5, 0)), local_sgd(batch=4), [torch.Generator().manual_seed(seed) for seed in range(2)])
    assert lined.of(1) == []
    assert lined.index.max() == 4


def test_momentum_that_is_kept_is_that_of_one_optimiser():
    """Two rounds of one client alone, by hand: the second begins with the velocity that the first ended with."""
    start, sgd = {"w": torch.tensor([1.0])}, local_sgd(lr=0.1, momentum=0.5, weight_decay=0.0)
    velocity = {"w": torch.zeros(1)}
    batches = [torch.arange(1)] * 2

    def loss(batch, p):
        return (p["w"] ** 2).sum()

    # w: 1 → 1 − 0.1·2 = 0.8; velocity 0.5·2 + 1.6 = 2.6, w = 0.54; then 1.3 + 1.08 = 2.38, w = 0.302; …
    (first,) = descend([start], loss, batches, sgd, velocities=[velocity])
    assert float(first["w"]) == pytest.approx(0.54)
    assert float(velocity["w"]) == pytest.approx(2.6)
    (second,) = descend([first], loss, batches[:1], sgd, velocities=[velocity])
    assert float(second["w"]) == pytest.approx(0.302)
    assert float(start["w"]) == 1.0


def test_the_order_auto_is_together_for_one_cluster_and_heads_first_for_several():
    auto = local_sgd(order="auto")
    assert [auto.ordered(clusters).order for clusters in (1, 2)] == ["together", "heads-first"]
    assert local_sgd(order="heads-first").ordered(1).order == "heads-first"
