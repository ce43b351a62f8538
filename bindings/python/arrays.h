/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the Python module's typemaps call: sequences of integers, arrays, and DLPack capsules. All of it with the GIL
 * held; on failure a Python exception is set.
 */
#ifndef ANNULUS_PYTHON_ARRAYS_H
#define ANNULUS_PYTHON_ARRAYS_H

#include <Python.h>
#include <annulus/tensor.h>
#include <stdint.h>

/*
 * Reads a sequence of int into *numbers, an array of int32_t or int64_t (`width` bytes each) that the caller frees.
 * None gives NULL. Returns 1, or 0 on failure.
 */
int annulus_read_integers(PyObject *sequence, size_t width, void **numbers);

/* Reads a sequence of at most 4 int; the rest of `sizes` becomes 0. Returns how many there were, -1 on failure. */
int annulus_read_sizes(PyObject *sequence, int64_t sizes[4]);

/*
 * Takes over the tensor of a DLPack capsule, "dltensor" or "dltensor_versioned". Returns the tuple (address, type code,
 * bits, lanes, shape, strides in elements or None, device type, device number, read-only, owner): the memory is there
 * as long as `owner` lives. The capsule is used up, as the protocol wants it. Returns NULL on failure.
 */
PyObject *annulus_read_dlpack(PyObject *capsule);

/*
 * Reads a plain array in host memory, one with a buffer or a torch.Tensor, as a tensor of `ndim` dimensions, of which
 * the array may lack the first. Returns what keeps the memory until it is given back (a new reference), or NULL with a
 * BufferError, without a word that is for users, where the array is of another kind, dtype, device or shape, or is
 * read-only and `written`.
 */
PyObject *annulus_read_array(PyObject *array, int ndim, int written, annulus_tensor *tensor);

/* Makes annulus_read_array() know PyTorch's tensors: their types, a tuple, and a dict from dtypes to annulus_dtype. */
PyObject *annulus_know_torch(PyObject *types, PyObject *dtypes);

#endif
