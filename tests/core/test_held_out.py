"""Accuracy by client and by class, on numbers worked out by hand."""

import pytest
import torch

from hcfl.core.held_out import (
    ByClass,
    HeldOut,
    Tally,
    likelihood_report,
    reported_likelihood,
    single_predictions,
)

CLIENTS, LABELS = torch.tensor([0, 0, 0, 2, 2]), torch.tensor([0, 1, 0, 1, 1])
PROBABILITIES = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7], [0.5, 0.5]])


@pytest.fixture
def held_out():
    return HeldOut.of(CLIENTS, LABELS, PROBABILITIES.log())


def test_accuracy_by_client(held_out):
    assert held_out.accuracy == pytest.approx(2 / 5)
    right, samples = held_out.by_client.table(3)
    assert (right.tolist(), samples.tolist()) == ([1, 0, 1], [3, 0, 2])
    assert held_out.worst_client == pytest.approx(1 / 3), "a client without held-out samples is not the worst"


def test_every_second_sample_chooses_the_round_and_the_others_measure_it(held_out):
    chosen = (PROBABILITIES[0, 0].log() + PROBABILITIES[2, 0].log() + PROBABILITIES[4, 1].log()) / 3
    assert held_out.choosing_log_likelihood == pytest.approx(float(chosen))
    assert held_out.reporting_accuracy == pytest.approx(1 / 2)
    alone = HeldOut.of(CLIENTS[:1], LABELS[:1], PROBABILITIES[:1].log())
    assert alone.reporting_accuracy is None


def test_clients_report_the_likelihood_of_every_second_sample(held_out):
    parts = [likelihood_report(held_out.log_likelihood[rows]) for rows in (slice(0, 3), slice(3, 5), slice(5, 5))]
    expected = [PROBABILITIES[0, 0].log() + PROBABILITIES[2, 0].log(), PROBABILITIES[3, 1].log(), 0.0]
    assert [float(part[0]) for part in parts] == pytest.approx([float(one) for one in expected])
    assert [float(part[1]) for part in parts] == [2, 1, 0]
    assert reported_likelihood(torch.stack(parts)) == pytest.approx(float(sum(expected)) / 3)
    assert reported_likelihood(None) is reported_likelihood(torch.zeros(2, 2)) is None
    assert torch.isfinite(likelihood_report(torch.tensor([-torch.inf]))).all()


def test_confusion_by_hand(held_out):
    assert held_out.confusion().tolist() == [[1, 1], [2, 1]]
    tally = held_out.tally()
    assert tally.by_group(torch.tensor([0, 1, 2])) == [
        (0, 0, 0, 1),
        (0, 0, 1, 1),
        (0, 1, 0, 1),
        (2, 1, 0, 1),
        (2, 1, 1, 1),
    ]
    assert tally.by_group(torch.tensor([7, 7, 7])) == [(7, 0, 0, 1), (7, 0, 1, 1), (7, 1, 0, 2), (7, 1, 1, 1)]
    assert tally.confusion().tolist() == held_out.confusion().tolist()
    assert tally.accuracy == pytest.approx(held_out.accuracy)


def test_confusion_matrices_of_clients_are_the_same_tally(held_out):
    mine = {0: torch.tensor([[1, 1], [1, 0]]), 2: torch.tensor([[0, 0], [1, 1]])}
    told, seen = Tally.of(mine, 2), held_out.tally()
    assert told.cells.tolist() == seen.cells.tolist()
    assert told.samples.tolist() == seen.samples.tolist()
    assert Tally.of({}, 2).confusion().sum() == 0


def test_classes_count_alike_however_rare():
    majority = ByClass.of(torch.tensor([[96, 0], [4, 0]]))
    assert majority.balanced_accuracy == pytest.approx(0.5)
    assert majority.macro_f1 == pytest.approx((2 * 96 / 196 + 0) / 2)
    absent = ByClass.of(torch.tensor([[3, 1, 0], [0, 2, 0], [0, 0, 0]]))
    assert absent.balanced_accuracy == pytest.approx((3 / 4 + 1) / 2), "a class that does not occur does not count"
    assert absent.macro_f1 == pytest.approx((6 / 7 + 4 / 5) / 2)


def test_one_class_for_all_is_noticed_only_where_labels_differ():
    assert single_predictions([(0, 0, 0, 27), (0, 1, 0, 1), (1, 1, 1, 5)]) == {0: 0}
    assert single_predictions([(0, 0, 0, 27), (0, 1, 1, 1)]) == {}


def test_the_standard_error_of_val_by_hand(held_out):
    # Clients 0 and 2 of 4: right 1 of 3 and 1 of 2, Val 2/5. e = 1 − 6/5 and 1 − 4/5, Σe² = 2/25;
    # (1 − 2/4)·(2/25)/(2·1) = 1/50, and the mean number of samples is 5/2.
    assert held_out.standard_error(4) == pytest.approx((1 / 50) ** 0.5 / 2.5)
    assert held_out.standard_error(2) == 0, "all clients that hold out samples were measured"
    alone = HeldOut.of(CLIENTS[:1], LABELS[:1], PROBABILITIES[:1].log())
    assert alone.standard_error(4) is None
