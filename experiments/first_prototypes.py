"""Prototypes of the initial, pretrained φ on CIFAR-10: what the distances of HCFL+ and HCFL++ see in round 1.

    python experiments/first_prototypes.py --reading total --side 32

What docs/hcfl-plus-plus.md says of noise and first splits. It needs CIFAR-10, `hcfl[images]` and `hcfl[pretrained]`.
"""

import argparse

import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor
from torch.nn.functional import interpolate

from hcfl.config import from_flat
from hcfl.models.ensemble import embed
from hcfl.runs.prepare import prepare
from hcfl.tiers import ConflictDistance, Participants, SplitOnContradiction
from hcfl.tiers.adaptation import complete_linkage_halves, principal_halves
from hcfl.tiers.conflict import Directions, dissents
from hcfl.tiers.distance import class_distance, prototypes

BATCH = 512


def resized(images: Tensor, side: int) -> Tensor:
    """Return images (N, H, W, C) with another side."""
    if images.shape[1] == side:
        return images
    return interpolate(images.movedim(-1, 1), size=side, mode="bilinear").movedim(1, -1).contiguous()


def main() -> None:
    """Embed all training images once and print what both distances make of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reading", choices=["total", "per-class"], default="total")
    parser.add_argument("--beta", type=float, default=0.2)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    data = {"data": "cifar10", "scenario": "diverse", "alpha_reading": options.reading, "beta": options.beta}
    model = {"model": "efficientnet-lite0", "pretrained": "imagenet"}
    prepared = prepare(from_flat(method="hcfl+(fedrc)", seed=options.seed, **data, **model))
    federation, phi = prepared.setting.federation, prepared.state.server.ensemble.extractor(0)
    clients = federation.local_data(range(federation.clients))
    batches = [slice(start, start + BATCH) for start in range(0, len(clients), BATCH)]
    images = (resized(clients.inputs[batch], options.side) for batch in batches)
    features = torch.cat([embed(prepared.setting.network, phi, batch) for batch in images])

    segments, labels = clients.segments, clients.labels
    found = prototypes(features, labels, clients.classes, segments)
    errors = (features - found.class_means[segments.index, labels]).square().sum(dim=1, keepdim=True)
    sums, counts = segments.sums_by_class(errors, labels, clients.classes)
    scatter = sums[..., 0] / (counts - 1).clamp_min(1) / found.class_means.square().sum(dim=2)
    print(f"classes per client {float((counts > 0).sum(dim=1).float().mean()):.1f}")
    print(
        f"scatter within classes over squared length of their means, median {float(scatter[counts > 5].median()):.2f}"
    )

    truth = federation.truth
    assert truth is not None
    assert truth.affected is not None
    distance = class_distance(found)
    print(f"class distance of HCFL+: max {float(distance.max()):.2f}, mean {float(distance.mean()):.2f}")
    one_cluster = torch.zeros(federation.clients, dtype=torch.long)
    seen = Participants(tuple(range(federation.clients)), one_cluster, torch.ones(federation.clients), found)
    for name, parts in (
        ("HCFL+, complete linkage", complete_linkage_halves(distance)),
        ("HCFL++, principal coordinate of conflicts", principal_halves(ConflictDistance().between(seen))),
    ):
        second = torch.tensor(parts).numpy()
        by_concept = [
            [int(((truth.concept == concept) & truth.affected & (second == part)).sum()) for concept in range(3)]
            for part in (False, True)
        ]
        ari = adjusted_rand_score(truth.concept[truth.affected], second[truth.affected])
        print(f"{name}: {(~second).sum()} | {second.sum()}, affected clients by concept {by_concept}, ARI {ari:.2f}")

    concept, affected = torch.as_tensor(truth.concept).long(), torch.as_tensor(truth.affected)
    dissent = dissents(Directions.of(found), concept == torch.arange(3).unsqueeze(1))[affected]
    nearest = dissent.argmin(dim=1)
    for step, placed in enumerate(("in its own concept", "in the next one", "in the one after")):
        here = (concept[affected] + step) % 3
        moves = dissent.gather(1, here.unsqueeze(1))[:, 0] - dissent.amin(dim=1) >= SplitOnContradiction.rho
        home = int((moves & (nearest == concept[affected])).sum())
        print(f"an affected client {placed}: {int(moves.sum())} of {len(moves)} move, {home} of them to their concept")


if __name__ == "__main__":
    main()
