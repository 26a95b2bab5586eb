"""SecAgg+: the server opens the sum of what clients send, and nothing else (Bonawitz et al. 2017, Bell et al. 2020).

Every client adds masks to its vector: pairwise ones with neighbours, which cancel in the sum, and one of its own. It
gives its neighbours shares of the secrets behind them. After the vectors are in, clients return their shares: for a
client that sent a vector, those of its own mask; for one that did not, those of its key, so that the server can take
its half of the pairwise masks off.

Keys, key agreement, encryption and secret sharing are Flower's. Two things are not. Masks are a stream of AES in
counter mode: Flower's generator shortens every seed to 32 bits, which can be searched. And sums are of 64-bit whole
numbers: Flower's are of 32 bits and round at random. Its workflow also needs a legacy context with a legacy strategy.
"""

import os
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import combinations
from math import ceil, comb
from random import Random

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat, share_keys_plaintext_separate
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)
from numpy.typing import NDArray

from hcfl.errors import InputError

Vector = NDArray[np.uint64]
"""Whole numbers modulo 2⁶⁴."""

FEWEST = 3
"""Clients in a sum: that of two tells each of them the other's vector."""

NEIGHBOURS = 16
"""With how many others a client has pairwise masks, at most; where there are more clients, they stand in a ring."""

FRACTION_BITS = 32
"""Of a number in a vector; so numbers go up to 2³¹, and are rounded to 2⁻³²."""


SUBSETS = 300
"""How many sets of shares are tried where some are forged: of 17 shares, up to three may be."""


class UnreadableSharesError(InputError):
    """Some neighbours sent shares that this client cannot read."""

    def __init__(self, peers: Sequence[int]) -> None:
        super().__init__(f"privacy.mode = 'secagg': the shares of clients {list(peers)} cannot be read")
        self.peers = tuple(peers)


class UnopenedError(InputError):
    """A client's secret cannot be opened: the shares that it gave do not fit what it said of the secret."""

    def __init__(self, client: int) -> None:
        super().__init__(f"privacy.mode = 'secagg': the shares of client {client} that came do not fit together")
        self.client = client


@dataclass(frozen=True)
class PublicKeys:
    """A client's keys for one sum: one for pairwise masks, one to send it shares."""

    mask: str
    share: str


@dataclass(frozen=True)
class Share:
    """A share of a client's two secrets, in hexadecimal: the seed of its own mask, and its key for pairwise masks."""

    seed: str
    key: str


@dataclass(frozen=True)
class Secrets:
    """What a client keeps until the sum is opened."""

    session: str
    client: int
    mask_key: str
    share_key: str
    public: PublicKeys
    seed: str = ""
    threshold: int = 0
    peers: Mapping[int, PublicKeys] = field(default_factory=dict)
    """The neighbours, itself among them."""
    shares: Mapping[int, Share] = field(default_factory=dict)
    """Its share of the secrets of each neighbour, and of its own."""
    sent: bool = False
    """Whether the vector is out; there is one for each session."""


@dataclass(frozen=True)
class Revealed:
    """The shares that a client returns."""

    seeds: Mapping[int, str]
    keys: Mapping[int, str]


def threshold_of(shares: int) -> int:
    """Return how many shares of a secret open it: two thirds, so that a third of the clients may drop out.

    A client gives a share of one of the two secrets, so the server never gets both, whichever clients it calls dropped.
    """
    return max(2, ceil(2 * shares / 3))


def neighbours_of(ring: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the neighbours of each client, itself included: all, or the nearest ones in a ring."""
    number = len(ring)
    reach = min(NEIGHBOURS, number - 1) // 2
    if number <= NEIGHBOURS + 1:
        return {client: tuple(sorted(ring)) for client in ring}
    return {
        client: tuple(sorted(ring[(place + step) % number] for step in range(-reach, reach + 1)))
        for place, client in enumerate(ring)
    }


# What a client does.


def announce(session: str, client: int) -> Secrets:
    """Make the keys of a new sum."""
    (mask, mask_public), (share, share_public) = generate_key_pairs(), generate_key_pairs()
    public = PublicKeys(public_key_to_bytes(mask_public).decode(), public_key_to_bytes(share_public).decode())
    return Secrets(session, client, private_key_to_bytes(mask).decode(), private_key_to_bytes(share).decode(), public)


def commitment(seed: bytes) -> str:
    """Return what a client says of its seed before others hold shares of it: it tells nothing, but fits no other."""
    return sha256(b"hcfl own mask" + seed).hexdigest()


def share(secrets: Secrets, peers: Mapping[int, PublicKeys]) -> tuple[Secrets, dict[int, str]]:
    """Cut the secrets into shares and encrypt one for each neighbour."""
    keys = [key for peer in peers.values() for key in (peer.mask, peer.share)]
    if len(peers) < FEWEST or peers.get(secrets.client) != secrets.public or len(set(keys)) < len(keys):
        raise InputError(f"privacy.mode = 'secagg': {len(peers)} keys of clients came, and they are not in order")
    threshold, seed = threshold_of(len(peers)), os.urandom(32)
    seeds = create_shares(seed, threshold, len(peers))
    mask_keys = create_shares(secrets.mask_key.encode(), threshold, len(peers))
    mine, sealed = {}, {}
    for peer, one, other in zip(sorted(peers), seeds, mask_keys, strict=True):
        if peer == secrets.client:
            mine[peer] = Share(one.hex(), other.hex())
        else:
            text = share_keys_plaintext_concat(secrets.client, peer, one, other)
            sealed[peer] = encrypt(_shared_key(secrets.share_key, peers[peer].share), text).decode()
    return replace(secrets, seed=seed.hex(), threshold=threshold, peers=peers, shares=mine), sealed


def mask(secrets: Secrets, ciphertexts: Mapping[int, str], vector: Vector) -> tuple[Secrets, Vector]:
    """Add the masks to a vector: the client's own, and one with each neighbour that sent a share."""
    if secrets.sent or len(ciphertexts) + 1 < max(FEWEST, secrets.threshold):
        raise InputError(f"privacy.mode = 'secagg': {len(ciphertexts)} shares came, {secrets.threshold - 1} are needed")
    found = {peer: _read_share(secrets, peer, ciphertexts[peer]) for peer in sorted(ciphertexts)}
    readable = {peer: share_ for peer, share_ in found.items() if share_ is not None}
    if len(readable) < len(found):
        raise UnreadableSharesError([peer for peer in found if peer not in readable])
    masked = vector + stream(bytes.fromhex(secrets.seed), len(vector))
    for peer in readable:
        masked = masked + _pairwise_mask(secrets.client, peer, secrets.mask_key, secrets.peers[peer].mask, len(vector))
    return replace(secrets, shares={**secrets.shares, **readable}, sent=True), masked


def _read_share(secrets: Secrets, peer: int, ciphertext: str) -> Share | None:
    """Decrypt a neighbour's share; None where it is none, or one for another client."""
    try:
        key = _shared_key(secrets.share_key, secrets.peers[peer].share)
        source, target, seed, mask_key = share_keys_plaintext_separate(decrypt(key, ciphertext.encode()))
    except Exception:  # whatever a ciphertext raises is the fault of the client that sent it
        return None
    return Share(seed.hex(), mask_key.hex()) if (source, target) == (peer, secrets.client) else None


def reveal(secrets: Secrets, alive: Sequence[int], dropped: Sequence[int]) -> Revealed:
    """Return one of the two shares of each client: with both, the server could open a single vector."""
    known = set(secrets.shares)
    if not secrets.sent or set(alive) & set(dropped) or not {*alive, *dropped} <= known:
        raise InputError("privacy.mode = 'secagg': shares were asked for that would open a single vector")
    if len(alive) < max(FEWEST, secrets.threshold):
        raise InputError(f"privacy.mode = 'secagg': {len(alive)} neighbours are left, {secrets.threshold} are needed")
    return Revealed({c: secrets.shares[c].seed for c in alive}, {c: secrets.shares[c].key for c in dropped})


# What the server does.


def problem_with_keys(public: PublicKeys, others: Sequence[PublicKeys]) -> str | None:
    """Return why a client's keys cannot be used; one unusable key would stop all of its neighbours."""
    if len(set(mine := (public.mask, public.share))) < len(mine) or any(
        key in (other.mask, other.share) for key in mine for other in others
    ):
        return "sent keys that are not its own alone"
    try:
        for key in mine:
            generate_shared_key(generate_key_pairs()[0], bytes_to_public_key(key.encode()))
    except Exception:  # whatever a key raises is the fault of the client that sent it
        return "sent keys that cannot be read"
    return None


def blamed(accusations: Collection[tuple[int, int]]) -> set[int]:
    """Return the clients to leave out so that no accusation is left; each is (accuser, accused).

    An accuser says that it cannot read the accused's shares. One of the two lies, and the server cannot tell which. So
    clients go that are in most accusations; where two are in as many, the one that is accused more often.
    """
    left, found = set(accusations), set()
    while left:
        involved, accused = Counter(client for pair in left for client in pair), Counter(client for _, client in left)
        worst = max(sorted(involved), key=lambda client: (involved[client], accused[client]))
        found.add(worst)
        left = {pair for pair in left if worst not in pair}
    return found


def unmask(
    masked: Mapping[int, Vector],
    dropped: Sequence[int],
    peers: Mapping[int, Sequence[int]],
    public: Mapping[int, PublicKeys],
    commitments: Mapping[int, str],
    revealed: Mapping[int, Revealed],
) -> Vector:
    """Return the sum of the vectors; an InputError says that too few shares came, an UnopenedError whose do not fit.

    `dropped` gave shares, but no vector; `peers` are the neighbours of each client. An opened seed must fit what its
    client committed itself to, an opened key its public key: with a wrong one the sum would be noise.
    """
    length = len(next(iter(masked.values())))
    total: Vector = np.zeros(length, dtype=np.uint64)
    for vector in masked.values():
        total = total + vector
    for client in masked:
        shares = {of: one.seeds[client] for of, one in revealed.items() if client in one.seeds}
        seed = _opened(client, shares, peers[client], partial(_is_committed, commitments[client]))
        total = total - stream(seed, length)
    for client in dropped:
        shares = {of: one.keys[client] for of, one in revealed.items() if client in one.keys}
        key = _opened(client, shares, peers[client], partial(_is_key_of, public[client]))
        for peer in set(peers[client]) & set(masked):
            total = total + _pairwise_mask(client, peer, key.decode(), public[peer].mask, length)
    return total


def _opened(client: int, shares: Mapping[int, str], peers: Sequence[int], fits: Callable[[bytes], bool]) -> bytes:
    """Put shares together, by the client that returned each; where some are forged, others of them."""
    theirs = [shares[of] for of in sorted(shares) if of in peers]
    needed = threshold_of(len(peers))
    if len(theirs) < needed:
        raise InputError(f"privacy.mode = 'secagg': {len(theirs)} shares of client {client} came, {needed} are needed")
    usual = Counter(map(len, theirs)).most_common(1)[0][0]  # shares of one secret have one length
    for some in _subsets([share for share in theirs if len(share) == usual], needed):
        found = _combined(some)
        if found is not None and fits(found):
            return found
    raise UnopenedError(client)


def _subsets(shares: Sequence[str], needed: int) -> Iterable[Sequence[str]]:
    """Return all sets of so many shares, or some drawn at random where there are too many of them."""
    if comb(len(shares), needed) <= SUBSETS:
        return combinations(shares, needed)
    draw = Random(0)
    return (draw.sample(shares, needed) for _ in range(SUBSETS))


def _combined(shares: Sequence[str]) -> bytes | None:
    """Return the secret of some shares; None where they are no shares of one secret."""
    try:
        return combine_shares([bytes.fromhex(one) for one in shares])
    except Exception:  # shares are what clients sent, and Flower's functions check none of it
        return None


def _is_committed(commitment_of: str, seed: bytes) -> bool:
    return commitment(seed) == commitment_of


def _is_key_of(public: PublicKeys, private: bytes) -> bool:
    try:
        return public_key_to_bytes(bytes_to_private_key(private).public_key()).decode() == public.mask
    except Exception:
        return False


# What both do.


def stream(seed: bytes, length: int) -> Vector:
    """Stretch 32 secret bytes to a vector that looks like noise without the seed; every seed is used for one vector."""
    encryptor = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * length)), dtype="<u8").astype(np.uint64)


def _shared_key(private: str, public: str) -> bytes:
    return generate_shared_key(bytes_to_private_key(private.encode()), bytes_to_public_key(public.encode()))


def _pairwise_mask(client: int, peer: int, private: str, public: str, length: int) -> Vector:
    """Return the mask that a client has with another: the other has the same with the opposite sign."""
    noise = stream(urlsafe_b64decode(_shared_key(private, public)), length)
    return noise if client > peer else np.uint64(0) - noise


def encode(values: NDArray[np.float64], clients: int) -> Vector:
    """Return numbers as whole numbers of 2⁻³², negative ones as the upper half of what there is."""
    limit = 2.0 ** (63 - FRACTION_BITS) / clients
    if not np.isfinite(values).all() or np.abs(values).max(initial=0) >= limit:
        raise InputError(f"privacy.mode = 'secagg': an upload has numbers beyond {limit:g}; training diverged")
    return np.rint(values * 2.0**FRACTION_BITS).astype(np.int64).view(np.uint64)


def decode(total: Vector) -> NDArray[np.float64]:
    """Return the numbers of a sum."""
    return total.view(np.int64).astype(np.float64) / 2.0**FRACTION_BITS
