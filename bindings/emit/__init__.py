# SPDX-License-Identifier: Apache-2.0
"""The parts of emit.py: the API as data, its readers, and a writer for each language."""
