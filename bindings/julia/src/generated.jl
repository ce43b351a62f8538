# SPDX-License-Identifier: Apache-2.0
# Written by bindings/emit.py from the C headers; a test fails when they differ.

@doc raw"""
The first number of the headers' version. ABI.md says when each of the three numbers grows.
""" const ANNULUS_VERSION_MAJOR = 1

@doc raw"""
The second number of the headers' version.
""" const ANNULUS_VERSION_MINOR = 0

@doc raw"""
The third number of the headers' version.
""" const ANNULUS_VERSION_PATCH = 0

@doc raw"""
The headers' version as one number: major * 1,000,000 + minor * 1,000 + patch. These numbers compare as versions do.
""" const ANNULUS_VERSION = 1000000

@doc raw"""
Returns the loaded library's version as a number like ANNULUS_VERSION. Any thread. Since 1.0.
""" function annulus_version()
    @library_call annulus_version()::Cint
end

@doc raw"""
Returns the loaded library's version as text, such as "1.0.0". Static. Any thread. Since 1.0.
""" function annulus_version_string()
    @library_call annulus_version_string()::Cstring
end

@doc raw"""
Returns one line for bug reports. It names the version, the compiler, and the vector instructions that the CPU engine
uses on this machine. It also names the versions of CUDA, of CUDA's driver and of MPI. The function loads annulus's
parts for CUDA and MPI to find these versions. Static. Any thread. Since 1.0.
""" function annulus_build_info()
    @library_call annulus_build_info()::Cstring
end

@doc raw"""
The enumerations of the headers, as arguments of annulus_knows().
""" const annulus_feature = Int32
const ANNULUS_FEATURE_FEATURE = annulus_feature(1) # annulus_feature itself
const ANNULUS_FEATURE_STATUS = annulus_feature(2) # annulus_status
const ANNULUS_FEATURE_DTYPE = annulus_feature(3) # annulus_dtype, without ANNULUS_DTYPE_NONE
const ANNULUS_FEATURE_DEVICE = annulus_feature(4) # annulus_device
const ANNULUS_FEATURE_ENGINE = annulus_feature(5) # annulus_engine
const ANNULUS_FEATURE_PASS = annulus_feature(6) # annulus_pass
const ANNULUS_FEATURE_PHASE_RULE = annulus_feature(7) # annulus_phase_rule
const ANNULUS_FEATURE_QUERY_RULE = annulus_feature(8) # annulus_query_rule
const ANNULUS_FEATURE_ORDER = annulus_feature(9) # annulus_order
const ANNULUS_FEATURE_PADDING_RULE = annulus_feature(10) # annulus_padding_rule
const ANNULUS_FEATURE_KEY_RULE = annulus_feature(11) # annulus_key_rule
const ANNULUS_FEATURE_EXCHANGE = annulus_feature(12) # annulus_exchange
const ANNULUS_FEATURE_CALL_FLAG = annulus_feature(13) # annulus_call_flag, one bit of it
const ANNULUS_FEATURE_COMM_FLAG = annulus_feature(14) # annulus_comm_flag, one bit of it
const ANNULUS_FEATURE_BRANCH_KIND = annulus_feature(15) # annulus_branch_kind

@doc raw"""
Returns 1 if the loaded library knows `value` of an enumeration, else 0. If the library does not know the
enumeration, every value gives 0. So a program that was compiled with newer headers finds out what it may ask an
older library for.

A known value does not mean that this build or machine supports the value. To find that out, call
annulus_device_count() and annulus_check_engine(). Any thread. Since 1.0.
""" function annulus_knows(feature, value)
    @library_call annulus_knows(feature::annulus_feature, value::Int64)::Cint
end

@doc raw"""
How a call ended.
""" const annulus_status = Int32
const ANNULUS_OK = annulus_status(0) # the call succeeded
const ANNULUS_ERROR_ARGUMENT = annulus_status(1) # an argument is not what the function's comment allows
const ANNULUS_ERROR_UNSUPPORTED = annulus_status(2) # legal, but the chosen engine, device or build cannot do it
const ANNULUS_ERROR_MEMORY = annulus_status(3) # an allocation failed
const ANNULUS_ERROR_WORKSPACE = annulus_status(4) # the caller's workspace, or the config's workspace limit, is too small; annulus_last_error_bytes() says how much is needed
const ANNULUS_ERROR_DECLINED = annulus_status(5) # another rank could not do its part; the communicator stays usable
const ANNULUS_ERROR_DEVICE = annulus_status(100) # a library or the driver of the device failed (CUDA, cuBLAS), or an allocation failed in the middle of a call
const ANNULUS_ERROR_COMM = annulus_status(101) # another rank failed or did not come in time, the communicator was aborted, or this rank failed in the middle of a call, so the other ranks miss its part
const ANNULUS_ERROR_COMM_LIBRARY = annulus_status(102) # the library below a communicator failed (NCCL, MPI)
const ANNULUS_ERROR_INTERNAL = annulus_status(103) # a defect in annulus; report the message

@doc raw"""
Returns the name of a status in lower case, or "unknown". The names are "ok", "argument", "unsupported", "memory",
"workspace", "declined", "device", "comm", "comm_library" and "internal". Static. Any thread. Since 1.0.
""" function annulus_status_name(status)
    @library_call annulus_status_name(status::annulus_status)::Cstring
end

@doc raw"""
Returns the message of the last failed call of this thread: one line without a newline, at most 511 bytes of UTF-8.
Returns "" if no call has failed. Never returns NULL, and never allocates.

The buffer belongs to the thread, and the thread's next failed call overwrites it. A call that succeeds leaves the
buffer as it is. The only exception is annulus_comm_status(), which writes into the buffer why a communicator broke.
Any thread. Since 1.0.
""" function annulus_last_error()
    @library_call annulus_last_error()::Cstring
end

@doc raw"""
Returns how many bytes of workspace the last failed call of this thread would have needed, if that call returned
ANNULUS_ERROR_WORKSPACE. The number is the size to pass to annulus_context_set_workspace(), or the smallest
sufficient workspace limit. Returns 0 if the call failed for another reason, or if no call has failed. Any thread.
Since 1.0.
""" function annulus_last_error_bytes()
    @library_call annulus_last_error_bytes()::UInt64
end

@doc raw"""
Returns the name of the library whose failure made the last failed call of this thread fail: "cuda" (CUDA's runtime
or driver), "cublas", "nccl" or "mpi". Later versions may name other libraries. Returns "" if none of these libraries
failed, or if no call has failed. The message contains the name of the library's function, and the library's own
words. Static. Any thread. Since 1.0.
""" function annulus_last_error_library()
    @library_call annulus_last_error_library()::Cstring
end

@doc raw"""
Returns, as a number, what the failed function of the library in annulus_last_error_library() returned: a
cudaError_t, a CUresult, a cublasStatus_t, an ncclResult_t or an error code of MPI. Returns 0 if
annulus_last_error_library() returns "". Any thread. Since 1.0.
""" function annulus_last_error_code()
    @library_call annulus_last_error_code()::Int64
end

@doc raw"""
The type of a tensor's elements.
""" const annulus_dtype = Int32
const ANNULUS_DTYPE_NONE = annulus_dtype(0) # no dtype, for structs that may leave the dtype out
const ANNULUS_FLOAT64 = annulus_dtype(1) # IEEE binary64, C's double
const ANNULUS_FLOAT32 = annulus_dtype(2) # IEEE binary32, C's float
const ANNULUS_BFLOAT16 = annulus_dtype(3) # 1 sign, 8 exponent, 7 fraction bits
const ANNULUS_FLOAT16 = annulus_dtype(4) # IEEE binary16

@doc raw"""
A tensor of `ndim` dimensions. Element (i0, i1, …) lies at data\[i0 * stride\[0\] + i1 * stride\[1\] + …\]. Strides count
elements and are not negative. Entries of shape and stride at or beyond `ndim` are not read.

```text
Q, K, V, O and their gradients: ndim 4, [B, N, heads, D], stride[3] == 1.
LSE and its gradient:           ndim 3, [B, H, N], any strides; float32, or float64 when Q is float64.
```

`data` must be aligned to the size of an element of `dtype`. Inputs may overlap one another and may repeat rows
(stride 0). The elements of an output must be distinct, and an output must not overlap an input or another output.
Tensors with equal strides may interleave: a packed \[B, N, 3, H, D\] buffer of dQ, dK and dV is legal.
""" struct annulus_tensor
    data::Ptr{Cvoid}
    dtype::annulus_dtype
    ndim::Int32
    shape::NTuple{4, Int64}
    stride::NTuple{4, Int64}
end

@doc raw"""
Returns the number of bits of one element: 64 for float64, 32 for float32, 16 for bfloat16 and float16. Returns 0 for
every other value. Any thread. Since 1.0.
""" function annulus_dtype_bits(dtype)
    @library_call annulus_dtype_bits(dtype::annulus_dtype)::Cint
end

@doc raw"""
Returns the name of a dtype ("float64", "float32", "bfloat16", "float16"), or "unknown". Static. Any thread.
Since 1.0.
""" function annulus_dtype_name(dtype)
    @library_call annulus_dtype_name(dtype::annulus_dtype)::Cstring
end

@doc raw"""
Writes the curve of a segment of `length` positions to positions\[\]. The positions lie row by row on a grid of `width`
columns and length / width rows. positions\[p\] is the position (row * width + column) that the curve visits p-th.
Every position occurs once. Consecutive positions are neighbours in the grid wherever the rectangle's parity allows.
Otherwise there is one diagonal step.

```text
length     >= 1
width      a divisor of length, or 0 for the smallest divisor that is at least sqrt(length)
positions  host memory for `length` numbers, owned by the caller
```

If length has no such divisor except for itself, a width of 0 gives one row: linear order.

ANNULUS_ERROR_ARGUMENT: positions is NULL, length < 1, width < 0, or width is no divisor of length. Any thread.
Since 1.0.
""" function annulus_hilbert_curve(length, width, positions)
    @library_call annulus_hilbert_curve(length::Int64, width::Int64, positions::Ptr{Int64})::annulus_status
end

@doc raw"""
A config: which keys each query attends to, and how the work is to be done.
""" mutable struct annulus_config end

@doc raw"""
The rule that gives head h its residue phi of the places in a segment. h is the head's number inside the branch's
head range, which has c heads.
""" const annulus_phase_rule = Int32
const ANNULUS_PHASE_BLOCK = annulus_phase_rule(0) # phi = h / ceil(c / r), integer division: LongNet's published code (default)
const ANNULUS_PHASE_INTERLEAVE = annulus_phase_rule(1) # phi = h mod r: LongNet's paper
const ANNULUS_PHASE_FIXED = annulus_phase_rule(2) # phi = residue mod r for every head

@doc raw"""
The rule that says which queries of a segment attend to which of its keys. A residue is the place in the segment
modulo r.
""" const annulus_query_rule = Int32
const ANNULUS_QUERY_DILATED = annulus_query_rule(0) # the query's and the key's residue are both phi: LongNet (default)
const ANNULUS_QUERY_RESIDUE = annulus_query_rule(1) # query and key have the same residue, whatever its value: every query attends
const ANNULUS_QUERY_EVERY = annulus_query_rule(2) # the key's residue is phi; the query may have any residue

@doc raw"""
What the keys of a branch are. A window gives a query at position n the keys n + r j for -left <= j <= right, if
these keys exist. When causal, it gives only the keys with j <= 0. Global positions beyond the end of a sequence do
not exist.
""" const annulus_branch_kind = Int32
const ANNULUS_BRANCH_SEGMENTS = annulus_branch_kind(0) # the keys of the query's segment (default)
const ANNULUS_BRANCH_WINDOW = annulus_branch_kind(1) # the keys near the query: n + r j, see above
const ANNULUS_BRANCH_GLOBAL = annulus_branch_kind(2) # for every query the positions first_global … first_global + global_count - 1

@doc raw"""
How a branch numbers the positions of a segment. The branch then keeps every r-th position in this order.
""" const annulus_order = Int32
const ANNULUS_ORDER_LINEAR = annulus_order(0) # 0, 1, 2, … (default)
const ANNULUS_ORDER_HILBERT = annulus_order(1) # along the generalised Hilbert curve of the segment's grid; see hilbert.h

@doc raw"""
What stands in the slots of a segment that has too few positions to fill them.

ANNULUS_PADDING_ZERO_KEYS pads as LongNet's published code does: with w' = min(w, N), a segment has ceil(w'/r) slots
for each residue. Use this rule for weights that were trained with it. It has no effect when causal.
""" const annulus_padding_rule = Int32
const ANNULUS_PADDING_EXACT = annulus_padding_rule(0) # nothing: positions that do not exist are no keys (default)
const ANNULUS_PADDING_ZERO_KEYS = annulus_padding_rule(1) # a key of score 0 and value 0, see above

@doc raw"""
How often a key counts if several branches give this key to a query.

If the key rule is ANNULUS_KEY_ONCE, slots without a position (zero_keys padding) belong to their branch alone. They
count for each branch, as with ANNULUS_KEY_EACH_BRANCH. `fused` and `mma` support ANNULUS_KEY_ONCE if

- there are up to 8 branches, all in linear order,
- the dilations of the branches divide one another,
- the query rules of the branches are alike, except for branches of dilation 1.

Otherwise `fused` and `mma` refuse ANNULUS_KEY_ONCE, and `auto` leaves the call to `gemm`.
""" const annulus_key_rule = Int32
const ANNULUS_KEY_EACH_BRANCH = annulus_key_rule(0) # once for each branch that reaches it: LongNet's multiset (default)
const ANNULUS_KEY_ONCE = annulus_key_rule(1) # once: the set union; see above

@doc raw"""
An implementation of attention. The results of all engines agree up to rounding.

`auto` is the fastest engine of the context's device that supports the problem and the tensors of the call. On CUDA
the choice may depend on the tensors. `auto` takes `gemm` for tensors whose rows do not begin at multiples of 16
bytes, even if `fused` or `mma` supports the problem. row_alignment of annulus_problem says what is known of the rows
before the call.

`fused` and `mma` have kernels for all branches at once. Both need tensors whose rows begin at multiples of 16 bytes,
and a positive scale. On compute capability 9.0, `mma` is slower than `fused`.
""" const annulus_engine = Int32
const ANNULUS_ENGINE_AUTO = annulus_engine(0) # the fastest engine that supports the call (default)
const ANNULUS_ENGINE_REFERENCE = annulus_engine(1) # CPU, float64 inside, brute force in O(N * N) time: for tests; not for a context with a communicator (comm.h)
const ANNULUS_ENGINE_CPU = annulus_engine(2) # CPU, blocked, threads
const ANNULUS_ENGINE_GEMM = annulus_engine(3) # any CUDA device; float32, bfloat16, float16; cuBLAS inside, bounded workspace
const ANNULUS_ENGINE_FUSED = annulus_engine(4) # CUDA devices of compute capability 9.0; bfloat16, float16; see above
const ANNULUS_ENGINE_MMA = annulus_engine(5) # CUDA devices of compute capability 8.0 and newer: float32, bfloat16, float16; of compute capability 7.5: float16; see above

@doc raw"""
Returns the name of an engine ("auto", "reference", "cpu", "gemm", "fused", "mma"), or "unknown". Every build knows
the names of all engines, whether it can run them or not. Static. Any thread. Since 1.0.
""" function annulus_engine_name(engine)
    @library_call annulus_engine_name(engine::annulus_engine)::Cstring
end

@doc raw"""
Makes an empty config in \*config: no branches, not causal, exact padding, keys count for each branch, scale
1/sqrt(D), engine auto. At least one branch must be added before the config is used. The caller destroys the config.
Since 1.0.
""" function annulus_config_create(config)
    @library_call annulus_config_create(config::Ptr{Ptr{annulus_config}})::annulus_status
end

@doc raw"""
Makes an independent copy of `config` in \*copy. The caller destroys the copy. Since 1.0.
""" function annulus_config_copy(copy, config)
    @library_call annulus_config_copy(copy::Ptr{Ptr{annulus_config}}, config::Ptr{annulus_config})::annulus_status
end

@doc raw"""
Destroys a config. NULL is legal. Contexts that were given the config keep their own copy. Since 1.0.
""" function annulus_config_destroy(config)
    @library_call annulus_config_destroy(config::Ptr{annulus_config})::Cvoid
end

@doc raw"""
A branch. Set `size` to sizeof(annulus_branch) and set all other fields, best by one of the macros below.
ANNULUS_BRANCH_INIT(w, r) sets all fields after w and r to 0. These zeros stand for LongNet's branch: all heads,
phase rule block, query rule dilated, linear order. ANNULUS_BRANCH_WINDOW_INIT(left, right, r) makes a window of all
queries (query rule residue). ANNULUS_BRANCH_GLOBAL_INIT(first, count) makes global keys.

Windows and global positions have a segment length of 0, the linear order and no padding keys. A window's query rule
is residue or dilated. If the rule is dilated, a head has only the queries whose position modulo r is the head's
phase. Global positions have dilation 1, and with dilation 1 all phases and query rules are the same.

A branch serves the query heads first_head … first_head + head_count - 1. These heads must fit into H, or into the
total of a head shard. This is checked when the config is used for a problem.

grid_width is the number of columns of the grid in the Hilbert order, such as the width of an image or a slide. It
must divide the segment length, or the sequence length if w is 0. A grid_width of 0 selects the automatic width: the
smallest divisor of the segment's length that is at least the square root of this length. A shorter last segment has
the automatic width if grid_width does not divide its length.

If global_queries is 1, the global positions attend, as queries, to every key, too.
""" struct annulus_branch
    size::Csize_t
    segment_length::Int64 # w >= 1 in positions, or 0 for the whole sequence
    dilation::Int64 # r >= 1
    residue::Int64 # for ANNULUS_PHASE_FIXED: >= 0; else 0
    grid_width::Int64 # for ANNULUS_ORDER_HILBERT: columns of the grid, or 0 (see above); else 0
    first_head::Int32 # the first query head that the branch serves: 0 … 2^31 - 2
    head_count::Int32 # >= 1, first_head + head_count within int32; or 0: all heads from first_head on
    phase_rule::annulus_phase_rule # which residue a head uses
    query_rule::annulus_query_rule # which queries attend to which keys
    order::annulus_order # how the positions of a segment are numbered
    left::Int64 # for ANNULUS_BRANCH_WINDOW: keys before the query, >= 0, or -1 for all; else 0
    right::Int64 # for ANNULUS_BRANCH_WINDOW: keys after the query, >= 0, or -1 for all; else 0
    first_global::Int64 # for ANNULUS_BRANCH_GLOBAL: >= 0; else 0
    global_count::Int64 # for ANNULUS_BRANCH_GLOBAL: >= 1, first_global + global_count within int64; else 0
    kind::annulus_branch_kind # what the keys are
    global_queries::Int32 # for ANNULUS_BRANCH_GLOBAL: 0 or 1 (see above); else 0
end

ANNULUS_BRANCH_INIT(segment_length, dilation) = annulus_branch(sizeof(annulus_branch), segment_length, dilation, 0, 0, 0, 0, ANNULUS_PHASE_BLOCK, ANNULUS_QUERY_DILATED, ANNULUS_ORDER_LINEAR, 0, 0, 0, 0, ANNULUS_BRANCH_SEGMENTS, 0)

@doc raw"""
Appends a branch. A config holds up to 65,536 branches. `index` receives the new branch's index, counted from 0, and
may be NULL. ANNULUS_ERROR_ARGUMENT: `branch` is NULL, a field is not as above, or non-zero bytes follow what this
version knows. Since 1.0.
""" function annulus_config_add_branch(config, branch, index)
    @library_call annulus_config_add_branch(config::Ptr{annulus_config}, branch::Ptr{annulus_branch}, index::Ptr{Int32})::annulus_status
end

@doc raw"""
Replaces branch `index`, which must exist, by \*branch. Errors as annulus_config_add_branch(). Since 1.0.
""" function annulus_config_set_branch(config, index, branch)
    @library_call annulus_config_set_branch(config::Ptr{annulus_config}, index::Int32, branch::Ptr{annulus_branch})::annulus_status
end

@doc raw"""
Writes branch `index`, which must exist, to \*branch. The caller sets `size` of \*branch before the call. If this size
is larger than the struct that this version knows, the bytes beyond what this version knows must be 0.
ANNULUS_ERROR_UNSUPPORTED: the branch is a window or has global positions, and a smaller struct ends before `kind`.
Since 1.0.
""" function annulus_config_get_branch(config, index, branch)
    @library_call annulus_config_get_branch(config::Ptr{annulus_config}, index::Int32, branch::Ptr{annulus_branch})::annulus_status
end

@doc raw"""
Writes the number of branches to \*count. Since 1.0.
""" function annulus_config_branch_count(config, count)
    @library_call annulus_config_branch_count(config::Ptr{annulus_config}, count::Ptr{Int32})::annulus_status
end

@doc raw"""
Sets the padding rule of all branches. Since 1.0.
""" function annulus_config_set_padding_rule(config, rule)
    @library_call annulus_config_set_padding_rule(config::Ptr{annulus_config}, rule::annulus_padding_rule)::annulus_status
end

@doc raw"""
Writes the padding rule of all branches to \*rule. Since 1.0.
""" function annulus_config_get_padding_rule(config, rule)
    @library_call annulus_config_get_padding_rule(config::Ptr{annulus_config}, rule::Ptr{annulus_padding_rule})::annulus_status
end

@doc raw"""
Sets how often a key counts if several branches reach this key. Since 1.0.
""" function annulus_config_set_key_rule(config, rule)
    @library_call annulus_config_set_key_rule(config::Ptr{annulus_config}, rule::annulus_key_rule)::annulus_status
end

@doc raw"""
Writes to \*rule how often a key counts if several branches reach this key. Since 1.0.
""" function annulus_config_get_key_rule(config, rule)
    @library_call annulus_config_get_key_rule(config::Ptr{annulus_config}, rule::Ptr{annulus_key_rule})::annulus_status
end

@doc raw"""
Sets which heads calls have, for a model whose heads are shared out among processes. Each of these processes computes
some of the heads (tensor parallelism, Ulysses). The H query heads of a call are heads first … first + H - 1 of
`total`.

The head ranges and phases of branches count over all `total` heads. The default of a branch, all heads, also means
all `total` heads. So a head gets the same keys wherever it is computed. Key/value heads count within the call: the
query heads of the call that have the same h / (H/G) share one key/value head.

`total` 0 with `first` 0 means that a call has all heads (default). Otherwise 0 <= first < total. That first + H <=
total is checked when the config is used for a problem. The ranks of a communicator (comm.h) share one sequence, and
have the same heads. Since 1.0.
""" function annulus_config_set_head_shard(config, first, total)
    @library_call annulus_config_set_head_shard(config::Ptr{annulus_config}, first::Int32, total::Int32)::annulus_status
end

@doc raw"""
Writes to \*first and \*total which heads calls have. 0 and 0 mean that calls have all heads. Since 1.0.
""" function annulus_config_get_head_shard(config, first, total)
    @library_call annulus_config_get_head_shard(config::Ptr{annulus_config}, first::Ptr{Int32}, total::Ptr{Int32})::annulus_status
end

@doc raw"""
Sets whether attention is causal. If `causal` is 1, a query attends only to keys at its own global position or before
it. If `causal` is 0, there is no such limit. Since 1.0.
""" function annulus_config_set_causal(config, causal)
    @library_call annulus_config_set_causal(config::Ptr{annulus_config}, causal::Cint)::annulus_status
end

@doc raw"""
Writes 1 to \*causal if a query attends only to keys at its own position or before it, else 0. Since 1.0.
""" function annulus_config_get_causal(config, causal)
    @library_call annulus_config_get_causal(config::Ptr{annulus_config}, causal::Ptr{Cint})::annulus_status
end

@doc raw"""
Sets the factor on Q·K. The factor is 0, or a number of either sign with a magnitude from 1e-36 to 1e36. float32 can
hold such numbers with room to spare. Without this call the factor is 1/sqrt(D). Since 1.0.
""" function annulus_config_set_scale(config, scale)
    @library_call annulus_config_set_scale(config::Ptr{annulus_config}, scale::Cdouble)::annulus_status
end

@doc raw"""
Makes the factor 1/sqrt(D) again, as if no factor had been set. Since 1.0.
""" function annulus_config_unset_scale(config)
    @library_call annulus_config_unset_scale(config::Ptr{annulus_config})::annulus_status
end

@doc raw"""
Writes the factor on Q·K to \*scale. Writes NaN if no factor is set: the factor is then 1/sqrt(D). Since 1.0.
""" function annulus_config_get_scale(config, scale)
    @library_call annulus_config_get_scale(config::Ptr{annulus_config}, scale::Ptr{Cdouble})::annulus_status
end

@doc raw"""
Sets the engine. If the engine cannot serve a later call, the call fails with ANNULUS_ERROR_UNSUPPORTED, and the
message says why. annulus never falls back in silence from an engine that was asked for. Since 1.0.
""" function annulus_config_set_engine(config, engine)
    @library_call annulus_config_set_engine(config::Ptr{annulus_config}, engine::annulus_engine)::annulus_status
end

@doc raw"""
Writes to \*engine the engine that was set. Since 1.0.
""" function annulus_config_get_engine(config, engine)
    @library_call annulus_config_get_engine(config::Ptr{annulus_config}, engine::Ptr{annulus_engine})::annulus_status
end

@doc raw"""
Sets whether products of float32 tensors may be computed in TF32 (10 fraction bits, on tensor cores). If `allow` is
0, they are computed in float32 (default). 1 is only a permission: engines and devices without TF32 compute in
float32 all the same. Since 1.0.
""" function annulus_config_set_allow_tf32(config, allow)
    @library_call annulus_config_set_allow_tf32(config::Ptr{annulus_config}, allow::Cint)::annulus_status
end

@doc raw"""
Writes 1 to \*allow if products of float32 tensors may be computed in TF32, else 0. Since 1.0.
""" function annulus_config_get_allow_tf32(config, allow)
    @library_call annulus_config_get_allow_tf32(config::Ptr{annulus_config}, allow::Ptr{Cint})::annulus_status
end

@doc raw"""
Sets an upper bound in bytes for the workspace of a call, as annulus_workspace_size() counts it. 0 leaves the choice
to the engine (default; `gemm`: 256 MiB).

`gemm` fits its work into the limit. `fused` and `mma` fit two things into the limit:

- the sums of several launches, if the sums may be computed in parts (doc/limits.md),
- a product that backward stores instead of computing it twice.

Backward can store this product in the following cases; doc/limits.md has the exceptions. If there is less memory, it
stores the product in smaller parts or not at all.

```text
engine  branches                               D                      memory by default
fused   one, or several that share few pairs   above 64, at most 128  up to 1.5 GiB
mma     one                                    above 48, at most 128  up to 1.25 GiB
```

If an engine would need more than the limit for a call, `auto` leaves this call to the next engine. A call that
cannot be fitted into the limit fails with ANNULUS_ERROR_WORKSPACE. annulus_last_error_bytes() then says how much its
engine needs. Since 1.0.
""" function annulus_config_set_workspace_limit(config, bytes)
    @library_call annulus_config_set_workspace_limit(config::Ptr{annulus_config}, bytes::UInt64)::annulus_status
end

@doc raw"""
Writes the upper bound for the workspace of a call to \*bytes, or 0 for the engine's own choice. Since 1.0.
""" function annulus_config_get_workspace_limit(config, bytes)
    @library_call annulus_config_get_workspace_limit(config::Ptr{annulus_config}, bytes::Ptr{UInt64})::annulus_status
end

@doc raw"""
How a context with a communicator (comm.h) moves rows of K and V between ranks. `ring` and `gather` send the same
rows: the rows that some query of the receiver attends to. They give the same result up to rounding. For each shard
of a sequence, `ring` needs memory for the rows of two other shards. `gather` needs memory for all rows that the
rank's queries attend to.

`auto` is `gather` if there is room for the rows that each rank then gets, else `ring`. The room is the largest of

- the memory of K and V of the rank with most rows,
- four times that memory, if the ring has more than 8 hops between shards with rows: each message of such a ring is
  small, and costs more than its bytes,
- eight times that memory, at most 256 MiB: few rows cost less than the launches of each hop.

`auto` decides for each sequence of a call, the shorter sequences first, and counts the rows of all gathered
sequences. Along the Hilbert order, and in some cases of the query rule `residue`, `auto` counts a shard whole.

`auto` is also `ring` in two cases:

- The decision would take more than 2^21 steps (attention.h). This can happen with thousands of unequal shards.
- More than 2^26 pairs of shards share segments.
""" const annulus_exchange = Int32
const ANNULUS_EXCHANGE_AUTO = annulus_exchange(0) # `ring` or `gather`, as said above (default)
const ANNULUS_EXCHANGE_RING = annulus_exchange(1) # in up to shards - 1 hops; see above
const ANNULUS_EXCHANGE_GATHER = annulus_exchange(2) # all rows at once; see above

@doc raw"""
Sets the exchange. Every rank sets the same exchange. Without a communicator the exchange has no effect. Since 1.0.
""" function annulus_config_set_exchange(config, exchange)
    @library_call annulus_config_set_exchange(config::Ptr{annulus_config}, exchange::annulus_exchange)::annulus_status
end

@doc raw"""
Writes to \*exchange the exchange that was set. Since 1.0.
""" function annulus_config_get_exchange(config, exchange)
    @library_call annulus_config_get_exchange(config::Ptr{annulus_config}, exchange::Ptr{annulus_exchange})::annulus_status
end

@doc raw"""
Appends `count` >= 1 branches with w_i = segment_length * segment_ratio^i and r_i = dilation_ratio^i, and changes
nothing else. This is LongNet's geometric series (paper: section 3.1; its models use ratios of 2 or 4).
segment_length, segment_ratio and dilation_ratio are >= 1. ANNULUS_ERROR_ARGUMENT: a w_i or r_i is beyond int64.
Since 1.0.
""" function annulus_config_add_longnet(config, segment_length, segment_ratio, dilation_ratio, count)
    @library_call annulus_config_add_longnet(config::Ptr{annulus_config}, segment_length::Int64, segment_ratio::Int64, dilation_ratio::Int64, count::Int32)::annulus_status
end

@doc raw"""
Sets up the config for a published model, as the model's weights were trained. Appends the model's branches, and sets
the padding rule, the key rule and whether attention is causal. The rules hold for all branches, so the config must
have no branch before the call. More branches may follow. The rest of the config stays as it is.

```text
gigapath  Prov-GigaPath's slide encoder: w = 1024, 5792, 32768, 185363, 1048576 and r = 1, 2, 4, 8, 16 with block
          phases; zero_keys padding, keys count for each branch, not causal. Its problems have H = 16, D = 48,
          N = number of tiles + 1.
```

ANNULUS_ERROR_ARGUMENT: `name` is NULL or is no preset's name, or the config has a branch. Since 1.0.
""" function annulus_config_add_preset(config, name)
    @library_call annulus_config_add_preset(config::Ptr{annulus_config}, name::Cstring)::annulus_status
end

@doc raw"""
Returns the name of preset `index`, counted from 0. Returns NULL if there is no such preset, for instance after the
last preset. Static. Any thread. Since 1.0.
""" function annulus_preset_name(index)
    @library_call annulus_preset_name(index::Int32)::Cstring
end

@doc raw"""
Appends `count` branches and changes nothing else. The branches share the `heads` query heads out among themselves,
instead of each branch serving all heads. Head-grouped implementations of dilated attention do the same. Each branch
has heads / count heads, and each of the first heads % count branches has one more. Branch i uses the fixed residue i
mod r_i.

segment_lengths and dilations hold `count` numbers each, with the ranges of annulus_branch. 1 <= count <= heads.
Since 1.0.
""" function annulus_config_add_head_groups(config, heads, count, segment_lengths, dilations)
    @library_call annulus_config_add_head_groups(config::Ptr{annulus_config}, heads::Int32, count::Int32, segment_lengths::Ptr{Int64}, dilations::Ptr{Int64})::annulus_status
end

@doc raw"""
A context: a config bound to a device, with what calls have in common.
""" mutable struct annulus_context end

@doc raw"""
A kind of device.
""" const annulus_device = Int32
const ANNULUS_DEVICE_CPU = annulus_device(1) # the CPUs that the process may run on: one device
const ANNULUS_DEVICE_CUDA = annulus_device(2) # an NVIDIA GPU

@doc raw"""
Writes to \*count how many devices of a kind can be used on this machine. For ANNULUS_DEVICE_CPU the number is 1. For
ANNULUS_DEVICE_CUDA it is the number of devices that the CUDA runtime sees. It is 0 if there is no driver, or if
annulus's part for CUDA cannot be loaded. ANNULUS_ERROR_ARGUMENT: count is NULL or `device` is unknown. Any thread.

annulus's part for CUDA is the file libannulus-cuda.so.1. No other file of annulus needs CUDA's libraries. The first
function that is asked for CUDA opens the file by dlopen(). It looks beside the library's own file, or else where the
dynamic loader looks. The file must be of the same version as the library, and stays loaded for the life of the
process. If loading the file fails, annulus does not try again, and annulus_context_create() says why. Since 1.0.
""" function annulus_device_count(device, count)
    @library_call annulus_device_count(device::annulus_device, count::Ptr{Int32})::annulus_status
end

@doc raw"""
Functions by which a context gets the workspace of a call, if no workspace is set.

```text
size      sizeof(annulus_allocator)
allocate  returns `bytes` of memory on the context's device aligned to `alignment` (a power of two), or NULL
release   gives back what allocate returned, with the same `bytes` and `alignment`
user      is handed to both functions
```

`stream` is the context's stream, or NULL on a CPU. On CUDA only work on that stream uses the memory, and release is
called while that work may not be done yet.

The thread that calls annulus calls both functions, with the context's device current. Both functions

- must not throw,
- must not use the context, because the context is in a call,
- must stay callable as long as the context uses them.
""" struct annulus_allocator
    size::Csize_t
    allocate::Ptr{Cvoid}
    release::Ptr{Cvoid}
    user::Ptr{Cvoid}
end

const ANNULUS_ALLOCATOR_INIT = annulus_allocator(sizeof(annulus_allocator), C_NULL, C_NULL, C_NULL)

@doc raw"""
Makes a context in \*context for device number `index` of a kind, counted from 0 as the CUDA runtime does. The context
has no config yet. The caller destroys the context.

ANNULUS_ERROR_ARGUMENT: context is NULL, `device` is unknown or there is no device `index`. On a CPU also: the
environment variable ANNULUS_NUM_THREADS is set but is not a number from 1 to 1024.

ANNULUS_ERROR_UNSUPPORTED: there is no device of the kind at all; the message says why.

ANNULUS_ERROR_MEMORY, ANNULUS_ERROR_DEVICE: the device exists but could not be used. Since 1.0.
""" function annulus_context_create(context, device, index)
    @library_call annulus_context_create(context::Ptr{Ptr{annulus_context}}, device::annulus_device, index::Int32)::annulus_status
end

@doc raw"""
Destroys a context. NULL is legal. Workspace, allocator and stream stay the caller's. No other thread may use the
context at the same time.

On a CUDA device this function waits for no work, neither for the context's own work nor for the work of others. The
context's work goes on to its end. Synchronise the stream before you free what the context's calls use. Since 1.0.
""" function annulus_context_destroy(context)
    @library_call annulus_context_destroy(context::Ptr{annulus_context})::Cvoid
end

@doc raw"""
Gives the context a copy of `config`. Later changes of `config` do not reach the context. ANNULUS_ERROR_ARGUMENT: a
handle is NULL or the config has no branch. ANNULUS_ERROR_UNSUPPORTED: the config's engine does not run on this
device. Since 1.0.
""" function annulus_context_set_config(context, config)
    @library_call annulus_context_set_config(context::Ptr{annulus_context}, config::Ptr{annulus_config})::annulus_status
end

@doc raw"""
Makes a copy, in \*config, of the config that the context was given last. The caller destroys the copy.
ANNULUS_ERROR_ARGUMENT: a pointer is NULL or the context has no config. Since 1.0.
""" function annulus_context_copy_config(config, context)
    @library_call annulus_context_copy_config(config::Ptr{Ptr{annulus_config}}, context::Ptr{annulus_context})::annulus_status
end

@doc raw"""
Sets the stream on which device work is ordered. On a CUDA device it is a cudaStream_t (a CUstream) of that device,
or NULL for the legacy default stream (default). The stream stays the caller's and must live as long as the context
uses it. A CPU context has no stream: NULL is accepted, any other value is ANNULUS_ERROR_UNSUPPORTED. Since 1.0.
""" function annulus_context_set_stream(context, stream)
    @library_call annulus_context_set_stream(context::Ptr{annulus_context}, stream::Ptr{Cvoid})::annulus_status
end

@doc raw"""
Sets the allocator that serves calls without a workspace. The context copies \*allocator. NULL restores the device's
own allocator:

```text
CPU   the process's memory
CUDA  a stream-ordered pool that the contexts of the device share, and that keeps its memory for the next call
```

The pool's memory goes back to the system when the last of these contexts is destroyed, if all work of their calls is
done by then. Otherwise the memory stays for later contexts. ANNULUS_ERROR_ARGUMENT: size is too small, non-zero
bytes follow what this version knows, or a function is NULL. Since 1.0.
""" function annulus_context_set_allocator(context, allocator)
    @library_call annulus_context_set_allocator(context::Ptr{annulus_context}, allocator::Ptr{annulus_allocator})::annulus_status
end

@doc raw"""
Sets `bytes` of device memory that calls use instead of allocating. NULL with 0 bytes goes back to allocating. The
memory needs no alignment, stays the caller's and must outlive the calls that use it. After these calls its contents
are undefined.

A call that needs more bytes fails with ANNULUS_ERROR_WORKSPACE, and annulus_last_error_bytes() says how many bytes
it needs. Before the call, annulus_workspace_size() tells how many bytes it needs.

A call fails with ANNULUS_ERROR_ARGUMENT if one of its tensors lies in the workspace, or has workspace bytes in the
gaps between its rows. annulus_merge() is an exception: it uses no workspace and looks at none.

ANNULUS_ERROR_ARGUMENT: `workspace` is not memory of the context's device. Since 1.0.
""" function annulus_context_set_workspace(context, workspace, bytes)
    @library_call annulus_context_set_workspace(context::Ptr{annulus_context}, workspace::Ptr{Cvoid}, bytes::Csize_t)::annulus_status
end

@doc raw"""
Sets how many CPU threads a call may use: 1 to 1024, or 0 for the default. Results do not depend on the number of
threads, but the workspace does. On a CUDA device calls use no threads, so the number has no effect there.

The default is the value that the environment variable ANNULUS_NUM_THREADS had when the context was made. If the
variable was not set, the default is the smaller of two numbers:

- the number of CPUs that the calling thread may run on (sched_getaffinity()) when it calls,
- the CPU quota, rounded up to whole CPUs, of the process's cgroups and their parents when the context was made
  (cpu.max, or cpu.cfs_quota_us divided by cpu.cfs_period_us).

The library does not read variables of OpenMP. Since 1.0.
""" function annulus_context_set_threads(context, threads)
    @library_call annulus_context_set_threads(context::Ptr{annulus_context}, threads::Int32)::annulus_status
end

@doc raw"""
Writes to \*threads how many CPU threads a call that is made now may use. This is the number that was set, or the
default for the calling thread. On a CUDA device it is 1. ANNULUS_ERROR_ARGUMENT: a pointer is NULL. Since 1.0.
""" function annulus_context_get_threads(context, threads)
    @library_call annulus_context_get_threads(context::Ptr{annulus_context}, threads::Ptr{Int32})::annulus_status
end

@doc raw"""
Writes to \*engine the engine that served the last successful call of annulus_forward(), annulus_backward() or
annulus_attention_mass(). Writes ANNULUS_ENGINE_AUTO before the first such call. ANNULUS_ERROR_ARGUMENT: a pointer is
NULL. Since 1.0.
""" function annulus_context_last_engine(context, engine)
    @library_call annulus_context_last_engine(context::Ptr{annulus_context}, engine::Ptr{annulus_engine})::annulus_status
end

@doc raw"""
Bits of annulus_call_options.flags. Only bits 0 to 30 can be flags, because an int32_t holds them. Every other option
of a call has a field of its own.
""" const annulus_call_flag = Int32
const ANNULUS_CALL_QUERY_WINDOW = annulus_call_flag(1) # Q's rows are a window of the rows of K and V, from query_start on; with ranks (comm.h) that is ANNULUS_ERROR_UNSUPPORTED
const ANNULUS_CALL_ADD_D_Q = annulus_call_flag(2) # backward adds dQ to what d_q holds, in one rounding; else d_q is overwritten
const ANNULUS_CALL_ADD_D_K = annulus_call_flag(4) # the same for d_k
const ANNULUS_CALL_ADD_D_V = annulus_call_flag(8) # the same for d_v

@doc raw"""
Options of a call. Set `size` to sizeof(annulus_call_options), best by ANNULUS_CALL_OPTIONS_INIT. NULL in place of
the struct means the same as that initial value. The arrays are read during the call only.

Rows. There is at least one row; only a rank of several (comm.h) may have none. Without ANNULUS_CALL_QUERY_WINDOW, Q
and K have the same number of rows, Nq == N, and row j of Q, O, LSE and their gradients is position j. With it, row j
is position query_start + j, and query_start + Nq <= N: the query rows are a part of the N key rows. Examples are one
token that is decoded against a cache, and a long job that is done in pieces.

Sequences. If sequence_count is 0, the N rows of each batch entry are one sequence. Else it is the number S of
sequences. They are either

```text
packed  sequence_starts holds S + 1 numbers, called cu_seqlens elsewhere. Sequence i has the rows starts[i] …
        starts[i + 1] - 1 of every batch entry. 0 <= starts[0], the numbers never fall, and starts[S] <= N. With
        sequence_lengths, sequence i has only the first lengths[i] of its rows, 0 <= lengths[i] <= starts[i + 1] -
        starts[i].
padded  sequence_starts is NULL and S is B. Batch entry b is a sequence of its first lengths[b] rows, 0 <=
        lengths[b] <= N.
```

The config holds for each sequence by itself. Segments, places, residues, Hilbert grids, causality and padding count
inside a sequence and by its own length, and no query attends to another sequence's keys. If a branch's segment is
the whole sequence, its grid width must divide the length of each sequence that is not empty.

Rows that belong to no sequence are no keys. As queries they have O = 0, LSE = -infinity and gradients of zero.
Positions still count the rows of K and V, also in a query window. With several ranks (comm.h) the numbers count the
rows of all ranks, each rank passes the same numbers, and a sequence may lie on several ranks.
""" struct annulus_call_options
    size::Csize_t
    flags::UInt64 # bits of annulus_call_flag
    query_start::Int64 # with ANNULUS_CALL_QUERY_WINDOW the position of row 0 of Q, else 0
    sequence_count::Int64 # S; 0: neither of the next two is given
    sequence_starts::Ptr{Int64} # [S + 1] in host memory, or NULL
    sequence_lengths::Ptr{Int64} # [S] in host memory, or NULL
end

const ANNULUS_CALL_OPTIONS_INIT = annulus_call_options(sizeof(annulus_call_options), 0, 0, 0, C_NULL, C_NULL)

@doc raw"""
Computes O and, if `lse` is not NULL, LSE.

```text
q     [B, Nq, H, D]  input            out   [B, Nq, H, D]  output, dtype of q
k, v  [B, N,  G, D]  inputs           lse   [B, H, Nq]     output, float32 (float64 if q is float64), or NULL
options  or NULL; bits that say how gradients are written are an error here
```

All tensors are in the memory of the context's device: on CUDA memory of that device, or managed memory. tensor.h
says what strides and overlap are allowed. The call is ordered on the context's stream and does not wait for it. On a
CPU it returns when the work is done. On success every element of out and lse is written.

In these cases nothing is written:

ANNULUS_ERROR_ARGUMENT: a handle or required tensor is NULL; the context has no config; a dtype, ndim, shape, stride,
alignment, overlap or memory is not as above; the options are not as annulus_call_options says; a branch's heads or
grid width do not fit the problem; sizes overflow.

ANNULUS_ERROR_UNSUPPORTED: D is no multiple of 8 from 8 to 256, or the config's engine cannot do this; the message
says why.

ANNULUS_ERROR_WORKSPACE: the context's workspace or the config's workspace limit is too small.
annulus_last_error_bytes() tells how many bytes the call needs (status.h).

ANNULUS_ERROR_MEMORY: an allocation failed, or no memory can hold what is needed.

In this case outputs may be partly written:

ANNULUS_ERROR_DEVICE: the device failed.

Since 1.0.
""" function annulus_forward(context, q, k, v, out, lse, options)
    @library_call annulus_forward(context::Ptr{annulus_context}, q::Ptr{annulus_tensor}, k::Ptr{annulus_tensor}, v::Ptr{annulus_tensor}, out::Ptr{annulus_tensor}, lse::Ptr{annulus_tensor}, options::Ptr{annulus_call_options})::annulus_status
end

@doc raw"""
Computes the gradients of forward. From dO (and from dLSE, if `d_lse` is not NULL) it computes dQ, dK and dV. With
P\[n,m\] = (multiplicity of m in A(n,h)) * exp(scale * Q.K - LSE) and delta\[n\] = O\[n\] . dO\[n\]:

```text
dV[m] = sum_n P dO[n]    dS = scale * P * (dO.V - delta + dLSE)    dQ[n] = sum_m dS K[m]    dK[m] = sum_n dS Q[n]
```

dK and dV are summed over the H/G query heads that share a key/value head.

```text
q, out, d_out  [B, Nq, H, D] inputs      d_q       [B, Nq, H, D] output       lse    [B, H, Nq] input, from forward
k, v           [B, N,  G, D] inputs      d_k, d_v  [B, N,  G, D] outputs      d_lse  [B, H, Nq] input, or NULL
```

q, k, v, out and lse must be those of a forward call with the same config, query window and sequences. Instead, out
and lse may be what annulus_merge() made of that call's results and others. P is found from lse, with the precision
of its dtype. With a query window, d_k and d_v are the contribution of its query rows.

Dtypes. Each of d_q, d_k and d_v has the dtype of q. If that is bfloat16 or float16, each of them may be float32
instead. Then sums of several calls need not be rounded to 16 bits.

Adding. Each of them is overwritten, unless the options have its bit (ANNULUS_CALL_ADD_D_Q, _K, _V). Then the
gradient is added to what the tensor holds. The sum is computed in float32 (float64 for float64) and rounded once. A
row that gets no gradient stays as it is, bit for bit. A NaN in the tensor stays NaN and reaches no other element.

With several ranks (comm.h) each rank has its own dtypes and bits. They say how this rank writes its own rows,
whatever the other ranks do.

Everything else as annulus_forward(). Since 1.0.
""" function annulus_backward(context, q, k, v, out, lse, d_out, d_lse, d_q, d_k, d_v, options)
    @library_call annulus_backward(context::Ptr{annulus_context}, q::Ptr{annulus_tensor}, k::Ptr{annulus_tensor}, v::Ptr{annulus_tensor}, out::Ptr{annulus_tensor}, lse::Ptr{annulus_tensor}, d_out::Ptr{annulus_tensor}, d_lse::Ptr{annulus_tensor}, d_q::Ptr{annulus_tensor}, d_k::Ptr{annulus_tensor}, d_v::Ptr{annulus_tensor}, options::Ptr{annulus_call_options})::annulus_status
end

@doc raw"""
Computes how much each key is attended to: for each key and query head the attention mass, which is the sum of the
probabilities that all queries gave the key in forward. With P as in annulus_backward():

```text
mass[m,h] = sum_n P[n,m]          P[n,m] = (multiplicity of m in A(n,h)) * exp(scale * Q.K - LSE)
```

```text
q     [B, Nq, H, D]  input                            mass  [B, H, N]  output, dtype of lse, any strides
k     [B, N,  G, D]  input, dtype of q                options  as in annulus_forward(), or NULL
lse   [B, H, Nq]     input, from forward
```

q, k and lse are those of a forward call with the same config, query window and sequences.

- The masses of a head add up to the number of queries that attend to anything, less what keys of zero_keys padding
  take. These keys have no row.
- A key that no query attends to has 0.
- With a query window the queries are those of the window. One row of Q tells what this query alone attends to.
- With several ranks (comm.h) every rank gets the mass of its own keys, over the queries of all ranks.

Cost: two of backward's five products, which is about what forward costs. The workspace grows with N * D;
annulus_workspace_size() tells it for ANNULUS_PASS_MASS. If H/G is more than D, the call works in ceil(H/G / D)
rounds of the same cost.

Precision: the relative error of a probability is that of the rounded LSE, |LSE| * 2^-23 \[float64: 2^-52\]. For
bfloat16 and float16 inputs, engines may round each probability to the dtype before they add it. That is a relative
error of at most 2^-9 \[float16: 2^-11, and a probability below 2^-25 counts as 0\]. Sums are in float32 (float64 for
float64).

A query's row may hold NaN, or its LSE may be 2^20 \[2^49\] or more. Then the masses of the keys that it attends to may
be NaN, in all heads that share a key/value head. It makes no other masses NaN.

Everything else, errors too, as annulus_forward(). Since 1.0.
""" function annulus_attention_mass(context, q, k, lse, mass, options)
    @library_call annulus_attention_mass(context::Ptr{annulus_context}, q::Ptr{annulus_tensor}, k::Ptr{annulus_tensor}, lse::Ptr{annulus_tensor}, mass::Ptr{annulus_tensor}, options::Ptr{annulus_call_options})::annulus_status
end

@doc raw"""
The greatest number of parts that annulus_merge() takes.
""" const ANNULUS_MAX_MERGE_PARTS = 48

@doc raw"""
Options of a merge. Set `size` to sizeof(annulus_merge_options), best by ANNULUS_MERGE_OPTIONS_INIT. NULL in place of
the struct means the same as that initial value.
""" struct annulus_merge_options
    size::Csize_t
    flags::UInt64 # 0: this version knows none
end

const ANNULUS_MERGE_OPTIONS_INIT = annulus_merge_options(sizeof(annulus_merge_options), 0)

@doc raw"""
Merges results of forward calls for the same queries over different keys. The result is what one call over all of
these keys would give. With O_i = outs\[i\] and LSE_i = lses\[i\] of part i:

```text
LSE[n,h] = log sum_i exp(LSE_i[n,h])        O[n,h] = sum_i exp(LSE_i[n,h] - LSE[n,h]) * O_i[n,h]
```

This is the rule for partial results of a softmax (e.g. Milakov & Gimelshein 2018, arXiv:1805.02867). Logarithms are
natural. Other libraries merge attention states by the same rule, but some have LSE to the base 2: multiply such an
LSE by ln 2. If a key is in two parts, it counts twice.

```text
outs  [count], each [B, Nq, H, D]  inputs     out  [B, Nq, H, D]  output, dtype of outs
lses  [count], each [B, H, Nq]     inputs     lse  [B, H, Nq]     output, dtype of lses, or NULL
count  from 1 to ANNULUS_MAX_MERGE_PARTS      options  or NULL
```

All outs have one dtype. lses are float32, or float64 if outs are float64. Nq may be 0. Strides are as in tensor.h,
and each tensor has its own. Sums are in float32 (float64) and rounded to out once.

- If LSE of a row is -infinity in a part, this part counts for nothing there, whatever its O holds.
- If it is -infinity in all parts, O is 0 and LSE is -infinity.
- If it is NaN or +infinity in a part, that row of O and LSE is NaN, and no other row. (FlashAttention-2 gives rows
  without keys an LSE of +infinity: make it -infinity.)
- If an element of O is infinite in one part, the result is infinite, however small the part's weight. If parts
  have both infinities, or one has NaN, it is NaN.
- If a sum over the |O_i| of finite elements leaves the range of the sums, the element is right, infinite or NaN.

out may be one of outs, and lse one of lses: with the same data, shape and strides. Any other overlap is an error, as
in tensor.h.

The context needs no config, and no workspace is used. The call is not collective: with a communicator a rank merges
its own rows, alone. It is ordered on the context's stream as forward is, and may be captured into a graph.

Gradients need no function of their own. Call annulus_backward() for each part, with the part's q, k, v and config,
but with the merged out and lse, and with d_out and d_lse of the merged results. Each call gives the whole d_k and
d_v of its keys and its share of d_q. The sum of these shares is d_q. This is right because backward uses the other
keys only in P = exp(scale * Q.K - LSE) and delta = O . dO, and both are those of the merged results.

In these cases nothing is written:

ANNULUS_ERROR_ARGUMENT: context, outs, lses or out is NULL; count, a dtype, ndim, shape, stride, alignment, overlap
or memory is not as above; options is not as annulus_merge_options says.

ANNULUS_ERROR_UNSUPPORTED: D is no multiple of 8 from 8 to 256, or float64 on CUDA.

Since 1.0.
""" function annulus_merge(context, count, outs, lses, out, lse, options)
    @library_call annulus_merge(context::Ptr{annulus_context}, count::Int32, outs::Ptr{annulus_tensor}, lses::Ptr{annulus_tensor}, out::Ptr{annulus_tensor}, lse::Ptr{annulus_tensor}, options::Ptr{annulus_merge_options})::annulus_status
end

@doc raw"""
The passes over queries and keys, for questions about their cost.
""" const annulus_pass = Int32
const ANNULUS_PASS_FORWARD = annulus_pass(1) # annulus_forward()
const ANNULUS_PASS_BACKWARD = annulus_pass(2) # annulus_backward()
const ANNULUS_PASS_MASS = annulus_pass(3) # annulus_attention_mass()

@doc raw"""
The sizes of a problem without its data. Set `size` to sizeof(annulus_problem), best by ANNULUS_PROBLEM_INIT. Then
set dtype, heads, kv_heads, head_dim, batch and sequence_length. If one of them is 0, that is an error that names it.
In a context with a communicator (comm.h) the problem is that of all ranks together, and the answers are for the
context's own rank.

options points to the options of the call in question; NULL means that the call has none. A pass checks them as its
call does, with sequence_length as the number of rows of K. With ANNULUS_CALL_QUERY_WINDOW the queries are
query_length rows from the options' query_start on: 1 <= query_length and query_start + query_length <= N. Without it
query_length is 0 or N.

row_alignment says what is known about the call's tensors. 0 means that nothing is known. Else it is a power of two
up to 4096, and two things hold for all tensors:

- every row (the D elements of a head) begins at a multiple of this number of bytes,
- no dimension of more than one element has a stride of 0 or of 2^40 bytes or more.

16 is enough for every engine. The workspace size is enough for all tensors with these properties. For some of them
ANNULUS_ENGINE_AUTO may compute with another engine. Then the size is that of the engine that needs most.

gradient_dtype is the dtype of d_q, d_k and d_v. 0 or dtype means the dtype of q. If dtype is bfloat16 or float16,
ANNULUS_FLOAT32 means that at least one of d_q, d_k and d_v is float32. Only backward uses gradient_dtype.
""" struct annulus_problem
    size::Csize_t
    dtype::annulus_dtype
    gradient_dtype::annulus_dtype # or 0
    heads::Int32 # H
    kv_heads::Int32 # G
    head_dim::Int32 # D
    batch::Int64 # B
    sequence_length::Int64 # N, of all ranks together
    query_length::Int64 # Nq with ANNULUS_CALL_QUERY_WINDOW; else 0 or N
    row_alignment::Int64 # bytes, or 0
    options::Ptr{annulus_call_options} # or NULL
end

const ANNULUS_PROBLEM_INIT = annulus_problem(sizeof(annulus_problem), ANNULUS_DTYPE_NONE, ANNULUS_DTYPE_NONE, 0, 0, 0, 0, 0, 0, 0, C_NULL)

@doc raw"""
What one pass of a problem costs one rank. Set `size` to sizeof(annulus_estimate) before the call, best by
ANNULUS_ESTIMATE_INIT.

pairs counts (query, key) pairs of the rank's queries over batch, heads and branches. If several branches give a key
to a query, it counts for each of them, whatever the key rule. The number is exact, with one exception. In the
Hilbert order, positions are taken as evenly spread over the segment in three cases: with a query window, with
several ranks, or if causal with the query rule `every`.

flops are those of the pass's matrix products; a multiplication and an addition are two. Forward has 4 * pairs * D,
backward 10 * pairs * D, and each of the ceil(H/G / D) rounds of attention mass 4 * pairs * D.

tensor_bytes are those of the rank's elements of all tensors that the pass reads and writes:

```text
forward   q, k, v, out, lse
backward  q, k, v, out, lse, d_out, d_q, d_k, d_v; the last three in gradient_dtype; no d_lse
mass      q, k, lse, mass
```

sent_bytes and received_bytes are exactly what a call sends and receives. Rows of K and V go to the ranks that attend
to them, and in backward their dK and dV come back. In each round of attention mass rows of K go out, and a row of
sums comes back for each.

If processes of one host share a communicator over NCCL, the communicator keeps more memory on each device. It has
room for the most that was ever sent to each rank at once. For one problem that is at most the bytes sent here,
rounded up to 2 MiB.

received_messages counts the messages of rows of K and V that the rank's shards receive, also from shards of the same
rank. A shard gets one or a few messages from each shard whose keys it attends to. Messages that arrive at once from
shards side by side count as one if their rows lie alike: the shard computes with them together. Each round of
attention mass receives this number of messages.
""" struct annulus_estimate
    size::Csize_t
    pairs::Cdouble
    flops::Cdouble
    tensor_bytes::UInt64
    workspace_bytes::UInt64 # memory that the call needs besides its tensors, as annulus_workspace_size()
    sent_bytes::UInt64 # to all other ranks together
    received_bytes::UInt64 # from all other ranks together
    plan_bytes::UInt64 # host memory of the plan itself
    exchange::annulus_exchange # what `auto` comes to; ANNULUS_EXCHANGE_AUTO if there is one rank
    received_messages::Int64 # see above; 0 if there is one rank
end

const ANNULUS_ESTIMATE_INIT = annulus_estimate(sizeof(annulus_estimate), 0, 0, 0, 0, 0, 0, 0, ANNULUS_EXCHANGE_AUTO, 0)

@doc raw"""
Stands in place of a branch's index for all branches of the config.
""" const ANNULUS_ALL_BRANCHES = -1

@doc raw"""
Estimates a pass of a problem under the context's config, in \*estimate.

branch: ANNULUS_ALL_BRANCHES, or an index of the config. With an index, pairs and flops are that branch's share, and
everything else is that of the whole call.

ANNULUS_ERROR_ARGUMENT: a pointer is NULL, the context has no config, `pass` is unknown, `branch` does not exist, a
size is not known or non-zero bytes follow what this version knows, or the problem is not legal.
ANNULUS_ERROR_UNSUPPORTED: as annulus_forward(), or the plan of several ranks takes too many steps (below).
ANNULUS_ERROR_WORKSPACE: a call needs more than the config's workspace limit. ANNULUS_ERROR_MEMORY: it needs more
than any memory can hold, or an allocation failed. Since 1.0.

Time and memory of an estimate grow with the number of branches, not with N or H. With 64 branches it takes some
hundredths of a second.

Several ranks. A plan knows the rows of every message. Estimates and workspace sizes take at most 2^21 steps for all
shards and sequences of the rank (about a tenth of a second on one core). If they would take more, they are
ANNULUS_ERROR_UNSUPPORTED, and the message says what is too much. Steps are:

```text
Ranks and heads: each message takes some 20 steps. Each of its key/value heads takes some more for every branch
whose segments reach over the border of a shard. 4096 ranks with 32 heads and 11 branches are not too many.
```

```text
Shards: a shard exchanges messages with each shard that shares a segment with it. The steps grow with the shards
and with the shards in reach of each, not with all pairs. So a rank of many shards of a few rows can be planned for
if segments reach few of them.
```

```text
The Hilbert order: about 4 steps for each column of the grid, for each rank in reach, in every branch of dilation
2 or more whose segments reach over the border of a shard. 2^30 positions on a square grid may lie on 8 ranks.
```

```text
Rows of several branches: branches in the Hilbert order may want rows of the same part of a shard. Then the plan
looks at the rows of all of these branches but one, at some steps a row. Parts that only one branch reaches do not
count.
In the linear order, dilations without common divisors count, if about a million products of them are below the
length of a shard.
```

A call has no such limit, only one of 2^36 steps. Its plan takes time that grows with the rows that the rank sends
and receives. This is less time than it takes to move these rows and compute with them. After the call the plan is
there, and annulus_workspace_size() answers.

A plan takes about a kilobyte for each pair of a sending and a receiving shard. A pair counts if both share a
segment, if one is within the other's window, or if one has global positions. All shards between a shard and global
positions count. If the shards of a rank are in more than 2^19 pairs, calls and estimates are
ANNULUS_ERROR_UNSUPPORTED. If a segment is the whole sequence, 4096 shards may be dealt to 64 ranks, or 724 shards to
2 ranks. Under causality 1024 shards may be dealt to 2 ranks.
""" function annulus_estimate_problem(context, problem, pass, branch, estimate)
    @library_call annulus_estimate_problem(context::Ptr{annulus_context}, problem::Ptr{annulus_problem}, pass::annulus_pass, branch::Int32, estimate::Ptr{annulus_estimate})::annulus_status
end

@doc raw"""
Writes the bytes of workspace that a call of `pass` on `problem` needs at most under the context's config and threads
to \*bytes. This is the size for annulus_context_set_workspace(). It is enough for all tensors that the call accepts
and that are as row_alignment of problem says. Errors as annulus_estimate_problem(). Since 1.0.
""" function annulus_workspace_size(context, problem, pass, bytes)
    @library_call annulus_workspace_size(context::Ptr{annulus_context}, problem::Ptr{annulus_problem}, pass::annulus_pass, bytes::Ptr{UInt64})::annulus_status
end

@doc raw"""
Writes the engine that would compute a call of `pass` on `problem` under the context's config to \*engine. The tensors
are as row_alignment of problem says and no better. If it is 0, the tensors are such that every engine takes them.

ANNULUS_ERROR_UNSUPPORTED: no engine takes such tensors, or the config's engine does not. Other errors as
annulus_workspace_size(). Since 1.0.
""" function annulus_select_engine(context, problem, pass, engine)
    @library_call annulus_select_engine(context::Ptr{annulus_context}, problem::Ptr{annulus_problem}, pass::annulus_pass, engine::Ptr{annulus_engine})::annulus_status
end

@doc raw"""
Returns ANNULUS_OK if `engine` could compute a call of `pass` on `problem` if the config named it, with all else as
the config says. ANNULUS_ENGINE_AUTO asks whether any engine could.

ANNULUS_ERROR_UNSUPPORTED: it could not, and the message says why. This also holds for an engine that is for another
kind of device or not in this build. Other errors as annulus_select_engine(). Since 1.0.
""" function annulus_check_engine(context, problem, pass, engine)
    @library_call annulus_check_engine(context::Ptr{annulus_context}, problem::Ptr{annulus_problem}, pass::annulus_pass, engine::annulus_engine)::annulus_status
end

@doc raw"""
One rank's end of a communicator.
""" mutable struct annulus_comm end

@doc raw"""
Bits of annulus_comm_options.flags. Only bits 0 to 30 are used, as in annulus_call_flag.

Over NCCL, processes of one host agree through shared memory and copy rows from one another's GPU memory. If a rank
cannot reach another rank's memory, as between hosts and between containers, all ranks use NCCL alone. With
ANNULUS_COMM_ONLY_NCCL all ranks use NCCL alone on one host, too. One rank that has the flag is enough: the ranks
tell one another in their first call.

With NCCL alone a call waits for what the call before it exchanges. If a rank is gone, the other ranks notice it when
the timeout is over, unless NCCL reports it earlier.
""" const annulus_comm_flag = Int32
const ANNULUS_COMM_MAY_ABORT = annulus_comm_flag(1) # annulus_comm_create_from_nccl() alone: annulus may abort the caller's ncclComm_t
const ANNULUS_COMM_ONLY_NCCL = annulus_comm_flag(2) # communicators over NCCL: agreement, lengths and rows travel by NCCL alone

@doc raw"""
How a communicator is made. Set `size` to sizeof(annulus_comm_options), best by ANNULUS_COMM_OPTIONS_INIT. A function
that takes a pointer to options also takes NULL, for the defaults. It returns ANNULUS_ERROR_ARGUMENT if

- the size is not known, or non-zero bytes follow what this version knows,
- creation_timeout is negative or not finite,
- flags has a bit that the function does not know.
""" struct annulus_comm_options
    size::Csize_t
    creation_timeout::Cdouble # seconds to wait for the other ranks while the communicator is made; 0: 300
    flags::UInt64 # the sum of some annulus_comm_flag
end

const ANNULUS_COMM_OPTIONS_INIT = annulus_comm_options(sizeof(annulus_comm_options), 0, 0)

@doc raw"""
Makes the ends of a communicator between `ranks` threads of this process, in comms\[0 … ranks - 1\]; comms\[i\] is rank
i's. Its owner destroys each end. The function does not wait, so creation_timeout has no effect.
ANNULUS_ERROR_ARGUMENT: comms is NULL, ranks is not from 1 to 4096, or options are not as above.
ANNULUS_ERROR_MEMORY. Since 1.0.
""" function annulus_comm_create_local(comms, ranks, options)
    @library_call annulus_comm_create_local(comms::Ptr{Ptr{annulus_comm}}, ranks::Int32, options::Ptr{annulus_comm_options})::annulus_status
end

@doc raw"""
Makes a communicator over the processes of an MPI communicator, in \*comm. It is collective: all of these processes
call it. mpi_comm points to an MPI_Comm of the MPI library that annulus's part for MPI is linked with. annulus
duplicates the MPI_Comm.
MPI must stay initialised until the annulus communicator is destroyed. Only the calling thread calls MPI: if it is
the main thread, MPI_THREAD_SINGLE is enough. MPI's duplication cannot be given up, so it waits for the other
processes as long as MPI does, and creation_timeout has no effect.

annulus's part for MPI is the file libannulus-mpi.so.1. It is found and loaded like the part for CUDA
(annulus_device_count()), by the first call of this function or of annulus_build_info(). The process may have another
MPI library, too. If the part's calls would reach that library, or if MPI is initialised in it, the MPI_Comm may
belong to it, and is refused.

What MPI does when a process dies is not up to annulus:

- Open MPI's mpirun ends all processes, unless it is called with --enable-recovery. Only with that option the calls
  of the other processes return. They return late if Open MPI waits until mpirun reports a broken connection.
- The program should then not go on with MPI. Sends and receives, and MPI_Finalize(), may wait for the dead
  process. Over TCP a write to it raises SIGPIPE, which annulus holds back only during its own calls. It is safe to
  end with _exit(), or with MPI_Abort(), which ends all processes.
- MPI may not let annulus give up some messages. They may use the memory of a failed call as long as the program
  calls MPI. So memory that annulus or an allocator gave to this call is not released. A workspace of the caller
  must stay.

ANNULUS_ERROR_ARGUMENT: comm or mpi_comm is NULL, MPI is not initialised, or options are not as above.
ANNULUS_ERROR_UNSUPPORTED: annulus's part for MPI cannot be loaded, or the process has another MPI library, as above.
ANNULUS_ERROR_COMM_LIBRARY: an MPI call failed. Since 1.0.
""" function annulus_comm_create_from_mpi(comm, mpi_comm, options)
    @library_call annulus_comm_create_from_mpi(comm::Ptr{Ptr{annulus_comm}}, mpi_comm::Ptr{Cvoid}, options::Ptr{annulus_comm_options})::annulus_status
end

@doc raw"""
Identifies an NCCL communicator. One rank makes it. It is plain bytes, and the program carries them to all ranks by
any means.
""" struct annulus_nccl_id
    bytes::NTuple{128, Cchar}
end

@doc raw"""
Generates an id in \*id, for one communicator. One rank calls it.

annulus is not linked with NCCL. The first function that needs NCCL opens libnccl.so.2 by dlopen(). If the process
has a library of that soname already, as after PyTorch or CuPy has loaded theirs, annulus gets that one. Else it gets
what the dynamic loader finds, as in LD_LIBRARY_PATH or the system's directories. The library stays for the life of
the process.

ANNULUS_ERROR_ARGUMENT: id is NULL.
ANNULUS_ERROR_UNSUPPORTED: annulus's part for CUDA cannot be loaded (annulus_device_count()) or was built without
NCCL, or libnccl.so.2 cannot be loaded or is older than 2.14.
ANNULUS_ERROR_COMM_LIBRARY: an NCCL call failed. Since 1.0.
""" function annulus_nccl_id_generate(id)
    @library_call annulus_nccl_id_generate(id::Ptr{annulus_nccl_id})::annulus_status
end

@doc raw"""
Makes rank `rank` of an NCCL communicator of `ranks` ranks on CUDA device `device`, in \*comm. All ranks call it with
the same id. It waits for them for at most creation_timeout, and then returns ANNULUS_ERROR_COMM.

ANNULUS_ERROR_ARGUMENT: comm or id is NULL, rank is not below ranks, there is no such device, or options are not as
above. ANNULUS_ERROR_DEVICE: the device could not be used. Other errors as annulus_nccl_id_generate(). Since 1.0.
""" function annulus_comm_create_nccl(comm, id, ranks, rank, device, options)
    @library_call annulus_comm_create_nccl(comm::Ptr{Ptr{annulus_comm}}, id::Ptr{annulus_nccl_id}, ranks::Int32, rank::Int32, device::Int32, options::Ptr{annulus_comm_options})::annulus_status
end

@doc raw"""
Makes the ends of an NCCL communicator over `ranks` CUDA devices of this process, in comms\[0 … ranks - 1\]. comms\[i\]
is for a context on devices\[i\], and a thread of its own uses it. If devices is NULL, the devices are 0 … ranks - 1.
No device may stand there twice. Errors as annulus_comm_create_nccl(). Since 1.0.
""" function annulus_comm_create_nccl_devices(comms, ranks, devices, options)
    @library_call annulus_comm_create_nccl_devices(comms::Ptr{Ptr{annulus_comm}}, ranks::Int32, devices::Ptr{Int32}, options::Ptr{annulus_comm_options})::annulus_status
end

@doc raw"""
Makes a communicator, in \*comm, that uses an existing ncclComm_t. nccl_comm points to the ncclComm_t. It must belong
to the libnccl.so.2 that annulus opens (annulus_nccl_id_generate()). It must not belong to another copy of NCCL, or
to an NCCL that is linked statically into the program. It stays the caller's and must outlive the annulus
communicator. Nobody else may use it while an annulus call runs. The ranks have met already, so creation_timeout has
no effect.

Without ANNULUS_COMM_MAY_ABORT annulus never aborts the ncclComm_t. A failure then breaks only the annulus
communicator: its calls fail at once, and annulus does not call NCCL any more. Kernels of NCCL that are in a stream
already may wait there for another rank, until the caller aborts the ncclComm_t. Destroy the annulus communicator
before that. Destroying it does not wait for those kernels. Some kilobytes of memory, which they may use, stay
allocated for good.

With ANNULUS_COMM_MAY_ABORT annulus aborts the ncclComm_t on failure, which stops those kernels. Once
annulus_comm_status() tells that the communicator is broken, the caller must not use the ncclComm_t any more, not
even to destroy it.

ANNULUS_ERROR_ARGUMENT also if nccl_comm or the ncclComm_t that it points to is NULL. Other errors as
annulus_comm_create_nccl(). Since 1.0.
""" function annulus_comm_create_from_nccl(comm, nccl_comm, options)
    @library_call annulus_comm_create_from_nccl(comm::Ptr{Ptr{annulus_comm}}, nccl_comm::Ptr{Cvoid}, options::Ptr{annulus_comm_options})::annulus_status
end

@doc raw"""
Writes the number of ranks to \*size. ANNULUS_ERROR_ARGUMENT: a pointer is NULL. Any thread. Since 1.0.
""" function annulus_comm_size(comm, size)
    @library_call annulus_comm_size(comm::Ptr{annulus_comm}, size::Ptr{Int32})::annulus_status
end

@doc raw"""
Writes the rank of this end, from 0, to \*rank. ANNULUS_ERROR_ARGUMENT: a pointer is NULL. Any thread. Since 1.0.
""" function annulus_comm_rank(comm, rank)
    @library_call annulus_comm_rank(comm::Ptr{annulus_comm}, rank::Ptr{Int32})::annulus_status
end

@doc raw"""
Sets how many seconds a call waits for another rank before it fails. The number is more than 0; without this call it
is 300. On CUDA the timeout also holds for work that waits after a call has returned: if a dead rank holds up NCCL's
kernels, they are stopped. Kernels of a borrowed ncclComm_t that annulus may not abort are not stopped. Ranks may
have different timeouts.

ANNULUS_ERROR_ARGUMENT: comm is NULL or in a call of a context, or seconds is not a finite number above 0. Since 1.0.
""" function annulus_comm_set_timeout(comm, seconds)
    @library_call annulus_comm_set_timeout(comm::Ptr{annulus_comm}, seconds::Cdouble)::annulus_status
end

@doc raw"""
Writes the state of the communicator to \*status. Never waits.

- ANNULUS_OK: it is usable, as far as this rank knows. A rank learns that another rank is gone when a call misses
  that rank.
- ANNULUS_ERROR_COMM, ANNULUS_ERROR_COMM_LIBRARY: the status with which it broke.
- ANNULUS_ERROR_DEVICE: it broke because the device of this rank failed, and the other ranks did not get its part.

If it is broken, this call succeeds all the same. Then annulus_last_error() and its companions tell the calling
thread about the failure with which the communicator broke. Over NCCL a communicator may break after a call has
returned. So ask when the stream has come past the call, before you use its results. Any thread.

ANNULUS_ERROR_ARGUMENT: a pointer is NULL, or comm is of the process that this one was forked from. Since 1.0.
""" function annulus_comm_status(comm, status)
    @library_call annulus_comm_status(comm::Ptr{annulus_comm}, status::Ptr{annulus_status})::annulus_status
end

@doc raw"""
Breaks the communicator. Calls of other threads of this process that wait in it return ANNULUS_ERROR_COMM. Calls of
other processes fail when they miss this rank. Any thread. ANNULUS_ERROR_ARGUMENT: comm is NULL. Since 1.0.
""" function annulus_comm_abort(comm)
    @library_call annulus_comm_abort(comm::Ptr{annulus_comm})::annulus_status
end

@doc raw"""
Destroys a rank's end; NULL is legal. It does not wait for other ranks, whose calls fail from then on. If annulus
made an NCCL communicator and it is not broken, its last work gets up to 2 seconds, and then it is aborted. Later
calls of contexts that have this end are ANNULUS_ERROR_ARGUMENT. A call that is in it returns ANNULUS_ERROR_COMM,
unless it has got everything that it waits for. Any thread. Since 1.0.
""" function annulus_comm_destroy(comm)
    @library_call annulus_comm_destroy(comm::Ptr{annulus_comm})::Cvoid
end

@doc raw"""
Makes the context's calls collective over `comm`, which stays the caller's. With NULL the context computes alone
again (default). Forgets the shards.

ANNULUS_ERROR_ARGUMENT: context is NULL, or comm is bound to another device than the context's.
ANNULUS_ERROR_UNSUPPORTED: comm does not work with devices of the context's kind. Since 1.0.
""" function annulus_context_set_comm(context, comm)
    @library_call annulus_context_set_comm(context::Ptr{annulus_context}, comm::Ptr{annulus_comm})::annulus_status
end

@doc raw"""
How ranks share a sequence. Set `size` to sizeof(annulus_shards), best by ANNULUS_SHARDS_INIT. The sequence is cut
into `count` shards, one behind the other. Shard i has lengths\[i\] >= 0 positions and belongs to rank owners\[i\]. If
owners is NULL, shard i belongs to rank i, and count is the number of ranks. The arrays are read during the call
only.

If a rank has several shards, its tensors hold their rows one behind the other, in the order of their positions. So
every rank can get the same amount of work under causality. With P ranks, make 2P shards as equal as can be, and give
shard i to rank min(i, 2P - 1 - i) (zigzag).

Two shards exchange messages of their own if they share a segment, if one is within reach of the other's window, or
if one has global positions. A rank can have 2^19 of these messages (attention.h).
""" struct annulus_shards
    size::Csize_t
    ranks::Int32 # from 1 to 4096; in annulus_context_set_shards() the communicator's, or 0 for it
    count::Int32 # up to 65536; in annulus_estimate_rank() also 0, with both arrays NULL: one shard a rank, as equal as can be, the first ones longer
    lengths::Ptr{Int64} # [count] in host memory
    owners::Ptr{Int32} # [count] in host memory, or NULL
end

const ANNULUS_SHARDS_INIT = annulus_shards(sizeof(annulus_shards), 0, 0, C_NULL, C_NULL)

@doc raw"""
Sets how the communicator's ranks share the sequence. Calls need it in two cases only: if a rank holds several
shards, and if a stream is being captured. Else the ranks tell one another. With NULL each rank has one shard, in the
order of the ranks (default).

The shards are also a check. A call is

- ANNULUS_ERROR_ARGUMENT on every rank if the ranks' tensors have other rows than some rank has set, or if the
  ranks' shards differ and some ranks have several,
- ANNULUS_ERROR_DECLINED on the other ranks if a rank's own tensors do not have the rows that this rank has set.

annulus_workspace_size() and annulus_estimate_problem() ask no other rank. In a context with a communicator they
answer for

- these shards, whose lengths must add up to the problem's sequence length,
- if no shards are set, the shards of the context's last call if they add up to that length,
- else shards as equal as can be, the first ones longer.

ANNULUS_ERROR_ARGUMENT:

- context is NULL or has no communicator,
- a size is not known, or non-zero bytes follow what this version knows,
- ranks is neither 0 nor the number of ranks,
- count is not the number of ranks (if owners is NULL) or not in 1 ... 65536 (with owners),
- lengths is NULL, a length is negative, or all are 0,
- an element of owners is no rank.

Since 1.0.
""" function annulus_context_set_shards(context, shards)
    @library_call annulus_context_set_shards(context::Ptr{annulus_context}, shards::Ptr{annulus_shards})::annulus_status
end

@doc raw"""
Bytes of the rows of K and V, and of dK and dV, that the last successful call of a context sent and received.
""" struct annulus_traffic
    size::Csize_t # sizeof(annulus_traffic)
    sent_bytes::UInt64 # to all other ranks together
    received_bytes::UInt64 # from all other ranks together
end

const ANNULUS_TRAFFIC_INIT = annulus_traffic(sizeof(annulus_traffic), 0, 0)

@doc raw"""
Writes the traffic of the context's last successful call to \*traffic. ANNULUS_ERROR_ARGUMENT: a pointer is NULL or
the size is not known. Since 1.0.
""" function annulus_context_last_traffic(context, traffic)
    @library_call annulus_context_last_traffic(context::Ptr{annulus_context}, traffic::Ptr{annulus_traffic})::annulus_status
end

@doc raw"""
Estimates a pass of rank `rank` of shards->ranks, in \*estimate, for a problem under the context's config. The context
needs no communicator. The shards' lengths add up to the sequence length. pairs and flops are those of all branches.

ANNULUS_ERROR_ARGUMENT: shards or rank are not as above. Other errors as annulus_estimate_problem(), which also says
how large a plan may be. Since 1.0.
""" function annulus_estimate_rank(context, problem, pass, shards, rank, estimate)
    @library_call annulus_estimate_rank(context::Ptr{annulus_context}, problem::Ptr{annulus_problem}, pass::annulus_pass, shards::Ptr{annulus_shards}, rank::Int32, estimate::Ptr{annulus_estimate})::annulus_status
end

@doc raw"""
The greatest number of shards that annulus_shards may have and that annulus_balance_shards() finds.
""" const ANNULUS_MAX_SHARDS = 65536

@doc raw"""
Finds shards of a problem under the context's config that give each of `ranks` ranks about the same work. Writes the
length of each shard to lengths\[\], its rank to owners\[\], as annulus_shards takes them, and the number of shards to
\*count. The options of the problem tell the sequences. The context needs no communicator. Every rank that asks with
the same problem gets the same shards.

The numbers of rows of two ranks differ by at most 1. Each rank has one shard, in the order of the ranks, unless
other shards leave the busiest rank less to do: a zigzag, or shards that keep sequences whole and cut few of them.
Work is the pairs of queries and keys that a rank computes, the rows of K and V that it receives, and their messages.
They are weighed by the rates of a GPU. More than 8 ranks are taken to be on several hosts. For very many ranks and
sequences the search stops after about a second with the best shards so far, on every rank the same. The choice may
change between versions.

capacity: the number of elements of lengths, and of owners. ANNULUS_MAX_SHARDS is always enough.

Errors as annulus_estimate_problem() for a forward pass. ANNULUS_ERROR_ARGUMENT also if lengths, owners or count is
NULL, or if ranks is not from 1 to 4096. The same if capacity is less than 1 or than the number of shards; the
message tells this number. Then nothing was written. Since 1.0.
""" function annulus_balance_shards(context, problem, ranks, capacity, lengths, owners, count)
    @library_call annulus_balance_shards(context::Ptr{annulus_context}, problem::Ptr{annulus_problem}, ranks::Int32, capacity::Int32, lengths::Ptr{Int64}, owners::Ptr{Int32}, count::Ptr{Int32})::annulus_status
end
