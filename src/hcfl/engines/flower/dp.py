"""Differential privacy by Flower's own mods and noise, on a client's summands and on the server's sums.

The mods expect one ArrayRecord in the question and one with the same names in the answer, and clip the difference. Our
questions hold models, our answers sums of changes, and what to clip and how is known only from a question. So the mods
are not registered with the app but called on an inner question of zeros: then the difference is the answer itself.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.clientapp.typing import Mod
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM, add_gaussian_noise_inplace
from torch import Tensor, from_numpy

from hcfl.config import PrivacyConfig
from hcfl.errors import InputError
from hcfl.methods import Method
from hcfl.privacy.noise import bound, deviation, of_one_upload
from hcfl.privacy.rules import scaled_shares
from hcfl.privacy.sums import Parts, is_model

TINY = 1e-30
"""Flower divides by the norm of what it clips, so that has to be more than 0."""


def protected(method: Method, privacy: PrivacyConfig, parts: Parts, message: Message, context: Context) -> Parts:
    """Return a client's summands as it may send them: models clipped, unused parts left out, noise added."""
    assert privacy.clip is not None
    models = {name: part for name, part in parts.items() if is_model(name)}
    shares = scaled_shares(method, parts, privacy.clip)
    upload: Parts = {**_modified(fixedclipping_mod, models, privacy.clip, message, context), **shares}
    if privacy.mode == "central-dp":
        return _single(upload)
    assert privacy.delta is not None
    largest = bound(upload, privacy.clip)
    mod = LocalDpMod(largest, 2 * largest, of_one_upload(privacy), privacy.delta)
    with _unpredictable():
        return _single(_modified(mod, upload, largest, message, context))


@contextmanager
def _unpredictable() -> Iterator[None]:
    """Seed numpy's global generator, which Flower draws from, by the operating system; then put it back as it was.

    A reader of the noised sums that knows the seed could take the noise off.
    """
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed()  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


def _single(parts: Parts) -> Parts:
    return {name: part.float() for name, part in parts.items()}


def with_noise(privacy: PrivacyConfig, sums: Parts, clients: int) -> Parts:
    """Add the server's noise to the sums, where it is the server's to add."""
    if privacy.mode != "central-dp":
        return sums
    arrays = {name: part.numpy().copy() for name, part in sums.items()}
    with _unpredictable():
        add_gaussian_noise_inplace(list(arrays.values()), deviation(privacy, sums, clients))
    return {name: from_numpy(array) for name, array in arrays.items()}


def _modified(mod: Mod, parts: Parts, norm: float, message: Message, context: Context) -> dict[str, Tensor]:
    """Return what a mod makes of summands, if they were the answer to zeros."""
    values = {name: part.double().numpy().copy() for name, part in parts.items()}
    if not any(value.any() for value in values.values()):
        next(iter(values.values())).flat[0] = TINY
    zeros = {name: np.zeros_like(value) for name, value in values.items()}
    question = Message(_records(zeros, norm), reply_to=message)
    answer = mod(question, context, lambda _, __: Message(_records(values, norm), reply_to=message))
    if answer.has_error():
        raise InputError(f"privacy: Flower's mod refused ({answer.error.reason})")
    (record,) = answer.content.array_records.values()
    return {name: from_numpy(array.numpy().copy()) for name, array in record.items()}


def _records(values: Mapping[str, "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"], norm: float) -> RecordDict:
    arrays = ArrayRecord({name: Array(value) for name, value in values.items()})
    return RecordDict({"arrays": arrays, "config": ConfigRecord({KEY_CLIPPING_NORM: norm})})
