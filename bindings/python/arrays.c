/* SPDX-License-Identifier: Apache-2.0 */
#include "arrays.h"

#include <stdlib.h>
#include <string.h>

/* Writes element i of a sequence; 0 on failure. */
static int read_element(PyObject *fast, Py_ssize_t i, size_t width, void *numbers) {
    PyObject *index = PyNumber_Index(PySequence_Fast_GET_ITEM(fast, i));
    if (!index)
        return 0;
    const long long value = PyLong_AsLongLong(index);
    Py_DECREF(index);
    if (value == -1 && PyErr_Occurred())
        return 0;
    if (width == sizeof(int64_t)) {
        ((int64_t *)numbers)[i] = value;
        return 1;
    }
    if (value < INT32_MIN || value > INT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "%lld does not fit 32 bits", value);
        return 0;
    }
    ((int32_t *)numbers)[i] = (int32_t)value;
    return 1;
}

int annulus_read_integers(PyObject *sequence, size_t width, void **numbers) {
    *numbers = NULL;
    if (sequence == Py_None)
        return 1;
    PyObject *fast = PySequence_Fast(sequence, "a sequence of int is wanted");
    if (!fast)
        return 0;
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast);
    void *read = calloc((size_t)count + 1, width);
    int good = read != NULL;
    if (!good)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; good && i < count; ++i)
        good = read_element(fast, i, width, read);
    Py_DECREF(fast);
    if (good)
        *numbers = read;
    else
        free(read);
    return good;
}

int annulus_read_sizes(PyObject *sequence, int64_t sizes[4]) {
    memset(sizes, 0, 4 * sizeof *sizes);
    PyObject *fast = PySequence_Fast(sequence, "a sequence of int is wanted");
    if (!fast)
        return -1;
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast);
    int good = count <= 4;
    if (!good)
        PyErr_Format(PyExc_ValueError, "%zd dimensions; at most 4 are possible", count);
    for (Py_ssize_t i = 0; good && i < count; ++i)
        good = read_element(fast, i, sizeof *sizes, sizes);
    Py_DECREF(fast);
    return good ? (int)count : -1;
}

/* DLPack's structures, as its specification lays them out (https://dmlc.github.io/dlpack/latest/c_api.html). */
typedef struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *);
} dl_managed;

typedef struct dl_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dl_versioned *);
    uint64_t flags;
    dl_tensor tensor;
} dl_versioned;

enum { flag_read_only = 1 };

static const char plain_name[] = "dltensor", versioned_name[] = "dltensor_versioned";
static const char owner_name[] = "annulus.dltensor", versioned_owner_name[] = "annulus.dltensor_versioned";

static void release_plain(PyObject *owner) {
    dl_managed *managed = (dl_managed *)PyCapsule_GetPointer(owner, owner_name);
    if (managed && managed->deleter)
        managed->deleter(managed);
}

static void release_versioned(PyObject *owner) {
    dl_versioned *managed = (dl_versioned *)PyCapsule_GetPointer(owner, versioned_owner_name);
    if (managed && managed->deleter)
        managed->deleter(managed);
}

/* `count` numbers as a tuple. */
static PyObject *tuple_of(const int64_t *numbers, int32_t count) {
    PyObject *tuple = PyTuple_New(count);
    for (int32_t i = 0; tuple && i < count; ++i) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number)
            PyTuple_SET_ITEM(tuple, i, number);
        else
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* The tuple that annulus_read_dlpack() returns. Takes the reference `owner`. */
static PyObject *describe(const dl_tensor *tensor, int read_only, PyObject *owner) {
    PyObject *shape = tuple_of(tensor->shape, tensor->rank);
    PyObject *strides = shape && tensor->strides ? tuple_of(tensor->strides, tensor->rank) : Py_None;
    if (strides == Py_None)
        Py_INCREF(strides);
    if (!shape || !strides) {
        Py_XDECREF(shape);
        Py_XDECREF(strides);
        Py_DECREF(owner);
        return NULL;
    }
    const unsigned long long address = (unsigned long long)(uintptr_t)tensor->data + tensor->byte_offset;
    return Py_BuildValue("KiiiNNiiNN", address, (int)tensor->code, (int)tensor->bits, (int)tensor->lanes, shape,
                         strides, (int)tensor->device_type, (int)tensor->device_id, PyBool_FromLong(read_only), owner);
}

static PyObject *take_plain(PyObject *capsule) {
    dl_managed *managed = (dl_managed *)PyCapsule_GetPointer(capsule, plain_name);
    if (!managed)
        return NULL;
    PyObject *owner = PyCapsule_New(managed, owner_name, release_plain);
    if (!owner)
        return NULL;
    PyCapsule_SetName(capsule, "used_dltensor");
    return describe(&managed->tensor, 0, owner);
}

static PyObject *take_versioned(PyObject *capsule) {
    dl_versioned *managed = (dl_versioned *)PyCapsule_GetPointer(capsule, versioned_name);
    if (!managed)
        return NULL;
    if (managed->major != 1) {
        PyErr_Format(PyExc_BufferError, "a tensor of DLPack %u; version 1 is known", (unsigned)managed->major);
        return NULL;
    }
    PyObject *owner = PyCapsule_New(managed, versioned_owner_name, release_versioned);
    if (!owner)
        return NULL;
    PyCapsule_SetName(capsule, "used_dltensor_versioned");
    return describe(&managed->tensor, (managed->flags & flag_read_only) != 0, owner);
}

PyObject *annulus_read_dlpack(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, versioned_name))
        return take_versioned(capsule);
    if (PyCapsule_IsValid(capsule, plain_name))
        return take_plain(capsule);
    PyErr_SetString(PyExc_TypeError, "no DLPack capsule, or one that was used already");
    return NULL;
}
