# SPDX-License-Identifier: Apache-2.0
"""Attention over a multiset union of dilated segments, straight from the definition: one number for every pair."""

import math

import numpy as np


def curve(width, height, forward=True):
    """Returns the cells (x, y) of a rectangle along the generalised Hilbert curve, which leads from (0, 0) to the other
    end of the width. Halves of odd sides round towards the grid's origin: down in a part that is walked forward,
    otherwise up."""
    if height == 1:
        return [(x, 0) for x in range(width)]
    if width == 1:
        return [(0, y) for y in range(height)]

    def half(side):
        return side // 2 if forward else side - side // 2

    def even_half(side):
        return half(side) + (half(side) % 2 if side > 2 else 0)

    if 2 * width > 3 * height:
        first = even_half(width)
        return curve(first, height, forward) + [(first + x, y) for x, y in curve(width - first, height, forward)]
    left, up = half(width), even_half(height)
    return ([(x, y) for y, x in curve(up, left, forward)]
            + [(x, up + y) for x, y in curve(width, height - up, forward)]
            + [(width - 1 - y, up - 1 - x) for x, y in curve(up, width - left, not forward)])


def hilbert_places(length, width):
    """Returns the place of every position along the segment's curve."""
    if not width or length % width:
        width = next(d for d in range(math.isqrt(length - 1) + 1, length + 1) if length % d == 0)
    height = length // width
    if width >= height:
        positions = [y * width + x for x, y in curve(width, height)]
    else:
        positions = [x * width + y for x, y in curve(height, width)]
    return np.argsort(positions)


def branch_keys(n, heads, w, r, first_head=0, head_count=None, phase="block", query="dilated", order="linear", width=0,
                zero_keys=False, window=None, tokens=None):
    """Returns how often query i attends to key j for each head, [H, N, N], and to keys of score and value 0, [H, N].

    window: (left, right), steps of r; -1: no limit. tokens: (first, count, whether they attend to every key)."""
    w = min(w or n, n)
    head_count = head_count or heads
    keys, zeros = np.zeros((heads, n, n), int), np.zeros((heads, n), int)
    segment = np.arange(n) // w
    place = np.arange(n) % w
    if order == "hilbert":
        for s in range(segment[-1] + 1):
            length = int((segment == s).sum())
            place[segment == s] = hilbert_places(length, width)
    residue = place % r
    same_segment = segment[:, None] == segment[None, :]
    zero_keys = zero_keys and window is None and tokens is None
    if window is not None:
        ahead = np.arange(n)[None, :] - np.arange(n)[:, None]
        left, right = (n if steps == -1 else steps * r for steps in window)
        same_segment = (ahead >= -left) & (ahead <= right)
    if tokens is not None:
        first, count, queries = tokens
        is_token = (np.arange(n) >= first) & (np.arange(n) < first + count)
        keys[first_head:first_head + head_count] = is_token[None, :] | (is_token[:, None] if queries else False)
        return keys, zeros
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


def attention(q, k, v, branches, causal=False, zero_keys=False, keys_once=False, scale=None, query_start=0):
    """Returns O [B, Nq, H, D] and LSE [B, H, Nq] of arrays [B, N, heads, D] in float64."""
    n, heads, dim = k.shape[1], q.shape[2], q.shape[3]
    rows = slice(query_start, query_start + q.shape[1])
    keys = zeros = 0
    for branch in branches:
        more_keys, more_zeros = branch_keys(n, heads, **branch, zero_keys=zero_keys and not causal)
        keys, zeros = keys + more_keys, zeros + more_zeros
    if keys_once:
        keys = np.minimum(keys, 1)
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


def mass(q, k, branches, **options):
    """Returns [B, H, N]: the sum over the queries of the probabilities that attention() gives each key."""
    # Each value is a unit vector in the key's own column, so that O is the probabilities.
    n, heads = k.shape[1], q.shape[2]
    keys = np.repeat(k, heads // k.shape[2], axis=2)
    values = np.broadcast_to(np.eye(n)[None, :, None, :], (k.shape[0], n, heads, n))
    return attention(q, keys, values, branches, **options)[0].sum(1)
