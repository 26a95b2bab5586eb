"""Steps of time: who gets which samples when, with which concept and corruption."""

import numpy as np
import pandas as pd
import pytest
import torch

from hcfl.config import from_flat
from hcfl.data import Federation, build
from hcfl.data.drift import Change, moments, read_changes, schedule
from hcfl.data.feature_shift import Corruption
from hcfl.errors import InputError
from helpers import blobs


def federation(**settings):
    x, y = blobs(classes=6, per_class=80)
    return Federation.from_arrays(x, y, **{"clients": 6, "concepts": 3, "beta": 0.9, "steps": 4, **settings})


def test_changes_are_carried_out_one_after_another():
    planned = schedule(
        [Change(1, 1, concept=2), Change(1, 3, concept=0), Change(0, 1, 1, over=3)], np.array([0, 1]), 3, 4
    )
    assert planned.concept.tolist() == [[0, 0, 1, 1], [1, 2, 2, 0]]
    assert planned.shares[0].round(3).tolist() == [[1, 0, 0], [0.667, 0.333, 0], [0.333, 0.667, 0], [0, 1, 0]]
    assert planned.shares.sum(axis=2) == pytest.approx(np.ones((2, 4)))


def test_a_corruption_changes_from_its_step_on():
    clear, fog = Corruption("original", 1), Corruption("fog", 3)
    planned = schedule([Change(0, 2, corruption=fog)], np.array([0]), 1, 3, [clear])
    assert planned.corruptions == ((clear,), (clear,), (fog,))


def test_staggered_clients_change_once_each_at_times_that_are_spread():
    found = moments("staggered", np.arange(6) % 3, 3, 4, np.random.default_rng(0))
    assert sorted(one.client for one in found) == list(range(6))
    assert np.bincount([one.at for one in found], minlength=4).tolist() == [0, 2, 2, 2]


def test_a_recurring_concept_goes_and_comes_back():
    start = np.array([0, 1, 2, 2])
    found = moments("recurring", start, 3, 8, np.random.default_rng(0))
    assert {one.client for one in found} == {2, 3}
    assert [(one.at, one.away) for one in found if one.client == 2] == [(2, True), (4, False), (6, True)]


def test_every_sample_is_of_one_client_and_one_step_and_has_the_label_of_its_concept():
    dealt = federation(drift="staggered")
    plain = federation(drift="none", beta=0.0, concepts=None)  # the same samples with their own labels
    rows = torch.cat([torch.cat([*step.train, *step.val]) for step in dealt.timeline])
    assert len(rows) == len(torch.unique(rows)) == 384
    n = 6  # ⌊6·0.9⌋ + 1 labels rotate
    for step in range(4):
        now = dealt.at(step)
        for client in range(6):
            held = torch.cat([now.train[client], now.val[client]])
            expected = (plain.y[held] + int(now.truth.concept[client])) % n
            assert torch.equal(now.y[held], expected)
    concepts = np.stack([step.truth.concept for step in dealt.timeline])
    assert ((np.diff(concepts, axis=0) % 3).sum(axis=0) == 1).all()


def test_a_gradual_change_mixes_two_concepts():
    dealt, plain = federation(drift="gradual", steps=6), federation(drift="none", beta=0.0, concepts=None, steps=6)
    client = int(np.flatnonzero(dealt.timeline[0].truth.concept != dealt.timeline[5].truth.concept)[0])
    rows = torch.cat([dealt.at(3).train[client], dealt.at(3).val[client]])
    turned = (dealt.y[rows] - plain.y[rows]) % 6
    assert sorted(set(turned.tolist())) == sorted({int(dealt.timeline[at].truth.concept[client]) for at in (0, 5)})


def test_a_window_trains_on_the_last_steps_and_holds_out_the_new_one():
    wide, narrow = federation(window=2), federation()
    for client in range(6):
        expected = torch.cat([narrow.at(1).train[client], narrow.at(2).train[client]])
        assert torch.equal(wide.at(2).train[client], expected)
        assert torch.equal(wide.at(2).val[client], narrow.at(2).val[client])
    assert torch.equal(wide.at(0).train[0], narrow.train[0])


def test_label_drift_gives_steps_other_classes():
    def spread(found):
        tables = np.stack([found.at(step).class_table() for step in range(4)])
        return float((tables / tables.sum(axis=2, keepdims=True)).std(axis=0).mean())

    assert spread(federation(step_alpha=0.1)) > 2 * spread(federation())


def test_copies_of_an_image_are_in_one_step_of_a_client():
    dealt = federation(copies=3)
    images = (len(dealt.y) - len(dealt.test_x)) // 3
    for client in range(6):
        seen = [torch.cat([step.train[client], step.val[client]]) % images for step in dealt.timeline]
        together = torch.cat([torch.unique(step) for step in seen])
        assert len(together) == len(torch.unique(together))


def test_the_scaling_is_of_the_first_step():
    dealt = federation()
    rows = torch.cat([*dealt.timeline[0].train])
    assert dealt.scaling.mean.flatten().tolist() == pytest.approx(dealt.x[rows].mean(dim=0).tolist(), abs=1e-5)


def test_cameras_change_with_the_steps(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, size=(120, 28, 28), dtype=np.uint8)
    settings = {"clients": 4, "beta": 0.0, "steps": 3, "cache_dir": str(tmp_path)}
    clean = Federation.from_arrays(x, np.arange(120) % 3, **settings)
    dealt = Federation.from_arrays(x, np.arange(120) % 3, drift="sudden", drift_of="corruption", **settings)
    changed = [
        client for client in range(4) if dealt.timeline[0].corruptions[client] != dealt.timeline[2].corruptions[client]
    ]
    assert len(changed) == 2
    for step in range(3):
        for client in range(4):
            rows = dealt.timeline[step].train[client]
            assert torch.equal(dealt.x[rows], clean.x[rows]) == (client not in changed or step < 1)


def test_a_table_is_cut_into_steps_by_its_time(tmp_path):
    lines = ["a,when,where,y"]
    lines += [f"{row % 7},{row},{'north' if row % 3 else 'south'},{row % 2}" for row in range(60)]
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(lines))
    found = build(from_flat(data=str(file), label="y", client="where", time="when", steps=3).data, 0)
    assert [sum(map(len, (*step.train, *step.val))) for step in found.timeline] == [20, 20, 20]
    first = found.timeline[0]
    assert torch.cat([*first.train, *first.val]).max() < 20


def test_as_many_times_as_steps_are_the_steps():
    frame = pd.DataFrame({"a": range(60), "when": [5] * 40 + [7] * 15 + [9] * 5, "y": [0, 1] * 30})
    found = Federation.from_frame(frame.assign(where="here"), label="y", client="where", time="when", steps=3)
    assert [sum(map(len, (*step.train, *step.val))) for step in found.timeline] == [40, 15, 5]


def test_a_schedule_from_a_file(tmp_path):
    file = tmp_path / "drift.yaml"
    file.write_text("changes:\n- {clients: [0, 2], at: 2, concept: 1}\n- {clients: all, at: 3, corruption: fog 2}\n")
    found = read_changes(str(file), 3, 4, 2)
    assert found[:2] == [Change(0, 1, 1), Change(2, 1, 1)]
    assert found[2:] == [Change(client, 2, corruption=Corruption("fog", 2)) for client in range(3)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{clients: [0], at: 1, concept: 1}", "at = 1: must be a step from 2 to 4"),
        ("{clients: [9], at: 2, concept: 1}", "must be all, or a list of 0 to 2"),
        ("{clients: [0], at: 2, concept: 5}", "concept = 5: must be a concept from 0 to 1"),
        ("{clients: [0], at: 2}", "names neither a concept nor a corruption"),
        ("{clients: [0], at: 2, corruption: smog 2}", "corruption = 'smog 2'"),
        ("{client: 0, at: 2}", "a change has clients, at"),
    ],
)
def test_a_wrong_schedule_is_refused(tmp_path, text, told):
    file = tmp_path / "drift.yaml"
    file.write_text(f"changes: [{text}]")
    with pytest.raises(InputError, match=told):
        read_changes(str(file), 3, 4, 2)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"steps": 1, "drift": "sudden"}, "data.drift = sudden: needs data.steps above 1"),
        ({"steps": 1, "window": 2}, "data.window = 2: needs data.steps above 1"),
        ({"steps": 40}, "data.steps = 40: client 0 has 64 samples"),
        ({"drift": "sudden", "beta": 0.0, "concepts": None}, "concepts change only where data.beta is above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, told):
    with pytest.raises(InputError, match=told):
        federation(**settings)
