"""How exactly is computed: what is rounded where, and what never is."""

import pytest
import torch

from hcfl.config import from_flat
from hcfl.core import rounds
from hcfl.errors import InputError
from hcfl.launch import execute
from hcfl.models import MODELS, Network
from hcfl.models.precision import check_precision, matrix_products
from hcfl.runs.prepare import prepare


def flags() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def test_products_are_rounded_only_inside_and_then_as_before():
    before = flags()
    with matrix_products(rounded=True):
        assert flags() == (True, True)
        with matrix_products(rounded=False):
            assert flags() == (False, False)
        assert flags() == (True, True)
    assert flags() == before


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_computes_as_configured_and_its_server_exactly(precision, tmp_path, monkeypatch):
    seen = {"server": set(), "clients": set()}
    conclude, take = rounds.server.aggregate, rounds.predict_held_out

    def server_side(*args):
        seen["server"].add(flags())
        return conclude(*args)

    def clients_side(*args):
        seen["clients"].add(flags())
        return take(*args)

    monkeypatch.setattr(rounds.server, "aggregate", server_side)
    monkeypatch.setattr(rounds, "predict_held_out", clients_side)
    execute(prepare(from_flat(clients=4, rounds=2, precision=precision, method="fedavg")), tmp_path / "run")
    assert seen["server"] == {(False, False)}
    assert seen["clients"] == {(precision != "fp32",) * 2}


def test_bfloat16_is_for_what_the_extractor_computes_in_between():
    extractor, head = MODELS["mlp"]((8,), 3)
    exact, half = Network(extractor, head), Network(extractor, head, half=True)
    params = {name: tensor.detach() for name, tensor in extractor.named_parameters()}
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    one, two = exact.embed(params, x), half.embed(params, x)
    assert two.dtype == torch.float32
    assert not torch.equal(one, two)
    torch.testing.assert_close(one, two, atol=0.05, rtol=0.05)
    heads = {name: tensor.detach().unsqueeze(0) for name, tensor in head.named_parameters()}
    assert torch.equal(exact.logits(heads, one), half.logits(heads, one)), "heads are exact"


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_both_engines_learn_in_bfloat16(engine, tmp_path):
    settings = {"clients": 4, "rounds": 3, "method": "fedavg", "engine": engine, "seed": 1}
    half, exact = (
        execute(prepare(from_flat(**settings, precision=precision)), tmp_path / precision)
        for precision in ("bf16", "fp32")
    )
    assert half.config.precision == "bf16"
    assert half.rows[-1]["val"] == pytest.approx(exact.rows[-1]["val"], abs=0.1)
    assert all(tensor.dtype == torch.float32 for tensor in half.state.server.ensemble.extractors.values())


def test_a_format_that_the_device_lacks_is_refused():
    with pytest.raises(InputError, match=r"precision = 'tf32': is a format of NVIDIA GPUs; on cpu use fp32 or bf16"):
        prepare(from_flat(clients=3, precision="tf32"))
    check_precision("tf32", torch.device("cuda"))
    check_precision("bf16", torch.device("cpu"))
