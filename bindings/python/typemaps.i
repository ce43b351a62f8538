/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C API's arguments in Python, in the module annulus._capi. A function returns its status, followed by the values
 * that it writes. Handles are opaque objects. Arrays of integers are any sequence of int or None. Untyped pointers are
 * an int (an address) or None. Nothing here raises for a status; annulus/_errors.py does.
 */
%include <typemaps.i>

%{
#include "arrays.h"
#include "exit.h"
%}

%init %{
    annulus_watch_exit();
%}
void annulus_call_begins(void);
%define COMPUTES(FUNCTION)
%exception FUNCTION {
    annulus_call_begins();
    $action
    annulus_call_ends();
}
%enddef
COMPUTES(annulus_forward)
COMPUTES(annulus_backward)
COMPUTES(forward_of_arrays)
COMPUTES(backward_of_arrays)
COMPUTES(annulus_merge)
COMPUTES(annulus_attention_mass)

/* Handles that a function makes. */
%define MADE_HANDLE(TYPE, NAME)
%typemap(in, numinputs=0) TYPE **NAME (TYPE *made = NULL) "$1 = &made;"
%typemap(argout) TYPE **NAME { %append_output(SWIG_NewPointerObj(*$1, $descriptor(TYPE *), 0)); }
%enddef
MADE_HANDLE(annulus_config, config)
MADE_HANDLE(annulus_config, copy)
MADE_HANDLE(annulus_context, context)
MADE_HANDLE(annulus_comm, comm)

/* The ends of a communicator are a list, which is empty on failure. */
%typemap(in) (annulus_comm **comms, int32_t ranks) {
    const long ranks = PyLong_AsLong($input);
    if (ranks == -1 && PyErr_Occurred())
        SWIG_fail;
    $2 = (int32_t)(ranks < 0 ? 0 : ranks > INT32_MAX ? INT32_MAX : ranks);
    $1 = (annulus_comm **)malloc(((size_t)$2 + 1) * sizeof *$1);
    if (!$1) {
        PyErr_NoMemory();
        SWIG_fail;
    }
}
%typemap(freearg) (annulus_comm **comms, int32_t ranks) "free($1);"
%typemap(argout) (annulus_comm **comms, int32_t ranks) {
    PyObject *ends = PyList_New(0);
    for (int32_t i = 0; ends && result == ANNULUS_OK && i < $2; ++i) {
        PyObject *end = SWIG_NewPointerObj($1[i], $descriptor(annulus_comm *), 0);
        if (!end || PyList_Append(ends, end) != 0)
            Py_CLEAR(ends);
        Py_XDECREF(end);
    }
    if (!ends)
        SWIG_fail;
    %append_output(ends);
}

/* Numbers that a function writes. */
%apply int *OUTPUT { int32_t *index, int32_t *count, int32_t *size, int32_t *rank, int32_t *first,
                     int32_t *total, int32_t *threads };
%apply unsigned long long *OUTPUT { uint64_t *bytes };
%apply int *OUTPUT { int *causal, int *allow };
%apply double *OUTPUT { double *scale };
%define WRITTEN_ENUM(TYPE, NAME)
%typemap(in, numinputs=0) TYPE *NAME (int32_t written = 0) "$1 = (TYPE *)&written;"
%typemap(argout) TYPE *NAME { %append_output(PyLong_FromLong((long)*$1)); }
%enddef
WRITTEN_ENUM(annulus_engine, engine)
WRITTEN_ENUM(annulus_exchange, exchange)
WRITTEN_ENUM(annulus_padding_rule, rule)
WRITTEN_ENUM(annulus_key_rule, rule)
WRITTEN_ENUM(annulus_status, status)

/* Addresses. */
%typemap(in) void *stream, void *workspace, void *data, const void *mpi_comm, int64_t *positions {
    $1 = NULL;
    if ($input != Py_None) {
        $1 = ($1_ltype)PyLong_AsVoidPtr($input);
        if (PyErr_Occurred())
            SWIG_fail;
    }
}

/* Shards that a function finds: their lengths and their ranks, two lists. */
%typemap(in, numinputs=0) (int32_t capacity, int64_t *lengths, int32_t *owners, int32_t *count) (int32_t found = 0) {
    $1 = ANNULUS_MAX_SHARDS;
    $2 = (int64_t *)malloc(ANNULUS_MAX_SHARDS * sizeof *$2);
    $3 = (int32_t *)malloc(ANNULUS_MAX_SHARDS * sizeof *$3);
    $4 = &found;
    if (!$2 || !$3) {
        PyErr_NoMemory();
        SWIG_fail;
    }
}
%typemap(freearg) (int32_t capacity, int64_t *lengths, int32_t *owners, int32_t *count) "free($2); free($3);"
%typemap(argout) (int32_t capacity, int64_t *lengths, int32_t *owners, int32_t *count) {
    PyObject *lengths = PyList_New(*$4), *owners = PyList_New(*$4);
    for (int32_t i = 0; lengths && owners && i < *$4; ++i) {
        PyObject *length = PyLong_FromLongLong($2[i]), *owner = PyLong_FromLong($3[i]);
        PyList_SET_ITEM(lengths, i, length);
        PyList_SET_ITEM(owners, i, owner);
        if (!length || !owner)
            Py_CLEAR(lengths);
    }
    if (!lengths || !owners) {
        Py_XDECREF(lengths);
        Py_XDECREF(owners);
        SWIG_fail;
    }
    %append_output(lengths);
    %append_output(owners);
}

/* The value of an ncclComm_t; the function takes its address. */
%typemap(in) const void *nccl_comm (void *handle) {
    handle = PyLong_AsVoidPtr($input);
    if (PyErr_Occurred())
        SWIG_fail;
    $1 = &handle;
}

/* Arrays of integers that a function reads. The next argument says how many, as in C. */
%typemap(in) const int64_t * {
    void *numbers = NULL;
    if (!annulus_read_integers($input, sizeof(int64_t), &numbers))
        SWIG_fail;
    $1 = (int64_t *)numbers;
}
%typemap(in) const int32_t * {
    void *numbers = NULL;
    if (!annulus_read_integers($input, sizeof(int32_t), &numbers))
        SWIG_fail;
    $1 = (int32_t *)numbers;
}
%typemap(freearg) const int64_t *, const int32_t * "free((void *)$1);"

/* NCCL's ids are bytes. */
%ignore annulus_nccl_id;
%typemap(in, numinputs=0) annulus_nccl_id *id (annulus_nccl_id made) {
    memset(&made, 0, sizeof made);
    $1 = &made;
}
%typemap(argout) annulus_nccl_id *id { %append_output(PyBytes_FromStringAndSize($1->bytes, sizeof $1->bytes)); }
%typemap(in) const annulus_nccl_id *id (annulus_nccl_id copy) {
    if (!PyBytes_Check($input) || PyBytes_GET_SIZE($input) != (Py_ssize_t)sizeof copy.bytes) {
        PyErr_Format(PyExc_ValueError, "an NCCL id is %zu bytes", sizeof copy.bytes);
        SWIG_fail;
    }
    memcpy(copy.bytes, PyBytes_AS_STRING($input), sizeof copy.bytes);
    $1 = &copy;
}
%typemap(argout) const annulus_nccl_id *id "";

/* A new struct that begins with `size` has the values of its INIT macro. */
%define SIZED(TYPE, INIT)
%ignore TYPE::size;
%extend TYPE {
    TYPE(void) {
        TYPE *made = (TYPE *)malloc(sizeof *made);
        const TYPE fresh = INIT;
        if (made)
            *made = fresh;
        return made;
    }
}
%enddef
SIZED(annulus_call_options, ANNULUS_CALL_OPTIONS_INIT)
SIZED(annulus_branch, ANNULUS_BRANCH_INIT(0, 1))
SIZED(annulus_comm_options, ANNULUS_COMM_OPTIONS_INIT)
SIZED(annulus_merge_options, ANNULUS_MERGE_OPTIONS_INIT)
SIZED(annulus_problem, ANNULUS_PROBLEM_INIT)
SIZED(annulus_estimate, ANNULUS_ESTIMATE_INIT)
SIZED(annulus_traffic, ANNULUS_TRAFFIC_INIT)

/* annulus_call_options owns its arrays. */
%typemap(freearg) const int64_t *sequence_starts, const int64_t *sequence_lengths ""
%typemap(memberin) const int64_t *sequence_starts, const int64_t *sequence_lengths {
    free((void *)$1);
    $1 = $input;
}
%extend annulus_call_options {
    ~annulus_call_options(void) {
        free((void *)$self->sequence_starts);
        free((void *)$self->sequence_lengths);
        free($self);
    }
}

/* A problem owns the options that it is given. */
%extend annulus_problem {
    ~annulus_problem(void) {
        if ($self->options)
            delete_annulus_call_options((annulus_call_options *)$self->options);
        free($self);
    }
}

/* annulus_shards(ranks, count, lengths, owners) copies the arrays, which may be None. */
%{
static void *annulus_copied(const void *numbers, size_t bytes) {
    void *copy = numbers ? malloc(bytes + 1) : NULL;
    return copy ? memcpy(copy, numbers, bytes) : NULL;
}
%}
%ignore annulus_shards::size;
%ignore annulus_shards::ranks;
%ignore annulus_shards::count;
%ignore annulus_shards::lengths;
%ignore annulus_shards::owners;
%extend annulus_shards {
    annulus_shards(int32_t ranks, int32_t count, const int64_t *lengths, const int32_t *owners) {
        annulus_shards *made = (annulus_shards *)malloc(sizeof *made);
        const annulus_shards fresh = ANNULUS_SHARDS_INIT;
        if (!made)
            return NULL;
        *made = fresh;
        made->ranks = ranks;
        made->count = count;
        made->lengths = (const int64_t *)annulus_copied(lengths, (size_t)count * sizeof *lengths);
        made->owners = (const int32_t *)annulus_copied(owners, (size_t)count * sizeof *owners);
        return made;
    }
    ~annulus_shards(void) {
        free((void *)$self->lengths);
        free((void *)$self->owners);
        free($self);
    }
}

/* annulus_tensor(address, dtype, shape, strides) takes sequences of at most 4 numbers. */
%typemap(in) (int32_t ndim, const int64_t *shape) (int64_t numbers[4]) {
    const int count = annulus_read_sizes($input, numbers);
    if (count < 0)
        SWIG_fail;
    $1 = count;
    $2 = numbers;
}
%typemap(freearg) (int32_t ndim, const int64_t *shape) ""
%typemap(in) const int64_t *stride (int64_t numbers[4]) {
    if (annulus_read_sizes($input, numbers) < 0)
        SWIG_fail;
    $1 = numbers;
}
%typemap(freearg) const int64_t *stride ""
%ignore annulus_tensor::data;
%ignore annulus_tensor::shape;
%ignore annulus_tensor::stride;
%extend annulus_tensor {
    annulus_tensor(void *data, annulus_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *stride) {
        annulus_tensor *made = (annulus_tensor *)malloc(sizeof *made);
        if (!made)
            return NULL;
        made->data = data;
        made->dtype = dtype;
        made->ndim = ndim;
        memcpy(made->shape, shape, sizeof made->shape);
        memcpy(made->stride, stride, sizeof made->stride);
        return made;
    }
}

/* Arrays of tensors that a function reads are a sequence. Another argument says how many, as in C. */
%typemap(in) const annulus_tensor *outs, const annulus_tensor *lses {
    PyObject *elements = PySequence_Tuple($input);
    if (!elements)
        SWIG_fail;
    const Py_ssize_t count = PyTuple_GET_SIZE(elements);
    annulus_tensor *tensors = (annulus_tensor *)calloc((size_t)count + 1, sizeof *tensors);
    int good = tensors != NULL;
    if (!good)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; good && i < count; ++i) {
        void *tensor = NULL;
        good = SWIG_IsOK(SWIG_ConvertPtr(PyTuple_GET_ITEM(elements, i), &tensor, $1_descriptor, 0)) && tensor;
        if (good)
            tensors[i] = *(annulus_tensor *)tensor;
        else
            PyErr_SetString(PyExc_TypeError, "a sequence of annulus_tensor is wanted");
    }
    Py_DECREF(elements);
    $1 = tensors;
    if (!good)
        SWIG_fail;
}
%typemap(freearg) const annulus_tensor *outs, const annulus_tensor *lses "free((void *)$1);"

/* The library calls an allocator during a call, without the GIL. So an allocator cannot be written in Python. */
%ignore annulus_allocator;
%ignore annulus_context_set_allocator;

/*
 * annulus_forward() and annulus_backward() on plain arrays, which the typemaps read. They raise a BufferError, before
 * anything is computed, if an array is not plain. Rows are [B, N, heads, D], statistics [B, heads, N]; B may be missing.
 */
%define PLAIN_ARRAY(NAME, NDIM, WRITTEN)
%typemap(in) const annulus_tensor *NAME (annulus_tensor read, PyObject *held = NULL) {
    $1 = NULL;
    if ($input != Py_None) {
        held = annulus_read_array($input, NDIM, WRITTEN, &read);
        if (!held)
            SWIG_fail;
        $1 = &read;
    }
}
%typemap(freearg) const annulus_tensor *NAME "Py_XDECREF(held$argnum);"
%enddef
PLAIN_ARRAY(rows, 4, 0)
PLAIN_ARRAY(statistics, 3, 0)
PLAIN_ARRAY(written_rows, 4, 1)
PLAIN_ARRAY(written_statistics, 3, 1)
%apply const annulus_tensor *rows {
    const annulus_tensor *q, const annulus_tensor *k, const annulus_tensor *v, const annulus_tensor *o,
    const annulus_tensor *d_o
}
%apply const annulus_tensor *statistics { const annulus_tensor *l, const annulus_tensor *d_l }
%apply const annulus_tensor *written_rows {
    const annulus_tensor *new_o, const annulus_tensor *d_q, const annulus_tensor *d_k, const annulus_tensor *d_v
}
%apply const annulus_tensor *written_statistics { const annulus_tensor *new_l }
%inline %{
static annulus_status forward_of_arrays(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                                        const annulus_tensor *v, const annulus_tensor *new_o,
                                        const annulus_tensor *new_l, const annulus_call_options *options) {
    return annulus_forward(context, q, k, v, new_o, new_l, options);
}

static annulus_status backward_of_arrays(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                                         const annulus_tensor *v, const annulus_tensor *o, const annulus_tensor *l,
                                         const annulus_tensor *d_o, const annulus_tensor *d_l,
                                         const annulus_tensor *d_q, const annulus_tensor *d_k,
                                         const annulus_tensor *d_v, const annulus_call_options *options) {
    return annulus_backward(context, q, k, v, o, l, d_o, d_l, d_q, d_k, d_v, options);
}
%}
/* The headers' own functions take tensors. */
%clear const annulus_tensor *q, const annulus_tensor *k, const annulus_tensor *v, const annulus_tensor *d_q,
       const annulus_tensor *d_k, const annulus_tensor *d_v;

%feature("nothread") annulus_know_torch;
PyObject *annulus_know_torch(PyObject *types, PyObject *dtypes);
%feature("nothread") annulus_read_dlpack;
PyObject *annulus_read_dlpack(PyObject *capsule);
