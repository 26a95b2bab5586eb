"""hcfl on pfl-research's own CIFAR-10 benchmark.

python benchmarks/pfl_cifar10/with_hcfl.py --device cuda
python benchmarks/pfl_cifar10/with_hcfl.py --device cpu --users 20 --cohort 4 --tests 100 --rounds 12   # a trial
"""

from time import perf_counter

import numpy as np
from work import BATCH, EVERY, LEARNING_RATE, arguments, images, network, report

from hcfl import Federation
from hcfl.config import from_flat
from hcfl.core import rounds
from hcfl.models.precision import threads
from hcfl.runs.prepare import prepare


def main() -> None:
    """Run all rounds."""
    work = arguments(__doc__)
    x, y = images(work)
    train = work.users * work.samples
    # Of its 50 images each user holds out one, for Val: as many steps as with 50, and Val is measured with Test.
    owner = np.concatenate([np.arange(train) // work.samples, np.arange(work.tests) % work.users])
    test = np.arange(len(y)) >= train
    federation = Federation.from_arrays(x, y, client=owner, test=test, kind="image", val_share=1e-6)
    config = from_flat(
        method="fedavg",
        participation=work.cohort / work.users,
        batch=BATCH,
        epochs=1,
        lr=LEARNING_RATE,
        momentum=0.0,
        weight_decay=0.0,
        rounds=work.rounds,
        evaluate_every=EVERY,
        device=work.device,
        engine=work.engine,
    )
    prepared = prepare(config, federation, network())
    seconds, test_last, began = [], 0.0, perf_counter()
    with threads(prepared.config.threads):
        for _, record in rounds.play(prepared.setting, prepared.state, work.rounds):
            seconds.append(perf_counter() - began)
            test_last, began = record.test or test_last, perf_counter()
    report(f"hcfl ({prepared.config.engine})", seconds, test_last)


if __name__ == "__main__":
    main()
