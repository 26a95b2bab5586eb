"""What clients do in a round: catch up, E-step, local training (equations (6) and (7)), statistics.

Everything is written for several clients, whose samples lie one after another; a real client is a group of one. An
engine only decides which clients it puts together, and how they train. Weights live on the CPU, features and models
where the inputs are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hcfl import rng
from hcfl.core.aggregation import own_parameters
from hcfl.core.client_statistics import compared_features, first_signatures, halved_features, reports
from hcfl.core.cluster_log import Change, follow, missed_split, origins
from hcfl.core.local_plan import Job, Trainer, at_rest, train
from hcfl.core.notes import notes
from hcfl.core.setting import RoundTask, Setting
from hcfl.core.sgd import shuffle
from hcfl.core.state import Broadcast, ClientState, Update
from hcfl.data.local_data import LocalData
from hcfl.methods import Method
from hcfl.methods.local_models import PlanInputs
from hcfl.models import Network
from hcfl.models.ensemble import Copies, Ensemble, embed, forward
from hcfl.models.inputs import some
from hcfl.tiers import EStepInputs, FollowsChanges, SettlesAfterTraining, Weights
from hcfl.tiers.change_test import loss_increase
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.formulation import class_counts, objective
from hcfl.tiers.gaussians import (
    Moments,
    component_responsibilities,
    component_step,
    feature_moments,
    gaussian_moments,
    mixture_log_density,
)
from hcfl.tiers.weighting import uniform


def take_part(
    task: RoundTask, trainer: Trainer = train, data: LocalData | None = None
) -> tuple[Update, list[ClientState]]:
    """Do the participants' work of a round: catch up with the clusters, E-step, local training, statistics.

    `trainer` trains all participants' models; `data` are their samples, one participant's after another's, by default
    their training data in the federation. Returns what they send, and each one's new state.

    >>> update, states = take_part(RoundTask(setting, broadcast, [3, 7], {}))  # doctest: +SKIP
    >>> update.clients, update.weights.shape  # doctest: +SKIP
    ((3, 7), torch.Size([2, clusters]))
    """
    method, network, seed = task.setting.method, task.setting.network, task.setting.seed
    broadcast, clients = task.broadcast, task.participants
    complete = data is None and len(clients) == len(task.setting.federation.train)
    data = task.setting.federation.local_data(clients) if data is None else data
    segments, labels = data.segments, data.labels
    known = [task.states.get(client) for client in clients]
    new = torch.tensor([state is None for state in known])
    weights = Weights.join(
        [
            begin_step(task.setting, broadcast, client, state, Segments((samples,)))
            for client, state, samples in zip(clients, known, segments.sizes, strict=True)
        ]
    )

    noted = notes(task, data)

    # The E-step (tiers 1 and 2), from one look at the data.
    looked, uninformed = looked_at(method, weights.client), ~must_look(method, weights.client)
    features, log_prob = look(network, broadcast.ensemble, data, looked & ~uninformed.unsqueeze(1))
    sgd = task.setting.sgd.ordered(len(broadcast.clusters)).in_round(broadcast.round)
    sgd = replace(sgd, proximal=method.local.proximal, order=method.traits.local.order or sgd.order)
    orders = [rng.torch_generator(seed, "batches", broadcast.round, client) for client in clients]
    batches = shuffle(segments, sgd, orders, singles=not network.buffers)
    mix = class_mix(labels, data.classes, segments)
    log_prob = log_prob.cpu()  # only now: a GPU looks while the CPU draws batches
    weights = follow_changes(task, weights, data, log_prob)
    inputs = model_inputs(network, broadcast, data, weights.components)
    density = inputs.log_density(weights.components, segments)
    likelihood = method.formulation.log_likelihood(log_prob, labels, broadcast.class_shares, density)
    likelihood = likelihood.masked_fill(~segments.each(looked), -torch.inf)
    seen = EStepInputs(likelihood, segments, mix, broadcast.class_shares, broadcast.round, new)
    after, gamma = method.weighting.e_step(weights, seen)
    components, moments = inputs.m_step(weights.components, gamma, segments)
    weights = replace(after, components=components)

    # Local training.
    own = [None if state is None else state.own for state in known]
    plan = method.local.plan(
        PlanInputs(broadcast.ensemble, segments, weights, gamma, method.weighting.hard, broadcast.common, own)
    )
    job = Job(
        plan=plan,
        features=features if plan.received or network.fixed else _features(network, plan.start, data),
        data=data,
        batches=batches,
        sgd=sgd,
        purposes=[(seed, "local training", broadcast.round, client) for client in clients],
        velocity=momentum(network, broadcast, plan.start, known) if sgd.keep_momentum else None,
        follow_losses="training losses" in method.reports_in(broadcast.round),
    )
    done = trainer(network, job)
    trained = done.models
    if isinstance(method.weighting, SettlesAfterTraining):
        distances = parameter_distances(network, broadcast.ensemble, trained.rows()).cpu()
        weights = replace(method.weighting.settle(weights, distances), components=weights.components)

    # What they send and keep. Models are divided first: a GPU still trains while the CPU does it.
    kept_models = _each(trained if method.local.kept else None, len(clients))
    momenta = _each(done.velocity, len(clients), shared=complete)
    sizes = segments.lengths.float()
    mass = method.local.mass(_counted(method, weights), method.weighting.hard) * sizes.view(-1, 1, 1)
    update = Update(
        clients=tuple(clients),
        sizes=sizes,
        models=trained.rows(),
        row_participants=torch.repeat_interleave(torch.arange(len(clients)), trained.models),
        started=plan.started.flatten(0, 1),
        mass=mass.flatten(0, 1),
        weights=weights.client,
        objective=None if uninformed.any() else objective(likelihood, weights.client, segments),
        counts=class_counts(gamma, labels, data.classes, segments) if method.uses_class_shares else None,
        prototypes=compared_features(method, features, data),
        halves=halved_features(method, features, data),
        signatures=first_signatures(task, data, new, trainer),
        reports=reports(task, data, features, log_prob, done.losses, trainer),
        moments=moments,
    )
    states_after = [
        ClientState(broadcast.round, broadcast.clusters, *kept)
        for kept in zip(weights.split(segments), kept_models, momenta, noted, strict=True)
    ]
    return update, states_after


def momentum(network: Network, broadcast: Broadcast, start: Copies, known: Sequence[ClientState | None]) -> Copies:
    """Return the velocity that each client begins with: what it kept, for the current clusters, or zero."""
    zero = at_rest(network, start)

    def of_today(row: int, state: ClientState | None) -> Ensemble:
        if state is None or state.velocity is None:
            return zero.of(row)
        one_each = state.velocity.clusters == len(state.clusters)
        columns = origins(state.clusters, missed_by(state, broadcast)) if one_each else [0]
        columns = columns if len(columns) == zero.models else [0]
        unchanged = columns == list(range(state.velocity.clusters))  # nearly always so, and then nothing is copied
        return state.velocity if unchanged else state.velocity.select(columns)

    return Copies.stack([of_today(row, state) for row, state in enumerate(known)])


def missed_by(state: ClientState, broadcast: Broadcast) -> list[Change]:
    """Return the changes of clusters since a client last took part."""
    return [change for change in broadcast.changes if change.round >= state.round]


def catch_up(
    method: Method, broadcast: Broadcast, client: int, state: ClientState | None, segments: Segments
) -> Weights:
    """Return a client's weights over the current clusters; a new client starts from its row of `broadcast.weights`."""
    if state is None:
        start = method.weighting.start(broadcast.weights[[client]], segments)
        return replace(start, components=method.uniform_components(len(broadcast.clusters)))
    return weights_of_today(method, broadcast, client, state)


def begin_step(
    setting: Setting, broadcast: Broadcast, client: int, state: ClientState | None, segments: Segments
) -> Weights:
    """Return a client's weights over the current clusters; its new samples start with its own.

    At a new step of time all its samples are new; otherwise only those that come after the ones it has weights of: it
    had set them aside.
    """
    weights, start = catch_up(setting.method, broadcast, client, state, segments), setting.method.weighting.start
    if state is not None and setting.step(state.round) != setting.step(broadcast.round):
        return replace(start(weights.client, segments), components=weights.components)
    if weights.sample is None or len(weights.sample) == segments.samples:
        return weights
    more = start(weights.client, Segments((segments.samples - len(weights.sample),))).sample
    assert more is not None
    return replace(weights, sample=torch.cat([weights.sample, more]))


def follow_changes(task: RoundTask, weights: Weights, data: LocalData, log_prob: Tensor) -> Weights:
    """Return the weights that clients begin a step with, where the weighting follows changes of their data.

    A client compares its losses by the models that it received, mixed by ω̃: those on new samples, of which `log_prob`
    is log p_k(y|x), (samples, clusters), and those on the samples that it held out in the step before.
    """
    weighting, setting, now = task.setting.method.weighting, task.setting, task.setting.step(task.broadcast.round)
    begins = [client in task.states and setting.step(task.states[client].round) < now for client in task.participants]
    if not isinstance(weighting, FollowsChanges) or data.before is None or not any(begins):
        return weights
    before = data.before
    _, known = look(setting.network, task.broadcast.ensemble, before, torch.ones_like(weights.client, dtype=torch.bool))
    known = known.cpu()
    old = before.segments.split(-torch.logsumexp(before.segments.each(weights.client).log() + known, dim=1))
    losses = -torch.logsumexp(data.segments.each(weights.client).log() + log_prob, dim=1)
    fresh = torch.ones(len(data), dtype=torch.bool) if data.is_new is None else data.is_new
    new = [part[mine] for part, mine in zip(data.segments.split(losses), data.segments.split(fresh), strict=True)]
    followed = weighting.renewed(weights.client, loss_increase(old, new))
    client = torch.where(torch.tensor(begins).unsqueeze(1), followed, weights.client)
    started = setting.method.weighting.start(client, data.segments)
    if weights.sample is None or started.sample is None:
        return replace(weights, client=client)
    sample = torch.where(data.segments.each(torch.tensor(begins)).unsqueeze(1), started.sample, weights.sample)
    return replace(weights, client=client, sample=sample)


def weights_of_today(method: Method, broadcast: Broadcast, client: int, state: ClientState) -> Weights:
    """Apply the changes that a client missed to its weights.

    A client with hard weights that was absent when its cluster was split belongs to neither part until it chooses.
    """
    missed = missed_by(state, broadcast)
    weights = follow(state.weights, state.clusters, missed, client)
    if method.weighting.hard and missed_split(state.weights, state.clusters, missed, client):
        return replace(weights, client=uniform(weights.client.shape[1]).unsqueeze(0))
    return weights


def looked_at(method: Method, weights: Tensor) -> Tensor:
    """Return which clusters each client looks at: its own where the server has assigned it to one, else all."""
    return (weights == 1) | ~placed(method, weights).unsqueeze(1)


def placed(method: Method, weights: Tensor) -> Tensor:
    """Whether the server has assigned each client to a cluster: then it needs no other cluster's model."""
    assigned = weights.max(dim=1).values == 1
    return assigned if method.traits.weighting.assigned_by_server else torch.zeros_like(assigned)


def must_look(method: Method, weights: Tensor) -> Tensor:
    """Whether each client must look at its data before it trains, (clients,).

    A client need not where its cluster is known and the method uses no features: the pass would tell nothing.
    """
    settled = placed(method, weights) | method.traits.weighting.one_cluster
    return ~settled | (method.topology == "split") | (method.formulation.gaussians > 0)


def look(network: Network, ensemble: Ensemble, data: LocalData, looked: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return the shared features (split topology) and log p_k(y|x), (samples, clusters), where the inputs are.

    Every extractor runs once, on the samples of the clients that look at it. Nothing waits for a GPU.
    """
    answers = data.answers.to(data.inputs.device)
    if ensemble.topology == "split":
        features, outputs = forward(network, ensemble, data.inputs)
        return features, network.task.log_likelihood(outputs, answers)
    log_prob = torch.zeros(len(data), ensemble.clusters, device=answers.device)
    for cluster, looks in enumerate(data.segments.each(looked).T):
        chosen = torch.nonzero(looks).flatten().to(answers.device)
        if len(chosen) == 0:
            continue
        complete = len(chosen) == len(data)
        inputs = data.inputs if complete else some(data.inputs, chosen)
        _, outputs = forward(network, ensemble.select([cluster]), inputs)
        mine = answers if complete else answers[chosen]
        log_prob[chosen, cluster] = network.task.log_likelihood(outputs, mine)[:, 0]
    return None, log_prob


@dataclass(frozen=True)
class ModelledInputs:
    """Clients' inputs as the formulation models them: nothing, features in round 1, z with the Gaussians later."""

    features: Tensor | None = None
    z: Tensor | None = None
    log_densities: Tensor | None = None

    def log_density(self, components: Tensor | None, segments: Segments) -> Tensor | None:
        """Log p_k(z) under each client's mixing ρ, (samples, clusters), where it is known already."""
        if components is None or self.log_densities is None:
            return None
        return mixture_log_density(components, self.log_densities, segments)

    def m_step(
        self, components: Tensor | None, gamma: Tensor, segments: Segments
    ) -> tuple[Tensor | None, Moments | None]:
        """Return the new mixing ρ and what the server needs to estimate the Gaussians."""
        if components is None or self.features is None:
            return components, None
        if self.log_densities is None or self.z is None:
            return components, feature_moments(self.features)
        joint = component_responsibilities(components, self.log_densities, gamma, segments)
        return component_step(components, joint, segments), gaussian_moments(joint, self.z)


def model_inputs(network: Network, broadcast: Broadcast, data: LocalData, components: Tensor | None) -> ModelledInputs:
    """Embed the inputs by the initial extractor, where the formulation has a density of them."""
    if components is None:
        return ModelledInputs()
    assert broadcast.anchor is not None
    features = embed(network, broadcast.anchor.extractor(0), data.inputs)
    if broadcast.gaussians is None:
        return ModelledInputs(features)
    z = broadcast.gaussians.embed(features)
    return ModelledInputs(features, z, broadcast.gaussians.log_densities(z))


def class_mix(labels: Tensor, classes: int, segments: Segments) -> Tensor:
    """p_i(y) of each client, (clients, classes)."""
    counts = torch.bincount(segments.index * classes + labels, minlength=len(segments) * classes)
    return counts.view(len(segments), classes) / segments.lengths.unsqueeze(1)


def parameter_distances(network: Network, received: Ensemble, trained: Ensemble) -> Tensor:
    """‖θ_k − θ_i‖₂ of one trained model of each client to every cluster, (clients, clusters).

    Over all parameters that are the cluster's own.
    """
    mine, centres = own_parameters(network, trained), own_parameters(network, received)
    return torch.stack([torch.linalg.vector_norm(mine - centre, dim=1) for centre in centres], dim=1)


def _counted(method: Method, weights: Weights) -> Tensor:
    """How much clients count in each cluster: their weight, in fuzzy c-means u^m."""
    power = method.traits.weighting.mass_power
    return weights.client if power == 1 else weights.client**power


def _each(models: Copies | None, clients: int, shared: bool = False) -> list[Ensemble | None]:
    """Return each client's models as an ensemble of its own; None for all where there are none.

    They may be `shared` where all clients take part: then the tensors of all of them are kept anyway.
    """
    if models is None:
        return [None] * clients
    return [one if shared else _copy(one) for one in models.each()]


def _copy(models: Ensemble) -> Ensemble:
    """Copy one client's models: as views of all clients' tensors, they would keep all of them alive."""
    extractors = {name: tensor.clone() for name, tensor in models.extractors.items()}
    return Ensemble(extractors, {name: tensor.clone() for name, tensor in models.heads.items()}, models.topology)


def _features(network: Network, start: Copies, data: LocalData) -> Tensor | None:
    """Return the features of extractors that clients kept to themselves."""
    if start.topology == "full":
        return None
    parts = torch.split(torch.arange(len(data)), list(data.segments.sizes))
    return torch.cat(
        [
            embed(network, start.of(row).extractor(0), some(data.inputs, part.to(data.inputs.device)))
            for row, part in enumerate(parts)
        ]
    )
