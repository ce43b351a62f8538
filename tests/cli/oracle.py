# SPDX-License-Identifier: Apache-2.0
"""Attention over a multiset union of dilated segments, straight from the definition: one number for every pair."""

import ctypes
import os

import numpy as np

LIBRARY = ctypes.CDLL(os.environ["ANNULUS_LIBRARY"])


def hilbert_places(length, width):
    """The place of every position along the segment's curve."""
    positions = np.empty(length, np.int64)
    assert LIBRARY.annulus_hilbert_curve(
        positions.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(length), ctypes.c_int64(width)) == 0
    return np.argsort(positions)


def branch_keys(n, heads, w, r, first_head=0, head_count=None, phase="block", query="dilated", order="linear", width=0,
                zero_keys=False):
    """How often query i attends to key j for each head, [H, N, N], and to keys of score and value 0, [H, N]."""
    w = min(w or n, n)
    head_count = head_count or heads
    keys, zeros = np.zeros((heads, n, n), int), np.zeros((heads, n), int)
    segment = np.arange(n) // w
    place = np.arange(n) % w
    if order == "hilbert":
        for s in range(segment[-1] + 1):
            length = int((segment == s).sum())
            place[segment == s] = hilbert_places(length, width if width and length % width == 0 else 0)
    residue = place % r
    same_segment = segment[:, None] == segment[None, :]
    for h in range(head_count):
        phi = {"block": h // -(-head_count // r), "interleave": h % r}.get(phase)
        if phi is None:
            phi = int(phase) % r
        if query == "residue":
            allowed = same_segment & (residue[:, None] == residue[None, :])
        elif query == "every":
            allowed = same_segment & (residue[None, :] == phi)
        else:
            allowed = same_segment & (residue[:, None] == phi) & (residue[None, :] == phi)
        keys[first_head + h] = allowed
        if zero_keys:
            class_of = residue if query == "residue" else np.full(n, phi)
            real = (same_segment & (residue[None, :] == class_of[:, None])).sum(1)
            attends = residue == phi if query == "dilated" else np.ones(n, bool)
            zeros[first_head + h] = np.where(attends, -(-w // r) - real, 0)
    return keys, zeros


def attention(q, k, v, branches, causal=False, zero_keys=False, scale=None, query_start=0):
    """O [B, Nq, H, D] and LSE [B, H, Nq] of arrays [B, N, heads, D] in float64."""
    n, heads, dim = k.shape[1], q.shape[2], q.shape[3]
    rows = slice(query_start, query_start + q.shape[1])
    keys = zeros = 0
    for branch in branches:
        more_keys, more_zeros = branch_keys(n, heads, **branch, zero_keys=zero_keys and not causal)
        keys, zeros = keys + more_keys, zeros + more_zeros
    keys, zeros = keys[:, rows], zeros[:, rows]
    if causal:
        keys = keys * (np.arange(n)[None, :] <= np.arange(n)[rows][:, None])
    group = heads // k.shape[2]
    k, v = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
    scores = np.einsum("bnhd,bmhd->bhnm", q, k) * (dim ** -0.5 if scale is None else scale)
    weights = keys * np.exp(scores)
    total = weights.sum(-1) + zeros
    with np.errstate(divide="ignore"):
        lse = np.log(total)
    out = np.einsum("bhnm,bmhd->bnhd", weights, v) / np.where(total == 0, 1, total).transpose(0, 2, 1)[..., None]
    return out, lse
