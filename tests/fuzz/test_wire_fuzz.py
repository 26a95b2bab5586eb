"""Mutated replies against the server's own checks: a refusal or an honest form, never a traceback.

`HYPOTHESIS_PROFILE=full` tries 2,000.
"""

import json
from dataclasses import replace

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
from hcfl.engines.flower import records
from hcfl.engines.flower.messages import Common, Reply, asked_of, task_for
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
    sent = [replace(take_part(task.only([c]))[0], held_out=torch.tensor([[1.0, 2.0]])) for c in range(3)]
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

    @few(70)
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
