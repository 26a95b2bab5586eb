"""Models for other programs: raw inputs in, class probabilities out, checked after writing."""

from hcfl.serving.export.served import Served
from hcfl.serving.export.writing import FORMATS, SUFFIXES, Format, load_model, write

__all__ = ["FORMATS", "SUFFIXES", "Format", "Served", "load_model", "write"]
