"""What stays of a private run: nothing that sums do not tell."""

import pytest

from hcfl.config import from_flat
from hcfl.runs import folder as run_folder
from hcfl.runs.loop import play_on
from hcfl.runs.prepare import prepare


@pytest.mark.parametrize("mode", ["none", "secagg"])
def test_prototypes_of_the_data_are_kept_only_where_nothing_is_private(mode, tmp_path):
    fixed = {"adaptation": "fixed", "distance": "none", "clusters": 2}
    config = from_flat(method="hcfl+(fedrc)", **fixed, clients=4, rounds=1, engine="flower", privacy=mode)
    prepared = prepare(config)
    run = play_on(prepared, run_folder.create(tmp_path / "run", prepared.config), [])
    assert (run.profiles is None) == (mode == "secagg")
