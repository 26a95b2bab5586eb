"""Mutated messages against the server's own checks: a refusal or an honest form, never a traceback.

`make fuzz` tries 20,000: 12,000 replies, 4,000 introductions, 4,000 messages of SecAgg.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array
from hypothesis import given
from hypothesis import strategies as st
from junk import altered, damaged, few

from hcfl.config import from_flat
from hcfl.core import admission, rounds, server
from hcfl.core.client import take_part
from hcfl.core.serialization import description
from hcfl.core.setting import RoundTask
from hcfl.core.state import Update
from hcfl.engines.flower import records, secagg
from hcfl.engines.flower.messages import Common, Introduction, Reply, asked_of, task_for
from hcfl.engines.flower.sum_messages import Shares, Upload, problem_with_upload, whole_numbers
from hcfl.errors import InputError
from hcfl.flower.client_data import agree
from hcfl.flower.introductions import problem_with_introduction, unlike_others
from hcfl.privacy.sums import MODELS
from hcfl.runs.prepare import prepare

DTYPES = [torch.float64, torch.float16, torch.int32, torch.int64, torch.bool, torch.complex64, torch.uint8]
NUMBERS = [0.0, -1.0, 1e6, -1e6, 1e30, float("nan"), float("inf")]


def a_round(method):
    """One round's task, its question to client 0, and what clients 0 to 2 answer."""
    config = from_flat(method=method, engine="sequential", data="digits", clients=3, rounds=1, epochs=1)
    prepared = prepare(config)
    message = server.broadcast(prepared.setting.method, prepared.state.server, prepared.setting.federation.classes)
    task = RoundTask(prepared.setting, message, [0, 1, 2], {})
    question = task_for(Common("e", "", ()), prepared.setting.method, message, 0, None)
    by_class = torch.zeros(1, 3, 10)
    by_class[0, :, 0] = torch.tensor([1.0, 2.0, 1.0])  # two samples of class 0, one of which is taken for class 1
    by_class[0, 2, 1] = 1.0
    measured = {"held_out": torch.tensor([[1.0, 2.0]]), "by_class": by_class}
    sent = [replace(take_part(task.only([c]))[0], **measured) for c in range(3)]
    return task, question, sent


@st.composite
def mutated(draw, reply):
    """A reply's records with one thing in them changed."""
    content = records.pack(reply)
    arrays, values = content.array_records["arrays"], content.config_records["values"]
    name = draw(st.sampled_from(sorted(arrays)))
    tensor = records._tensor(name, arrays[name])
    kind = draw(st.sampled_from(["bytes", "tree", "type", "shape", "number", "missing"]))
    if kind == "bytes":
        old = arrays[name]
        arrays[name] = Array(old.dtype, old.shape, old.stype, draw(damaged(old.data[:200])) + old.data[200:])
        return content
    if kind == "tree":
        values["tree"] = json.dumps(draw(altered(json.loads(values["tree"]))))
        return content
    if kind == "missing":
        del arrays[name]
        return content
    if kind == "type":
        tensor = tensor.to(draw(st.sampled_from(DTYPES)))
    elif kind == "shape":
        others = [tensor.flatten()[0], tensor.unsqueeze(0), tensor[:0], tensor.repeat_interleave(2, 0)]
        tensor = draw(st.sampled_from(others))
    else:
        tensor = tensor.clone()
        tensor.view(-1)[draw(st.integers(0, tensor.numel() - 1))] = draw(
            st.sampled_from(NUMBERS if tensor.is_floating_point() else [-1, 1, 2**40])
        )
    old_text, new_text = (f'"{description(one)}"' for one in (records._tensor(name, arrays[name]), tensor))
    arrays[name] = records._array(tensor)
    last = name.split(".")[-1]
    values["tree"] = values["tree"].replace(f'"{last}": {old_text}', f'"{last}": {new_text}')
    return content


@pytest.mark.parametrize("method", ["hcfl+(fedrc)", "fedgmm", "pacfl"])
def test_a_mutated_reply_is_refused_or_of_an_honest_form(method):
    task, question, sent = a_round(method)
    honest = Reply("e", 1, 0, sent[0])
    asked = asked_of(question, task.setting)
    assert admission.problem_with(sent[0], 1, asked) is None
    assert admission.refusals(task, Update.join(sent)) == {}

    @few(70, full=4000)
    @given(mutated(honest))
    def check(content):
        try:
            reply = records.unpack(Reply, content)
        except Exception:  # as `exchange.ask` does
            return
        if reply.update is None or admission.problem_with(reply.update, reply.round, asked):
            return
        joined = Update.join([reply.update, *sent[1:]])
        refused = admission.refusals(task, joined)
        assert set(refused) <= {0}, "nobody else is refused"
        if not refused:
            assert joined.finite.all()
            assert (joined.weights >= 0).all()
            state = rounds.begin(task.setting, task.broadcast.ensemble).server
            after, _ = server.conclude(task.setting.method, task.setting.network, state, joined, 0)
            assert all(tensor.isfinite().all() for tensor in after.ensemble.heads.values())

    check()


def introductions():
    x = torch.rand(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return [
        Introduction(
            client,
            f"c{client}",
            train=50,
            held_out=5,
            shape=(3,),
            class_names=("0", "1"),
            values=50,
            total=x.sum(dim=0),
            squares=x.square().sum(dim=0),
        )
        for client in range(3)
    ]


def test_a_mutated_introduction_is_refused_or_scales_inputs_as_an_honest_one_could():
    said = introductions()
    names = tuple(one.name for one in said)
    assert all(problem_with_introduction(one, private=False) is None for one in said)
    honest = agree("e", names, said).common

    @few(70, full=4000)
    @given(mutated(said[0]))
    def check(content):
        try:
            first = records.unpack(Introduction, content)
        except Exception:  # as `exchange.ask` does
            return
        if (first.client, first.name) != (0, "c0") or problem_with_introduction(first, private=False):
            return  # identity is the registered key: the directory refuses another
        there = {0: first, 1: said[1], 2: said[2]}
        odd = unlike_others(there)
        assert set(odd) <= {0}, "nobody else is refused"
        found = agree("e", names, [one for key, one in there.items() if key not in odd]).common
        assert np.isfinite(found.mean).all()
        assert np.isfinite(found.std).all()
        assert (np.abs(np.array(found.std)) <= 1000 * np.array(honest.std)).all()

    check()


def a_sum():
    """Three clients' messages of one sum: keys, shares, masked vectors, revealed shares; and the sum."""
    secrets = {client: secagg.announce("s", client) for client in range(3)}
    public = {client: mine.public for client, mine in secrets.items()}
    sealed = {}
    for client in range(3):
        secrets[client], sealed[client] = secagg.share(secrets[client], public)
    shares = {c: Shares(sealed[c], secagg.commitment(bytes.fromhex(secrets[c].seed))) for c in range(3)}
    masked = {}
    for client in range(3):
        mine = {peer: sealed[peer][client] for peer in range(3) if peer != client}
        values = secagg.encode(np.full(4, float(client)), 3)
        secrets[client], vector = secagg.mask(secrets[client], mine, values)
        masked[client] = vector
    revealed = {client: secagg.reveal(secrets[client], (0, 1, 2), ()) for client in range(3)}
    return public, shares, masked, revealed


@st.composite
def forged(draw, message):
    """A message without tensors in which one thing is another."""
    content = records.pack(message)
    values = content.config_records["values"]
    values["tree"] = json.dumps(draw(altered(json.loads(values["tree"]))))
    return content


def test_a_mutated_message_of_secure_aggregation_opens_the_sum_or_nothing():
    public, shares, masked, revealed = a_sum()
    peers = secagg.neighbours_of([0, 1, 2])
    commitments = {client: one.commitment for client, one in shares.items()}
    right = secagg.decode(secagg.unmask(masked, (), peers, public, commitments, revealed))
    np.testing.assert_allclose(right, 3.0)

    def opened(keys, commits, shown):
        try:
            total = secagg.unmask(masked, (), peers, keys, commits, shown)
        except InputError:
            return
        np.testing.assert_allclose(secagg.decode(total), right)

    @few(30, full=1500)
    @given(forged(revealed[0]))
    def check_revealed(content):
        try:
            shown = records.unpack(secagg.Revealed, content)
        except Exception:  # as `exchange.ask` does
            return
        opened(public, commitments, {**revealed, 0: shown})

    @few(20, full=1000)
    @given(forged(shares[0]))
    def check_shares(content):
        try:
            sent = records.unpack(Shares, content)
        except Exception:
            return
        opened(public, {**commitments, 0: sent.commitment}, revealed)

    @few(20, full=500)
    @given(forged(public[0]))
    def check_keys(content):
        try:
            sent = records.unpack(secagg.PublicKeys, content)
        except Exception:
            return
        if secagg.problem_with_keys(sent, [public[1], public[2]]) is None:
            mine = secagg.announce("s", 1)
            secagg.share(mine, {0: sent, 1: mine.public, 2: public[2]})  # a neighbour can use them

    check_revealed()
    check_shares()
    check_keys()


def test_a_mutated_sealed_upload_is_refused_or_of_the_form_of_the_model():
    _, question, _ = a_round("fedavg")
    parts = {
        prefix + name: torch.ones(tensor.shape, dtype=torch.int64)
        for part, prefix in MODELS.items()
        for name, tensor in getattr(question.ensemble, part).items()
    }
    honest = Upload("e", 1, 0, parts)
    assert problem_with_upload(honest, question, torch.int64) is None

    @few(30, full=1000)
    @given(mutated(honest))
    def check(content):
        try:
            upload = records.unpack(Upload, content)
        except Exception:  # as `exchange.ask` does
            return
        if problem_with_upload(upload, question, torch.int64) is None:
            assert whole_numbers(upload.parts).dtype == np.uint64

    check()
