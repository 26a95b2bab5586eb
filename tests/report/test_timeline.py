"""The time axis of the report, by hand: who moved when, and how long after the truth changed."""

from hcfl.report.page.timeline import MOST_CLIENTS, timeline


def row(round_, step, clusters, concepts=None):
    return {"round": round_, "step": step, "client_clusters": clusters, "client_concepts": concepts}


# Client 2 has concept 1 from round 3 on, and its cluster follows a round later; client 0 moves without a reason.
ROWS = [
    row(1, 1, [None, 0, 0, 1, 1], [0, 0, 0, 1, 1]),
    row(2, 1, [0, 0, 0, 1, 1], [0, 0, 0, 1, 1]),
    row(3, 2, [0, 0, 0, 1, 1], [0, 0, 1, 1, 1]),
    row(4, 2, [1, 0, 1, 1, 1], [0, 0, 1, 1, 1]),
]


def test_steps_moves_delays_and_false_moves():
    found = timeline(ROWS)
    assert found["steps"] == [[1, 1], [2, 3]]
    assert found["clusters"] == [[[1, -1], [2, 0], [4, 1]], [[1, 0]], [[1, 0], [4, 1]], [[1, 1]], [[1, 1]]]
    assert found["concepts"][2] == [[1, 0], [3, 1]]
    assert found["turns"] == [[2, 3, 1]]
    assert found["false_moves"] == [[2, 0]]


def test_without_a_truth_there_are_moves_only():
    found = timeline([{**one, "client_concepts": None} for one in ROWS])
    assert (found["concepts"], found["turns"], found["false_moves"]) == (None, None, None)
    assert found["clusters"][2] == [[1, 0], [4, 1]]


def test_a_run_without_steps_has_no_time_axis():
    assert timeline([{"round": 1}]) is None
    assert timeline([]) is None


def test_of_many_clients_those_that_change_are_shown():
    clients = MOST_CLIENTS + 50
    after = [0] * (clients - 1) + [1]
    found = timeline([row(1, 1, [0] * clients), row(2, 2, after)])
    assert (found["all_clients"], len(found["clients"]), found["clients"][-1]) == (clients, MOST_CLIENTS, clients - 1)
