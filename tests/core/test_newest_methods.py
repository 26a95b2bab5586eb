"""What the papers of CLoVE, FLUX, FedGWC, CFL-GP and Auxo promise, on planted data."""

import numpy as np
import torch

from hcfl import Federation
from hcfl.core.cluster_profiles import described_evidence
from hcfl.engines import Batched
from hcfl.methods import build
from hcfl.models.inputs import Scaled
from helpers import blobs, local_sgd, play, setting


def many_clients(clients: int, per_client: int = 16) -> Federation:
    """Clients in two concepts, which swap the classes pairwise."""
    x, y = blobs(per_class=clients * per_client // 4)
    client = np.random.default_rng(1).permutation(len(y)) % clients
    concept = client % 2
    return Federation.from_arrays(x, np.where(concept == 1, y ^ 1, y), client=client, concept=concept)


def test_clove_finds_planted_clusters_in_the_first_rounds_from_losses(planted):
    for seed in range(2):
        _, records = play(planted, build("clove"), 3, seed=seed)
        assert records[-1].quality.ari == 1.0
    assert records[0].up["reports"] == planted.clients * 3 * 4, "three losses of four bytes each"


def test_cfl_gp_finds_planted_clusters_from_one_probe_and_sends_probes_every_third_round(planted):
    state, records = play(planted, build("cfl-gp"), 5)
    assert [record.quality.ari for record in records] == [1.0] * 5
    assert [record.up["reports"] > 0 for record in records] == [True, False, False, True, False]
    assert [record.down["other models"] > 0 for record in records] == [True, False, False, True, False]
    assert len(state.server.memory) == planted.clients


def cameras(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs of eight clients, every second of which sees everything shifted; labels and clients."""
    x, y = blobs(per_class=120, seed=0)
    order = np.random.default_rng(seed).permutation(len(y))
    client = np.arange(len(y)) % 8
    return (x[order] + 6.0 * (client % 2)[:, None]).astype(np.float32), y[order], client


def test_flux_tells_cameras_apart_and_places_new_clients_without_labels():
    x, y, client = cameras(0)
    federation = Federation.from_arrays(x, y, client=client, concept=client % 2)
    state, records = play(federation, build("flux"), 5)
    assert [record.clusters for record in records] == [1, 1, 2, 2, 2]
    assert records[-1].quality.ari == 1.0
    assert [record.up["reports"] > 0 for record in records] == [False, False, True, False, False]
    x, _, client = cameras(1)
    network = setting(federation, build("flux")).network
    for number in range(8):
        new = Scaled(torch.from_numpy(x[client == number]), federation.scaling)
        evidence = described_evidence(network, state.server, new)
        assert evidence.shape == (len(new), 2)
        assert int(evidence[0].argmax()) == int(state.server.members[number % 2])


def test_fedgwc_separates_clients_by_their_losses():
    x, y = blobs(per_class=120)
    draw = np.random.default_rng(0)
    client = draw.permutation(len(y)) % 12
    hard = client % 3 == 0
    federation = Federation.from_arrays(x, np.where(hard, draw.integers(0, 4, len(y)), y), client=client, concept=hard)
    _, records = play(federation, build("fedgwc", most=2), 12)
    split = next(record for record in records if record.clusters > 1)
    assert split.round > 1, "rewards must settle first"
    assert split.quality.ari == 1.0, "four clients whose labels are drawn have other losses than the eight others"


def test_auxo_finds_cohorts_with_five_percent_of_the_clients_in_a_round():
    federation = many_clients(100)
    _, records = play(
        federation,
        build("auxo"),
        60,
        participation=0.05,
        engine=Batched(),
        evaluate_every=60,
        sgd=local_sgd(lr=0.1, batch=16, epochs=2),
    )
    assert {record.participants for record in records} == {5}
    assert records[10].clusters == 1, "few clients are known by then"
    assert records[-1].quality.ari > 0.9
