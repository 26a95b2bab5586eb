"""SecAgg+ as such: sums come out, single vectors do not, and clients do not help to open one."""

from dataclasses import replace

import numpy as np
import pytest

from hcfl.engines.flower import secagg
from hcfl.errors import InputError

LENGTH = 500


def vectors(number):
    generator = np.random.default_rng(1)
    return {client: generator.normal(size=LENGTH) * 100 for client in range(number)}


def until_masked(values, silent=()):
    """Play until the vectors are in, without those who fall silent before they send theirs."""
    number = len(values)
    ring = np.random.default_rng(2).permutation(number).tolist()
    peers = secagg.neighbours_of(ring)
    secrets = {client: secagg.announce("one", client) for client in values}
    public = {client: mine.public for client, mine in secrets.items()}
    sealed, masked = {}, {}
    for client in values:
        secrets[client], sealed[client] = secagg.share(secrets[client], {peer: public[peer] for peer in peers[client]})
    for client in values:
        if client not in silent:
            mine = {peer: sealed[peer][client] for peer in peers[client] if peer != client}
            encoded = secagg.encode(values[client], number)
            secrets[client], masked[client] = secagg.mask(secrets[client], mine, encoded)
    return peers, public, secrets, masked


def reveal(peers, secrets, masked, silent, deaf=()):
    return {
        client: secagg.reveal(
            secrets[client],
            [peer for peer in peers[client] if peer in masked],
            [peer for peer in peers[client] if peer in silent],
        )
        for client in masked
        if client not in deaf
    }


def committed(secrets):
    return {client: secagg.commitment(bytes.fromhex(mine.seed)) for client, mine in secrets.items()}


@pytest.mark.parametrize(
    ("number", "silent", "deaf"),
    [(3, (), ()), (6, (2,), ()), (6, (2,), (0,)), (20, (4, 11), (7,))],
)
def test_the_sum_of_whoever_sent_a_vector_comes_out(number, silent, deaf):
    values = vectors(number)
    peers, public, secrets, masked = until_masked(values, silent)
    total = secagg.unmask(
        masked, silent, peers, public, committed(secrets), reveal(peers, secrets, masked, silent, deaf)
    )
    expected = sum(vector for client, vector in values.items() if client not in silent)
    np.testing.assert_allclose(secagg.decode(total), expected, rtol=0, atol=1e-8)


def test_more_clients_stand_in_a_ring():
    peers = secagg.neighbours_of(list(range(40)))
    assert {len(mine) for mine in peers.values()} == {secagg.NEIGHBOURS + 1}
    assert all(client in peers[peer] for client, mine in peers.items() for peer in mine)
    assert {len(mine) for mine in secagg.neighbours_of(list(range(17))).values()} == {17}


def test_a_masked_vector_looks_like_noise_and_is_another_each_time():
    values = vectors(4)
    (_, _, _, first), (_, _, _, second) = until_masked(values), until_masked(values)
    for client in values:
        plain = secagg.encode(values[client], 4)
        for masked in (first[client], second[client]):
            share = (masked - plain).astype(np.float64) / 2.0**64
            assert abs(share.mean() - 0.5) < 0.06  # 4.6 standard deviations of a uniform mean
            assert abs(share.std() - 12**-0.5) < 0.03
            assert abs(np.corrcoef(share, values[client])[0, 1]) < 0.2
        assert not (first[client] == second[client]).any()


def test_too_few_shares_open_nothing():
    values = vectors(6)
    peers, public, secrets, masked = until_masked(values)
    assert secagg.threshold_of(6) == 4
    revealed = reveal(peers, secrets, masked, (), deaf=(0, 1, 2))
    with pytest.raises(InputError, match=r"3 shares of client \d came, 4 are needed"):
        secagg.unmask(masked, (), peers, public, committed(secrets), revealed)


FORGED = ["", "zz", "00", "ff" * 40, "é", "00" * 5000]


@pytest.mark.parametrize("share", FORGED)
@pytest.mark.parametrize("silent", [(), (2,)])
def test_a_forged_share_is_left_out_and_several_open_nothing(share, silent):
    """Without the commitments, a wrong seed opened a sum that was noise; what was no share at all was a traceback."""
    values = vectors(6)
    peers, public, secrets, masked = until_masked(values, silent)
    revealed = reveal(peers, secrets, masked, silent)

    def with_liars(*liars):
        wrong = dict.fromkeys(range(6), share)
        return {c: secagg.Revealed(wrong, wrong) if c in liars else one for c, one in revealed.items()}

    total = secagg.unmask(masked, silent, peers, public, committed(secrets), with_liars(0))
    expected = sum(vector for client, vector in values.items() if client not in silent)
    np.testing.assert_allclose(secagg.decode(total), expected, rtol=0, atol=1e-8)
    with pytest.raises(InputError, match=r"privacy.mode = 'secagg': the shares of client \d that came do not fit"):
        secagg.unmask(masked, silent, peers, public, committed(secrets), with_liars(0, 1, 3, 4))


def test_up_to_a_third_of_forged_shares_are_left_out():
    values = vectors(12)
    peers, public, secrets, masked = until_masked(values)
    wrong = secagg.Revealed(dict.fromkeys(range(12), "ff" * 40), {})
    revealed = reveal(peers, secrets, masked, ()) | dict.fromkeys((0, 5), wrong)
    total = secagg.unmask(masked, (), peers, public, committed(secrets), revealed)
    np.testing.assert_allclose(secagg.decode(total), sum(values.values()), rtol=0, atol=1e-8)


def test_a_client_says_whose_shares_it_cannot_read():
    """Before, it failed without a word, and so did every neighbour in every try of the round."""
    secrets = {client: secagg.announce("one", client) for client in range(4)}
    public = {client: mine.public for client, mine in secrets.items()}
    sealed = {}
    for client in range(4):
        secrets[client], sealed[client] = secagg.share(secrets[client], public)
    came = {1: sealed[1][0], 2: "no ciphertext", 3: sealed[3][2]}  # the last one is for another client
    with pytest.raises(secagg.UnreadableSharesError) as error:
        secagg.mask(secrets[0], came, secagg.encode(np.ones(3), 4))
    assert error.value.peers == (2, 3)


@pytest.mark.parametrize(
    ("accusations", "out"),
    [
        ([], set()),
        ([(0, 2)], {2}),
        ([(0, 2), (1, 2), (3, 2)], {2}),
        ([(2, 0), (2, 1)], {2}),  # it accuses two: one liar is likelier than two
        ([(2, 0), (2, 1), (0, 1)], {0, 1}),  # all are in two: the one that is accused twice, then the other accused
        ([(0, 5), (1, 5), (2, 5), (5, 0)], {5}),
    ],
)
def test_who_is_in_most_accusations_goes(accusations, out):
    assert secagg.blamed(accusations) == out


def test_keys_that_cannot_be_used_are_told_before_neighbours_get_them():
    one, two = secagg.announce("one", 0).public, secagg.announce("one", 1).public
    assert secagg.problem_with_keys(one, [two]) is None
    assert secagg.problem_with_keys(one, [one]) == "sent keys that are not its own alone"
    assert secagg.problem_with_keys(replace(one, share=one.mask), []) == "sent keys that are not its own alone"
    for wrong in ("", "no key", "é", two.mask[:-40], two.mask.replace("PUBLIC", "PRIVATE")):
        assert secagg.problem_with_keys(replace(one, mask=wrong), []) == "sent keys that cannot be read"


def test_a_client_does_not_help_to_open_a_single_vector():
    values = vectors(4)
    _, _, secrets, _ = until_masked(values)
    everybody = tuple(values)
    with pytest.raises(InputError, match="would open a single vector"):
        secagg.reveal(secrets[0], everybody, (2,))  # both secrets of client 2
    with pytest.raises(InputError, match="2 neighbours are left, 3 are needed"):
        secagg.reveal(secrets[0], (0, 1), (2, 3))
    with pytest.raises(InputError, match="would open a single vector"):
        secagg.reveal(secrets[0], (*everybody, 9), ())
    with pytest.raises(InputError, match="would open a single vector"):
        secagg.reveal(replace(secrets[0], sent=False), everybody, ())


def test_keys_and_shares_that_are_not_in_order_are_refused():
    secrets = {client: secagg.announce("one", client) for client in range(4)}
    public = {client: mine.public for client, mine in secrets.items()}
    for wrong in (
        {0: public[0], 1: public[1]},  # a sum of two
        {**public, 0: public[3]},  # somebody else's in my place
        {**public, 1: public[2]},  # one key twice
    ):
        with pytest.raises(InputError, match="keys of clients came, and they are not in order"):
            secagg.share(secrets[0], wrong)
    shared = {client: secagg.share(mine, public) for client, mine in secrets.items()}
    sealed = {client: shared[client][1][0] for client in (1, 2, 3)}
    vector = secagg.encode(np.zeros(3), 4)
    with pytest.raises(InputError, match="1 shares came, 2 are needed"):
        secagg.mask(shared[0][0], {1: sealed[1]}, vector)
    after, _ = secagg.mask(shared[0][0], sealed, vector)
    with pytest.raises(InputError, match="shares came"):
        secagg.mask(after, sealed, vector)  # a second vector under the same masks


def test_numbers_that_do_not_fit_are_refused():
    for value in (float("nan"), float("inf"), 2.0**31):
        with pytest.raises(InputError, match=r"an upload has numbers beyond 2.14748e\+08; training diverged"):
            secagg.encode(np.array([0.0, value]), 10)
