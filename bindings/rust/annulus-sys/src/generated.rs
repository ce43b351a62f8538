// SPDX-License-Identifier: Apache-2.0
// Written by bindings/emit.py from the C headers; a test fails when they differ.

use std::marker::{PhantomData, PhantomPinned};
use std::os::raw::{c_char, c_int, c_void};

/// The first number of the headers' version; ABI.md says when each grows.
pub const ANNULUS_VERSION_MAJOR: c_int = 1;

/// The second number.
pub const ANNULUS_VERSION_MINOR: c_int = 0;

/// The third number.
pub const ANNULUS_VERSION_PATCH: c_int = 0;

/// major * 1,000,000 + minor * 1,000 + patch: numbers that compare as versions do.
pub const ANNULUS_VERSION: c_int = 1000000;

/// The enumerations of the headers, for annulus_knows().
pub type annulus_feature = i32;
/// annulus_feature itself
pub const ANNULUS_FEATURE_FEATURE: annulus_feature = 1;
/// annulus_status
pub const ANNULUS_FEATURE_STATUS: annulus_feature = 2;
/// annulus_dtype, ANNULUS_DTYPE_NONE excepted
pub const ANNULUS_FEATURE_DTYPE: annulus_feature = 3;
/// annulus_device
pub const ANNULUS_FEATURE_DEVICE: annulus_feature = 4;
/// annulus_engine
pub const ANNULUS_FEATURE_ENGINE: annulus_feature = 5;
/// annulus_pass
pub const ANNULUS_FEATURE_PASS: annulus_feature = 6;
/// annulus_phase_rule
pub const ANNULUS_FEATURE_PHASE_RULE: annulus_feature = 7;
/// annulus_query_rule
pub const ANNULUS_FEATURE_QUERY_RULE: annulus_feature = 8;
/// annulus_order
pub const ANNULUS_FEATURE_ORDER: annulus_feature = 9;
/// annulus_padding_rule
pub const ANNULUS_FEATURE_PADDING_RULE: annulus_feature = 10;
/// annulus_key_rule
pub const ANNULUS_FEATURE_KEY_RULE: annulus_feature = 11;
/// annulus_exchange
pub const ANNULUS_FEATURE_EXCHANGE: annulus_feature = 12;
/// annulus_call_flag, one bit of it
pub const ANNULUS_FEATURE_CALL_FLAG: annulus_feature = 13;
/// annulus_comm_flag, one bit of it
pub const ANNULUS_FEATURE_COMM_FLAG: annulus_feature = 14;
/// annulus_branch_kind
pub const ANNULUS_FEATURE_BRANCH_KIND: annulus_feature = 15;

/// How a call ended.
pub type annulus_status = i32;
/// the call did what it is for
pub const ANNULUS_OK: annulus_status = 0;
/// an argument is not what the function's comment allows
pub const ANNULUS_ERROR_ARGUMENT: annulus_status = 1;
/// legal, but the chosen engine, device or build cannot do it
pub const ANNULUS_ERROR_UNSUPPORTED: annulus_status = 2;
/// an allocation failed
pub const ANNULUS_ERROR_MEMORY: annulus_status = 3;
/// the caller's workspace, or the config's workspace limit, is too small; annulus_last_error_bytes() says how much is needed
pub const ANNULUS_ERROR_WORKSPACE: annulus_status = 4;
/// another rank could not do its part; the communicator stays usable
pub const ANNULUS_ERROR_DECLINED: annulus_status = 5;
/// a library or the driver of the device failed (CUDA, cuBLAS), or an allocation in the middle of a call
pub const ANNULUS_ERROR_DEVICE: annulus_status = 100;
/// another rank failed or did not come in time, the communicator was aborted, or this rank failed in the middle of a call and left the others without its part
pub const ANNULUS_ERROR_COMM: annulus_status = 101;
/// the library below a communicator failed (NCCL, MPI)
pub const ANNULUS_ERROR_COMM_LIBRARY: annulus_status = 102;
/// a defect in annulus; please report the message
pub const ANNULUS_ERROR_INTERNAL: annulus_status = 103;

/// The type of a tensor's elements.
pub type annulus_dtype = i32;
/// no dtype: where a struct may leave one out
pub const ANNULUS_DTYPE_NONE: annulus_dtype = 0;
/// IEEE binary64, C's double
pub const ANNULUS_FLOAT64: annulus_dtype = 1;
/// IEEE binary32, C's float
pub const ANNULUS_FLOAT32: annulus_dtype = 2;
/// 1 sign, 8 exponent, 7 fraction bits
pub const ANNULUS_BFLOAT16: annulus_dtype = 3;
/// IEEE binary16
pub const ANNULUS_FLOAT16: annulus_dtype = 4;

/// A tensor of `ndim` dimensions. Element (i0, i1, …) lies at data\[i0 * stride\[0\] + i1 * stride\[1\] + …\]; strides count
/// elements and are not negative. Entries of shape and stride at or beyond `ndim` are not read.
///
/// ```text
/// Q, K, V, O and their gradients: ndim 4, [B, N, heads, D], stride[3] == 1.
/// LSE and its gradient:           ndim 3, [B, H, N], any strides; float32, or float64 when Q is float64.
/// ```
///
/// `data` must be aligned to the size of an element of `dtype`. Inputs may overlap one another and may repeat rows
/// (stride 0). The elements of an output must be distinct, and no output may overlap an input or another output; tensors
/// of equal strides may interleave (a packed \[B, N, 3, H, D\] buffer of dQ, dK and dV is legal).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct annulus_tensor {
    pub data: *mut c_void,
    pub dtype: annulus_dtype,
    pub ndim: i32,
    pub shape: [i64; 4],
    pub stride: [i64; 4],
}

/// Which keys each query attends to, and how the work is to be done.
#[repr(C)]
pub struct annulus_config {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Which residue phi of the places in a segment head h uses. h is counted inside the branch's head range of c heads.
pub type annulus_phase_rule = i32;
/// phi = h / ceil(c / r), integer division: LongNet's published code (default)
pub const ANNULUS_PHASE_BLOCK: annulus_phase_rule = 0;
/// phi = h mod r: LongNet's paper
pub const ANNULUS_PHASE_INTERLEAVE: annulus_phase_rule = 1;
/// phi = residue mod r for every head
pub const ANNULUS_PHASE_FIXED: annulus_phase_rule = 2;

/// Which queries of a segment attend to which of its keys. "Residue" is the place in the segment modulo r.
pub type annulus_query_rule = i32;
/// the query's and the key's residue are both phi: LongNet (default)
pub const ANNULUS_QUERY_DILATED: annulus_query_rule = 0;
/// the query's residue equals the key's, whatever it is: every query attends
pub const ANNULUS_QUERY_RESIDUE: annulus_query_rule = 1;
/// the key's residue is phi, any query
pub const ANNULUS_QUERY_EVERY: annulus_query_rule = 2;

/// What the keys of a branch are.
pub type annulus_branch_kind = i32;
/// those of the query's segment (default)
pub const ANNULUS_BRANCH_SEGMENTS: annulus_branch_kind = 0;
/// those near the query: n + r j for -left <= j <= right, as far as they exist; when causal, for j <= 0 alone
pub const ANNULUS_BRANCH_WINDOW: annulus_branch_kind = 1;
/// the positions first_global … first_global + global_count - 1, for every query. Those beyond the end of a sequence do not exist.
pub const ANNULUS_BRANCH_GLOBAL: annulus_branch_kind = 2;

/// How the positions of a segment are numbered before every r-th is kept.
pub type annulus_order = i32;
/// 0, 1, 2, … (default)
pub const ANNULUS_ORDER_LINEAR: annulus_order = 0;
/// along the generalised Hilbert curve of the segment's grid, see hilbert.h
pub const ANNULUS_ORDER_HILBERT: annulus_order = 1;

/// What stands in the slots that a segment has too few positions to fill.
pub type annulus_padding_rule = i32;
/// nothing: positions that do not exist are no keys (default)
pub const ANNULUS_PADDING_EXACT: annulus_padding_rule = 0;
/// a key of score 0 and value 0, as LongNet's published code pads: with w' = min(w, N) a segment has ceil(w'/r) slots for each residue. No effect when causal. For weights that were trained with it.
pub const ANNULUS_PADDING_ZERO_KEYS: annulus_padding_rule = 1;

/// How often a key counts that several branches give to a query.
pub type annulus_key_rule = i32;
/// once for each branch that reaches it: LongNet's multiset (default)
pub const ANNULUS_KEY_EACH_BRANCH: annulus_key_rule = 0;
/// once: the set union. Slots without a position (zero_keys padding) are of their branch alone and count for each as ever. `fused` and `mma` do so for up to 8 branches in linear order whose dilations divide one another and, but for dilations of 1, whose query rules are alike, and refuse others, which `auto` leaves to `gemm`.
pub const ANNULUS_KEY_ONCE: annulus_key_rule = 1;

/// An implementation of attention. Results of all engines agree up to rounding.
///
/// `auto` is the fastest engine of the context's device that supports the problem and the tensors of the call. On CUDA
/// that may depend on the tensors: where `fused` or `mma` supports a problem, a call whose tensors have rows that do not
/// begin at multiples of 16 bytes is computed by `gemm` (row_alignment of annulus_problem says what is known of them
/// beforehand).
pub type annulus_engine = i32;
/// the fastest engine that supports the call (default)
pub const ANNULUS_ENGINE_AUTO: annulus_engine = 0;
/// CPU, float64 inside, brute force in O(N * N) time: for tests; not with a communicator (comm.h)
pub const ANNULUS_ENGINE_REFERENCE: annulus_engine = 1;
/// CPU, blocked, threads
pub const ANNULUS_ENGINE_CPU: annulus_engine = 2;
/// any CUDA device; float32, bfloat16, float16; cuBLAS inside, bounded workspace
pub const ANNULUS_ENGINE_GEMM: annulus_engine = 3;
/// CUDA devices of compute capability 9.0; bfloat16, float16; kernels for all branches at once; tensors whose rows begin at multiples of 16 bytes; positive scale
pub const ANNULUS_ENGINE_FUSED: annulus_engine = 4;
/// the same on CUDA devices of compute capability 8.0 and newer, in float32, too; in float16 of 7.5; on 9.0 slower than `fused`
pub const ANNULUS_ENGINE_MMA: annulus_engine = 5;

/// A branch. Set `size` to sizeof(annulus_branch) and all other fields, best by ANNULUS_BRANCH_INIT(w, r). Fields that
/// are 0 behind w and r, as the macro sets them, are LongNet's branch: all heads, phase rule block, query rule dilated,
/// linear order. ANNULUS_BRANCH_WINDOW_INIT(left, right, r) makes a window of all queries (query rule residue), and
/// ANNULUS_BRANCH_GLOBAL_INIT(first, count) global keys.
///
/// Windows and global positions have a segment length of 0 and the linear order, and no padding keys. A window's query
/// rule is residue, or dilated: then a head has the queries of its phase alone, in positions modulo r. Global positions
/// have dilation 1, with which all phases and query rules are the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct annulus_branch {
    pub size: usize,
    /// w >= 1 in positions, or 0 for the whole sequence
    pub segment_length: i64,
    /// r >= 1
    pub dilation: i64,
    /// of ANNULUS_PHASE_FIXED, >= 0; else 0
    pub residue: i64,
    /// of ANNULUS_ORDER_HILBERT: the columns of the grid (an image's or a slide's width), or 0 for the smallest divisor of the segment's length that is at least its square root; else 0. It must divide the segment length (the sequence length where w is 0); in a shorter last segment whose length it does not divide, the automatic width is taken.
    pub grid_width: i64,
    /// serves the query heads first_head … first_head + head_count - 1; 0 … 2^31 - 2. Whether they fit into H, or the total of a head shard, is checked when the config meets a problem.
    pub first_head: i32,
    /// \>= 1, first_head + head_count within int32; or 0 for all heads from first_head on
    pub head_count: i32,
    /// which residue a head uses
    pub phase_rule: annulus_phase_rule,
    /// which queries attend to which keys
    pub query_rule: annulus_query_rule,
    /// how the positions of a segment are numbered
    pub order: annulus_order,
    /// of ANNULUS_BRANCH_WINDOW: keys before the query, >= 0, or -1 for all; else 0
    pub left: i64,
    /// of ANNULUS_BRANCH_WINDOW: keys after the query, >= 0, or -1 for all; else 0
    pub right: i64,
    /// of ANNULUS_BRANCH_GLOBAL, >= 0; else 0
    pub first_global: i64,
    /// of ANNULUS_BRANCH_GLOBAL, >= 1, first_global + global_count within int64; else 0
    pub global_count: i64,
    /// what the keys are
    pub kind: annulus_branch_kind,
    /// of ANNULUS_BRANCH_GLOBAL, 1: the global positions as queries attend to every key, too; else 0
    pub global_queries: i32,
}

#[allow(non_snake_case)]
pub const fn ANNULUS_BRANCH_INIT(segment_length: i64, dilation: i64) -> annulus_branch {
    annulus_branch {
        size: std::mem::size_of::<annulus_branch>(),
        segment_length,
        dilation,
        residue: 0,
        grid_width: 0,
        first_head: 0,
        head_count: 0,
        phase_rule: ANNULUS_PHASE_BLOCK,
        query_rule: ANNULUS_QUERY_DILATED,
        order: ANNULUS_ORDER_LINEAR,
        left: 0,
        right: 0,
        first_global: 0,
        global_count: 0,
        kind: ANNULUS_BRANCH_SEGMENTS,
        global_queries: 0,
    }
}

/// How a context with a communicator (comm.h) moves rows of K and V between ranks. Both send the same rows, those that
/// some query of the receiver attends to, and give the same result up to rounding. `auto` is `gather` if there is room
/// for the rows that each rank then gets, else `ring`. The room is the largest of
///
/// ```text
/// - the memory of K and V of the rank with most rows,
/// - four times that memory, if the ring has more than 8 hops between shards with rows: each message of such a ring is
///   small, and costs more than its bytes,
/// - eight times that memory, at most 256 MiB: few rows cost less than the launches of each hop.
/// ```
///
/// `auto` decides for each sequence of a call, the shorter ones first, and counts the rows of all gathered sequences.
/// Along the Hilbert order, and in some cases of the query rule `residue`, it counts a shard whole. If it takes more
/// than 2^21 steps (attention.h) to find out, as it can with thousands of unequal shards, or if more than 2^26 pairs of
/// shards share segments, `auto` is `ring`.
pub type annulus_exchange = i32;
/// one of the two, as said above (default)
pub const ANNULUS_EXCHANGE_AUTO: annulus_exchange = 0;
/// in up to shards - 1 hops: for each shard of a sequence the rows of two others
pub const ANNULUS_EXCHANGE_RING: annulus_exchange = 1;
/// all at once: memory for all rows that the rank's queries attend to
pub const ANNULUS_EXCHANGE_GATHER: annulus_exchange = 2;

/// A config bound to a device, with what calls have in common.
#[repr(C)]
pub struct annulus_context {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// A kind of device.
pub type annulus_device = i32;
/// the CPUs that the process may run on: one device
pub const ANNULUS_DEVICE_CPU: annulus_device = 1;
/// an NVIDIA GPU
pub const ANNULUS_DEVICE_CUDA: annulus_device = 2;

/// Functions by which a context gets the workspace of a call, if no workspace is set.
///
/// size: sizeof(annulus_allocator). allocate returns `bytes` of memory on the context's device aligned to `alignment`
/// (a power of two), or NULL. release gives back what allocate returned, with the same `bytes` and `alignment`. `user`
/// is handed to both. `stream` is the context's stream, NULL on a CPU: on CUDA the memory is used by work on that stream
/// only, and release is called while that work may not be done yet. Both are called by the thread that calls annulus,
/// with the context's device current, must not throw, must not use the context, which is in a call, and must stay
/// callable as long as the context uses them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct annulus_allocator {
    pub size: usize,
    pub allocate: Option<unsafe extern "C" fn(*mut c_void, usize, usize, *mut c_void) -> *mut c_void>,
    pub release: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize, usize, *mut c_void)>,
    pub user: *mut c_void,
}

pub const ANNULUS_ALLOCATOR_INIT: annulus_allocator = annulus_allocator {
    size: std::mem::size_of::<annulus_allocator>(),
    allocate: None,
    release: None,
    user: std::ptr::null_mut(),
};

/// Bits of annulus_call_options.flags. Only bits 0 to 30 can be flags, which an int32_t holds; whatever else a call may
/// be told gets a field of its own.
pub type annulus_call_flag = i32;
/// Q's rows are a window of the rows of K and V, from query_start on; with ranks (comm.h) that is ANNULUS_ERROR_UNSUPPORTED
pub const ANNULUS_CALL_QUERY_WINDOW: annulus_call_flag = 1;
/// backward adds dQ to what d_q holds, in one rounding; else d_q is overwritten
pub const ANNULUS_CALL_ADD_D_Q: annulus_call_flag = 2;
/// the same for d_k
pub const ANNULUS_CALL_ADD_D_K: annulus_call_flag = 4;
/// the same for d_v
pub const ANNULUS_CALL_ADD_D_V: annulus_call_flag = 8;

/// What a call may be given beside its tensors. Set `size` to sizeof(annulus_call_options), best by
/// ANNULUS_CALL_OPTIONS_INIT; NULL in place of the struct is the same as that. The arrays are read during the call only.
///
/// There is at least one row; only a rank of several (comm.h) may have none. Without ANNULUS_CALL_QUERY_WINDOW, Q and
/// K have the same number of rows, Nq == N, and row j of Q, O, LSE and their gradients is position j. With it, row j is
/// position query_start + j, and query_start + Nq <= N: the query rows are a part of the N key rows (one token decoded
/// against a cache, a long job done in pieces).
///
/// Sequences: the N rows are one sequence for each batch entry, unless sequence_count says how many there are, S. Then
/// they are either
///
/// ```text
/// packed  sequence_starts holds S + 1 numbers, as cu_seqlens elsewhere: sequence i has the rows starts[i] …
///         starts[i + 1] - 1 of every batch entry, 0 <= starts[0], never falling, starts[S] <= N. With
///         sequence_lengths it has only the first lengths[i] of them, 0 <= lengths[i] <= starts[i + 1] - starts[i].
/// padded  sequence_starts is NULL, S is B, and batch entry b is a sequence of its first lengths[b] rows,
///         0 <= lengths[b] <= N.
/// ```
///
/// Everything that the config says of the sequence is said of each: segments, places, residues, Hilbert grids, causality
/// and padding count inside a sequence and by its own length, and no query attends to another sequence's keys. Where a
/// branch's segment is the whole sequence, a grid width must divide the length of each that is not empty. Rows of no
/// sequence are no keys; as queries they have O = 0 and LSE = -infinity, and their gradients are 0. Positions are rows
/// of K and V all the same, in a query window too. With several ranks (comm.h) the numbers count the rows of all of
/// them, each rank passes the same, and a sequence may lie on several.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct annulus_call_options {
    pub size: usize,
    /// bits of annulus_call_flag
    pub flags: u64,
    /// with ANNULUS_CALL_QUERY_WINDOW the position of row 0 of Q, else 0
    pub query_start: i64,
    /// S; 0: neither of the next two is given
    pub sequence_count: i64,
    /// \[S + 1\] in host memory, or NULL
    pub sequence_starts: *const i64,
    /// \[S\] in host memory, or NULL
    pub sequence_lengths: *const i64,
}

pub const ANNULUS_CALL_OPTIONS_INIT: annulus_call_options = annulus_call_options {
    size: std::mem::size_of::<annulus_call_options>(),
    flags: 0,
    query_start: 0,
    sequence_count: 0,
    sequence_starts: std::ptr::null(),
    sequence_lengths: std::ptr::null(),
};

/// The most parts that annulus_merge() takes.
pub const ANNULUS_MAX_MERGE_PARTS: c_int = 48;

/// What a merge may be given beside its tensors. Set `size` to sizeof(annulus_merge_options), best by
/// ANNULUS_MERGE_OPTIONS_INIT; NULL in place of the struct is the same as that.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct annulus_merge_options {
    pub size: usize,
    /// 0: this version knows none
    pub flags: u64,
}

pub const ANNULUS_MERGE_OPTIONS_INIT: annulus_merge_options = annulus_merge_options {
    size: std::mem::size_of::<annulus_merge_options>(),
    flags: 0,
};

/// The passes over queries and keys, for questions about their cost.
pub type annulus_pass = i32;
/// annulus_forward()
pub const ANNULUS_PASS_FORWARD: annulus_pass = 1;
/// annulus_backward()
pub const ANNULUS_PASS_BACKWARD: annulus_pass = 2;
/// annulus_attention_mass()
pub const ANNULUS_PASS_MASS: annulus_pass = 3;

/// The sizes of a problem without its data. Set `size` to sizeof(annulus_problem), best by ANNULUS_PROBLEM_INIT, and
/// dtype, heads, kv_heads, head_dim, batch and sequence_length to what they are: one that is 0 is an error that names
/// it. In a context with a communicator (comm.h) the problem is that of all ranks together, and the answers are for the
/// context's own rank.
///
/// options points to the options of the call that is asked about; NULL means that the call has none. A pass checks them
/// as its call does, with sequence_length as the number of rows of K. With ANNULUS_CALL_QUERY_WINDOW the queries are
/// query_length rows from the options' query_start on: 1 <= query_length and query_start + query_length <= N. Without it
/// query_length is 0 or N.
///
/// row_alignment says what is known of the call's tensors: every row of them (the D elements of a head) begins at a
/// multiple of this number of bytes, a power of two up to 4096, and no dimension of more than one has a stride of 0 or
/// of 2^40 bytes or more; 0: nothing is known. Workspace is told for all tensors that are so: where ANNULUS_ENGINE_AUTO
/// would compute with another engine for some of them, what the engine that needs most needs. 16 is enough for every
/// engine.
///
/// gradient_dtype is that of d_q, d_k and d_v: dtype or 0 for the same, or ANNULUS_FLOAT32 where dtype is bfloat16 or
/// float16 and at least one of them is float32. Only backward asks for it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct annulus_problem {
    pub size: usize,
    pub dtype: annulus_dtype,
    /// or 0
    pub gradient_dtype: annulus_dtype,
    /// H
    pub heads: i32,
    /// G
    pub kv_heads: i32,
    /// D
    pub head_dim: i32,
    /// B
    pub batch: i64,
    /// N, of all ranks together
    pub sequence_length: i64,
    /// Nq with ANNULUS_CALL_QUERY_WINDOW; else 0 or N
    pub query_length: i64,
    /// bytes, or 0
    pub row_alignment: i64,
    /// or NULL
    pub options: *const annulus_call_options,
}

pub const ANNULUS_PROBLEM_INIT: annulus_problem = annulus_problem {
    size: std::mem::size_of::<annulus_problem>(),
    dtype: ANNULUS_DTYPE_NONE,
    gradient_dtype: ANNULUS_DTYPE_NONE,
    heads: 0,
    kv_heads: 0,
    head_dim: 0,
    batch: 0,
    sequence_length: 0,
    query_length: 0,
    row_alignment: 0,
    options: std::ptr::null(),
};

/// What one pass of a problem costs one rank. Set `size` to sizeof(annulus_estimate) before the call, best by
/// ANNULUS_ESTIMATE_INIT.
///
/// pairs counts (query, key) pairs of the rank's queries over batch, heads and branches: a key that several branches
/// give a query is counted for each of them, whatever the key rule. It is exact, but for one case: in the Hilbert order
/// with a query window or several ranks, or causal with the query rule `every`, positions are taken as evenly spread
/// over the segment.
///
/// flops are those of the pass's matrix products, with a multiplication and an addition as two: 4 * pairs * D for
/// forward, 10 * pairs * D for backward, and 4 * pairs * D for each of the ceil(H/G / D) rounds of attention mass.
///
/// tensor_bytes are those of the rank's elements of all tensors that the pass reads and writes:
///
/// ```text
/// forward   q, k, v, out, lse
/// backward  q, k, v, out, lse, d_out, d_q, d_k, d_v, where gradient_dtype is that of the last three; no d_lse
/// mass      q, k, lse, mass
/// ```
///
/// sent_bytes and received_bytes are exact: a call sends and receives these. Rows of K and V go to the ranks that attend
/// to them, and in backward their dK and dV come back. In each round of attention mass rows of K go out, and a row of
/// sums comes back for each. Where processes of one host share a communicator over NCCL, that keeps besides, on each
/// device, room for what has been sent to each rank at once at most, which for one problem is no more than the bytes
/// sent here, rounded up to 2 MiB.
///
/// received_messages counts the messages of rows of K and V that the rank's shards receive, those from shards of its own
/// as well. A shard gets one or a few from each shard whose keys it attends to. Messages that arrive at once from shards
/// side by side count as one where their rows lie alike: the shard computes with them together. Each round of attention
/// mass receives as many.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct annulus_estimate {
    pub size: usize,
    pub pairs: f64,
    pub flops: f64,
    pub tensor_bytes: u64,
    /// memory that the call needs besides its tensors, as annulus_workspace_size()
    pub workspace_bytes: u64,
    /// to all other ranks together
    pub sent_bytes: u64,
    /// from all other ranks together
    pub received_bytes: u64,
    /// host memory of the plan itself
    pub plan_bytes: u64,
    /// what `auto` comes to; ANNULUS_EXCHANGE_AUTO where there is one rank
    pub exchange: annulus_exchange,
    /// see above; 0 where there is one rank
    pub received_messages: i64,
}

pub const ANNULUS_ESTIMATE_INIT: annulus_estimate = annulus_estimate {
    size: std::mem::size_of::<annulus_estimate>(),
    pairs: 0.0,
    flops: 0.0,
    tensor_bytes: 0,
    workspace_bytes: 0,
    sent_bytes: 0,
    received_bytes: 0,
    plan_bytes: 0,
    exchange: ANNULUS_EXCHANGE_AUTO,
    received_messages: 0,
};

/// In place of a branch's index: all of the config.
pub const ANNULUS_ALL_BRANCHES: c_int = -1;

/// One rank's end of a communicator.
#[repr(C)]
pub struct annulus_comm {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Bits of annulus_comm_options.flags: 0 to 30 alone, as of annulus_call_flag.
///
/// Over NCCL, processes of one host agree through shared memory and copy rows from one another's GPU memory. If a rank
/// cannot reach another rank's memory, as between hosts and between containers, all ranks use NCCL alone. With
/// ANNULUS_COMM_ONLY_NCCL all ranks use NCCL alone on one host, too. One rank that has the flag is enough: the ranks
/// tell one another in their first call.
///
/// With NCCL alone a call waits for what the call before it exchanges. A rank that is gone is missed when the timeout is
/// over, unless NCCL reports it earlier.
pub type annulus_comm_flag = i32;
/// annulus_comm_create_from_nccl() alone: annulus may abort the caller's ncclComm_t
pub const ANNULUS_COMM_MAY_ABORT: annulus_comm_flag = 1;
/// communicators over NCCL: agreement, lengths and rows travel by NCCL alone
pub const ANNULUS_COMM_ONLY_NCCL: annulus_comm_flag = 2;

/// How a communicator is made. Set `size` to sizeof(annulus_comm_options), best by ANNULUS_COMM_OPTIONS_INIT. Where a
/// function takes a pointer to one, NULL stands for the defaults; in all of them a size that is not known, non-zero
/// bytes behind what this version knows, a creation_timeout that is negative or not finite, and flags that the function
/// does not have are ANNULUS_ERROR_ARGUMENT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct annulus_comm_options {
    pub size: usize,
    /// seconds to wait for the other ranks while the communicator is made; 0: 300
    pub creation_timeout: f64,
    /// the sum of some annulus_comm_flag
    pub flags: u64,
}

pub const ANNULUS_COMM_OPTIONS_INIT: annulus_comm_options = annulus_comm_options {
    size: std::mem::size_of::<annulus_comm_options>(),
    creation_timeout: 0.0,
    flags: 0,
};

/// What one rank makes and every rank of an NCCL communicator gets: plain bytes, to be carried by whatever there is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct annulus_nccl_id {
    pub bytes: [c_char; 128],
}

/// How ranks share a sequence. Set `size` to sizeof(annulus_shards), best by ANNULUS_SHARDS_INIT. The sequence is cut
/// into `count` shards, one behind the other, of which shard i has lengths\[i\] >= 0 positions and belongs to rank
/// owners\[i\], or to rank i where owners is NULL, and count then the number of ranks. The arrays are read during the call
/// only.
///
/// A rank with several shards has their rows one behind the other in its tensors, in the order of their positions. So
/// under causality every rank can be given as much to do as the others: with P ranks and 2P shards as equal as can be,
/// shard i belongs to rank min(i, 2P - 1 - i) (zigzag). Shards that share a segment, or of which one is within reach of
/// the other's window or has global positions, send one another messages of their own, of which a rank can have 2^19
/// (attention.h).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct annulus_shards {
    pub size: usize,
    /// from 1 to 4096; in annulus_context_set_shards() the communicator's, or 0 for it
    pub ranks: i32,
    /// up to 65536; in annulus_estimate_rank() also 0, with both arrays NULL: one a rank, as equal as can be, the first ones longer
    pub count: i32,
    /// \[count\] in host memory
    pub lengths: *const i64,
    /// \[count\] in host memory, or NULL
    pub owners: *const i32,
}

pub const ANNULUS_SHARDS_INIT: annulus_shards = annulus_shards {
    size: std::mem::size_of::<annulus_shards>(),
    ranks: 0,
    count: 0,
    lengths: std::ptr::null(),
    owners: std::ptr::null(),
};

/// What the last successful call of a context sent to and received from other ranks: rows of K and V, and of dK and dV.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct annulus_traffic {
    /// sizeof(annulus_traffic)
    pub size: usize,
    /// to all other ranks together
    pub sent_bytes: u64,
    /// from all other ranks together
    pub received_bytes: u64,
}

pub const ANNULUS_TRAFFIC_INIT: annulus_traffic = annulus_traffic {
    size: std::mem::size_of::<annulus_traffic>(),
    sent_bytes: 0,
    received_bytes: 0,
};

/// The most shards that annulus_shards may have, and that annulus_balance_shards() finds.
pub const ANNULUS_MAX_SHARDS: c_int = 65536;

extern "C" {
    /// The loaded library's version, as a number like ANNULUS_VERSION. Any thread. Since 1.0.
    pub fn annulus_version() -> c_int;

    /// The loaded library's version as text, such as "1.0.0". Static. Any thread. Since 1.0.
    pub fn annulus_version_string() -> *const c_char;

    /// One line for bug reports: version, compiler, the vector instructions the CPU engine uses on this machine, and the
    /// versions of CUDA, of its driver and of MPI, whose part of annulus is loaded for it. Static. Any thread. Since 1.0.
    pub fn annulus_build_info() -> *const c_char;

    /// Whether the loaded library knows `value` of an enumeration: 1 or 0, and 0 for every value of an enumeration that it
    /// does not know. So a program that was compiled with newer headers finds out what it may ask an older library for. That
    /// a value is known does not say that this build or machine can do it: annulus_device_count() and annulus_check_engine()
    /// do. Any thread. Since 1.0.
    pub fn annulus_knows(feature: annulus_feature, value: i64) -> c_int;

    /// The name of a status in lower case ("ok", "argument", "unsupported", "memory", "workspace", "declined", "device",
    /// "comm", "comm_library", "internal"), or "unknown". The string is static. Any thread. Since 1.0.
    pub fn annulus_status_name(status: annulus_status) -> *const c_char;

    /// The message of the last failed call of this thread: one line, no newline, at most 511 bytes of UTF-8, "" when no
    /// call has failed. The buffer belongs to the thread and is overwritten by its next failed call; a call that succeeds
    /// leaves it as it is, but for annulus_comm_status(), which puts there why a communicator broke. Never NULL, never
    /// allocates. Any thread. Since 1.0.
    pub fn annulus_last_error() -> *const c_char;

    /// The bytes of workspace that the last failed call of this thread would have needed, where it returned
    /// ANNULUS_ERROR_WORKSPACE: what to hand to annulus_context_set_workspace(), or the least workspace limit. 0 where it
    /// failed for another reason, and when no call has failed. Any thread. Since 1.0.
    pub fn annulus_last_error_bytes() -> u64;

    /// The library whose failure was that of the last failed call of this thread: "cuda" (its runtime or its driver),
    /// "cublas", "nccl" or "mpi". "" where none of them failed, and when no call has failed. Later versions may name others.
    /// The message has the name of the library's function, and the library's own words. Static. Any thread. Since 1.0.
    pub fn annulus_last_error_library() -> *const c_char;

    /// What that library's function returned, as a number (a cudaError_t, a CUresult, a cublasStatus_t, an ncclResult_t, an
    /// error code of MPI). 0 where annulus_last_error_library() is "". Any thread. Since 1.0.
    pub fn annulus_last_error_code() -> i64;

    /// The bits of one element: 64, 32, 16 or 16; 0 when dtype is none of the above. Any thread. Since 1.0.
    pub fn annulus_dtype_bits(dtype: annulus_dtype) -> c_int;

    /// The name of a dtype ("float64", "float32", "bfloat16", "float16"), or "unknown". Static. Any thread. Since 1.0.
    pub fn annulus_dtype_name(dtype: annulus_dtype) -> *const c_char;

    /// Writes the curve of a segment of `length` positions laid out row-major on a (length / width) x width grid:
    /// positions\[p\] is the position (row * width + column) that the curve visits p-th. Every position occurs once;
    /// consecutive ones are neighbours in the grid wherever the rectangle's parity allows, with one diagonal step otherwise.
    ///
    /// length: >= 1. width: a divisor of length, or 0 for the smallest divisor that is at least sqrt(length) (a length
    /// with no better divisor than itself gives one row: linear order). positions: host memory for `length` numbers, owned
    /// by the caller.
    /// ANNULUS_ERROR_ARGUMENT: positions is NULL, length < 1, width < 0 or no divisor. Any thread. Since 1.0.
    pub fn annulus_hilbert_curve(length: i64, width: i64, positions: *mut i64) -> annulus_status;

    /// The name of an engine ("auto", "reference", "cpu", "gemm", "fused", "mma"), or "unknown". Every build knows all of
    /// them by name, whether it can run them or not. Static. Any thread. Since 1.0.
    pub fn annulus_engine_name(engine: annulus_engine) -> *const c_char;

    /// Makes an empty config in \*config: no branches, not causal, exact padding, keys count for each branch, scale
    /// 1/sqrt(D), engine auto. At least one branch must be added before it is used. The caller destroys it. Since 1.0.
    pub fn annulus_config_create(config: *mut *mut annulus_config) -> annulus_status;

    /// Makes an independent copy of `config` in \*copy. The caller destroys it. Since 1.0.
    pub fn annulus_config_copy(copy: *mut *mut annulus_config, config: *const annulus_config) -> annulus_status;

    /// Destroys a config; NULL is legal. Contexts that were given it keep their own copy. Since 1.0.
    pub fn annulus_config_destroy(config: *mut annulus_config);

    /// Appends a branch. A config holds up to 65,536. index: receives the new branch's index, counted from 0; may be NULL.
    /// ANNULUS_ERROR_ARGUMENT: `branch` is NULL, a field is not as above, or non-zero bytes follow what this version knows.
    /// Since 1.0.
    pub fn annulus_config_add_branch(
        config: *mut annulus_config,
        branch: *const annulus_branch,
        index: *mut i32,
    ) -> annulus_status;

    /// Puts a branch in the place of branch `index`, which must be there. Errors as add_branch. Since 1.0.
    pub fn annulus_config_set_branch(
        config: *mut annulus_config,
        index: i32,
        branch: *const annulus_branch,
    ) -> annulus_status;

    /// Reads branch `index`, which must be there, into \*branch, whose `size` the caller has set; of a larger struct the
    /// bytes beyond what this version knows must be 0. ANNULUS_ERROR_UNSUPPORTED: the branch is a window or has global
    /// positions, and a smaller struct ends before `kind`. Since 1.0.
    pub fn annulus_config_get_branch(
        config: *const annulus_config,
        index: i32,
        branch: *mut annulus_branch,
    ) -> annulus_status;

    /// The number of branches, in \*count. Since 1.0.
    pub fn annulus_config_branch_count(config: *const annulus_config, count: *mut i32) -> annulus_status;

    /// Sets the padding rule of all branches. Since 1.0.
    pub fn annulus_config_set_padding_rule(config: *mut annulus_config, rule: annulus_padding_rule) -> annulus_status;

    /// The padding rule of all branches, in \*rule. Since 1.0.
    pub fn annulus_config_get_padding_rule(
        config: *const annulus_config,
        rule: *mut annulus_padding_rule,
    ) -> annulus_status;

    /// Sets how often a key counts that several branches reach. Since 1.0.
    pub fn annulus_config_set_key_rule(config: *mut annulus_config, rule: annulus_key_rule) -> annulus_status;

    /// How often a key counts that several branches reach, in \*rule. Since 1.0.
    pub fn annulus_config_get_key_rule(config: *const annulus_config, rule: *mut annulus_key_rule) -> annulus_status;

    /// Says which heads calls have where a model's heads are shared out among processes, each of which computes some of them
    /// (tensor parallelism, Ulysses): the H query heads of a call are heads first … first + H - 1 of `total`. Head ranges
    /// and phases of branches, and their default of all heads, then count over all `total` heads, so that a head gets the
    /// same keys wherever it is computed. Key/value heads are those of the call: its heads h / (H/G) share one. total 0,
    /// with first 0: a call has all heads (default). Otherwise 0 <= first < total; that first + H <= total is checked when
    /// the config meets a problem. With a communicator (comm.h) its ranks share one sequence, and have the same heads. Since
    /// 1.0.
    pub fn annulus_config_set_head_shard(config: *mut annulus_config, first: i32, total: i32) -> annulus_status;

    /// Which heads calls have, in \*first and \*total; 0 and 0: all that there are. Since 1.0.
    pub fn annulus_config_get_head_shard(
        config: *const annulus_config,
        first: *mut i32,
        total: *mut i32,
    ) -> annulus_status;

    /// causal 1: a query attends only to keys at its own global position or before; 0: no such limit. Since 1.0.
    pub fn annulus_config_set_causal(config: *mut annulus_config, causal: c_int) -> annulus_status;

    /// Whether a query attends only to keys at its own position or before, 1 or 0, in \*causal. Since 1.0.
    pub fn annulus_config_get_causal(config: *const annulus_config, causal: *mut c_int) -> annulus_status;

    /// Sets the factor on Q·K: 0, or a number of either sign and of a magnitude from 1e-36 to 1e36, which float32 can hold
    /// with room to spare. Without this call it is 1/sqrt(D). Since 1.0.
    pub fn annulus_config_set_scale(config: *mut annulus_config, scale: f64) -> annulus_status;

    /// Makes the factor 1/sqrt(D) again, as if none had been set. Since 1.0.
    pub fn annulus_config_unset_scale(config: *mut annulus_config) -> annulus_status;

    /// The factor on Q·K in \*scale: NaN where none is set, and it is 1/sqrt(D). Since 1.0.
    pub fn annulus_config_get_scale(config: *const annulus_config, scale: *mut f64) -> annulus_status;

    /// Sets the engine. One that cannot serve a later call makes that call fail with ANNULUS_ERROR_UNSUPPORTED and the
    /// reason; annulus never falls back in silence from an engine that was asked for. Since 1.0.
    pub fn annulus_config_set_engine(config: *mut annulus_config, engine: annulus_engine) -> annulus_status;

    /// The engine that was set, in \*engine. Since 1.0.
    pub fn annulus_config_get_engine(config: *const annulus_config, engine: *mut annulus_engine) -> annulus_status;

    /// allow 1: products of float32 tensors may be computed in TF32 (10 fraction bits, on tensor cores); 0: in float32
    /// (default). A permission: engines and devices without TF32 compute in float32 all the same. Since 1.0.
    pub fn annulus_config_set_allow_tf32(config: *mut annulus_config, allow: c_int) -> annulus_status;

    /// Whether products of float32 tensors may be computed in TF32, 1 or 0, in \*allow. Since 1.0.
    pub fn annulus_config_get_allow_tf32(config: *const annulus_config, allow: *mut c_int) -> annulus_status;

    /// Sets an upper bound in bytes for the workspace of a call, as annulus_workspace_size() counts it, or 0 for the
    /// engine's own choice (default; `gemm`: 256 MiB). `gemm` fits its work into the limit; `fused` and `mma` do so with the
    /// sums of several launches where these may be in parts (doc/limits.md), and with a product that backward keeps instead
    /// of computing it twice (one branch, of `fused` also several that share few pairs, D <= 128 and above 64, of `mma`
    /// above 48: by default in up to 1.5 GiB, of `mma` 1.25, with less memory in smaller parts or not at all); `auto` leaves
    /// to the next engine what one would need more for. A call that cannot be fitted fails with ANNULUS_ERROR_WORKSPACE, and
    /// annulus_last_error_bytes() says how much its engine needs. Since 1.0.
    pub fn annulus_config_set_workspace_limit(config: *mut annulus_config, bytes: u64) -> annulus_status;

    /// The upper bound for the workspace of a call, 0 for the engine's own choice, in \*bytes. Since 1.0.
    pub fn annulus_config_get_workspace_limit(config: *const annulus_config, bytes: *mut u64) -> annulus_status;

    /// Sets the exchange; every rank sets the same. Without ranks it does nothing. Since 1.0.
    pub fn annulus_config_set_exchange(config: *mut annulus_config, exchange: annulus_exchange) -> annulus_status;

    /// The exchange that was set, in \*exchange. Since 1.0.
    pub fn annulus_config_get_exchange(
        config: *const annulus_config,
        exchange: *mut annulus_exchange,
    ) -> annulus_status;

    /// Appends branches and changes nothing else: `count` >= 1 branches with w_i = segment_length * segment_ratio^i and r_i
    /// = dilation_ratio^i, as LongNet's geometric series (paper: section 3.1; its models use ratios of 2 or 4).
    /// segment_length, segment_ratio and dilation_ratio are >= 1; a w_i or r_i beyond int64 is an argument error. Since
    /// 1.0.
    pub fn annulus_config_add_longnet(
        config: *mut annulus_config,
        segment_length: i64,
        segment_ratio: i64,
        dilation_ratio: i64,
        count: i32,
    ) -> annulus_status;

    /// Makes the config that of a published model, as its weights were trained: appends the model's branches, and sets the
    /// padding rule, the key rule and whether it is causal. The rules hold for all branches, so the config must have none
    /// yet; more may follow. The rest of the config stays as it is.
    ///
    /// ```text
    /// gigapath  Prov-GigaPath's slide encoder: w = 1024, 5792, 32768, 185363, 1048576 and r = 1, 2, 4, 8, 16 with block
    ///           phases; zero_keys padding, keys count for each branch, not causal. Its problems have H = 16, D = 48,
    ///           N = number of tiles + 1.
    /// ```
    ///
    /// ANNULUS_ERROR_ARGUMENT: name is NULL or no preset's name, or the config has a branch. Since 1.0.
    pub fn annulus_config_add_preset(config: *mut annulus_config, name: *const c_char) -> annulus_status;

    /// The name of preset `index`, counted from 0; NULL where there is no such preset, as behind the last. Static. Any
    /// thread. Since 1.0.
    pub fn annulus_preset_name(index: i32) -> *const c_char;

    /// Appends branches and changes nothing else: `count` branches that share the `heads` query heads out among themselves
    /// instead of each serving all, as head-grouped implementations of dilated attention do: heads / count each, the first
    /// heads % count branches one more; branch i uses the fixed residue i mod r_i. segment_lengths and dilations hold
    /// `count` numbers each, as annulus_branch has them; 1 <= count <= heads. Since 1.0.
    pub fn annulus_config_add_head_groups(
        config: *mut annulus_config,
        heads: i32,
        count: i32,
        segment_lengths: *const i64,
        dilations: *const i64,
    ) -> annulus_status;

    /// The number of devices of a kind that can be used on this machine, in \*count: 1 for ANNULUS_DEVICE_CPU; for
    /// ANNULUS_DEVICE_CUDA what the CUDA runtime sees, 0 without a driver or where annulus's part for CUDA cannot be loaded.
    /// ANNULUS_ERROR_ARGUMENT: count is NULL or `device` is unknown. Any thread.
    ///
    /// That part is the file libannulus-cuda.so.1, which alone needs CUDA's libraries. The first function that is asked for
    /// CUDA opens it by dlopen(): beside the library's own file, else where the dynamic loader looks. It must be of the same
    /// version, and stays for the life of the process. Where that fails, it is not tried again, and
    /// annulus_context_create() says why. Since 1.0.
    pub fn annulus_device_count(device: annulus_device, count: *mut i32) -> annulus_status;

    /// Makes a context for device number `index` of a kind in \*context, counted from 0 as the CUDA runtime does. It has no
    /// config yet. The caller destroys it. ANNULUS_ERROR_ARGUMENT: context is NULL, `device` is unknown or there is no
    /// device `index`, or on a CPU the environment variable ANNULUS_NUM_THREADS is set and no number from 1 to 1024.
    /// ANNULUS_ERROR_UNSUPPORTED: there is no device of the kind at all; the message says why.
    /// ANNULUS_ERROR_MEMORY, ANNULUS_ERROR_DEVICE: the device is there and could not be used. Since 1.0.
    pub fn annulus_context_create(
        context: *mut *mut annulus_context,
        device: annulus_device,
        index: i32,
    ) -> annulus_status;

    /// Destroys a context; NULL is legal. Workspace, allocator and stream stay the caller's. On a CUDA device this waits for
    /// no work, neither the context's own, which goes on to its end, nor that of others: synchronise the stream before
    /// freeing what its calls use. No other thread may use the context then. Since 1.0.
    pub fn annulus_context_destroy(context: *mut annulus_context);

    /// Gives the context a copy of `config`; later changes of `config` do not reach it. ANNULUS_ERROR_ARGUMENT: a handle is
    /// NULL or the config has no branch. ANNULUS_ERROR_UNSUPPORTED: its engine does not run on this device. Since 1.0.
    pub fn annulus_context_set_config(context: *mut annulus_context, config: *const annulus_config) -> annulus_status;

    /// Makes a copy of the config that the context was given last, in \*config. The caller destroys it.
    /// ANNULUS_ERROR_ARGUMENT: a pointer is NULL or the context has no config. Since 1.0.
    pub fn annulus_context_copy_config(
        config: *mut *mut annulus_config,
        context: *const annulus_context,
    ) -> annulus_status;

    /// Sets the stream that device work is ordered on: on a CUDA device a cudaStream_t (a CUstream) of that device, or NULL
    /// for the legacy default stream (default). It stays the caller's and must live as long as the context uses it. A CPU
    /// context has none: NULL is accepted, anything else is ANNULUS_ERROR_UNSUPPORTED. Since 1.0.
    pub fn annulus_context_set_stream(context: *mut annulus_context, stream: *mut c_void) -> annulus_status;

    /// Sets the allocator that serves calls without a workspace (copied); NULL restores the device's own: the process's
    /// memory on a CPU, on CUDA a stream-ordered pool that the contexts of the device share and that keeps its memory for
    /// the next call. When the last of them is destroyed, and all that their calls were to do is done by then, the memory
    /// goes back to the system; else it stays for contexts to come. ANNULUS_ERROR_ARGUMENT: size is too small or non-zero
    /// bytes follow what this version knows, or a function is NULL. Since 1.0.
    pub fn annulus_context_set_allocator(
        context: *mut annulus_context,
        allocator: *const annulus_allocator,
    ) -> annulus_status;

    /// Sets `bytes` of device memory that calls use instead of allocating; NULL with 0 bytes goes back to allocating. The
    /// memory needs no alignment, stays the caller's and must outlive the calls that use it; its contents are undefined
    /// after them. A call that needs more fails with ANNULUS_ERROR_WORKSPACE, and annulus_last_error_bytes() says how much;
    /// annulus_workspace_size() tells beforehand. A call of which a tensor lies in these bytes, or has some of them in the
    /// gaps between its rows, fails with ANNULUS_ERROR_ARGUMENT; but annulus_merge() uses no workspace and looks at none.
    /// ANNULUS_ERROR_ARGUMENT: it is not memory of the context's device. Since 1.0.
    pub fn annulus_context_set_workspace(
        context: *mut annulus_context,
        workspace: *mut c_void,
        bytes: usize,
    ) -> annulus_status;

    /// Sets how many CPU threads a call may use: 1 to 1024, or 0 for the default. Results do not depend on it; the workspace
    /// does. On a CUDA device calls use no threads: the number has no effect there.
    ///
    /// The default is what the environment variable ANNULUS_NUM_THREADS said when the context was made. Where it was not
    /// set, the default is the smaller of two numbers: the CPUs that the calling thread may run on (sched_getaffinity())
    /// when it calls; and the CPU quota, rounded up to whole CPUs, that the process's cgroups and their parents had when the
    /// context was made (cpu.max, or cpu.cfs_quota_us divided by cpu.cfs_period_us). The library does not read variables of
    /// OpenMP. Since 1.0.
    pub fn annulus_context_set_threads(context: *mut annulus_context, threads: i32) -> annulus_status;

    /// How many CPU threads a call that is made now may use, in \*threads: what was set, or what the default comes to for the
    /// calling thread. 1 on a CUDA device. ANNULUS_ERROR_ARGUMENT: a pointer is NULL. Since 1.0.
    pub fn annulus_context_get_threads(context: *const annulus_context, threads: *mut i32) -> annulus_status;

    /// The engine that served the last successful call of forward, backward or attention mass, in \*engine:
    /// ANNULUS_ENGINE_AUTO before the first. ANNULUS_ERROR_ARGUMENT: a pointer is NULL. Since 1.0.
    pub fn annulus_context_last_engine(context: *const annulus_context, engine: *mut annulus_engine) -> annulus_status;

    /// Computes O and, if `lse` is not NULL, LSE.
    ///
    /// ```text
    /// q     [B, Nq, H, D]  input            out   [B, Nq, H, D]  output, dtype of q
    /// k, v  [B, N,  G, D]  inputs           lse   [B, H, Nq]     output, float32 (float64 when q is float64), or NULL
    /// options  what else there is to say, or NULL; bits that say how gradients are written are an error here
    /// ```
    ///
    /// All tensors are in the memory of the context's device (on CUDA that device's, or managed memory); see tensor.h for
    /// strides and overlap. The call is ordered on the context's stream and does not wait for it; on a CPU it returns when
    /// the work is done. On success every element of out and lse is written.
    ///
    /// ANNULUS_ERROR_ARGUMENT: a handle or required tensor is NULL; the context has no config; a dtype, ndim, shape, stride,
    /// alignment, overlap or memory is not as above; the options are not as annulus_call_options says; a branch's heads or
    /// grid width do not fit the problem; sizes overflow.
    ///
    /// ANNULUS_ERROR_UNSUPPORTED: D is no multiple of 8 from 8 to 256, or the config's engine cannot do this; the message
    /// says why.
    ///
    /// ANNULUS_ERROR_WORKSPACE: the context's workspace or the config's workspace limit is too small; status.h tells of
    /// annulus_last_error_bytes(). ANNULUS_ERROR_MEMORY: an allocation failed, or no memory can hold what is needed.
    ///
    /// Nothing was written in these cases. ANNULUS_ERROR_DEVICE: the device failed; outputs may be partly written.
    ///
    /// Since 1.0.
    pub fn annulus_forward(
        context: *mut annulus_context,
        q: *const annulus_tensor,
        k: *const annulus_tensor,
        v: *const annulus_tensor,
        out: *const annulus_tensor,
        lse: *const annulus_tensor,
        options: *const annulus_call_options,
    ) -> annulus_status;

    /// Computes the gradients of forward: given dO (and dLSE, if `d_lse` is not NULL), writes dQ, dK and dV. With
    /// P\[n,m\] = (multiplicity of m in A(n,h)) * exp(scale * Q.K - LSE) and delta\[n\] = O\[n\] . dO\[n\]:
    ///
    /// ```text
    /// dV[m] = sum_n P dO[n]    dS = scale * P * (dO.V - delta + dLSE)    dQ[n] = sum_m dS K[m]    dK[m] = sum_n dS Q[n]
    /// ```
    ///
    /// dK and dV are summed over the H/G query heads that share a key/value head.
    ///
    /// ```text
    /// q, out, d_out  [B, Nq, H, D] inputs      d_q       [B, Nq, H, D] output       lse    [B, H, Nq] input, from forward
    /// k, v           [B, N,  G, D] inputs      d_k, d_v  [B, N,  G, D] outputs      d_lse  [B, H, Nq] input, or NULL
    /// ```
    ///
    /// q, k, v, out and lse must be those of a forward call with the same config, query window and sequences; or out and lse
    /// those that annulus_merge() made of its results and others'. P is found with lse, as exactly as its dtype holds it.
    /// With a query window, d_k and d_v are the contribution of its query rows.
    ///
    /// Each of d_q, d_k and d_v has the dtype of q or, where that is bfloat16 or float16, that or float32, each its own:
    /// then sums of several calls need not be rounded to 16 bits. Each is overwritten, or, if the options have its bit
    /// (ANNULUS_CALL_ADD_D_Q, _K, _V), added to: the sum of what it held and the gradient is computed in float32 (float64
    /// for float64) and rounded once. Rows that get no gradient then stay as they are, bit for bit, and what is NaN stays
    /// NaN there and nowhere else. With several ranks (comm.h) each has its own dtypes and bits: they say how a rank writes
    /// its own rows, whatever the others do.
    ///
    /// Everything else as annulus_forward. Since 1.0.
    pub fn annulus_backward(
        context: *mut annulus_context,
        q: *const annulus_tensor,
        k: *const annulus_tensor,
        v: *const annulus_tensor,
        out: *const annulus_tensor,
        lse: *const annulus_tensor,
        d_out: *const annulus_tensor,
        d_lse: *const annulus_tensor,
        d_q: *const annulus_tensor,
        d_k: *const annulus_tensor,
        d_v: *const annulus_tensor,
        options: *const annulus_call_options,
    ) -> annulus_status;

    /// Computes which keys are attended to, and how much: of each key and query head the attention mass, the sum of the
    /// probabilities that all queries give it, as forward had them. With P as in annulus_backward():
    ///
    /// ```text
    /// mass[m,h] = sum_n P[n,m]          P[n,m] = (multiplicity of m in A(n,h)) * exp(scale * Q.K - LSE)
    /// ```
    ///
    /// ```text
    /// q     [B, Nq, H, D]  input                            mass  [B, H, N]  output, dtype of lse, any strides
    /// k     [B, N,  G, D]  input, dtype of q                options  as in annulus_forward(), or NULL
    /// lse   [B, H, Nq]     input, from forward
    /// ```
    ///
    /// q, k and lse are those of a forward call with the same config, query window and sequences. The masses of a head add
    /// up to the number of queries that attend to anything, less what the keys of zero_keys padding take, which have no row.
    /// A key that nobody attends to has 0. With a query window the queries are those of the window: one row of Q tells what
    /// this query alone attends to. With several ranks (comm.h) every rank gets the mass of its own keys, over the queries
    /// of all.
    ///
    /// It costs two of backward's five products, about what forward costs, and a workspace that grows with N * D, of which
    /// annulus_workspace_size() tells under ANNULUS_PASS_MASS. Where H/G is more than D, it is done in ceil(H/G / D) rounds
    /// of the same cost.
    ///
    /// A probability is off by as much as LSE was rounded, |LSE| * 2^-23 \[2^-52\] of itself. For bfloat16 and float16 inputs
    /// engines may round each to the dtype before they add it, by at most 2^-9 \[float16: 2^-11, and what is below 2^-25
    /// counts as 0\] of itself; sums are in float32 (float64 for float64). Where a query's row holds NaN or its LSE is 2^20
    /// \[2^49\] or more, the masses of the keys that it attends to may be NaN, in all heads that share a key/value head, and
    /// no others.
    ///
    /// Everything else, errors too, as annulus_forward(). Since 1.0.
    pub fn annulus_attention_mass(
        context: *mut annulus_context,
        q: *const annulus_tensor,
        k: *const annulus_tensor,
        lse: *const annulus_tensor,
        mass: *const annulus_tensor,
        options: *const annulus_call_options,
    ) -> annulus_status;

    /// Merges what forward calls over different keys gave the same queries into what one call over all of these keys would
    /// have given. With O_i = outs\[i\] and LSE_i = lses\[i\] of part i:
    ///
    /// ```text
    /// LSE[n,h] = log sum_i exp(LSE_i[n,h])        O[n,h] = sum_i exp(LSE_i[n,h] - LSE[n,h]) * O_i[n,h]
    /// ```
    ///
    /// the rule for partial results of a softmax (e.g. Milakov & Gimelshein 2018, arXiv:1805.02867). Logarithms are natural;
    /// other libraries merge attention states by the same rule, but some keep LSE to the base 2: multiply those by ln 2. A
    /// key that two parts have counts twice.
    ///
    /// ```text
    /// outs  [count], each [B, Nq, H, D]  inputs     out  [B, Nq, H, D]  output, dtype of outs
    /// lses  [count], each [B, H, Nq]     inputs     lse  [B, H, Nq]     output, dtype of lses, or NULL
    /// count  from 1 to ANNULUS_MAX_MERGE_PARTS      options  what else there is to say, or NULL
    /// ```
    ///
    /// All outs have one dtype, lses float32 (float64 when outs are). Nq may be 0. Strides as elsewhere, each tensor has its
    /// own. Sums are in float32 (float64) and rounded to out once. A part whose LSE of a row is -infinity counts for nothing
    /// there, whatever its O holds; where all are, O is 0 and LSE -infinity. Where one is NaN or +infinity, that row of O
    /// and LSE is NaN, and no other. (FlashAttention-2 gives rows without keys an LSE of +infinity: make it -infinity.)
    ///
    /// An element of O is infinite where one of the parts' is, however small its weight, and NaN where parts have both
    /// infinities or one has NaN. Where a sum over the |O_i| of finite elements leaves the range of the sums, the element is
    /// right, infinite or NaN.
    ///
    /// out may be one of outs, and lse one of lses: the same data, shape and strides. Any other overlap is an error, as in
    /// tensor.h.
    ///
    /// The context needs no config, and no workspace is used. The call is not collective: with a communicator a rank merges
    /// its own rows, alone. It is ordered on the context's stream as forward is, and may be captured into a graph.
    ///
    /// Gradients need no function of their own. Call annulus_backward() for each part, with its q, k, v and config, but with
    /// the merged out and lse, and with d_out and d_lse of the merged results: each call gives the whole d_k and d_v of its
    /// keys and its share of d_q, and d_q is the sum of the shares. For backward knows the other keys only by
    /// P = exp(scale * Q.K - LSE) and delta = O . dO, and both are those of the merged results.
    ///
    /// ANNULUS_ERROR_ARGUMENT: context, outs, lses or out is NULL; count, a dtype, ndim, shape, stride, alignment, overlap
    /// or memory is not as above; options is not as annulus_merge_options says.
    ///
    /// ANNULUS_ERROR_UNSUPPORTED: D is no multiple of 8 from 8 to 256, or float64 on CUDA.
    ///
    /// Nothing was written in these cases. Since 1.0.
    pub fn annulus_merge(
        context: *mut annulus_context,
        count: i32,
        outs: *const annulus_tensor,
        lses: *const annulus_tensor,
        out: *const annulus_tensor,
        lse: *const annulus_tensor,
        options: *const annulus_merge_options,
    ) -> annulus_status;

    /// Estimates a pass of a problem under the context's config, in \*estimate.
    /// branch: an index of the config, and pairs and flops are that branch's share, the rest that of the whole call; or
    /// ANNULUS_ALL_BRANCHES.
    /// ANNULUS_ERROR_ARGUMENT: a pointer is NULL, the context has no config, `pass` is unknown, `branch` does not exist, a
    /// size is not known or non-zero bytes follow what this version knows, or the problem is not legal.
    /// ANNULUS_ERROR_UNSUPPORTED: as annulus_forward, or the plan of several ranks takes too many steps (below).
    /// ANNULUS_ERROR_WORKSPACE: a call needs more than the config's workspace limit. ANNULUS_ERROR_MEMORY: it needs more
    /// than any memory can hold, or an allocation failed. Since 1.0.
    ///
    /// Time and memory grow with the number of branches, not with N or H: with 64 branches some hundredths of a second. Of
    /// several ranks a plan tells the rows of every message; estimates and workspace sizes answer within 2^21 steps for all
    /// shards and sequences of the rank (about a tenth of a second on one core) or not at all, with
    /// ANNULUS_ERROR_UNSUPPORTED and what is too much:
    ///
    /// ```text
    /// Ranks and heads: each message takes some 20 steps, and each of its key/value heads some for every branch whose
    /// segments reach over the border of a shard. 4096 ranks with 32 heads and 11 branches are not too many.
    /// ```
    ///
    /// ```text
    /// Shards: a shard exchanges messages with each shard that shares a segment with it. A rank of many shards of a few
    /// rows is planned for where segments reach few of them: its cost grows with the shards and with those in reach of
    /// each, not with all pairs.
    /// ```
    ///
    /// ```text
    /// The Hilbert order: about 4 steps for each column of the grid, for each rank in reach, in every branch of dilation
    /// 2 or more whose segments reach over the border of a shard. 2^30 positions on a square grid may lie on 8 ranks.
    /// ```
    ///
    /// ```text
    /// Rows of several branches: where branches in the Hilbert order want rows of the same part of a shard, the rows of
    /// all but one are looked at one by one, at some steps each. Parts that one branch alone reaches do not count. In the
    /// linear order it is the dilations without common divisors that count, where about a million products of these are
    /// below the length of a shard.
    /// ```
    ///
    /// A call has no such limit (but one of 2^36 steps): it plans in time that grows with the rows that the rank sends and
    /// receives, which is less than it takes to move and compute with them. After it the plan is there, and
    /// annulus_workspace_size() answers.
    ///
    /// Calls and estimates are ANNULUS_ERROR_UNSUPPORTED where the shards of a rank are in more than 2^19 pairs of a sender
    /// and a receiver that share a segment, or of which one is within the other's window or has global positions; all shards
    /// between a shard and global positions count: a plan takes about a kilobyte for each. Where a segment is the whole
    /// sequence, that is up to 4096 shards dealt to 64 ranks, or 724 to 2, and under causality 1024 to 2.
    pub fn annulus_estimate_problem(
        context: *mut annulus_context,
        problem: *const annulus_problem,
        pass: annulus_pass,
        branch: i32,
        estimate: *mut annulus_estimate,
    ) -> annulus_status;

    /// The bytes of workspace that a call of `pass` on `problem` needs at most under the context's config and threads, in
    /// \*bytes: what to hand to annulus_context_set_workspace(). It is enough for all tensors that the call accepts and that
    /// are as row_alignment of problem says. Errors as annulus_estimate_problem. Since 1.0.
    pub fn annulus_workspace_size(
        context: *mut annulus_context,
        problem: *const annulus_problem,
        pass: annulus_pass,
        bytes: *mut u64,
    ) -> annulus_status;

    /// Which engine would compute a call of `pass` on `problem` under the context's config, in \*engine. The tensors are as
    /// row_alignment of problem says and no better; where it is 0, they are as every engine takes them. Errors as
    /// annulus_workspace_size(), and ANNULUS_ERROR_UNSUPPORTED where no engine, or not the config's, takes such tensors.
    /// Since 1.0.
    pub fn annulus_select_engine(
        context: *mut annulus_context,
        problem: *const annulus_problem,
        pass: annulus_pass,
        engine: *mut annulus_engine,
    ) -> annulus_status;

    /// Whether `engine` could compute that call if the config named it, with all else as the config says: ANNULUS_OK if so.
    /// ANNULUS_ERROR_UNSUPPORTED: it could not, and the message says why, also of an engine that is for another kind of
    /// device or not in this build. Other errors as annulus_select_engine(). ANNULUS_ENGINE_AUTO asks whether any engine
    /// could. Since 1.0.
    pub fn annulus_check_engine(
        context: *mut annulus_context,
        problem: *const annulus_problem,
        pass: annulus_pass,
        engine: annulus_engine,
    ) -> annulus_status;

    /// Makes the ends of a communicator between `ranks` threads of this process, in comms\[0 … ranks - 1\]; comms\[i\] is rank
    /// i's. Each is destroyed by its owner. Nothing waits here: options' creation_timeout has no effect.
    /// ANNULUS_ERROR_ARGUMENT: comms is NULL, ranks is not from 1 to 4096, or options are not as above.
    /// ANNULUS_ERROR_MEMORY. Since 1.0.
    pub fn annulus_comm_create_local(
        comms: *mut *mut annulus_comm,
        ranks: i32,
        options: *const annulus_comm_options,
    ) -> annulus_status;

    /// Makes a communicator over the processes of an MPI communicator, in \*comm. Collective over it. mpi_comm points to an
    /// MPI_Comm of the MPI library that annulus's part for MPI is linked with; annulus duplicates it, and MPI must be
    /// initialised until the annulus communicator is destroyed. Only the calling thread calls MPI: MPI_THREAD_SINGLE is
    /// enough where it is the main one. MPI's duplication cannot be given up: it waits for the other processes as long as
    /// MPI does, and options' creation_timeout has no effect.
    ///
    /// That part is the file libannulus-mpi.so.1, found and loaded as the one for CUDA is (annulus_device_count()), by the
    /// first call of this function or of annulus_build_info(). Where the process has another MPI library as well, which the
    /// part's calls would reach or in which MPI is initialised, the MPI_Comm may be of that one, and is refused.
    ///
    /// What MPI does by itself when a process dies is not annulus's to change. Open MPI's mpirun ends all processes then,
    /// unless it is called with --enable-recovery; only with that do the others' calls return. They return late where Open
    /// MPI waits for mpirun to report a connection that broke, and the program should not go on using MPI: send and receive,
    /// or MPI_Finalize(), may wait for the dead process, and over TCP writing to it raises SIGPIPE, which annulus holds back
    /// during its own calls alone. Ending with _exit(), or MPI_Abort() to end all, is safe. Messages that MPI does not let
    /// annulus give up may use a failed call's memory as long as the program goes on calling MPI: what annulus or an
    /// allocator gave is not released, and a workspace of the caller must stay.
    ///
    /// ANNULUS_ERROR_ARGUMENT: comm or mpi_comm is NULL, MPI is not initialised, or options are not as above.
    /// ANNULUS_ERROR_UNSUPPORTED: annulus's part for MPI cannot be loaded, or the process has another MPI library, as above.
    /// ANNULUS_ERROR_COMM_LIBRARY: an MPI call failed. Since 1.0.
    pub fn annulus_comm_create_from_mpi(
        comm: *mut *mut annulus_comm,
        mpi_comm: *const c_void,
        options: *const annulus_comm_options,
    ) -> annulus_status;

    /// Generates an id in \*id, on one rank, for one communicator. ANNULUS_ERROR_ARGUMENT: id is NULL.
    /// ANNULUS_ERROR_UNSUPPORTED: annulus's part for CUDA cannot be loaded (see annulus_device_count()) or was built without
    /// NCCL, or libnccl.so.2 cannot be loaded or is older than 2.14. ANNULUS_ERROR_COMM_LIBRARY: an NCCL call failed.
    ///
    /// annulus is not linked with NCCL. The first function that needs it opens libnccl.so.2 by dlopen(): the library of that
    /// soname which is in the process already, as it is once PyTorch or CuPy has loaded theirs, else what the dynamic loader
    /// finds, as in LD_LIBRARY_PATH or the system's directories. It stays for the life of the process. Since 1.0.
    pub fn annulus_nccl_id_generate(id: *mut annulus_nccl_id) -> annulus_status;

    /// Makes rank `rank` of an NCCL communicator of `ranks` ranks on CUDA device `device`, in \*comm. Collective over the
    /// ranks, which pass the same id; waits for them for at most options' creation_timeout, then ANNULUS_ERROR_COMM.
    /// ANNULUS_ERROR_ARGUMENT: comm or id is NULL, rank is not below ranks, there is no such device, or options are not as
    /// above. ANNULUS_ERROR_DEVICE: the device could not be used. Other errors as annulus_nccl_id_generate(). Since 1.0.
    pub fn annulus_comm_create_nccl(
        comm: *mut *mut annulus_comm,
        id: *const annulus_nccl_id,
        ranks: i32,
        rank: i32,
        device: i32,
        options: *const annulus_comm_options,
    ) -> annulus_status;

    /// Makes the ends of an NCCL communicator over `ranks` CUDA devices of this process, in comms\[0 … ranks - 1\]; comms\[i\]
    /// is for a context on devices\[i\], used by a thread of its own. devices NULL: the devices 0 … ranks - 1. No device may
    /// stand there twice. Errors as annulus_comm_create_nccl(). Since 1.0.
    pub fn annulus_comm_create_nccl_devices(
        comms: *mut *mut annulus_comm,
        ranks: i32,
        devices: *const i32,
        options: *const annulus_comm_options,
    ) -> annulus_status;

    /// Makes a communicator, in \*comm, that uses an existing ncclComm_t. nccl_comm points to it, as to an MPI_Comm above. It
    /// is of the libnccl.so.2 that annulus opens (annulus_nccl_id_generate() says which): one of another copy of NCCL, or of
    /// one that is linked statically into the program, must not be given. It stays the caller's and must outlive the annulus
    /// communicator; nobody else may use it while an annulus call runs. The ranks have met already, so options'
    /// creation_timeout has no effect.
    ///
    /// Without ANNULUS_COMM_MAY_ABORT annulus never aborts it. A failure then breaks the annulus communicator alone: its
    /// calls fail at once, annulus does not call NCCL any more, and kernels of NCCL that are in a stream already may wait
    /// there for another rank until the caller aborts the ncclComm_t. Destroy the annulus communicator before that, which
    /// does not wait for those kernels, and leaves some kilobytes of memory that they may use allocated for good. With
    /// ANNULUS_COMM_MAY_ABORT annulus aborts the ncclComm_t on failure, which stops those kernels; the caller must not use
    /// it then, not even to destroy it, once annulus_comm_status() tells that the communicator is broken.
    ///
    /// ANNULUS_ERROR_ARGUMENT also where nccl_comm or what it points to is NULL. Other errors as annulus_comm_create_nccl().
    /// Since 1.0.
    pub fn annulus_comm_create_from_nccl(
        comm: *mut *mut annulus_comm,
        nccl_comm: *const c_void,
        options: *const annulus_comm_options,
    ) -> annulus_status;

    /// The number of ranks, in \*size. ANNULUS_ERROR_ARGUMENT: a pointer is NULL. Any thread. Since 1.0.
    pub fn annulus_comm_size(comm: *const annulus_comm, size: *mut i32) -> annulus_status;

    /// The rank of this end, from 0, in \*rank. ANNULUS_ERROR_ARGUMENT: a pointer is NULL. Any thread. Since 1.0.
    pub fn annulus_comm_rank(comm: *const annulus_comm, rank: *mut i32) -> annulus_status;

    /// Sets how many seconds a call waits for another rank before it fails: more than 0, 300 unless set. On CUDA what is
    /// waited for after a call has returned counts too: NCCL's kernels that a dead rank holds up are stopped, unless they
    /// are of a borrowed ncclComm_t that annulus may not abort. Ranks may have different timeouts. ANNULUS_ERROR_ARGUMENT:
    /// comm is NULL or in a call of a context, or seconds is not a finite number above 0. Since 1.0.
    pub fn annulus_comm_set_timeout(comm: *mut annulus_comm, seconds: f64) -> annulus_status;

    /// Writes the state of the communicator to \*status: ANNULUS_OK where it is usable, as far as this rank knows; that
    /// another rank is gone shows when a call misses it. Else the status with which it broke (ANNULUS_ERROR_COMM,
    /// ANNULUS_ERROR_COMM_LIBRARY, or ANNULUS_ERROR_DEVICE where the device of this rank failed and left the others without
    /// its part). Then this call succeeds as well, and what annulus_last_error() and its companions say of the failure with
    /// which the communicator broke becomes the calling thread's. Over NCCL it may break after a call has returned; so ask
    /// when the stream has come past the call, before its results are used. Never waits. Any thread.
    /// ANNULUS_ERROR_ARGUMENT: a pointer is NULL, or comm is of the process that this one was forked from. Since 1.0.
    pub fn annulus_comm_status(comm: *const annulus_comm, status: *mut annulus_status) -> annulus_status;

    /// Breaks the communicator: calls of other threads of this process that wait in it return ANNULUS_ERROR_COMM, and other
    /// processes' calls fail when they miss this rank. Any thread. ANNULUS_ERROR_ARGUMENT: comm is NULL. Since 1.0.
    pub fn annulus_comm_abort(comm: *mut annulus_comm) -> annulus_status;

    /// Destroys a rank's end; NULL is legal. Does not wait for other ranks, whose calls fail from then on; one of NCCL that
    /// annulus made and that is whole gives its last work up to 2 seconds, and is then aborted. Calls of contexts that have
    /// it are ANNULUS_ERROR_ARGUMENT from then on; one that is in it returns ANNULUS_ERROR_COMM, unless it had all that it
    /// waits for. Any thread. Since 1.0.
    pub fn annulus_comm_destroy(comm: *mut annulus_comm);

    /// Makes the context's calls collective over `comm`, which stays the caller's; NULL makes the context compute alone
    /// again (default). Forgets the shards. ANNULUS_ERROR_ARGUMENT: context is NULL, or comm is bound
    /// to another device than the context's. ANNULUS_ERROR_UNSUPPORTED: comm does not work with devices of the context's
    /// kind. Since 1.0.
    pub fn annulus_context_set_comm(context: *mut annulus_context, comm: *mut annulus_comm) -> annulus_status;

    /// Says how the communicator's ranks share the sequence. Calls need it only where a rank holds several shards, and where
    /// a stream is being captured, since else the ranks tell one another; it is also a check: a call is
    /// ANNULUS_ERROR_ARGUMENT on every rank where the ranks' tensors have other rows than some rank has set, or where the
    /// ranks' shards differ and some have several, or ANNULUS_ERROR_DECLINED on the others of a rank whose own tensors do
    /// not have what it has set.
    ///
    /// annulus_workspace_size() and annulus_estimate_problem() ask nobody: in a context with a communicator they answer for
    /// these shards, which must be as long together as the problem's sequence; where none are set, for those of the
    /// context's last call if the problem's sequence is as long; else for shards as equal as can be, the first ones longer.
    ///
    /// NULL takes the shards back (default): each rank then has one, in the order of the ranks. ANNULUS_ERROR_ARGUMENT:
    /// context is NULL or has no communicator, a size is not known or non-zero bytes follow what this version knows, ranks
    /// is neither 0 nor the number of ranks, lengths is NULL, count is not the number of ranks or, with owners, not in
    /// 1 ... 65536, a length is negative, all are 0, or an element of owners is no rank. Since 1.0.
    pub fn annulus_context_set_shards(context: *mut annulus_context, shards: *const annulus_shards) -> annulus_status;

    /// Writes it to \*traffic. ANNULUS_ERROR_ARGUMENT: a pointer is NULL or the size is not known. Since 1.0.
    pub fn annulus_context_last_traffic(
        context: *const annulus_context,
        traffic: *mut annulus_traffic,
    ) -> annulus_status;

    /// Estimates, in \*estimate, a pass of rank `rank` of shards->ranks in a problem under the context's config; the context
    /// needs no communicator. The shards' lengths add up to the sequence length. pairs and flops are those of all branches.
    /// Errors as annulus_estimate_problem(), which says how large a plan may be, and ANNULUS_ERROR_ARGUMENT where shards or
    /// rank are not as above. Since 1.0.
    pub fn annulus_estimate_rank(
        context: *mut annulus_context,
        problem: *const annulus_problem,
        pass: annulus_pass,
        shards: *const annulus_shards,
        rank: i32,
        estimate: *mut annulus_estimate,
    ) -> annulus_status;

    /// Finds shards of a problem under the context's config that give each of `ranks` ranks about the same work. Writes the
    /// length of each shard to lengths\[\], its rank to owners\[\], as annulus_shards takes them, and the number of shards to
    /// \*count. The options of the problem tell the sequences. The context needs no communicator. Every rank that asks with
    /// the same problem gets the same shards.
    ///
    /// The numbers of rows of two ranks differ by at most 1. Each rank has one shard, in the order of the ranks, unless
    /// other shards leave the busiest rank less to do: a zigzag, or shards that keep sequences whole and cut few of them.
    /// Work is the pairs of queries and keys that a rank computes, and the rows of K and V and the messages that it
    /// receives, weighed by the rates of a GPU; more than 8 ranks are taken to be on several hosts. For very many ranks and
    /// sequences the search stops after about a second with the best shards so far, on every rank the same. The choice may
    /// change between versions.
    ///
    /// capacity: the elements that lengths and owners have room for. ANNULUS_MAX_SHARDS is always enough.
    ///
    /// Errors as annulus_estimate_problem() for a forward pass. ANNULUS_ERROR_ARGUMENT also where lengths, owners or count
    /// is NULL, ranks is not from 1 to 4096, or capacity is less than 1 or than the number of shards, which the message
    /// tells. Then nothing was written. Since 1.0.
    pub fn annulus_balance_shards(
        context: *mut annulus_context,
        problem: *const annulus_problem,
        ranks: i32,
        capacity: i32,
        lengths: *mut i64,
        owners: *mut i32,
        count: *mut i32,
    ) -> annulus_status;
}
