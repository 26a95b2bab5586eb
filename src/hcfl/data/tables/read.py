"""Opens tables: CSV and parquet files, and folders with one file for each client."""

import csv
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hcfl.data.readers.available_memory import check_memory
from hcfl.data.readers.paths import is_folder
from hcfl.errors import InputError
from hcfl.regular_files import check_regular

if TYPE_CHECKING:
    from pandas import DataFrame

SUFFIXES = (".csv", ".tsv", ".parquet")
"""Files that are tables."""

DELIMITERS = ",;\t|"
"""What may stand between the cells of a text file; the header decides."""

GROWTH = 8
"""A text file takes at most about so many times its size in memory."""

FILE_COLUMN = "file"
"""The column that names the file of each row, in a folder of one file for each client."""


def is_table(source: str, label: object = None) -> bool:
    """Whether a source is a table: a file with one of the suffixes, or a folder of such files.

    A folder of parquet files holds images, unless a label column is named. "digits" is never a folder: a run may be
    called so.
    """
    if source == "digits":
        return False
    if source.endswith(SUFFIXES):
        return True
    found = {path.suffix for path in _files(Path(source))} if is_folder(Path(source)) else set()
    return bool(found & {".csv", ".tsv"}) or (label is not None and ".parquet" in found)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"data.source = {str(folder)!r}: cannot be read ({error.strerror})") from None


def read_table(source: str | Path, name: str = "data.source") -> "DataFrame":
    """Read a file, or all files of a folder with their names in the column `file`; `name` is the setting's."""
    path = Path(source)
    if not is_folder(path):
        return _read_file(path, f"{name} = {str(path)!r}")
    import pandas as pd

    files = _files(path)
    tables = [_read_file(file, f"{name} = {str(file)!r}") for file in files]
    usual = list(tables[0].columns)
    for file, table in zip(files, tables, strict=True):
        if set(table.columns) != set(usual):
            odd = sorted(map(str, set(table.columns) ^ set(usual)))
            raise InputError(
                f"{name} = {str(path)!r}: {file.name} and {files[0].name} have different columns, first {odd[0]!r}"
            )
        if FILE_COLUMN in table.columns:
            raise InputError(f"{name} = {str(path)!r}: {file.name} has a column {FILE_COLUMN!r}, which names the files")
    named = [table[usual].assign(**{FILE_COLUMN: file.stem}) for file, table in zip(files, tables, strict=True)]
    return pd.concat(named, ignore_index=True)


def _read_file(path: Path, where: str) -> "DataFrame":
    check_regular(path, where)
    try:
        size = path.stat().st_size
        check_memory(where, GROWTH * size)
        if size == 0:
            raise InputError(f"{where}: is an empty file")
        table = _read_parquet(path, where) if path.suffix == ".parquet" else _read_text(path, where)
    except FileNotFoundError:
        raise InputError(f"{where}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror or error})") from None
    if not len(table):
        raise InputError(f"{where}: has a header, but no rows")
    return table


def _read_parquet(path: Path, where: str) -> "DataFrame":
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{where}: parquet files need pyarrow; pip install 'hcfl[images]'") from None
    try:
        frame: DataFrame = parquet.ParquetFile(path).read().to_pandas()
    except (MemoryError, OSError):
        raise
    except Exception as error:  # a damaged file can raise nearly anything
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(f"{where}: cannot be read as parquet ({reason})") from None
    return frame


def _read_text(path: Path, where: str) -> "DataFrame":
    """Read all cells as text: what they mean is decided column by column, by the same rule for every file."""
    import pandas as pd

    header, delimiter = _header(path, where)
    options: dict[str, Any] = {"sep": delimiter, "dtype": str, "na_filter": False, "index_col": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(path, encoding="utf-8-sig", header=0, names=header, **options)
    except UnicodeDecodeError as error:
        raise _not_utf8(where, error) from None
    except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError) as error:
        reason = str(error).replace("Error tokenizing data. C error: ", "").splitlines()[0].rstrip(".")
        reason = reason if "header" not in reason else "rows have more cells than the header"
        if reason.startswith("EOF inside string"):
            raise InputError(f"{where}: a quotation mark in row {reason.rpartition(' ')[2]} has no end") from None
        raise InputError(f"{where}: has rows of different lengths ({reason[0].lower()}{reason[1:]})") from None
    filled: DataFrame = table.fillna("")
    return filled


def _header(path: Path, where: str) -> tuple[list[str], str]:
    """Return the names of the columns, and what stands between cells."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline(1_000_000)
            delimiter = max(DELIMITERS, key=first.count)
            file.seek(0)
            names = [name.strip() for name in next(csv.reader(file, delimiter=delimiter), [])]
    except UnicodeDecodeError as error:
        raise _not_utf8(where, error) from None
    except csv.Error as error:
        raise InputError(f"{where}: its header cannot be read ({error})") from None
    if "\0" in first:
        raise InputError(f"{where}: is not a text file (it holds zero bytes)")
    check_names(where, names)
    return names, delimiter


def _not_utf8(where: str, error: UnicodeDecodeError) -> InputError:
    return InputError(f"{where}: is not UTF-8 text (byte 0x{error.object[error.start]:02x}); save it as UTF-8")


def check_names(where: str, names: list[Any]) -> None:
    """Refuse columns without a name, and two of the same name."""
    if "" in names:
        raise InputError(f"{where}: column {names.index('') + 1} of {len(names)} has no name")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{where}: has {names.count(twice[0])} columns {twice[0]!r}; each needs a name of its own")
    if odd := [name for name in names if not isinstance(name, str)]:
        raise InputError(f"{where}: the column name {odd[0]!r} is not text")
