# SPDX-License-Identifier: Apache-2.0
"""Structs of the C API, for tests that call it by ctypes without the bindings."""

import ctypes


class Branch(ctypes.Structure):
    """annulus_branch."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("numbers", ctypes.c_int64 * 4),  # segment_length, dilation, residue, grid_width
        ("words", ctypes.c_int32 * 5),  # first_head, head_count, phase_rule, query_rule, order
        ("bounds", ctypes.c_int64 * 4),  # left, right, first_global, global_count
        ("kind", ctypes.c_int32),
        ("global_queries", ctypes.c_int32),
    ]

    @classmethod
    def plain(cls, segment_length, dilation):
        """Returns the branch of ANNULUS_BRANCH_INIT."""
        return cls(ctypes.sizeof(cls), (segment_length, dilation, 0, 0), (0, 0, 0, 0, 0))

    @classmethod
    def window(cls, left, right, dilation):
        """Returns the branch of ANNULUS_BRANCH_WINDOW_INIT."""
        query_residue, window = 1, 1
        words = (0, 0, 0, query_residue, 0)
        return cls(ctypes.sizeof(cls), (0, dilation, 0, 0), words, (left, right, 0, 0), window)
