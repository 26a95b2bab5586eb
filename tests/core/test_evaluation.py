"""Measurement on hand-computed numbers."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from hcfl.config import from_flat
from hcfl.core import evaluation, rounds
from hcfl.core.cluster_log import Split
from hcfl.core.evaluation import (
    CHANGE_BYTES,
    Quality,
    bytes_down,
    bytes_up,
    clustering_quality,
    newcomer_step,
    predict_held_out,
    purity,
    without_shares,
)
from hcfl.core.server import begin, broadcast, shares
from hcfl.core.state import ClientState, Update
from hcfl.data import Newcomer, Truth
from hcfl.errors import InputError
from hcfl.methods import Method, build
from hcfl.models import MODELS
from hcfl.models.ensemble import Ensemble, embed, initialise, outputs_of
from hcfl.models.tasks import CLASSES
from hcfl.runs.prepare import prepare
from hcfl.tiers import (
    ByLabelDistribution,
    Conditional,
    Fixed,
    Joint,
    SoftEM,
    SplitAndRemove,
    UpdateCosine,
    Weights,
)
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.gaussians import Gaussians, mixture_log_density
from helpers import play, setting, start


def at_labels(log_probs, newcomer):
    """Return log p_k(y|x) of the samples that a newcomer finds its weights on."""
    return log_probs[newcomer.fit_rows, :, newcomer.fit_labels]


def test_prediction_is_the_weighted_mean_of_probabilities():
    probs = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]])
    assert_close(CLASSES.mix(probs.log(), torch.tensor([[0.25, 0.75]])).exp(), torch.tensor([[0.375, 0.625]]))
    assert_close(CLASSES.mix(probs.log(), torch.tensor([[1.0, 0.0]])).exp(), torch.tensor([[0.9, 0.1]]))


def test_a_newcomer_s_e_step_uses_its_own_labels_only():
    log_probs = torch.tensor([[[0.8, 0.2], [0.4, 0.6]], [[0.5, 0.5], [0.1, 0.9]]]).log()
    rows = torch.tensor([1, 0])
    newcomer = Newcomer("n", rows, torch.tensor([0, 0]), rows, rows)
    start, shares = Weights(torch.tensor([[0.5, 0.5]])), torch.full((2, 2), 0.5)
    weights = newcomer_step(build("fedem"), newcomer, at_labels(log_probs, newcomer), None, shares, start).client
    # sample 1, label 0: (.5, .1) → (5/6, 1/6); sample 0, label 0: (.8, .4) → (2/3, 1/3)
    assert_close(weights, torch.tensor([[0.75, 0.25]]))


def truth(concept, affected=None) -> Truth:
    return Truth(np.array(concept), None if affected is None else np.array(affected), (0, 1, 2))


def test_quality_ignores_the_names_of_clusters():
    quality = clustering_quality(truth([0, 0, 1, 1], [True] * 4), np.array([5, 5, 2, 2]))
    assert quality == Quality(1.0, 1.0, pytest.approx(1.0), 1.0)


def test_quality_over_affected_clients_only():
    quality = clustering_quality(truth([0, 0, 1, 1, 1], [True, True, True, True, False]), np.array([0, 0, 1, 1, 0]))
    assert quality.ari < 1
    assert quality.ari_affected == 1.0
    assert clustering_quality(truth([0, 1], [False, False]), np.array([0, 1])).ari_affected is None
    assert clustering_quality(truth([0, 1]), np.array([0, 1])).ari_affected is None


def test_clients_who_never_took_part_do_not_count():
    assert clustering_quality(truth([0, 1, 1]), np.array([0, 1, -1])).purity == 1.0
    assert clustering_quality(truth([0, 1]), np.array([-1, -1])) == Quality()


def test_nothing_is_made_up_where_the_truth_is_not_known():
    assert clustering_quality(None, np.array([0, 1])) == Quality(None, None, None, None)


def test_purity_by_hand():
    # cluster 0 holds concepts (0, 0, 1): 2; cluster 1 holds (1, 2): 1
    assert purity(np.array([0, 0, 1, 1, 2]), np.array([0, 0, 0, 1, 1])) == pytest.approx(3 / 5)


def test_bytes_down_by_hand():
    method = build("hcfl+(fedrc)", clusters=2)
    _, ensemble = initialise(lambda shape, classes: MODELS["mlp"](shape, classes), (4,), 3, "split", 2, 0)
    state = begin(method, ensemble, clients=5, classes=3)
    message = broadcast(method, state, 3)
    parameters = sum(tensor.numel() for tensor in ensemble.extractors.values())
    old = ClientState(0, (0, 1), Weights(torch.full((1, 2), 0.5)))
    sent = bytes_down(message, method, {3: None, 4: old})
    head = sum(tensor[0].numel() for tensor in ensemble.heads.values())
    assert sent == {
        "extractor": 2 * 4 * parameters,
        "heads": 2 * 4 * 2 * head,
        "class_shares": 2 * 4 * 2 * 3,
        "changes": 0,
        "weights": 1 * 4 * 2,
        "other models": 0,
    }
    assert bytes_down(message, build("fedem"), {0: None})["class_shares"] == 0


def test_a_client_is_sent_the_changes_since_it_last_took_part(planted):
    state, records = play(planted, build("hcfl+(fedrc)"), 8, participation=0.5)
    assert state.server.changes
    message = broadcast(build("hcfl+(fedrc)"), state.server, planted.classes)
    for client, own in state.clients.items():
        news = sum(change.round >= own.round for change in state.server.changes)
        assert bytes_down(message, build("hcfl+(fedrc)"), {client: own})["changes"] == CHANGE_BYTES * news
    assert records[0].down["changes"] == 0


def test_hard_methods_send_back_one_model_and_soft_ones_all(planted):
    _, hard = play(planted, build("ifca"), 1)
    _, soft = play(planted, build("fedem"), 1)
    for part in ("extractor", "heads"):
        assert hard[0].down[part] == soft[0].down[part] == soft[0].up[part]
        assert 3 * hard[0].up[part] == soft[0].up[part]
    assert hard[0].up["prototypes"] == hard[0].up["counts"] == 0
    assert hard[0].up["weights"] == planted.clients * 3 * 4


def test_objective_is_the_mean_log_likelihood_per_sample(planted):
    # Before training, a single model knows nothing: about −log C per sample.
    _, records = play(planted, build("fedem", clusters=1), 1)
    assert records[0].objective == pytest.approx(-math.log(planted.classes), abs=0.5)
    _, records = play(planted, build("fedavg"), 1)
    assert records[0].objective is None, "nobody has anything to choose, so nobody looks at the data"


def test_bytes_up_of_an_update_by_hand_and_of_nobody():
    def update(clients: int) -> Update:
        models = Ensemble({"w": torch.zeros(clients, 5)}, {"h": torch.zeros(2 * clients, 3)}, "split")
        each = torch.zeros(2 * clients, 2)
        return Update(
            tuple(range(clients)),
            torch.ones(clients),
            models,
            torch.arange(clients).repeat_interleave(2),
            started=each,
            mass=each,
            weights=torch.zeros(clients, 2),
            objective=torch.zeros(clients),
            counts=torch.zeros(clients, 2, 7),
            signatures={client: torch.zeros(9) for client in range(clients - 1)},
        )

    sent = bytes_up(build("fedrc"), update(3))
    assert {part: size // 4 for part, size in sent.items()} == {
        "extractor": 3 * 5,
        "heads": 3 * 2 * 3,
        "prototypes": 0,
        "counts": 3 * 2 * 7,
        "weights": 3 * 2,
        "signatures": 2 * 9,
        "moments": 0,
        "reports": 0,
    }
    assert set(bytes_up(build("fedavg"), update(0)).values()) == {0}


def test_val_predicts_every_client_with_its_own_weights_after_the_round(planted):
    state, records = play(planted, build("hcfl+(fedrc)"), 10)
    assert records[-1].val > 0.9
    network = setting(planted, build("hcfl+(fedrc)")).network
    assert (
        predict_held_out(planted, network, build("hcfl+(fedrc)"), state.server, state.clients).accuracy
        == records[-1].val
    )
    first, before = play(planted, build("fedavg"), 1)
    network = setting(planted, build("fedavg")).network
    method = build("fedavg")
    assert predict_held_out(planted, network, method, first.server, {}).accuracy == before[0].val
    untrained = replace(first.server, ensemble=start(planted, method)[1])
    assert predict_held_out(planted, network, method, untrained, {}).accuracy != before[0].val


@pytest.mark.parametrize(("form", "steps"), [("persistent", 1), ("fresh", 20)])
def test_newcomers_find_their_weights_on_one_part_and_are_measured_on_the_other(planted, form, steps):
    method = build("fedrc")
    chosen = setting(planted, method, newcomers=form)
    before, _ = play(planted, method, 2, newcomers=form)
    ((after, record),) = rounds.play(chosen, before, 3)
    inputs = planted.scaling(planted.test_x)
    log_probs = torch.log_softmax(outputs_of(chosen.network, after.server.ensemble, inputs), dim=2)
    class_shares = shares(method, after.server, planted.classes)
    for k, newcomer in enumerate(planted.newcomers):
        weights = before.newcomers[k] if form == "persistent" else Weights(torch.full((1, 3), 1 / 3))
        for _ in range(steps):
            weights = newcomer_step(method, newcomer, at_labels(log_probs, newcomer), None, class_shares, weights)
        assert_close(after.newcomers[k].client, weights.client)
        predicted = CLASSES.mix(log_probs, weights.client.expand(len(log_probs), -1)).argmax(dim=1)[newcomer.score_rows]
        assert record.test_per_concept[k] == (predicted == newcomer.score_labels).double().mean().item()


def test_quality_by_hand():
    # MI = log 2, H = log 2 and 1.5·log 2; one of the two pairs of concepts is together.
    quality = clustering_quality(truth([0, 0, 1, 1]), np.array([0, 1, 2, 2]))
    assert quality.nmi == pytest.approx(0.8)
    assert quality.ari == pytest.approx(4 / 7)


def test_who_never_took_part_counts_in_no_measure():
    quality = clustering_quality(truth([0, 1, 1], [True] * 3), np.array([0, 1, -1]))
    assert (quality.ari, quality.ari_affected, quality.nmi) == (1.0, 1.0, pytest.approx(1.0))


def test_bytes_up_by_hand(planted):
    state, records = play(planted, build("hcfl+(fedrc)"), 1)
    classes, features = state.server.ensemble.heads["weight"].shape[1:]
    assert records[0].up["prototypes"] == 12 * 4 * (classes * features + classes + features)
    assert records[0].up["counts"] == 12 * 4 * classes


def test_a_change_is_sent_in_the_next_round(planted):
    _, records = play(planted, build("hcfl+(fedrc)"), 6)
    assert any(record.changes for record in records[:-1])
    for before, after in pairwise(records):
        assert after.down["changes"] == CHANGE_BYTES * planted.clients * len(before.changes)


LOG_PROBS = torch.tensor([[[0.8, 0.2], [0.4, 0.6]], [[0.5, 0.5], [0.1, 0.9]]]).log()
BOTH = torch.tensor([1, 0])
EVEN = torch.full((2, 2), 0.5)


def test_a_newcomer_goes_on_from_its_own_weights():
    newcomer = Newcomer("n", BOTH, torch.tensor([0, 0]), BOTH, BOTH)
    start = Weights(torch.tensor([[0.25, 0.75]]))
    # (.25·.5, .75·.1) → (5/8, 3/8); (.25·.8, .75·.4) → (2/5, 3/5)
    found = newcomer_step(build("fedem"), newcomer, at_labels(LOG_PROBS, newcomer), None, EVEN, start).client
    assert_close(found, torch.tensor([[0.5125, 0.4875]]))


def test_a_newcomer_can_find_its_weights_without_class_shares():
    newcomer = Newcomer("n", BOTH, torch.tensor([0, 0]), BOTH, BOTH)
    start = Weights(torch.tensor([[0.25, 0.75]]))
    skewed = torch.tensor([[0.5, 0.5], [0.1, 0.9]])
    # With P_k(0) = (.5, .1): (.25·1, .75·1) → (1/4, 3/4); (.25·1.6, .75·4) → (2/17, 15/17)
    found = newcomer_step(build("fedrc"), newcomer, at_labels(LOG_PROBS, newcomer), None, skewed, start).client
    assert_close(found, torch.tensor([[(1 / 4 + 2 / 17) / 2, (3 / 4 + 15 / 17) / 2]]))
    plain = newcomer_step(
        without_shares(build("fedrc")), newcomer, at_labels(LOG_PROBS, newcomer), None, skewed, start
    ).client
    assert_close(plain, torch.tensor([[0.5125, 0.4875]]))
    with pytest.raises(InputError, match="plain_newcomers = true: fedem finds weights without P_k anyway"):
        without_shares(build("fedem"))
    with pytest.raises(InputError, match="plain_newcomers = true: fedem finds weights without P_k anyway"):
        prepare(from_flat(method="fedem", plain_newcomers=True))
    assert prepare(from_flat(method="hcfl+(fedrc)", plain_newcomers=True)).setting.plain_newcomers


def test_a_newcomer_mixes_gaussians_from_its_own_weights_too():
    newcomer = Newcomer("n", BOTH, torch.tensor([0, 0]), BOTH, BOTH)
    start = Weights(torch.tensor([[0.25, 0.75]]), components=torch.tensor([[[0.5, 0.5], [0.25, 0.75]]]))
    densities = torch.tensor([[1.0, 1.0], [0.2, 0.6]]).log()
    found = newcomer_step(build("fedgmm", clusters=2), newcomer, at_labels(LOG_PROBS, newcomer), densities, EVEN, start)
    # Sample 1: p_k(z) = (.4, .5), γ ∝ (.25·.5·.4, .75·.1·.5) → (4/7, 3/7), within clusters (1/4, 3/4) and (.1, .9).
    # Sample 0: p_k(z) = 1, γ ∝ (.25·.8, .75·.4) → (2/5, 3/5), within clusters as they were.
    assert_close(found.client, torch.tensor([[17 / 35, 18 / 35]]))
    assert_close(found.components, torch.tensor([[[6 / 17, 11 / 17], [3 / 16, 13 / 16]]]))


def test_a_newcomer_is_placed_by_its_class_shares_where_the_method_does_so():
    method = Method(Conditional(), ByLabelDistribution(), Fixed(), None, "full", 2, name="mine")
    newcomer = Newcomer("n", torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1]), BOTH, BOTH)
    shares = torch.tensor([[0.1, 0.9], [0.7, 0.3]])
    # Two thirds of its labels are 0, as in cluster 1; cluster 0 has the lower loss.
    found = newcomer_step(
        method, newcomer, at_labels(LOG_PROBS, newcomer), None, shares, Weights(torch.tensor([[0.5, 0.5]]))
    ).client
    assert found.tolist() == [[0.0, 1.0]]


def test_bytes_of_gaussians_go_to_all_and_the_initial_model_to_those_who_are_new():
    method = build("fedgmm", clusters=2)
    _, ensemble = initialise(MODELS["mlp"], (4,), 3, "full", 2, 0)
    gaussians = Gaussians(torch.zeros(32), torch.zeros(32, 5), torch.zeros(3, 5), torch.ones(3, 5))
    state = replace(begin(method, ensemble, clients=5, classes=3), round=1, gaussians=gaussians)
    old = ClientState(1, (0, 1), Weights(torch.full((1, 2), 0.5), components=torch.full((1, 2, 3), 1 / 3)))
    sent = bytes_down(broadcast(method, state, 3), method, {2: None, 3: old, 4: old})
    parameters = sum(t[0].numel() for part in (ensemble.extractors, ensemble.heads) for t in part.values())
    assert sent["other models"] == 4 * (3 * (32 + 32 * 5 + 2 * 3 * 5) + parameters)


def test_an_assigned_client_that_missed_the_split_of_its_cluster_is_sent_all_models():
    method = build("cfl")
    _, ensemble = initialise(MODELS["mlp"], (4,), 3, "full", 2, 0)
    split = Split(2, 0, 1, (0,), (1,), "move", 0.9, 0.2, 0.3)
    state = begin(method, ensemble, clients=3, classes=3)
    state = replace(state, round=2, changes=(split,), weights=torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    head = 4 * sum(tensor[0].numel() for tensor in ensemble.heads.values())
    own = ClientState(1, (0,), Weights(torch.ones(1, 1)))
    sent = [bytes_down(broadcast(method, state, 3), method, {client: own})["heads"] for client in range(3)]
    assert sent == [head, head, 2 * head]


def test_with_gaussians_every_sample_has_its_own_weights_in_val_and_test(planted):
    method = build("fedgmm")
    played, _ = play(planted, method, 1)
    # Untrained models, each for the samples of one Gaussian.
    network, ensemble = start(planted, method)
    each = Weights(torch.full((1, 3), 1 / 3), components=torch.eye(3).unsqueeze(0))
    state = replace(played.server, ensemble=ensemble, weights=torch.full((12, 3), 1 / 3))
    clients = {client: replace(known, weights=each) for client, known in played.clients.items()}

    def hits(inputs, labels, weights, with_density=True):
        scaled = planted.scaling(inputs)
        log_probs = torch.log_softmax(outputs_of(network, ensemble, scaled), dim=2)
        z = state.gaussians.embed(embed(network, state.anchor.extractor(0), scaled))
        segments, densities = Segments((len(scaled),)), state.gaussians.log_densities(z)
        density = mixture_log_density(weights.components, densities, segments) if with_density else 0
        log_weights = weights.client.log().expand(len(scaled), -1) + density
        return (CLASSES.mix(log_probs, torch.softmax(log_weights, dim=1)).argmax(dim=1) == labels).double()

    rows = planted.val_rows
    expected = hits(planted.x[rows], planted.y[rows], each).mean().item()
    assert predict_held_out(planted, network, method, state, clients).accuracy == pytest.approx(expected)
    assert expected != pytest.approx(hits(planted.x[rows], planted.y[rows], each, with_density=False).mean().item())
    found = evaluation.test_score(planted, network, method, state, (each,) * 3, "persistent")
    for newcomer, weights, accuracy in zip(planted.newcomers, found.weights, found.per_concept, strict=True):
        inputs, labels = planted.test_x[newcomer.score_rows], newcomer.score_labels
        assert accuracy == pytest.approx(hits(inputs, labels, weights).mean().item())
        assert accuracy != pytest.approx(hits(inputs, labels, weights, with_density=False).mean().item())


def test_mixing_of_gaussians_follows_the_splits_of_the_round_itself(planted):
    method = Method(Joint(2, 4), SoftEM(), SplitAndRemove(1e-6), UpdateCosine(), "full", 2, name="mine")
    state, records = play(planted, method, 1)
    assert len(records[0].changes) == 1
    assert state.server.weights.shape == (12, 3)
    assert records[0].val is not None


def test_a_concept_measured_on_two_halves_is_one_number_over_all_its_samples(planted):
    method = build("fedrc")
    halved = replace(planted, newcomers=tuple(half for newcomer in planted.newcomers for half in newcomer.halves()))
    state, records = play(halved, method, 2)
    assert len(state.newcomers) == 6
    assert len(records[-1].test_per_concept) == 3
    network = setting(halved, method).network
    outputs = outputs_of(network, state.server.ensemble, halved.scaling(halved.test_x))
    log_probs = torch.log_softmax(outputs, dim=2)
    for concept, (one, two) in enumerate(zip(halved.newcomers[::2], halved.newcomers[1::2], strict=True)):
        right = 0
        for newcomer, weights in zip((one, two), state.newcomers[2 * concept :], strict=False):
            scores = CLASSES.mix(log_probs[newcomer.score_rows], weights.client.expand(len(newcomer.score_rows), -1))
            right += int((scores.argmax(dim=1) == newcomer.score_labels).sum())
        assert records[-1].test_per_concept[concept] == pytest.approx(right / len(halved.test_x))


def test_an_empty_cluster_is_not_counted(planted):
    _, records = play(planted, build("ifca", clusters=5), 2)
    sizes = records[-1].cluster_sizes
    assert len(sizes) == 5
    assert records[-1].clusters == sum(size > 0 for size in sizes.values()) < 5
