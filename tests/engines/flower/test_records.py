"""What is packed into Flower's records is unpacked again, exactly; what was tampered with is refused."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given

from hcfl.core.state import Broadcast, ClientState, RunState
from hcfl.engines.flower import records
from hcfl.tiers.gaussians import Moments
from values import Everything, everything, same


@given(everything)
def test_what_is_packed_is_what_is_unpacked(value):
    assert same(records.unpack(Everything, records.pack(value)), value)


@given(everything)
def test_what_travels_in_a_message_arrives(value):
    """Flower takes a message apart into objects and puts it together again."""
    from flwr.app.message.recorddict import RecordDict as Inflatable

    content = records.pack(value)
    children = {name: _through_the_wire(record) for name, record in content.items()}
    assert same(records.unpack(Everything, Inflatable(children)), value)


def _through_the_wire(record):
    if isinstance(record, ConfigRecord):
        return ConfigRecord.inflate(record.deflate())
    arrays = {}
    for name, array in record.items():
        chunks = {key: type(chunk).inflate(chunk.deflate()) for key, chunk in array.children.items()}
        arrays[name] = Array.inflate(array.deflate(), chunks)
    return ArrayRecord(arrays)


def test_there_is_one_array_record():
    content = records.pack(Moments(torch.zeros(2), torch.zeros(3), torch.zeros(0, 4)))
    assert len(content.array_records) == 1
    assert list(content.array_records["arrays"]) == ["mass", "first", "second"]


def test_the_payload_is_the_tensors_bytes():
    value = Moments(torch.zeros(2), torch.zeros(3, 5, dtype=torch.float64), torch.zeros(0, 4))
    assert records.payload(records.pack(value)) == 2 * 4 + 15 * 8


def good() -> RecordDict:
    return records.pack(Moments(torch.zeros(2), torch.ones(3), torch.zeros(4)))


def with_array(array: Array) -> RecordDict:
    content = good()
    content.array_records["arrays"]["mass"] = array
    return content


def with_data(data: bytes) -> RecordDict:
    return with_array(Array("float32", (2,), "numpy.ndarray", data))


def test_objects_are_not_unpickled():
    import io

    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"^mass: cannot be read .*must hold numbers"):
        records.unpack(Moments, with_data(buffer.getvalue()))


def test_an_array_that_claims_to_be_huge_takes_no_memory():
    import io

    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)})
    with pytest.raises(ValueError, match=r"^mass: cannot be read .has another size than it says"):
        records.unpack(Moments, with_data(buffer.getvalue()))


@pytest.mark.parametrize("data", [b"", b"rubbish", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x09\x00" + b" " * 100])
def test_rubbish_is_refused(data):
    with pytest.raises(ValueError, match=r"^mass: cannot be read"):
        records.unpack(Moments, with_data(data))


@pytest.mark.parametrize(
    "values", [np.zeros(3, np.float32), np.zeros(2, np.float64), np.zeros(2, np.complex64), np.array(["a", "b"])]
)
def test_another_shape_or_type_is_refused(values):
    with pytest.raises(ValueError, match=r"^mass: "):
        records.unpack(Moments, with_array(Array(values)))


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"arrays": ArrayRecord()}),
        RecordDict({"arrays": ConfigRecord(), "values": ConfigRecord()}),
        RecordDict({"arrays": ArrayRecord(), "values": ConfigRecord()}),
        RecordDict({"arrays": ArrayRecord(), "values": ConfigRecord({"tree": 3})}),
        RecordDict({"arrays": ArrayRecord(), "values": ConfigRecord({"tree": "{"})}),
        RecordDict({"arrays": ArrayRecord(), "values": ConfigRecord({"tree": "[" * 100_000})}),
        RecordDict({"arrays": ArrayRecord(), "values": ConfigRecord({"tree": "{}"})}),
    ],
)
@pytest.mark.parametrize("kind", [Broadcast, ClientState, RunState])
def test_records_of_another_kind_are_refused(content, kind):
    with pytest.raises(ValueError, match=": "):
        records.unpack(kind, content)
