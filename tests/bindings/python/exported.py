# SPDX-License-Identifier: Apache-2.0
"""Arrays that the package under test reads only by an exchange protocol."""


class Exported:
    """An array with DLPack and no other protocol."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream=None):
        return self.array.__dlpack__()
