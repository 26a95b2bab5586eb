"""What is let in and what is not, on updates made by hand; taking participants out of an update."""

from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hcfl.config import AdmissionConfig
from hcfl.core import rounds, server
from hcfl.core.admission import Asked, most_held_out, only, problem_with, refusals, unlike
from hcfl.core.client import take_part
from hcfl.core.held_out import LIKELIHOOD
from hcfl.core.setting import RoundTask
from hcfl.core.state import Missing, Update
from hcfl.methods import build
from hcfl.models.ensemble import Ensemble
from hcfl.models.tasks import CLASSES
from hcfl.tiers import Prototypes
from helpers import setting, setting_of, start
from values import same as same_value

RECEIVED = Ensemble({"e": torch.ones(1, 2), "var": torch.ones(1, 2)}, {"h": torch.ones(2, 3)}, "split")


def three() -> Update:
    """Three participants of 4, 6 and 10 samples, two clusters, two classes."""
    sizes = torch.tensor([4.0, 6.0, 10.0])
    counts = torch.tensor([[1.0, 3.0], [6.0, 0.0], [5.0, 5.0]])
    means = torch.arange(12.0).view(3, 2, 2)
    row_participants = torch.tensor([0, 0, 1, 1, 2, 2])
    return Update(
        clients=(7, 2, 5),
        sizes=sizes,
        models=Ensemble({"e": torch.ones(3, 2), "var": torch.ones(3, 2)}, {"h": torch.ones(6, 3)}, "split"),
        row_participants=row_participants,
        started=torch.eye(2).repeat(3, 1),
        mass=torch.eye(2).repeat(3, 1) * sizes[row_participants].unsqueeze(1),
        weights=torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.2, 0.8]]),
        objective=-torch.ones(3),
        counts=torch.stack([counts / 2, counts / 2], dim=1),
        prototypes=Prototypes(means, counts, (counts.unsqueeze(2) * means).sum(dim=1) / sizes.unsqueeze(1)),
        signatures={2: torch.ones(4)},
        held_out=torch.ones(3, 2),
    )


def told(update, second_sent):
    """Let all tell a likelihood of every second of their held-out samples; each has one."""
    return replace(update, reports={LIKELIHOOD: second(torch.tensor([[-1.0, 1.0]] * 3), second_sent)})


ANNOUNCED = [0, 0, 6, 0, 0, 10, 0, 4]


def found(update, longest=10.0, announced=ANNOUNCED, received=RECEIVED, buffers=("var",)):
    sizes = np.array(announced)
    federation = SimpleNamespace(train_sizes=sizes, val_sizes=sizes // 2, timeline=(), steps=1)
    network, admission = (
        SimpleNamespace(buffers=frozenset(buffers), task=CLASSES),
        AdmissionConfig(longest_model=longest),
    )
    chosen = setting_of(federation, None, network, admission=admission)
    task = RoundTask(chosen, SimpleNamespace(ensemble=received, round=1), update.clients, {})
    return {client: refusal.text for client, refusal in refusals(task, update).items()}


def second(tensor, value, row=1):
    """Change what the second participant sent."""
    changed = tensor.clone()
    changed[row] = value
    return changed


def models(update, part, value, row):
    params = {**getattr(update.models, part)}
    name = next(iter(params))
    params[name] = second(params[name], value, row)
    return replace(update, models=replace(update.models, **{part: params}))


def prototypes(update, **parts):
    return replace(update, prototypes=replace(update.prototypes, **parts))


NONE, FINITE = "sent weights that are no distribution", "sent numbers that are not finite"
MORE, COUNTS = "sent models that count more than its samples", "sent counts that are not of its samples"
FORGED = "sent prototypes that cannot be those of its samples"
HELD_OUT = "sent held_out that cannot be"
CHANGES = [
    (lambda u: replace(u, sizes=second(u.sizes, torch.nan)), FINITE),
    (lambda u: replace(u, weights=second(u.weights, torch.inf)), FINITE),
    (lambda u: replace(u, mass=second(u.mass, torch.nan, 2)), FINITE),
    (lambda u: replace(u, started=second(u.started, torch.nan, 3)), FINITE),
    (lambda u: replace(u, counts=second(u.counts, torch.nan)), FINITE),
    (lambda u: replace(u, held_out=second(u.held_out, torch.nan)), FINITE),
    (lambda u: replace(u, objective=second(u.objective, torch.nan)), FINITE),
    (lambda u: replace(u, signatures={2: torch.tensor([1.0, torch.inf])}), FINITE),
    (lambda u: prototypes(u, class_means=second(u.prototypes.class_means, torch.nan)), FINITE),
    (lambda u: prototypes(u, mean=second(u.prototypes.mean, torch.nan)), FINITE),
    (lambda u: models(u, "heads", torch.inf, 2), FINITE),
    (lambda u: models(u, "extractors", torch.nan, 1), FINITE),
    (lambda u: replace(u, sizes=second(u.sizes, 0.0)), "sent a size of 0, which it cannot have"),
    (lambda u: replace(u, sizes=second(u.sizes, 61.0)), "sent a size of 61, which it cannot have"),
    (lambda u: replace(u, weights=second(u.weights, torch.tensor([1.5, -0.5]))), NONE),
    (lambda u: replace(u, weights=second(u.weights, torch.tensor([0.5, 0.6]))), NONE),
    (lambda u: replace(u, mass=second(u.mass, torch.tensor([6.1, 0.0]), 2)), MORE),
    (lambda u: replace(u, mass=second(u.mass, torch.tensor([6.0, -1.0]), 2)), MORE),
    (lambda u: replace(u, started=second(u.started, torch.tensor([2.0, 0.0]), 3)), MORE),
    (lambda u: replace(u, counts=second(u.counts, 1.6)), COUNTS),
    (lambda u: replace(u, counts=second(u.counts, torch.tensor([[8.0, -2.0], [0.0, 0.0]]))), COUNTS),
    (lambda u: prototypes(u, class_counts=second(u.prototypes.class_counts, torch.tensor([60.0, 0.0]))), FORGED),
    (lambda u: prototypes(u, class_counts=second(u.prototypes.class_counts, torch.tensor([7.0, -1.0]))), FORGED),
    (lambda u: prototypes(u, mean=second(u.prototypes.mean, 1.0)), FORGED),
    (lambda u: replace(u, held_out=second(u.held_out, torch.tensor([1e6, 1.0]))), HELD_OUT),
    (lambda u: replace(u, held_out=second(u.held_out, torch.tensor([-1.0, 1.0]))), HELD_OUT),
    (lambda u: replace(u, held_out=second(u.held_out, torch.tensor([4.0, 4.0]))), HELD_OUT),
    (lambda u: told(u, torch.tensor([-1.0, 2.0])), "sent a likelihood of other held-out samples than every second one"),
    (lambda u: told(u, torch.tensor([-torch.inf, 1.0])), FINITE),
    # Two models that count in the same cluster.
    (lambda u: replace(u, mass=second(u.mass, torch.tensor([6.0, 0.0]), 3)), MORE),
    # √(2·400² + 3·1) over √(2 + 3).
    (lambda u: models(u, "extractors", 400.0, 1), "sent a model that is 253 times as long as most others and the one"),
    (lambda u: models(u, "heads", 400.0, 3), "sent a model that is 310 times as long as most others and the one"),
]


def test_what_is_as_it_should_be_is_let_in():
    assert found(three()) == found(told(three(), torch.tensor([-3.0, 1.0]))) == {}
    assert found(models(three(), "extractors", 10.0, 1)) == {}, "long, but not ten times as long"


@pytest.mark.parametrize(("change", "reason"), CHANGES, ids=range(len(CHANGES)))
def test_numbers_that_cannot_be_are_refused_and_nobody_else_is(change, reason):
    ((client, why),) = found(change(three())).items()
    assert client == 2
    assert why.startswith(reason)


def statistics(**second_sent):
    """Three clients whose models have running statistics; what the second one sent instead."""
    update = three()
    usual = {
        "bn.running_mean": torch.zeros(3, 2),
        "bn.running_var": torch.ones(3, 2),
        "bn.num_batches_tracked": torch.full((3,), 5),
        "table": torch.ones(3, 2),
    }
    sent = {**usual, **{name: second(usual[name], value) for name, value in second_sent.items()}}
    received = replace(RECEIVED, extractors={"e": torch.ones(1, 2), **{n: t[:1] for n, t in usual.items()}})
    models = replace(update.models, extractors={"e": torch.ones(3, 2), **sent})
    return found(replace(update, models=models), received=received, buffers=usual)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("bn.running_var", -1.0, "sent a running variance below 0"),
        ("bn.running_var", torch.tensor([1.0, -1e-3]), "sent a running variance below 0"),
        ("bn.running_var", torch.nan, FINITE),
        ("bn.running_var", 1e9, "sent running variances whose roots are 3.16e+04 times those of most others"),
        ("bn.running_mean", torch.inf, FINITE),
        ("bn.running_mean", 1e30, "sent running means that are 1e+30 times as long as those of most others"),
        ("bn.num_batches_tracked", -1, "sent a number of batches that cannot be"),
        ("bn.num_batches_tracked", 2**62, "sent a number of batches that cannot be"),
        ("table", 1e9, "sent buffers that are 1e+09 times as long as those of most others"),
    ],
)
def test_running_statistics_that_cannot_be_are_refused(name, value, reason):
    ((client, why),) = statistics(**{name: value}).items()
    assert client == 2
    assert why.startswith(reason)


def test_running_statistics_of_other_data_are_let_in():
    assert statistics() == {}
    assert statistics(**{"bn.running_mean": 5.0, "bn.running_var": 20.0, "bn.num_batches_tracked": 400}) == {}


def test_length_is_measured_by_most_others_or_by_what_was_sent_out_whichever_is_longer():
    update = three()
    heads = {"h": 100 * update.models.heads["h"]}
    assert found(replace(update, models=replace(update.models, heads=heads))) == {}, "all are long, as in a first round"
    tiny = Ensemble(
        {name: 1e-9 * tensor for name, tensor in update.models.extractors.items()},
        {"h": second(1e-9 * update.models.heads["h"], 1.0, 2)},
        "split",
    )
    assert found(replace(update, models=tiny)) == {}, "as long as the model that was sent out"


def test_a_client_that_announced_nothing_can_have_as_much_as_the_largest():
    update = three()
    assert found(replace(update, clients=(7, 0, 5), signatures={})) == {}
    sizes = second(update.sizes, 101.0)
    assert list(found(replace(update, clients=(7, 0, 5), signatures={}, sizes=sizes))) == [0]
    assert "size" not in str(found(replace(update, sizes=sizes), announced=[0] * 8)), "nobody knows better"


ASKED = Asked(3, 2, 2, RECEIVED)


@pytest.mark.parametrize(
    ("change", "round_", "reason"),
    [
        (lambda u: u, 2, "answered in round 2, but this is round 3"),
        (lambda u: replace(u, clients=(5,)), 3, r"sent an update of clients (5,)"),
        (lambda u: replace(u, signatures={5: torch.ones(1)}), 3, "sent an update of clients (2,)"),
        (lambda u: replace(u, missing=(Missing(5, "I say so"),)), 3, "sent an update of clients (2,)"),
        (lambda u: replace(u, weights=torch.ones(1, 3)), 3, "sent weights of shape (1, 3), but (1, 2) is needed"),
        (lambda u: replace(u, sizes=torch.ones(2)), 3, "sent sizes of shape (2,), but (1,) is needed"),
        (lambda u: replace(u, mass=torch.ones(1, 2)), 3, "sent mass of shape (1, 2), but (2, 2) is needed"),
        (lambda u: replace(u, row_participants=torch.tensor([0, 1])), 3, "sent models that belong to no client"),
        (lambda u: replace(u, models=replace(u.models, heads={})), 3, "sent heads that are not those of the model"),
        (
            lambda u: replace(u, models=replace(u.models, heads={"h": torch.ones(2, 3).double()})),
            3,
            "sent heads that are not those of the model",
        ),
    ],
)
def test_the_form_of_an_upload(change, round_, reason):
    mine = only(three(), torch.tensor([False, True, False]))
    assert problem_with(mine, 3, ASKED) is None
    assert problem_with(change(mine), round_, ASKED) == reason


def test_evidence_has_the_form_of_most_however_they_come():
    update = three()
    group, other = only(update, torch.tensor([True, False, True])), only(update, torch.tensor([False, True, False]))
    assert unlike([group, other]) == []
    assert unlike([replace(other, counts=None), group]) == [2]
    assert unlike([group, prototypes(other, mean=torch.ones(1, 5))]) == [2]
    assert unlike([group, prototypes(other, mean=torch.ones(2, 2))]) == [2]


@pytest.mark.parametrize("name", ["hcfl+(fedrc)", "ifca", "fedsoft", "stocfl", "fedrc"])
def test_an_update_without_some_is_what_the_others_send(planted, name):
    method = build(name)
    chosen = setting(planted, method)
    _, ensemble = start(planted, method)
    message = server.broadcast(method, rounds.begin(chosen, ensemble).server, planted.classes)

    def sent(clients):
        return take_part(RoundTask(chosen, message, clients, {}))[0]

    parts = Update.join([sent([client]) for client in (1, 4, 6, 9)])
    kept = only(parts, torch.tensor([True, False, True, False]))
    expected = Update.join([sent([client]) for client in (1, 6)])
    for part in fields(Update):
        assert same_value(getattr(kept, part.name), getattr(expected, part.name)), part.name


def test_a_client_whose_data_have_grown_may_hold_out_more_in_the_same_proportion():
    train, held_out = np.array([90, 0, 9]), np.array([10, 0, 1])
    assert most_held_out(train, held_out, 0, 90.0) == 10
    assert most_held_out(train, held_out, 0, 45.0) == 10
    assert most_held_out(train, held_out, 0, 135.0) == 15
    assert most_held_out(train, held_out, 1, 50.0) == 100  # it announced nothing: ten times the largest
    assert most_held_out(np.array([0]), np.array([0]), 0, 5.0) == torch.inf
