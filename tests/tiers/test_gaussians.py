"""Gaussians on a fixed embedding, on hand-computed numbers (FedGMM)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hcfl.tiers import Joint, SoftEM, Weights
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.formulation import objective
from hcfl.tiers.gaussians import (
    Gaussians,
    Moments,
    component_responsibilities,
    component_step,
    feature_moments,
    gaussian_moments,
    initial_gaussians,
    mixture_log_density,
    refit,
    total,
)
from hcfl.tiers.weighting import EStepInputs, uniform

LINE = Gaussians(
    origin=torch.tensor([1.0]),
    axes=torch.tensor([[1.0]]),
    means=torch.tensor([[0.0], [2.0]]),
    variances=torch.tensor([[1.0], [4.0]]),
)


def test_log_density_by_hand():
    z = LINE.embed(torch.tensor([[2.0]]))  # 2 − origin = 1
    assert z.tolist() == [[1.0]]
    narrow = -0.5 * (1 + math.log(2 * math.pi))
    wide = -0.5 * (1 / 4 + math.log(4) + math.log(2 * math.pi))
    assert_close(LINE.log_densities(z), torch.tensor([[narrow, wide]]))


def test_a_cluster_s_density_mixes_the_gaussians_in_its_own_way():
    densities = torch.tensor([[0.2, 0.6]]).log()
    components, segments = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]]), Segments((1,))
    assert_close(mixture_log_density(components, densities, segments).exp(), torch.tensor([[0.4, 0.5]]))
    # γ of the clusters (.8, .2), shared out within each: .1/.4 and .3/.4; .05/.5 and .45/.5
    joint = component_responsibilities(components, densities, torch.tensor([[0.8, 0.2]]), segments)
    assert_close(joint, torch.tensor([[[0.2, 0.6], [0.02, 0.18]]]))
    assert_close(component_step(components, joint, segments), torch.tensor([[[0.25, 0.75], [0.1, 0.9]]]))
    nobody = component_responsibilities(components, densities, torch.tensor([[1.0, 0.0]]), segments)
    kept = component_step(components, nobody, segments)[0, 1]
    assert_close(kept, components[0, 1], msg="a cluster without mass keeps its own")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 10**6))
def test_a_group_mixes_the_gaussians_as_each_of_its_clients_alone(sizes, clusters, seed):
    generator, segments = torch.Generator().manual_seed(seed), Segments(tuple(sizes))
    components = torch.rand(len(segments), clusters, 3, generator=generator).softmax(dim=2)
    densities = 3 * torch.randn(segments.samples, 3, generator=generator)
    gamma = torch.rand(segments.samples, clusters, generator=generator).softmax(dim=1)
    density = mixture_log_density(components, densities, segments)
    joint = component_responsibilities(components, densities, gamma, segments)
    step = component_step(components, joint, segments)
    parts = (segments.split(table) for table in (densities, gamma, density, joint))
    for i, (log_n, gamma_i, density_i, joint_i) in enumerate(zip(*parts, strict=True)):
        mine, alone = components[i : i + 1], Segments((len(log_n),))
        assert_close(mixture_log_density(mine, log_n, alone), density_i)
        assert_close(component_responsibilities(mine, log_n, gamma_i, alone), joint_i)
        assert_close(component_step(mine, joint_i, alone)[0], step[i])


def test_moments_of_clients_add_up_to_the_gaussians_of_all_samples():
    z = torch.tensor([[1.0], [3.0], [5.0]])
    joint = torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]], [[0.0, 1.0]]])
    parts = total([gaussian_moments(joint[:1], z[:1]), gaussian_moments(joint[1:], z[1:])])
    assert_close(parts.mass, torch.tensor([1.5, 1.5]).double())
    new = refit(LINE, parts, floor=1e-3)
    # m_0 = (1 + 1.5)/1.5, m_1 = (1.5 + 5)/1.5; second moments (1 + 4.5)/1.5 and (4.5 + 25)/1.5
    assert_close(new.means, torch.tensor([[5 / 3], [13 / 3]]))
    assert_close(new.variances, torch.tensor([[11 / 3 - 25 / 9], [59 / 3 - 169 / 9]]))


def test_variances_have_a_floor_and_a_gaussian_without_samples_stays():
    one = Moments(*(torch.tensor(v).double() for v in ([2.0, 0.0], [[2.0], [0.0]], [[2.0], [0.0]])))
    new = refit(LINE, one, floor=0.01)
    assert_close(new.means, torch.tensor([[1.0], [2.0]]))
    assert_close(new.variances, torch.tensor([[0.01], [4.0]]))


def test_principal_axes_come_from_summed_moments_alone():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 5, generator=generator) * torch.tensor([3.0, 1.0, 0.5, 0.2, 0.1]) + 7
    summed = total([feature_moments(features[:50]), feature_moments(features[50:])])
    gaussians = initial_gaussians(summed, number=3, dimensions=2, floor=1e-3)
    centred = features - features.mean(dim=0)
    _, values, axes = torch.linalg.svd(centred, full_matrices=False)
    assert_close(gaussians.origin, features.mean(dim=0))
    assert_close((gaussians.axes.T @ axes[:2].T).abs(), torch.eye(2), atol=1e-3, rtol=0)
    assert_close(gaussians.variances[0], (values[:2] ** 2 / 200), rtol=1e-3, atol=0)
    # They start apart along the first axis, around the middle.
    assert gaussians.means[0, 0] < gaussians.means[1, 0] == 0 < gaussians.means[2, 0]
    assert_close(gaussians.means[2, 0], 0.9674 * gaussians.variances[0, 0].sqrt(), rtol=1e-3, atol=0)
    assert gaussians.means[:, 1].tolist() == [0.0] * 3
    assert initial_gaussians(summed, 3, 32, 1e-3).axes.shape == (5, 5), "no more axes than features"


def test_axes_point_where_their_largest_coordinate_is_positive():
    for seed in range(5):
        features = torch.randn(20, 5, generator=torch.Generator().manual_seed(seed))
        axes = initial_gaussians(feature_moments(features), 2, 5, 1e-3).axes
        assert (axes.gather(0, axes.abs().argmax(dim=0, keepdim=True)) > 0).all()


def test_the_first_variances_have_a_floor_too():
    flat = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    assert_close(initial_gaussians(feature_moments(flat), 1, 2, 0.25).variances, torch.tensor([[1.0, 0.25]]))


def test_moments_of_features_are_summed_in_double():
    moments = feature_moments(torch.tensor([[10000.0], [10001.0]]))
    assert moments.second.item() == 200020001.0, "in single precision 200020000"


def test_em_finds_planted_gaussians():
    generator = torch.Generator().manual_seed(1)
    centres = torch.tensor([[-4.0, 0.0], [0.0, 1.0], [4.0, 0.0]])
    features = (centres[torch.arange(300) % 3] + 0.3 * torch.randn(300, 2, generator=generator)).float()
    gaussians = initial_gaussians(feature_moments(features), 3, 2, 1e-3)
    components, segments = torch.full((1, 1, 3), 1 / 3), Segments((300,))
    for _ in range(20):
        z = gaussians.embed(features)
        joint = component_responsibilities(components, gaussians.log_densities(z), torch.ones(300, 1), segments)
        components = component_step(components, joint, segments)
        gaussians = refit(gaussians, gaussian_moments(joint, z), 1e-3)
    back = gaussians.means @ gaussians.axes.T + gaussians.origin
    assert_close(back[back[:, 0].argsort()], centres, atol=0.1, rtol=0)
    assert_close(gaussians.variances, torch.full((3, 2), 0.09), atol=0.03, rtol=0)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 10), st.integers(0, 10**6))
def test_e_steps_on_clusters_and_gaussians_never_lower_the_joint_objective(clusters, number, samples, seed):
    generator = torch.Generator().manual_seed(seed)
    log_prob = 3 * torch.randn(samples, clusters, generator=generator).double()
    densities = 3 * torch.randn(samples, number, generator=generator).double()
    weights, components = uniform(clusters)[None].double(), torch.full((1, clusters, number), 1 / number).double()
    labels, shares, segments = torch.zeros(samples, dtype=torch.long), torch.ones(clusters, 1), Segments((samples,))

    def log_likelihood():
        density = mixture_log_density(components, densities, segments)
        return Joint(number).log_likelihood(log_prob, labels, shares, density)

    before = objective(log_likelihood(), weights, segments)
    for _ in range(6):
        after, gamma = SoftEM().e_step(
            Weights(weights), EStepInputs(log_likelihood(), segments, torch.ones(1, 1), shares)
        )
        joint = component_responsibilities(components, densities, gamma, segments)
        components = component_step(components, joint, segments)
        weights = after.client
        now = objective(log_likelihood(), weights, segments)
        assert now >= before - 1e-9 * abs(before)
        before = now


def test_factorised_weights_are_the_pairs_of_the_paper():
    """EM on ω and ρ is EM on π over all pairs (Gaussian, classifier)."""
    generator = torch.Generator().manual_seed(3)
    log_prob, densities = torch.randn(7, 2, generator=generator), torch.randn(7, 3, generator=generator)
    weights, components = torch.tensor([[0.3, 0.7]]), torch.rand(1, 2, 3, generator=generator).softmax(dim=2)
    pi, segments = weights[:, :, None] * components, Segments((7,))
    pairs = torch.softmax((pi.log() + log_prob[:, :, None] + densities[:, None]).flatten(1), dim=1).view(7, 2, 3)

    likelihood = log_prob + mixture_log_density(components, densities, segments)
    after, gamma = SoftEM().e_step(
        Weights(weights), EStepInputs(likelihood, segments, torch.ones(1, 1), torch.ones(2, 1))
    )
    joint = component_responsibilities(components, densities, gamma, segments)
    assert_close(joint, pairs)
    assert_close((after.client[:, :, None] * component_step(components, joint, segments))[0], pairs.mean(dim=0))


def test_before_the_first_report_the_joint_formulation_is_conditional():
    log_prob = torch.randn(3, 2)
    assert Joint().log_likelihood(log_prob, torch.zeros(3).long(), torch.ones(2, 1)) is log_prob


@pytest.mark.parametrize("settings", [{"gaussians": 0}, {"dimensions": 0}, {"floor": 0.0}])
def test_settings_are_checked(settings):
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=f"{name} = {value}: must be"):
        Joint(**settings)
