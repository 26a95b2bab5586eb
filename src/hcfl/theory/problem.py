"""The linear problem: y = θ*_kᵀ B*ᵀ x + noise, with one B* for all and a head θ*_k for each cluster.

The setting of the paper's theorem on linear representations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hcfl import rng
from hcfl.errors import InputError
from hcfl.theory.settings import StudySettings

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """The true B* and Θ*, and the samples of each cluster from which they are estimated."""

    basis: Array
    """B*: orthonormal, (d, c)."""
    heads: Array
    """Θ*: a column θ*_k of length √c for each cluster, (c, K)."""
    x: tuple[Array, ...]
    """Each cluster's samples, (N̂_k, d)."""
    y: tuple[Array, ...]
    """Their targets, (N̂_k,)."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """N̂_k, the samples of each cluster."""
        return tuple(len(one) for one in self.y)

    @property
    def imbalance(self) -> float:
        """The smallest cluster's share of the largest."""
        return min(self.sizes) / max(self.sizes)


def cluster_clients(clients: int, clusters: int, imbalance: float) -> tuple[int, ...]:
    """Return the number of clients of each cluster; sizes fall geometrically, down to imbalance × the largest.

    >>> cluster_clients(100, 2, imbalance=0.25)
    (80, 20)
    """
    shares = imbalance ** (np.arange(clusters) / max(1, clusters - 1))
    exact = clients * shares / shares.sum()
    whole = np.floor(exact).astype(int)
    rest = np.argsort(whole - exact, kind="stable")[: clients - whole.sum()]  # the largest remainders get one more
    whole[rest] += 1
    return tuple(int(number) for number in whole)


def clusters_of(settings: StudySettings) -> list[tuple[int, ...]]:
    """Return the clients of each cluster for every imbalance; imbalances that need more clients raise InputError."""
    found: dict[tuple[int, ...], float] = {}
    for imbalance in settings.imbalances:
        sizes = cluster_clients(settings.clients, settings.clusters, imbalance)
        name = f"imbalances = {imbalance:g}"
        if settings.clusters == 1 and imbalance < 1:
            raise InputError(f"{name}: a single cluster cannot be out of balance, only 1 is possible")
        if min(sizes) * settings.samples < settings.latent:
            raise InputError(
                f"{name}: leaves a cluster with {min(sizes)} clients of {settings.samples} samples, "
                f"but a head needs latent = {settings.latent} samples at least"
            )
        if sizes in found:
            raise InputError(
                f"{name}: gives {settings.clients} clients the same clusters as {found[sizes]:g}; "
                "more clients could tell them apart"
            )
        found[sizes] = imbalance
    return list(found)


def random_heads(latent: int, clusters: int, generator: np.random.Generator) -> Array:
    """Draw heads in uniformly random directions, each of length √c: (c, K)."""
    heads = generator.normal(size=(latent, clusters))
    scaled: Array = heads * np.sqrt(latent) / np.linalg.norm(heads, axis=0)
    return scaled


def even_heads(latent: int, clusters: int, generator: np.random.Generator) -> Array:
    """Draw heads of length √c that cover every direction equally: Θ*Θ*ᵀ = K·I, so σ̄ = κ = 1.

    Waves sampled at K points, turned and shuffled; half frequencies where c is even leave out the constant wave.
    """
    frequencies = np.arange(1, latent // 2 + 1) - (0 if latent % 2 else 0.5)
    angles = 2 * np.pi / clusters * np.outer(frequencies, np.arange(clusters))
    constant = np.ones((latent % 2, clusters))
    waves = np.vstack([constant, np.sqrt(2) * np.cos(angles), np.sqrt(2) * np.sin(angles)])
    turn = np.linalg.qr(generator.normal(size=(latent, latent)))[0]
    heads: Array = turn @ waves[:, generator.permutation(clusters)]
    return heads


def draw(settings: StudySettings, clients: Sequence[int], seed: int) -> Problem:
    """Draw a problem with `clients[k]` clients in cluster k.

    B*, Θ*, and the x and noise of each client depend on the seed only, not on the client's cluster.
    """
    d, c = settings.dimension, settings.latent
    basis = np.linalg.qr(rng.numpy_generator(seed, "theory", "basis").normal(size=(d, c)))[0]
    generator = rng.numpy_generator(seed, "theory", "heads")
    heads = (even_heads if settings.heads == "even" else random_heads)(c, len(clients), generator)
    x, y, first = [], [], 0
    for head, number in zip(heads.T, clients, strict=True):
        parts, noises = [], []
        for client in range(first, first + number):
            generator = rng.numpy_generator(seed, "theory", "samples", client)
            parts.append(generator.normal(size=(settings.samples, d)))
            noises.append(generator.normal(size=settings.samples))
        x.append(np.concatenate(parts))
        y.append(x[-1] @ (basis @ head) + settings.sigma * np.concatenate(noises))
        first += number
    return Problem(basis, heads, tuple(x), tuple(y))


def start_at(basis: Array, distance: float, seed: int) -> Array:
    """Return an orthonormal B̂⁰ at exactly this distance from B*, its columns tilted in random directions: (d, c)."""
    d, c = basis.shape
    generator = rng.numpy_generator(seed, "theory", "start")
    turned: Array = basis @ np.linalg.qr(generator.normal(size=(c, c)))[0]
    tilted = min(c, d - c)
    outside = np.linalg.qr(np.hstack([basis, generator.normal(size=(d, tilted))]))[0][:, c:]
    turned[:, :tilted] = np.sqrt(1 - distance**2) * turned[:, :tilted] + distance * outside
    return turned
