"""Models for other programs: raw inputs in, class probabilities out, checked after writing."""

from hcfl.export.served import Served
from hcfl.export.writing import FORMATS, SUFFIXES, Format, load_model, write

__all__ = ["FORMATS", "SUFFIXES", "Format", "Served", "load_model", "write"]
