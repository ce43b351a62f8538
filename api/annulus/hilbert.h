/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The generalised Hilbert curve, for callers who want to see the order that ANNULUS_ORDER_HILBERT gives a segment.
 */
#ifndef ANNULUS_HILBERT_H
#define ANNULUS_HILBERT_H

#include <annulus/export.h>
#include <annulus/status.h>
#include <stdint.h>

ANNULUS_BEGIN_DECLS

/*
 * Writes the curve of a segment of `length` positions laid out row-major on a (length / width) x width grid:
 * positions[p] is the position (row * width + column) that the curve visits p-th. Every position occurs once;
 * consecutive ones are neighbours in the grid wherever the rectangle's parity allows, with one diagonal step otherwise.
 *
 * length: >= 1. width: a divisor of length, or 0 for the smallest divisor that is at least sqrt(length) (a length
 * with no better divisor than itself gives one row: linear order). positions: host memory for `length` numbers, owned
 * by the caller.
 * ANNULUS_ERROR_ARGUMENT: positions is NULL, length < 1, width < 0 or no divisor. Any thread. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_hilbert_curve(int64_t length, int64_t width, int64_t *positions);

ANNULUS_END_DECLS

#endif
