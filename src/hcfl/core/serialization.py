"""Frozen dataclasses ⇄ one JSON tree and named tensors: what is saved, and what is sent.

The tree has the shape of the value; where a tensor stood, it says its type and shape, and the tensor's name is the
dotted path to it. Reading is driven by the annotations of the class that is expected, so nothing that is read can run
code, nor build anything else.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from torch import Tensor

T = TypeVar("T")

Tree = Any
"""What JSON can hold."""

CLASS = "class"
"""The key of a dataclass's name; no field can be called that."""

SCALARS: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}
"""What each annotation admits; a whole number stays one, also where a float is expected."""


def flatten(value: object) -> tuple[Tree, dict[str, Tensor]]:
    """Return a value as a tree and its tensors."""
    tensors: dict[str, Tensor] = {}
    return _flatten(value, "", tensors), tensors


def restore(kind: type[T], tree: Tree, tensors: Mapping[str, Tensor]) -> T:
    """Return the value that `flatten` was given; a ValueError says where a tree is not one of this kind."""
    value: T = _restore(kind, tree, "", tensors)
    if unknown := sorted(set(tensors) - set(_tensor_names(value, ""))):
        raise ValueError(f"{unknown[0]}: this tensor belongs to no field")
    return value


def description(tensor: Tensor) -> str:
    """Return what the tree says of a tensor: `float32 (3, 4)`."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _flatten(value: object, name: str, tensors: dict[str, Tensor]) -> Tree:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        if name in tensors:
            raise ValueError(f"{name}: two tensors have this name")
        tensors[name] = value
        return description(value)
    tree = {str(key): _flatten(part, _at(name, key), tensors) for key, part in _parts(value)}
    if isinstance(value, tuple):
        return list(tree.values())
    named = is_dataclass(value) and not isinstance(
        value, Mapping
    )  # a table of clients is the mapping that it stands for
    return {CLASS: type(value).__name__, **tree} if named else tree


def _parts(value: object) -> list[tuple[str | int, object]]:
    if isinstance(value, tuple):
        return list(enumerate(value))
    if isinstance(value, Mapping):
        return list(value.items())
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    raise TypeError(f"{value!r}: a {type(value).__name__} is neither a number, a tensor, nor made of them")


def _tensor_names(value: object, name: str) -> Iterator[str]:
    if isinstance(value, Tensor):
        yield name
    elif value is not None and not isinstance(value, bool | int | float | str):
        for key, part in _parts(value):
            yield from _tensor_names(part, _at(name, key))


def _at(name: str, key: str | int) -> str:
    return f"{name}.{key}" if name else str(key)


def _restore(kind: Any, tree: Tree, name: str, tensors: Mapping[str, Tensor]) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _restore(_alternative(arguments, tree, name), tree, name, tensors)
    if kind is NoneType:
        return _checked(tree, tree is None, name)
    if origin is Literal:
        return _checked(tree, tree in arguments, name)
    if kind in SCALARS:
        right = isinstance(tree, SCALARS[kind]) and (kind is bool or not isinstance(tree, bool))
        return _checked(tree, right, name)
    if kind is Tensor:
        _checked(tree, name in tensors and tree == description(tensors[name]), name)
        return tensors[name]
    if origin is tuple:
        _checked(tree, isinstance(tree, list) and (arguments[-1] is ... or len(tree) == len(arguments)), name)
        kinds = (arguments[0],) * len(tree) if arguments[-1] is ... else arguments
        return tuple(
            _restore(each, part, _at(name, index), tensors)
            for index, (each, part) in enumerate(zip(kinds, tree, strict=True))
        )
    _checked(tree, isinstance(tree, dict), name)
    if is_dataclass(kind):
        return _object(kind, tree, name, tensors)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, each = arguments
        return {key(index): _restore(each, part, _at(name, index), tensors) for index, part in tree.items()}
    raise TypeError(f"{name}: {kind} is neither a number, a tensor, nor made of them")


def _object(kind: Any, tree: dict[str, Tree], name: str, tensors: Mapping[str, Tensor]) -> Any:
    """Restore a dataclass; a field that has a default may be missing: an older version did not know it."""
    kinds = get_type_hints(kind)
    required = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}
    given = set(tree) - {CLASS}
    right = tree.get(CLASS) == kind.__name__ and required <= given <= {field.name for field in fields(kind)}
    _checked(tree, right, name)
    return kind(**{part: _restore(kinds[part], tree[part], _at(name, part), tensors) for part in given})


def _alternative(kinds: tuple[Any, ...], tree: Tree, name: str) -> Any:
    """Return which kind of a union a tree is."""
    if tree is None and NoneType in kinds:
        return NoneType
    others = [kind for kind in kinds if kind is not NoneType]
    if len(others) == 1:
        return others[0]
    said = tree.get(CLASS) if isinstance(tree, dict) else type(tree).__name__
    chosen = next((kind for kind in others if kind.__name__ == said), None)
    _checked(tree, chosen is not None, name)
    return chosen


def _checked(tree: Tree, right: bool, name: str) -> Tree:
    if not right:
        raise ValueError(f"{name or 'all of it'}: has another type or shape than expected")
    return tree
