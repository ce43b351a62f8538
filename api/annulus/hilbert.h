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
 * Writes the curve of a segment of `length` positions to positions[]. The positions lie row by row on a grid of `width`
 * columns and length / width rows. positions[p] is the position (row * width + column) that the curve visits p-th.
 * Every position occurs once. Consecutive positions are neighbours in the grid wherever the rectangle's parity allows.
 * Otherwise there is one diagonal step.
 *
 *   length     >= 1
 *   width      a divisor of length, or 0 for the smallest divisor that is at least sqrt(length)
 *   positions  host memory for `length` numbers, owned by the caller
 *
 * If length has no such divisor except for itself, a width of 0 gives one row: linear order.
 *
 * ANNULUS_ERROR_ARGUMENT: positions is NULL, length < 1, width < 0, or width is no divisor of length. Any thread.
 * Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_hilbert_curve(int64_t length, int64_t width, int64_t *positions);

ANNULUS_END_DECLS

#endif
