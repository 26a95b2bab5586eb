"""`nodes.json`: who is connected, whom a round waits for, what each client measured, and that no run depends on it."""

import json

import pytest
from fake_grid import _a_run  # noqa: F401
from test_own_data import NAMES, grid_of, node, told, write

from hcfl.errors import InputError
from hcfl.flower import server_app
from hcfl.flower.node_log import NodeLog
from hcfl.runs import folder as run_folder
from hcfl.watch import nodes
from hcfl.watch.files import Place
from hcfl.watch.glance import Glance


def read(out):
    return json.loads((out / run_folder.NODES).read_text())


def test_the_file_follows_the_run(tmp_path):
    write(tmp_path)
    grid, out, seen = grid_of(tmp_path), tmp_path / "run", []

    def leaves(message, reply):
        seen.append(read(out))  # while the answers of round 2 are awaited
        del grid.nodes[102]  # it is gone, and its answer with it

    def comes_back(message, reply):
        seen.append(read(out))
        grid.nodes[102] = node(tmp_path, "west")
        return reply

    grid.before[102] = [None, leaves]
    grid.before[100] = [None, None, comes_back]
    server_app.play(grid, told(out, timeout=0.3))
    second, third = seen
    assert second["now"]["round"] == 2
    assert (second["now"]["asked"], second["now"]["needed"]) == (list(NAMES), 2)
    assert second["nodes"]["west"]["connected"]
    assert not third["nodes"]["west"]["connected"]
    assert third["nodes"]["west"]["missed"] == 1
    assert third["nodes"]["west"]["reason"] == "no answer within 0.3 s"

    table = read(out)
    assert table["now"]["doing"] == "ended"
    assert {name: one["round"] for name, one in table["nodes"].items()} == dict.fromkeys(NAMES, 4)
    assert table["nodes"]["west"]["missed"] == 2
    assert [round_ for round_, _ in table["nodes"]["west"]["val"]] == [1, 4]
    assert [round_ for round_, _ in table["nodes"]["north"]["val"]] == [1, 2, 3, 4]
    rows = run_folder.rows(out, run_folder.METRICS)
    first = [table["nodes"][name]["val"][0][1] for name in NAMES]
    assert sum(first) / 3 == pytest.approx(rows[0]["val"])  # all hold out as many
    clusters = {name: one["clusters"][-1][1] for name, one in table["nodes"].items()}
    assert clusters["north"] == clusters["south"] != clusters["west"]

    shown = nodes.read(Place(tmp_path, ("run",)))
    assert [one["name"] for one in shown["nodes"]] == list(NAMES)
    assert shown["now"]["waiting"] == []


def test_a_run_ends_after_its_round_where_the_operator_asks(tmp_path):
    write(tmp_path)
    grid, out = grid_of(tmp_path), tmp_path / "run"

    def ask(message, reply):
        (out / run_folder.STOP).touch()
        return reply

    grid.before[100] = [None, ask]
    server_app.play(grid, told(out))
    assert len(run_folder.rows(out, run_folder.METRICS)) == 2
    assert not (out / run_folder.STOP).exists()
    assert nodes.commands(out, True) == [("stop after this round", f"touch {out}/stop")]
    server_app.play(grid, told("", resume=str(out)))
    assert len(run_folder.rows(out, run_folder.METRICS)) == 4
    assert [round_ for round_, _ in read(out)["nodes"]["north"]["val"]] == [1, 2, 3, 4]


def test_a_run_that_never_began_leaves_nothing_and_another_run_is_not_touched(tmp_path):
    write(tmp_path)
    grid = grid_of(tmp_path)
    del grid.nodes[101], grid.nodes[102]
    with pytest.raises(InputError, match="clients are needed to begin"):
        server_app.play(grid, told(tmp_path / "run", timeout=0.1, wait=0.2))
    assert not (tmp_path / "run").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(InputError, match="already holds a run"):
        server_app.play(grid_of(tmp_path), told(tmp_path / "other", timeout=0.1, wait=0.2))
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["config.yaml"]


def test_before_a_run_begins_its_nodes_are_shown(tmp_path):
    settings = told(tmp_path / "run")
    log = NodeLog.begin(settings.out, NAMES, settings.config, 0.5, False)
    log.connected(["north"])
    log.refused("east", "is not among the clients of this run")
    glance = Glance("run", Place(tmp_path, ("run",)))
    glance.look()
    assert (glance.state, glance.card()["method"]) == ("starting", "hcfl+(fedrc)")
    shown = nodes.read(glance.place)
    assert [one["connected"] for one in shown["nodes"]] == [True, False, False]
    assert shown["strangers"] == [["east", "is not among the clients of this run"]]
    assert shown["now"]["doing"] == "gathering"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"now": 1}', "[" * 9999, '{"nodes": {"a": []}}'])
def test_a_damaged_file_is_no_table_of_nodes(tmp_path, content):
    (tmp_path / run_folder.NODES).write_text(content)
    assert nodes.read(Place(tmp_path)) is None
