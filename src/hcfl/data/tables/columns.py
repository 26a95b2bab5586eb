"""One column of a table: which kind of values it has, and its values in a plain form."""

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hcfl.errors import InputError

if TYPE_CHECKING:
    from pandas import Series

Kind = Literal["number", "boolean", "category", "date", "text"]

MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "-", "missing", "<na>")
"""Cells of text that stand for a missing value, in small letters."""

TRUE, FALSE = ("true", "yes", "t", "y"), ("false", "no", "f", "n")
"""Words of a yes-or-no column, in small letters."""

MOSTLY = 0.5
"""A column is meant as numbers, or as dates, if more than this share of its different values are; the others are then
errors, and no categories."""

DATE = r"\d{4}-\d{1,2}-\d{1,2}([ T]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?"
OTHER_DATE = r"\d{1,2}([./-])\d{1,2}\1\d{4}( .*)?|\d{4}([./])\d{1,2}\3\d{1,2}( .*)?"
"""Dates whose day and month cannot be told apart, or that are written in another way than ours."""
DECIMAL_COMMA = r"-?\d+,\d+"


def cleaned(column: "Series[Any]") -> "Series[Any]":
    """Return a column with missing values as such; text without spaces around it."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column):
        return column
    for value in column[column.notna()] if column.dtype == object else ():
        if not isinstance(value, str | bool | int | float | np.generic) and not hasattr(value, "isoformat"):
            raise InputError(f"column {str(column.name)!r}: has a value of type {type(value).__name__}")
    text = column.where(column.notna(), "").astype(str).str.strip()
    return text.mask(text.str.lower().isin(MISSING))


def kind_of(column: "Series[Any]") -> Kind:
    """Return the kind of a cleaned column; a column that is a mixture of kinds is refused."""
    import pandas as pd

    name = str(column.name)
    if not column.notna().any():
        raise InputError(f"column {name!r}: has no values at all; leave it out with --drop {name}")
    if pd.api.types.is_bool_dtype(column):
        return "boolean"
    if pd.api.types.is_datetime64_any_dtype(column):
        return "date"
    if pd.api.types.is_numeric_dtype(column):
        return "number"
    values = pd.Series(column.dropna().unique()).astype(str)
    if values.str.lower().isin((*TRUE, *FALSE)).all():
        return "boolean"
    if values.str.fullmatch(DECIMAL_COMMA).all():
        raise InputError(f"column {name!r}: writes decimals with a comma ({values[0]}); a point is needed")
    if values.str.fullmatch(OTHER_DATE).mean() > MOSTLY:
        raise InputError(f"column {name!r}: has dates such as {values[0]}; write them as 2024-03-31")
    are_numbers = pd.to_numeric(values, errors="coerce").notna()
    if (share := are_numbers.mean()) == 1:
        return "number"
    look_like_dates = values.str.fullmatch(DATE)
    if look_like_dates.mean() > MOSTLY:
        dates(column)  # refuses what is no date
        return "date"
    if share > MOSTLY:
        odd = values[~are_numbers].iloc[0]
        rows = int((column == odd).sum())
        raise InputError(
            f"column {name!r}: has numbers and the text {odd!r} (in {rows} rows); leave such cells empty if the "
            "number is not known"
        )
    return "category"


def numbers(column: "Series[Any]") -> NDArray[np.float64]:
    """Return numbers, NaN where they are missing; refuse infinite ones and what is no number."""
    import pandas as pd

    values = pd.to_numeric(column, errors="coerce")
    wrong = values.isna() & column.notna()
    if wrong.any():
        raise InputError(f"column {str(column.name)!r}: {column[wrong].iloc[0]!r} is not a number")
    found = values.to_numpy(dtype=np.float64, na_value=np.nan)
    if (infinite := np.isinf(found) | (np.abs(found) > np.finfo(np.float32).max)).any():
        raise InputError(
            f"column {str(column.name)!r}: has infinite or too large numbers in {int(infinite.sum())} rows, first in "
            f"row {int(infinite.argmax()) + 1}"
        )
    return found


def booleans(column: "Series[Any]") -> NDArray[np.float64]:
    """Return 1 for true, 0 for false, NaN where it is missing."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):  # Python's booleans too
        return numbers(column)
    small = column.astype(str).str.lower()
    wrong = column.notna() & ~small.isin((*TRUE, *FALSE))
    if wrong.any():
        raise InputError(f"column {str(column.name)!r}: {column[wrong].iloc[0]!r} is neither true nor false")
    found = small.isin(TRUE).to_numpy().astype(np.float64)
    found[column.isna().to_numpy()] = np.nan
    return found


DAY = 86400.0


def dates(column: "Series[Any]") -> NDArray[np.float64]:
    """Return days since 1970, with their fractions; NaN where the date is missing."""
    import pandas as pd

    times = pd.to_datetime(column, errors="coerce", utc=True, format="ISO8601")
    wrong = times.isna() & column.notna()
    if wrong.any():
        raise InputError(
            f"column {str(column.name)!r}: {column[wrong].iloc[0]!r} is not a date; write dates as 2024-03-31"
        )
    days = (times - pd.Timestamp(0, tz="UTC")).dt.total_seconds() / DAY
    return np.asarray(days.to_numpy(na_value=np.nan), dtype=np.float64)


def texts(column: "Series[Any]") -> "Series[Any]":
    """Return the values as text, whole numbers without a point: the same value is the same text in every file."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        whole = column.dropna()
        if (whole == whole.round()).all():
            return column.astype("Int64").astype("string")
    return column.astype("string")
