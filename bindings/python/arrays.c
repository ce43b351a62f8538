/* SPDX-License-Identifier: Apache-2.0 */
#include "arrays.h"

#include <stdlib.h>
#include <string.h>

/* Returns the elements of a sequence as a tuple. A list could change while an element converts itself to a number. */
static PyObject *elements_of(PyObject *sequence) {
    PyObject *fast = PySequence_Fast(sequence, "a sequence of int is wanted");
    PyObject *elements = fast ? PySequence_Tuple(fast) : NULL;
    Py_XDECREF(fast);
    return elements;
}

/* Writes element i of a tuple as a number of `width` bytes. Returns 1, or 0 on failure. */
static int read_element(PyObject *elements, Py_ssize_t i, size_t width, void *numbers) {
    PyObject *index = PyNumber_Index(PyTuple_GET_ITEM(elements, i));
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
    PyObject *elements = elements_of(sequence);
    if (!elements)
        return 0;
    const Py_ssize_t count = PyTuple_GET_SIZE(elements);
    void *read = calloc((size_t)count + 1, width);
    int good = read != NULL;
    if (!good)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; good && i < count; ++i)
        good = read_element(elements, i, width, read);
    Py_DECREF(elements);
    if (good)
        *numbers = read;
    else
        free(read);
    return good;
}

int annulus_read_sizes(PyObject *sequence, int64_t sizes[4]) {
    memset(sizes, 0, 4 * sizeof *sizes);
    PyObject *elements = elements_of(sequence);
    if (!elements)
        return -1;
    const Py_ssize_t count = PyTuple_GET_SIZE(elements);
    int good = count <= 4;
    if (!good)
        PyErr_Format(PyExc_ValueError, "%zd dimensions; at most 4 are possible", count);
    for (Py_ssize_t i = 0; good && i < count; ++i)
        good = read_element(elements, i, sizeof *sizes, sizes);
    Py_DECREF(elements);
    return good ? (int)count : -1;
}

/* DLPack's structures, as its specification lays them out (https://dmlc.github.io/dlpack/latest/c_api.html). */
typedef struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
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

enum { flag_read_only = 1, most_dimensions = 64 /* no library has more */ };

static const char plain_name[] = "dltensor", versioned_name[] = "dltensor_versioned";
static const char owner_name[] = "annulus.dltensor", versioned_owner_name[] = "annulus.dltensor_versioned";

/* Destroys the tensor when the last reference to its owner goes. The deleter may run Python, so a pending exception is
   saved. */
static void release_plain(PyObject *owner) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    dl_managed *managed = (dl_managed *)PyCapsule_GetPointer(owner, owner_name);
    if (managed && managed->deleter)
        managed->deleter(managed);
    PyErr_Restore(type, value, traceback);
}

static void release_versioned(PyObject *owner) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    dl_versioned *managed = (dl_versioned *)PyCapsule_GetPointer(owner, versioned_owner_name);
    if (managed && managed->deleter)
        managed->deleter(managed);
    PyErr_Restore(type, value, traceback);
}

/* Makes a tuple of `count` numbers. */
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

/* Makes the tuple that annulus_read_dlpack() returns. Takes over the reference `owner`. */
static PyObject *describe(const dl_tensor *tensor, int read_only, PyObject *owner) {
    if (tensor->ndim < 0 || tensor->ndim > most_dimensions || (tensor->ndim > 0 && !tensor->shape)) {
        PyErr_Format(PyExc_BufferError, "a DLPack tensor of %d dimensions%s; it must have from 0 to %d, and a shape",
                     (int)tensor->ndim, tensor->shape ? "" : " without a shape", most_dimensions);
        Py_DECREF(owner);
        return NULL;
    }
    PyObject *shape = tuple_of(tensor->shape, tensor->ndim);
    PyObject *strides = shape && tensor->strides ? tuple_of(tensor->strides, tensor->ndim) : Py_None;
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

/* Returns the dtype of a buffer's elements, or 0 if the library has none for them. */
static annulus_dtype dtype_of_format(const char *format) {
    if (!format || format[0] == '\0' || format[1] != '\0')
        return 0;
    switch (format[0]) {
    case 'd':
        return ANNULUS_FLOAT64;
    case 'f':
        return ANNULUS_FLOAT32;
    case 'e':
        return ANNULUS_FLOAT16;
    default:
        return 0;
    }
}

/* Adds the axis B if the array lacks it. Gives an array without elements an address, since the library refuses NULL.
   Returns 0 if the array has another number of dimensions. */
static int complete(annulus_tensor *tensor, int dimensions, int ndim) {
    if (dimensions == ndim - 1) {
        memmove(tensor->shape + 1, tensor->shape, (size_t)dimensions * sizeof *tensor->shape);
        memmove(tensor->stride + 1, tensor->stride, (size_t)dimensions * sizeof *tensor->stride);
        tensor->shape[0] = 1;
        tensor->stride[0] = 0; /* never used: the axis has length 1 */
    } else if (dimensions != ndim) {
        return 0;
    }
    tensor->ndim = ndim;
    for (int i = 0; i < ndim; ++i)
        if (!tensor->data && tensor->shape[i] == 0)
            tensor->data = (void *)(uintptr_t)(annulus_dtype_bits(tensor->dtype) / 8);
    return 1;
}

static PyObject *read_buffer(PyObject *array, int ndim, int written, annulus_tensor *tensor) {
    PyObject *view = PyMemoryView_FromObject(array);
    if (!view)
        return NULL;
    const Py_buffer *buffer = PyMemoryView_GET_BUFFER(view);
    tensor->dtype = dtype_of_format(buffer->format);
    int good = tensor->dtype && buffer->itemsize * 8 == annulus_dtype_bits(tensor->dtype) &&
               !(written && buffer->readonly) && buffer->ndim <= ndim && !buffer->suboffsets;
    for (int i = 0; good && i < buffer->ndim; ++i) {
        tensor->shape[i] = buffer->shape[i];
        tensor->stride[i] = buffer->strides[i] / buffer->itemsize;
        good = buffer->shape[i] <= 1 || buffer->strides[i] % buffer->itemsize == 0;
    }
    tensor->data = buffer->buf;
    if (good && complete(tensor, buffer->ndim, ndim))
        return view;
    Py_DECREF(view);
    return NULL;
}

static PyObject *torch_types, *torch_dtypes; /* NULL before annulus_know_torch() */
static PyObject *name_is_cpu, *name_dtype, *name_shape, *name_stride, *name_data_ptr;

PyObject *annulus_know_torch(PyObject *types, PyObject *dtypes) {
    if (!PyTuple_Check(types) || !PyDict_Check(dtypes))
        return PyErr_Format(PyExc_TypeError, "a tuple and a dict are wanted");
    name_is_cpu = PyUnicode_InternFromString("is_cpu");
    name_dtype = PyUnicode_InternFromString("dtype");
    name_shape = PyUnicode_InternFromString("shape");
    name_stride = PyUnicode_InternFromString("stride");
    name_data_ptr = PyUnicode_InternFromString("data_ptr");
    if (!name_is_cpu || !name_dtype || !name_shape || !name_stride || !name_data_ptr)
        return NULL;
    Py_INCREF(types);
    Py_INCREF(dtypes);
    Py_XSETREF(torch_types, types);
    Py_XSETREF(torch_dtypes, dtypes);
    Py_RETURN_NONE;
}

/* Returns whether an object's type is one of PyTorch's own. A derived class may not have its elements in memory. */
static int is_torch(PyObject *array) {
    for (Py_ssize_t i = 0; torch_types && i < PyTuple_GET_SIZE(torch_types); ++i)
        if ((PyObject *)Py_TYPE(array) == PyTuple_GET_ITEM(torch_types, i))
            return 1;
    return 0;
}

/* Reads a tuple of at most `ndim` numbers. Takes over the reference. Returns how many were read, or -1. */
static int read_tuple(PyObject *tuple, int ndim, int64_t *numbers) {
    int count = tuple && PyTuple_Check(tuple) && PyTuple_GET_SIZE(tuple) <= ndim ? (int)PyTuple_GET_SIZE(tuple) : -1;
    for (int i = 0; i < count; ++i) {
        numbers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (numbers[i] == -1 && PyErr_Occurred())
            count = -1;
    }
    Py_XDECREF(tuple);
    return count;
}

static PyObject *read_torch(PyObject *array, int ndim, annulus_tensor *tensor) {
    PyObject *is_cpu = PyObject_GetAttr(array, name_is_cpu);
    Py_XDECREF(is_cpu); /* True and False are never destroyed */
    if (is_cpu != Py_True)
        return NULL;
    PyObject *dtype = PyObject_GetAttr(array, name_dtype);
    PyObject *number = dtype ? PyDict_GetItem(torch_dtypes, dtype) : NULL; /* borrowed */
    tensor->dtype = number ? (annulus_dtype)PyLong_AsLong(number) : 0;
    Py_XDECREF(dtype);
    if (!number)
        return NULL;
    const int dimensions = read_tuple(PyObject_GetAttr(array, name_shape), ndim, tensor->shape);
    if (dimensions < 0 || read_tuple(PyObject_CallMethodNoArgs(array, name_stride), ndim, tensor->stride) != dimensions)
        return NULL;
    PyObject *address = PyObject_CallMethodNoArgs(array, name_data_ptr);
    tensor->data = address ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    if (!address || PyErr_Occurred() || !complete(tensor, dimensions, ndim))
        return NULL;
    Py_INCREF(array);
    return array;
}

PyObject *annulus_read_array(PyObject *array, int ndim, int written, annulus_tensor *tensor) {
    memset(tensor, 0, sizeof *tensor);
    PyObject *held = is_torch(array) ? read_torch(array, ndim, tensor) : read_buffer(array, ndim, written, tensor);
    if (!held)
        PyErr_SetString(PyExc_BufferError, "no plain array in host memory");
    return held;
}
