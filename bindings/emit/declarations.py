# SPDX-License-Identifier: Apache-2.0
"""The API as data: its declarations, in the order of the headers."""

import dataclasses


class EmitError(Exception):
    """The API has a declaration that this program does not know."""


@dataclasses.dataclass
class Named:
    name: str
    doc: str


@dataclasses.dataclass
class Function(Named):
    result: str
    parameters: list  # pairs (name, type)


@dataclasses.dataclass
class Field(Named):
    type: str
    initial: str = None


@dataclasses.dataclass
class Struct(Named):
    fields: list
    parameters: list = dataclasses.field(default_factory=list)  # the fields whose values _INIT takes


@dataclasses.dataclass
class Opaque(Named):
    pass


@dataclasses.dataclass
class Constant(Named):
    value: int


@dataclasses.dataclass
class Enum(Named):
    items: list  # Constants
