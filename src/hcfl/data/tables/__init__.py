"""Tables with named columns: `read.py` opens files, `fit.py` finds a schema, `schema.py` turns rows into numbers."""

from hcfl.data.tables.fit import fit, join
from hcfl.data.tables.read import is_table, read_table
from hcfl.data.tables.schema import Column, Encoded, Label, Schema

__all__ = ["Column", "Encoded", "Label", "Schema", "fit", "is_table", "join", "read_table"]
