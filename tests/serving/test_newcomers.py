"""Somebody who never trained: where it belongs, on what evidence, and what is said where nobody can know."""

import numpy as np
import pytest
import torch

import hcfl
from hcfl import Federation, InputError
from hcfl.core.cluster_profiles import expected_log_likelihood, log_density
from hcfl.tiers import Prototypes
from helpers import blobs


def cameras(samples=1200, group=None):
    """Three groups of clients whose inputs lie elsewhere, and mean the same."""
    x, y = blobs(per_class=samples // 4, seed=5)
    order = np.random.default_rng(1).permutation(len(y))
    x, y, client = x[order], y[order], np.arange(len(y)) % 12
    camera = client % 3 if group is None else np.full(len(y), group)
    x = x + 6 * np.eye(3, x.shape[1], dtype=np.float32)[camera]
    return x * np.where(camera == 1, -1, 1)[:, None].astype(np.float32), y, client, camera


@pytest.fixture(scope="module")
def by_camera(tmp_path_factory):
    x, y, client, camera = cameras()
    federation = Federation.from_arrays(x, y, client=client, concept=camera)
    return hcfl.run("hcfl+(fedem)", federation, rounds=10, rho=0.1, out=tmp_path_factory.mktemp("cameras") / "run")


def cluster_of(run, concept):
    """The cluster that the members of a true concept are in."""
    of_concept = run.state.server.members.numpy()[run.federation.truth.concept == concept]
    return run.clusters[np.bincount(of_concept).argmax()]


def test_a_newcomer_of_each_concept_of_the_default_federation(tmp_path):
    run = hcfl.run("hcfl+(fedrc)", rounds=10, evaluate_every=10, test_on="tenth", out=tmp_path / "run")
    federation = run.federation
    assert run.summary["ari_last"] == 1
    without = []
    for concept, newcomer in enumerate(federation.newcomers):
        x, y = federation.test_x[newcomer.fit_rows].numpy(), newcomer.fit_labels.numpy()
        found = run.assign(x, y)
        assert (found.evidence, found.note) == ("labels", "")
        assert found.cluster == cluster_of(run, concept)
        assert found.weights[found.cluster] > 0.95
        assert found.accuracy > 0.85
        best = max(found.clusters, key=lambda each: each.evidence)
        nearest = min(found.clusters, key=lambda each: each.prototype_distance)
        assert best.cluster == nearest.cluster == found.cluster
        assert all(each.accuracy < 0.3 for each in found.clusters if each.cluster != found.cluster)
        without.append(run.assign(x, y, unlabelled=True))
    # Without labels the three newcomers are the same images: nobody can tell them apart, and the result says so.
    assert len({each.cluster for each in without}) == 1
    assert sum(each.accuracy > 0.5 for each in without) <= 1, "right for one concept at most, by chance"
    for each in without:
        assert each.evidence == "prototypes"
        assert max(each.weights.values()) < 0.5
        assert each.doubtful
        assert "cannot be told apart without labels" in each.note
    confusion = run.profiles.confusion
    assert confusion.diagonal().sum() < 0.6 * confusion.sum(), "nor can the federation's own clients"


def test_clusters_whose_inputs_differ_are_told_apart_without_labels(by_camera):
    for group in range(3):
        x, y, _, _ = cameras(80, group)
        found = by_camera.assign(x)
        assert found.accuracy is None
        assert found.cluster == cluster_of(by_camera, group)
        assert not found.doubtful
        assert f"{found.right} of the {found.put_here} own clients" in found.note
        assert by_camera.assign(x, y, unlabelled=True).accuracy > 0.9
        closest = min(found.clusters, key=lambda each: each.prototype_distance)
        assert closest.cluster == found.cluster


def test_full_models_have_no_common_features_so_confidence_decides(planted, tmp_path):
    run = hcfl.run("ifca", planted, "mlp", rounds=5, out=tmp_path / "run")
    assert run.profiles.variance is None
    x, y = planted.x[planted.train[0]].numpy(), planted.y[planted.train[0]].numpy()
    found = run.assign(x)
    assert found.evidence == "confidence"
    assert found.doubtful, "concepts relabel the same inputs"
    assert run.assign(x, y).clusters[0].prototype_distance is not None


@pytest.mark.parametrize("method", ["local", "fedavg", "ifca", "fedgmm", "fedsoft", "stocfl", "hcfl+(fesem)"])
def test_every_kind_of_method_meets_newcomers(tmp_path, method, planted):
    run = hcfl.run(method, planted, "mlp", rounds=3, out=tmp_path / "run")
    x, y = planted.x[planted.train[0]].numpy(), planted.y[planted.train[0]].numpy()
    for found in (run.assign(x, y), run.assign(x)):
        assert sum(found.weights.values()) == pytest.approx(1, abs=1e-5)
        assert found.weights[found.cluster] == max(found.weights.values())
        assert run.predict_proba(x, weights=found).sum(axis=1) == pytest.approx(np.ones(len(x)), abs=1e-5)


def test_labels_decide_as_the_fresh_form_of_the_measurement_does(tmp_path):
    run = hcfl.run(
        "hcfl+(fedrc)", rounds=6, clients=9, evaluate_every=6, newcomers="fresh", test_on="tenth", out=tmp_path / "run"
    )
    federation = run.federation
    for newcomer, weights in zip(federation.newcomers, run.state.newcomers, strict=True):
        found = run.assign(federation.test_x[newcomer.fit_rows].numpy(), newcomer.fit_labels.numpy())
        assert list(found.weights.values()) == pytest.approx(weights.client[0].tolist(), abs=1e-6)
        x, y = federation.test_x[newcomer.score_rows].numpy(), newcomer.score_labels.numpy()
        assert run.rows[-1]["test_per_concept"][federation.newcomers.index(newcomer)] == pytest.approx(
            (run.predict(x, weights=found) == y).mean()
        )


def test_accuracy_is_measured_on_samples_that_did_not_choose_the_weights(planted, tmp_path):
    run = hcfl.run("fedem", planted, "mlp", rounds=2, out=tmp_path / "run")
    x, y = planted.x[:1].numpy(), planted.y[:1].numpy()
    assert run.assign(x, y).accuracy is None, "one sample cannot do both"
    assert run.assign(planted.x[:5].numpy(), planted.y[:5].numpy()).accuracy in (0, 0.2, 0.4, 0.6, 0.8, 1)


def test_the_density_by_hand():
    prototypes = Prototypes(
        torch.tensor([[[0.0], [2.0]], [[1.0], [0.0]]]), torch.tensor([[3.0, 1.0], [4.0, 0.0]]), torch.zeros(2, 1)
    )
    found = log_density(prototypes, torch.tensor([0.5]), torch.tensor([[1.0]]))
    # (1 − 0)² / 0.5 / 2 = 1, and the same to the other side; the second cluster's only class is met exactly.
    assert found[0].tolist() == pytest.approx([-1.0, 0.0])


def test_the_expected_likelihood_by_hand():
    log_probs = torch.tensor([[[0.5, 0.5], [0.9, 0.1]]]).log()
    shares = torch.tensor([[0.5, 0.5], [0.8, 0.2]])
    conditional, correlation = (hcfl.methods.build(name) for name in ("fedem", "fedrc"))
    entropy = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1))
    assert expected_log_likelihood(conditional, log_probs, shares)[0].tolist() == pytest.approx([np.log(0.5), -entropy])
    divergence = 0.9 * np.log(0.9 / 0.8) + 0.1 * np.log(0.1 / 0.2)
    assert expected_log_likelihood(correlation, log_probs, shares)[0].tolist() == pytest.approx(
        [0.0, divergence], abs=1e-6
    )


def test_what_is_not_like_the_federation_is_refused(tmp_path):
    x, y = np.arange(40 * 64, dtype=np.uint8).reshape(40, 8, 8), np.arange(40) % 4
    run = hcfl.run("fedavg", Federation.from_arrays(x, y, clients=2), rounds=1, out=tmp_path / "run")
    with pytest.raises(InputError, match=r"x has shape \(5, 9, 8\), but the run's inputs are \(N, 8, 8, 1\)"):
        run.assign(x[:5].repeat(2, axis=1)[:, :9])
    with pytest.raises(InputError, match=r"x has shape \(5,\), but"):
        run.assign(np.zeros(5))
    with pytest.raises(InputError, match="y has the label '12', but the run's classes are 0, 1"):
        run.assign(x[:5], np.full(5, 12))
    with pytest.raises(InputError, match=r"y has shape \(4,\), but x has 5 samples"):
        run.assign(x[:5], y[:4])
    with pytest.raises(InputError, match="NaN"):
        run.assign(np.full((5, 8, 8), np.nan))
    with pytest.raises(InputError, match="values up to 1, but the run's images are bytes from 0 to 255"):
        run.assign(np.ones((5, 8, 8)))
