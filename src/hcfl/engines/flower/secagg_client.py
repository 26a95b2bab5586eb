"""A client's four steps of SecAgg+; between them its secrets are in its node's memory, in no message and on no disk."""

import json
from dataclasses import replace

import torch
from flwr.app import ConfigRecord, Context

from hcfl.core import serialization
from hcfl.engines.flower import secagg
from hcfl.engines.flower.sum_messages import AskKeys, AskReveal, AskShares, SealedTask, Shares, joined, separated
from hcfl.errors import InputError
from hcfl.privacy.sums import Parts

SECRETS = "secagg"


def announce(asked: AskKeys, context: Context) -> secagg.PublicKeys:
    """Make keys; what was left of another sum is forgotten."""
    secrets = secagg.announce(asked.session, asked.client)
    _keep(context, secrets)
    return secrets.public


def share(asked: AskShares, context: Context) -> Shares:
    """Send shares of the secrets, encrypted for each neighbour."""
    secrets, ciphertexts = secagg.share(_kept(context, asked.session), asked.peers)
    _keep(context, secrets)
    return Shares(ciphertexts, secagg.commitment(bytes.fromhex(secrets.seed)))


def masked(asked: SealedTask, parts: Parts, context: Context) -> dict[str, torch.Tensor]:
    """Return summands under masks."""
    values = secagg.encode(joined(parts), asked.clients)
    secrets, vector = secagg.mask(_kept(context, asked.session), asked.ciphertexts, values)
    _keep(context, secrets)
    return separated(torch.from_numpy(vector.view("int64")), parts)


def reveal(asked: AskReveal, context: Context) -> secagg.Revealed:
    """Return shares once, and forget everything."""
    secrets = _kept(context, asked.session)
    _keep(context, replace(secrets, session=""))
    return secagg.reveal(secrets, asked.alive, asked.dropped)


def _keep(context: Context, secrets: secagg.Secrets) -> None:
    tree, _ = serialization.flatten(secrets)
    context.state[SECRETS] = ConfigRecord({"tree": json.dumps(tree)})


def _kept(context: Context, session: str) -> secagg.Secrets:
    record = context.state.config_records.get(SECRETS)
    secrets = None if record is None else serialization.restore(secagg.Secrets, json.loads(str(record["tree"])), {})
    if secrets is None or not session or secrets.session != session:
        raise InputError(f"privacy.mode = 'secagg': there are no keys of the sum {session!r}")
    return secrets
