# SPDX-License-Identifier: Apache-2.0
"""The API as data: its declarations, in the order of the headers."""

import dataclasses


class EmitError(Exception):
    """The API has something that this program does not know."""


@dataclasses.dataclass
class Named:
    name: str
    doc: str


@dataclasses.dataclass
class Function(Named):
    result: str
    parameters: list  # of (name, type)


@dataclasses.dataclass
class Field(Named):
    type: str
    initial: str = None


@dataclasses.dataclass
class Struct(Named):
    fields: list
    parameters: list = dataclasses.field(default_factory=list)  # names of fields that _INIT takes the values of


@dataclasses.dataclass
class Opaque(Named):
    pass


@dataclasses.dataclass
class Constant(Named):
    value: int


@dataclasses.dataclass
class Enum(Named):
    items: list  # of Constant
