"""Which methods can be private, and why the others cannot; every refusal is one sentence."""

from dataclasses import replace
from pathlib import Path

import pytest

from hcfl.config import Config, from_flat
from hcfl.errors import InputError
from hcfl.methods import METHODS, build
from hcfl.methods.local_models import ClusterModels
from hcfl.privacy.rules import OPTIONS, mass_is_public, refusal, settled, table
from hcfl.runs.prepare import method_of, prepare

ROOT = Path(__file__).parents[2]
MODES = ("local-dp", "central-dp", "secagg")

REASONS = {
    "local": "averages nothing",
    "cfl": "by their updates",
    "icfl": "by their updates",
    "stocfl": "by their first updates",
    "fl+hc": "by their trained parameters",
    "wecfl": "by their trained parameters",
    "fedgroup": "by their first updates",
    "pacfl": "by their signatures",
    "clove": "by their losses",
    "feddrift": "by their losses",
    "feddaa": "by their prototypes",
    "flux": "by their descriptors",
    "fedgwc": "by their training losses",
    "cfl-gp": "by their updates of one model",
    "auxo": "by their updates",
    "fesem": "by their trained parameters",
    "hcfl-prime(fedem)": "by their updates",
    "hcfl-prime(fedrc)": "by their updates",
    "hcfl-prime(fedsoft)": "by their updates",
    "hcfl+(fesem)": "by their prototypes",
    "hcfl+(fedem)": "by their prototypes",
    "hcfl+(fedrc)": "by their prototypes",
    "hcfl+(fedsoft)": "by their prototypes",
    "hcfl++": "by their prototypes",
}
COMPARED = {name for name in REASONS if name not in ("local", "pacfl", "clove", "feddrift", "flux", "fedgwc", "cfl-gp")}
"""Whose clients can put noise into all that the server compares them by."""

PRIVATE = ("fedavg", "fedrep", "fedper", "ifca", "fedem", "fedgmm", "fedrc", "fedsoft")


def test_every_method_is_decided_on():
    assert sorted([*REASONS, *PRIVATE]) == sorted(METHODS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_needs_decides(name, mode):
    config, method = from_flat(method=name, privacy=mode, engine="flower"), build(name)
    reason = REASONS.get(name) or ("embedded inputs" if name == "fedgmm" and mode != "secagg" else None)
    if name in COMPARED and mode == "local-dp":
        assert refusal(method, mode, on_flower=False) is None
        assert "engine sequential or batched can" in refusal(method, mode)
    else:
        assert refusal(method, mode, on_flower=False) == refusal(method, mode)
    if reason is None:
        assert refusal(method, mode) is None
        assert {name: getattr(settled(config, method).privacy, name) for name in OPTIONS[mode]} == OPTIONS[mode]
    else:
        with pytest.raises(InputError) as error:
            settled(config, method)
        said = str(error.value)
        assert said.startswith(f"privacy.mode = '{mode}': {name} ")
        assert reason in said
        assert "\n" not in said
    assert settled(from_flat(method=name), method).privacy.mode == "none"


def test_fesem_that_does_not_begin_with_k_means_can():
    fixed = {"method": "fesem", "clients": 4, "privacy": "secagg", "engine": "flower"}
    for settings in ({"adaptation": "fixed", "distance": "none"}, {"independent_start": True}):
        prepared = prepare(from_flat(**fixed, **settings))
        assert prepared.setting.method.clusters == 3
        assert prepared.config.method.independent_start is True


def test_hcfl_plus_with_a_fixed_number_of_clusters_can():
    fixed = {"adaptation": "fixed", "distance": "none", "clusters": 3}
    config = from_flat(method="hcfl+(fedrc)", **fixed, clients=4, privacy="secagg", engine="flower")
    assert prepare(config).config.privacy.mode == "secagg"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"privacy": "secagg"}, "privacy.mode = 'secagg': is for engine flower, not for engine auto"),
        (
            {"privacy": "secagg", "engine": "batched"},
            "privacy.mode = 'secagg': is for engine flower, not for engine batched: masks are for messages",
        ),
        (
            {"privacy": "secagg", "engine": "flower", "clip": 2},
            "privacy.clip = 2: is a setting of local-dp and central-dp",
        ),
        ({"epsilon": 0.5}, "privacy.epsilon = 0.5: is a setting of local-dp, but privacy.mode is none"),
        (
            {"privacy": "secagg", "engine": "flower", "noise_multiplier": 1},
            "privacy.noise_multiplier = 1: is a setting of local-dp and central-dp, but privacy.mode is secagg",
        ),
        (
            {"privacy": "local-dp", "epsilon": 1, "noise_multiplier": 1},
            "privacy.noise_multiplier = 1: privacy.epsilon says already how much noise there is",
        ),
        ({"privacy": "fully"}, "privacy.mode = 'fully': should be 'none', 'local-dp', 'central-dp' or 'secagg'"),
        ({"privacy": "local-dp", "epsilon": 3}, "privacy.epsilon = 3: should be less than or equal to 1"),
        ({"privacy": "central-dp", "clip": 0}, "privacy.clip = 0: should be greater than 0"),
        ({"privacy": "central-dp", "delta": 1}, "privacy.delta = 1: should be less than 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, sentence):
    with pytest.raises(InputError) as error:
        settled(from_flat(method="fedavg", **settings), build("fedavg"))
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"distance": "feature-norm-distance"}, "compares single clients by their feature norms, which have no bound"),
        ({"local": "own-model(kept=false)"}, "lets one model of each client count in several clusters"),
    ],
)
def test_what_noise_cannot_hide_is_refused_wherever_it_is_simulated(changes, sentence):
    config = from_flat(method="hcfl+(fedem)", privacy="local-dp", **changes)
    with pytest.raises(InputError, match=sentence):
        settled(config, method_of(config.method))


def test_noise_and_running_statistics_do_not_go_together():
    settings = {"method": "fedavg", "clients": 4, "engine": "flower", "model": "resnet-18"}
    with pytest.raises(
        InputError, match=r"^privacy.mode = 'local-dp': the model has running statistics, and a variance"
    ):
        prepare(from_flat(**settings, privacy="local-dp"))
    assert prepare(from_flat(**settings, privacy="local-dp", norm="group")).config.privacy.clip == 1
    assert prepare(from_flat(**settings, privacy="secagg")).setting.network.buffers


def test_what_was_chosen_is_recorded():
    config = from_flat(method="fedavg", privacy="local-dp", clip=0.5, clients=4, engine="flower")
    written = Config.from_yaml(prepare(config).config.to_yaml()).privacy
    assert written.model_dump() == {
        "mode": "local-dp",
        "clip": 0.5,
        "epsilon": 1.0,
        "noise_multiplier": None,
        "delta": 1e-5,
    }


def test_a_client_s_cluster_says_something_of_its_data_only_where_it_chooses():
    public = {name for name in PRIVATE if mass_is_public(build(name))}
    assert public == {"fedavg", "fedem", "fedgmm", "fedrc"}
    assert not mass_is_public(replace(build("fedem"), local=ClusterModels(by_weight=True)))


def test_the_page_has_the_table():
    assert table() in (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
