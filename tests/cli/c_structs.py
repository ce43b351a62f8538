# SPDX-License-Identifier: Apache-2.0
"""Structs of the C API, for tests that call it by ctypes without the bindings."""

import ctypes


class Branch(ctypes.Structure):
    """annulus_branch."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("numbers", ctypes.c_int64 * 4),  # segment_length, dilation, residue, grid_width
        ("words", ctypes.c_int32 * 5),  # first_head, head_count, phase_rule, query_rule, order
    ]

    @classmethod
    def plain(cls, segment_length, dilation):
        """Returns the branch of ANNULUS_BRANCH_INIT."""
        return cls(ctypes.sizeof(cls), (segment_length, dilation, 0, 0), (0, 0, 0, 0, 0))
