/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions for the Python module's typemaps: they read sequences of integers, arrays, and DLPack capsules. They need
 * the GIL, and set a Python exception on failure.
 */
#ifndef ANNULUS_PYTHON_ARRAYS_H
#define ANNULUS_PYTHON_ARRAYS_H

#include <Python.h>
#include <annulus/tensor.h>
#include <stdint.h>

/*
 * Reads a sequence of int into *numbers, an array of int32_t or int64_t (`width` bytes each) that the caller frees.
 * Writes NULL for None. Returns 1, or 0 on failure.
 */
int annulus_read_integers(PyObject *sequence, size_t width, void **numbers);

/* Reads a sequence of at most 4 int; all further elements of `sizes` become 0. Returns how many were read, or -1. */
int annulus_read_sizes(PyObject *sequence, int64_t sizes[4]);

/*
 * Takes over the tensor of a DLPack capsule, "dltensor" or "dltensor_versioned". Returns the tuple (address, type code,
 * bits, lanes, shape, strides in elements or None, device type, device number, read-only, owner). `owner` keeps the
 * memory alive. The capsule cannot be read again, as the protocol requires. Returns NULL on failure.
 */
PyObject *annulus_read_dlpack(PyObject *capsule);

/*
 * Reads a plain array in host memory, one with a buffer or a torch.Tensor, as a tensor of `ndim` dimensions. The array
 * may lack the first dimension. Returns a new reference to an object that keeps the memory alive.
 *
 * Returns NULL and sets a BufferError, whose text is not for users, if the array's kind, dtype, device or shape is
 * another, or if it is read-only and will be `written`.
 */
PyObject *annulus_read_array(PyObject *array, int ndim, int written, annulus_tensor *tensor);

/* Tells annulus_read_array() of PyTorch's tensors: a tuple of their types, and a dict from dtypes to annulus_dtype. */
PyObject *annulus_know_torch(PyObject *types, PyObject *dtypes);

#endif
