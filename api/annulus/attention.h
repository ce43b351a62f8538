/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward, backward, and what they will cost. All rules of what is computed stand in one place: doc/semantics.md.
 *
 * A(n, h) is the multiset (under the key rule `once` the set) of key positions that the config gives query position n
 * of head h. With g = h / (H/G):
 *
 *   LSE[n,h] = log sum over m in A(n,h) of exp(scale * Q[n,h] . K[m,g])                     (natural logarithm)
 *   O[n,h]   =     sum over m in A(n,h) of exp(scale * Q[n,h] . K[m,g] - LSE[n,h]) * V[m,g]
 *
 * If A(n, h) is empty, O is 0, LSE is -infinity and no gradient flows. Sums, softmax statistics and gradients are
 * accumulated in float32, for float64 tensors in float64. A NaN or infinity in a row reaches only the rows that attend
 * to it. There is one exception: if a window gets a row from another rank, on GPUs the NaN or infinity may also reach
 * queries near it.
 *
 * Large numbers. The bounds are for float32, in brackets for float64:
 *
 *   - A score scale * Q.K is computed with the factor last. Its error is at most 2^-20 [2^-49] of scale * sum over d of
 *     |Q_d K_d|. O and LSE are those of scores with such errors, up to rounding.
 *   - A score may reach 2^26 [2^50], or a sum over |Q_d K_d| or over V may leave the type's range. Then results of the
 *     row are right, infinite or NaN, but never another finite number.
 *   - If all keys of a row have the score -infinity, the row is NaN. Only a row without keys is 0.
 *   - Exception: the GPU engine `fused` may leave out a key whose sum over |Q_d K_d| leaves the range.
 *   - Exception: `mma` rounds float32 numbers below 2^-110 to multiples of 2^-136, and takes numbers within 2^-12 of
 *     the end of the range for infinite.
 *   - Backward finds probabilities from the rounded LSE, so their relative error is |LSE| * 2^-23 [2^-52]. If |LSE| is
 *     2^20 [2^49] or more, all gradients to which the row contributes are NaN.
 */
#ifndef ANNULUS_ATTENTION_H
#define ANNULUS_ATTENTION_H

#include <annulus/context.h>
#include <annulus/export.h>
#include <annulus/status.h>
#include <annulus/tensor.h>
#include <stddef.h>
#include <stdint.h>

ANNULUS_BEGIN_DECLS

/*
 * Bits of annulus_call_options.flags. Only bits 0 to 30 can be flags, because an int32_t holds them. Every other option
 * of a call has a field of its own.
 */
typedef enum annulus_call_flag ANNULUS_ENUM_INT32 {
    ANNULUS_CALL_QUERY_WINDOW = 1, /* Q's rows are a window of the rows of K and V, from query_start on; with ranks
                                      (comm.h) that is ANNULUS_ERROR_UNSUPPORTED */
    ANNULUS_CALL_ADD_D_Q = 2,      /* backward adds dQ to what d_q holds, in one rounding; else d_q is overwritten */
    ANNULUS_CALL_ADD_D_K = 4,      /* the same for d_k */
    ANNULUS_CALL_ADD_D_V = 8       /* the same for d_v */
} annulus_call_flag;

/*
 * Options of a call. Set `size` to sizeof(annulus_call_options), best by ANNULUS_CALL_OPTIONS_INIT. NULL in place of
 * the struct means the same as that initial value. The arrays are read during the call only.
 *
 * Rows. There is at least one row; only a rank of several (comm.h) may have none. Without ANNULUS_CALL_QUERY_WINDOW, Q
 * and K have the same number of rows, Nq == N, and row j of Q, O, LSE and their gradients is position j. With it, row j
 * is position query_start + j, and query_start + Nq <= N: the query rows are a part of the N key rows. Examples are one
 * token that is decoded against a cache, and a long job that is done in pieces.
 *
 * Sequences. If sequence_count is 0, the N rows of each batch entry are one sequence. Else it is the number S of
 * sequences. They are either
 *
 *   packed  sequence_starts holds S + 1 numbers, called cu_seqlens elsewhere. Sequence i has the rows starts[i] …
 *           starts[i + 1] - 1 of every batch entry. 0 <= starts[0], the numbers never fall, and starts[S] <= N. With
 *           sequence_lengths, sequence i has only the first lengths[i] of its rows, 0 <= lengths[i] <= starts[i + 1] -
 *           starts[i].
 *   padded  sequence_starts is NULL and S is B. Batch entry b is a sequence of its first lengths[b] rows, 0 <=
 *           lengths[b] <= N.
 *
 * The config holds for each sequence by itself. Segments, places, residues, Hilbert grids, causality and padding count
 * inside a sequence and by its own length, and no query attends to another sequence's keys. If a branch's segment is
 * the whole sequence, its grid width must divide the length of each sequence that is not empty.
 *
 * Rows that belong to no sequence are no keys. As queries they have O = 0, LSE = -infinity and gradients of zero.
 * Positions still count the rows of K and V, also in a query window. With several ranks (comm.h) the numbers count the
 * rows of all ranks, each rank passes the same numbers, and a sequence may lie on several ranks.
 */
typedef struct annulus_call_options {
    size_t size;
    uint64_t flags;                  /* bits of annulus_call_flag */
    int64_t query_start;             /* with ANNULUS_CALL_QUERY_WINDOW the position of row 0 of Q, else 0 */
    int64_t sequence_count;          /* S; 0: neither of the next two is given */
    const int64_t *sequence_starts;  /* [S + 1] in host memory, or NULL */
    const int64_t *sequence_lengths; /* [S] in host memory, or NULL */
} annulus_call_options;

#define ANNULUS_CALL_OPTIONS_INIT                                                                                      \
    { sizeof(annulus_call_options), 0, 0, 0, NULL, NULL }

/*
 * Computes O and, if `lse` is not NULL, LSE.
 *
 *   q     [B, Nq, H, D]  input            out   [B, Nq, H, D]  output, dtype of q
 *   k, v  [B, N,  G, D]  inputs           lse   [B, H, Nq]     output, float32 (float64 if q is float64), or NULL
 *   options  or NULL; bits that say how gradients are written are an error here
 *
 * All tensors are in the memory of the context's device: on CUDA memory of that device, or managed memory. tensor.h
 * says what strides and overlap are allowed. The call is ordered on the context's stream and does not wait for it. On a
 * CPU it returns when the work is done. On success every element of out and lse is written.
 *
 * In these cases nothing is written:
 *
 * ANNULUS_ERROR_ARGUMENT: a handle or required tensor is NULL; the context has no config; a dtype, ndim, shape, stride,
 *   alignment, overlap or memory is not as above; the options are not as annulus_call_options says; a branch's heads or
 *   grid width do not fit the problem; sizes overflow.
 *
 * ANNULUS_ERROR_UNSUPPORTED: D is no multiple of 8 from 8 to 256, or the config's engine cannot do this; the message
 *   says why.
 *
 * ANNULUS_ERROR_WORKSPACE: the context's workspace or the config's workspace limit is too small.
 *   annulus_last_error_bytes() tells how many bytes the call needs (status.h).
 *
 * ANNULUS_ERROR_MEMORY: an allocation failed, or no memory can hold what is needed.
 *
 * In this case outputs may be partly written:
 *
 * ANNULUS_ERROR_DEVICE: the device failed.
 *
 * Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_forward(annulus_context *context, const annulus_tensor *q,
                                                  const annulus_tensor *k, const annulus_tensor *v,
                                                  const annulus_tensor *out, const annulus_tensor *lse,
                                                  const annulus_call_options *options);

/*
 * Computes the gradients of forward. From dO (and from dLSE, if `d_lse` is not NULL) it computes dQ, dK and dV. With
 * P[n,m] = (multiplicity of m in A(n,h)) * exp(scale * Q.K - LSE) and delta[n] = O[n] . dO[n]:
 *
 *   dV[m] = sum_n P dO[n]    dS = scale * P * (dO.V - delta + dLSE)    dQ[n] = sum_m dS K[m]    dK[m] = sum_n dS Q[n]
 *
 * dK and dV are summed over the H/G query heads that share a key/value head.
 *
 *   q, out, d_out  [B, Nq, H, D] inputs      d_q       [B, Nq, H, D] output       lse    [B, H, Nq] input, from forward
 *   k, v           [B, N,  G, D] inputs      d_k, d_v  [B, N,  G, D] outputs      d_lse  [B, H, Nq] input, or NULL
 *
 * q, k, v, out and lse must be those of a forward call with the same config, query window and sequences. Instead, out
 * and lse may be what annulus_merge() made of that call's results and others. P is found from lse, with the precision
 * of its dtype. With a query window, d_k and d_v are the contribution of its query rows.
 *
 * Dtypes. Each of d_q, d_k and d_v has the dtype of q. If that is bfloat16 or float16, each of them may be float32
 * instead. Then sums of several calls need not be rounded to 16 bits.
 *
 * Adding. Each of them is overwritten, unless the options have its bit (ANNULUS_CALL_ADD_D_Q, _K, _V). Then the
 * gradient is added to what the tensor holds. The sum is computed in float32 (float64 for float64) and rounded once. A
 * row that gets no gradient stays as it is, bit for bit. A NaN in the tensor stays NaN and reaches no other element.
 *
 * With several ranks (comm.h) each rank has its own dtypes and bits. They say how this rank writes its own rows,
 * whatever the other ranks do.
 *
 * Everything else as annulus_forward(). Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_backward(annulus_context *context, const annulus_tensor *q,
                                                   const annulus_tensor *k, const annulus_tensor *v,
                                                   const annulus_tensor *out, const annulus_tensor *lse,
                                                   const annulus_tensor *d_out, const annulus_tensor *d_lse,
                                                   const annulus_tensor *d_q, const annulus_tensor *d_k,
                                                   const annulus_tensor *d_v, const annulus_call_options *options);

/*
 * Computes how much each key is attended to: for each key and query head the attention mass, which is the sum of the
 * probabilities that all queries gave the key in forward. With P as in annulus_backward():
 *
 *   mass[m,h] = sum_n P[n,m]          P[n,m] = (multiplicity of m in A(n,h)) * exp(scale * Q.K - LSE)
 *
 *   q     [B, Nq, H, D]  input                            mass  [B, H, N]  output, dtype of lse, any strides
 *   k     [B, N,  G, D]  input, dtype of q                options  as in annulus_forward(), or NULL
 *   lse   [B, H, Nq]     input, from forward
 *
 * q, k and lse are those of a forward call with the same config, query window and sequences.
 *
 *   - The masses of a head add up to the number of queries that attend to anything, less what keys of zero_keys padding
 *     take. These keys have no row.
 *   - A key that no query attends to has 0.
 *   - With a query window the queries are those of the window. One row of Q tells what this query alone attends to.
 *   - With several ranks (comm.h) every rank gets the mass of its own keys, over the queries of all ranks.
 *
 * Cost: two of backward's five products, which is about what forward costs. The workspace grows with N * D;
 * annulus_workspace_size() tells it for ANNULUS_PASS_MASS. If H/G is more than D, the call works in ceil(H/G / D)
 * rounds of the same cost.
 *
 * Precision: the relative error of a probability is that of the rounded LSE, |LSE| * 2^-23 [float64: 2^-52]. For
 * bfloat16 and float16 inputs, engines may round each probability to the dtype before they add it. That is a relative
 * error of at most 2^-9 [float16: 2^-11, and a probability below 2^-25 counts as 0]. Sums are in float32 (float64 for
 * float64).
 *
 * A query's row may hold NaN, or its LSE may be 2^20 [2^49] or more. Then the masses of the keys that it attends to may
 * be NaN, in all heads that share a key/value head. It makes no other masses NaN.
 *
 * Everything else, errors too, as annulus_forward(). Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_attention_mass(annulus_context *context, const annulus_tensor *q,
                                                         const annulus_tensor *k, const annulus_tensor *lse,
                                                         const annulus_tensor *mass,
                                                         const annulus_call_options *options);

/* The greatest number of parts that annulus_merge() takes. */
#define ANNULUS_MAX_MERGE_PARTS 48

/*
 * Options of a merge. Set `size` to sizeof(annulus_merge_options), best by ANNULUS_MERGE_OPTIONS_INIT. NULL in place of
 * the struct means the same as that initial value.
 */
typedef struct annulus_merge_options {
    size_t size;
    uint64_t flags; /* 0: this version knows none */
} annulus_merge_options;

#define ANNULUS_MERGE_OPTIONS_INIT                                                                                     \
    { sizeof(annulus_merge_options), 0 }

/*
 * Merges results of forward calls for the same queries over different keys. The result is what one call over all of
 * these keys would give. With O_i = outs[i] and LSE_i = lses[i] of part i:
 *
 *   LSE[n,h] = log sum_i exp(LSE_i[n,h])        O[n,h] = sum_i exp(LSE_i[n,h] - LSE[n,h]) * O_i[n,h]
 *
 * This is the rule for partial results of a softmax (e.g. Milakov & Gimelshein 2018, arXiv:1805.02867). Logarithms are
 * natural. Other libraries merge attention states by the same rule, but some have LSE to the base 2: multiply such an
 * LSE by ln 2. If a key is in two parts, it counts twice.
 *
 *   outs  [count], each [B, Nq, H, D]  inputs     out  [B, Nq, H, D]  output, dtype of outs
 *   lses  [count], each [B, H, Nq]     inputs     lse  [B, H, Nq]     output, dtype of lses, or NULL
 *   count  from 1 to ANNULUS_MAX_MERGE_PARTS      options  or NULL
 *
 * All outs have one dtype. lses are float32, or float64 if outs are float64. Nq may be 0. Strides are as in tensor.h,
 * and each tensor has its own. Sums are in float32 (float64) and rounded to out once.
 *
 *   - If LSE of a row is -infinity in a part, this part counts for nothing there, whatever its O holds.
 *   - If it is -infinity in all parts, O is 0 and LSE is -infinity.
 *   - If it is NaN or +infinity in a part, that row of O and LSE is NaN, and no other row. (FlashAttention-2 gives rows
 *     without keys an LSE of +infinity: make it -infinity.)
 *   - If an element of O is infinite in one part, the result is infinite, however small the part's weight. If parts
 *     have both infinities, or one has NaN, it is NaN.
 *   - If a sum over the |O_i| of finite elements leaves the range of the sums, the element is right, infinite or NaN.
 *
 * out may be one of outs, and lse one of lses: with the same data, shape and strides. Any other overlap is an error, as
 * in tensor.h.
 *
 * The context needs no config, and no workspace is used. The call is not collective: with a communicator a rank merges
 * its own rows, alone. It is ordered on the context's stream as forward is, and may be captured into a graph.
 *
 * Gradients need no function of their own. Call annulus_backward() for each part, with the part's q, k, v and config,
 * but with the merged out and lse, and with d_out and d_lse of the merged results. Each call gives the whole d_k and
 * d_v of its keys and its share of d_q. The sum of these shares is d_q. This is right because backward uses the other
 * keys only in P = exp(scale * Q.K - LSE) and delta = O . dO, and both are those of the merged results.
 *
 * In these cases nothing is written:
 *
 * ANNULUS_ERROR_ARGUMENT: context, outs, lses or out is NULL; count, a dtype, ndim, shape, stride, alignment, overlap
 *   or memory is not as above; options is not as annulus_merge_options says.
 *
 * ANNULUS_ERROR_UNSUPPORTED: D is no multiple of 8 from 8 to 256, or float64 on CUDA.
 *
 * Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_merge(annulus_context *context, int32_t count, const annulus_tensor *outs,
                                                const annulus_tensor *lses, const annulus_tensor *out,
                                                const annulus_tensor *lse, const annulus_merge_options *options);

/* The passes over queries and keys, for questions about their cost. */
typedef enum annulus_pass ANNULUS_ENUM_INT32 {
    ANNULUS_PASS_FORWARD = 1,  /* annulus_forward() */
    ANNULUS_PASS_BACKWARD = 2, /* annulus_backward() */
    ANNULUS_PASS_MASS = 3      /* annulus_attention_mass() */
} annulus_pass;

/*
 * The sizes of a problem without its data. Set `size` to sizeof(annulus_problem), best by ANNULUS_PROBLEM_INIT. Then
 * set dtype, heads, kv_heads, head_dim, batch and sequence_length. If one of them is 0, that is an error that names it.
 * In a context with a communicator (comm.h) the problem is that of all ranks together, and the answers are for the
 * context's own rank.
 *
 * options points to the options of the call in question; NULL means that the call has none. A pass checks them as its
 * call does, with sequence_length as the number of rows of K. With ANNULUS_CALL_QUERY_WINDOW the queries are
 * query_length rows from the options' query_start on: 1 <= query_length and query_start + query_length <= N. Without it
 * query_length is 0 or N.
 *
 * row_alignment says what is known about the call's tensors. 0 means that nothing is known. Else it is a power of two
 * up to 4096, and two things hold for all tensors:
 *
 *   - every row (the D elements of a head) begins at a multiple of this number of bytes,
 *   - no dimension of more than one element has a stride of 0 or of 2^40 bytes or more.
 *
 * 16 is enough for every engine. The workspace size is enough for all tensors with these properties. For some of them
 * ANNULUS_ENGINE_AUTO may compute with another engine. Then the size is that of the engine that needs most.
 *
 * gradient_dtype is the dtype of d_q, d_k and d_v. 0 or dtype means the dtype of q. If dtype is bfloat16 or float16,
 * ANNULUS_FLOAT32 means that at least one of d_q, d_k and d_v is float32. Only backward uses gradient_dtype.
 */
typedef struct annulus_problem {
    size_t size;
    annulus_dtype dtype;
    annulus_dtype gradient_dtype;        /* or 0 */
    int32_t heads;                       /* H */
    int32_t kv_heads;                    /* G */
    int32_t head_dim;                    /* D */
    int64_t batch;                       /* B */
    int64_t sequence_length;             /* N, of all ranks together */
    int64_t query_length;                /* Nq with ANNULUS_CALL_QUERY_WINDOW; else 0 or N */
    int64_t row_alignment;               /* bytes, or 0 */
    const annulus_call_options *options; /* or NULL */
} annulus_problem;

#define ANNULUS_PROBLEM_INIT                                                                                           \
    { sizeof(annulus_problem), ANNULUS_DTYPE_NONE, ANNULUS_DTYPE_NONE, 0, 0, 0, 0, 0, 0, 0, NULL }

/*
 * What one pass of a problem costs one rank. Set `size` to sizeof(annulus_estimate) before the call, best by
 * ANNULUS_ESTIMATE_INIT.
 *
 * pairs counts (query, key) pairs of the rank's queries over batch, heads and branches. If several branches give a key
 * to a query, it counts for each of them, whatever the key rule. The number is exact, with one exception. In the
 * Hilbert order, positions are taken as evenly spread over the segment in three cases: with a query window, with
 * several ranks, or if causal with the query rule `every`.
 *
 * flops are those of the pass's matrix products; a multiplication and an addition are two. Forward has 4 * pairs * D,
 * backward 10 * pairs * D, and each of the ceil(H/G / D) rounds of attention mass 4 * pairs * D.
 *
 * tensor_bytes are those of the rank's elements of all tensors that the pass reads and writes:
 *
 *   forward   q, k, v, out, lse
 *   backward  q, k, v, out, lse, d_out, d_q, d_k, d_v; the last three in gradient_dtype; no d_lse
 *   mass      q, k, lse, mass
 *
 * sent_bytes and received_bytes are exactly what a call sends and receives. Rows of K and V go to the ranks that attend
 * to them, and in backward their dK and dV come back. In each round of attention mass rows of K go out, and a row of
 * sums comes back for each.
 *
 * If processes of one host share a communicator over NCCL, the communicator keeps more memory on each device. It has
 * room for the most that was ever sent to each rank at once. For one problem that is at most the bytes sent here,
 * rounded up to 2 MiB.
 *
 * received_messages counts the messages of rows of K and V that the rank's shards receive, also from shards of the same
 * rank. A shard gets one or a few messages from each shard whose keys it attends to. Messages that arrive at once from
 * shards side by side count as one if their rows lie alike: the shard computes with them together. Each round of
 * attention mass receives this number of messages.
 */
typedef struct annulus_estimate {
    size_t size;
    double pairs;
    double flops;
    uint64_t tensor_bytes;
    uint64_t workspace_bytes;  /* memory that the call needs besides its tensors, as annulus_workspace_size() */
    uint64_t sent_bytes;       /* to all other ranks together */
    uint64_t received_bytes;   /* from all other ranks together */
    uint64_t plan_bytes;       /* host memory of the plan itself */
    annulus_exchange exchange; /* what `auto` comes to; ANNULUS_EXCHANGE_AUTO if there is one rank */
    int64_t received_messages; /* see above; 0 if there is one rank */
} annulus_estimate;

#define ANNULUS_ESTIMATE_INIT                                                                                          \
    { sizeof(annulus_estimate), 0, 0, 0, 0, 0, 0, 0, ANNULUS_EXCHANGE_AUTO, 0 }

/* Stands in place of a branch's index for all branches of the config. */
#define ANNULUS_ALL_BRANCHES (-1)

/*
 * Estimates a pass of a problem under the context's config, in *estimate.
 *
 * branch: ANNULUS_ALL_BRANCHES, or an index of the config. With an index, pairs and flops are that branch's share, and
 * everything else is that of the whole call.
 *
 * ANNULUS_ERROR_ARGUMENT: a pointer is NULL, the context has no config, `pass` is unknown, `branch` does not exist, a
 * size is not known or non-zero bytes follow what this version knows, or the problem is not legal.
 * ANNULUS_ERROR_UNSUPPORTED: as annulus_forward(), or the plan of several ranks takes too many steps (below).
 * ANNULUS_ERROR_WORKSPACE: a call needs more than the config's workspace limit. ANNULUS_ERROR_MEMORY: it needs more
 * than any memory can hold, or an allocation failed. Since 1.0.
 *
 * Time and memory of an estimate grow with the number of branches, not with N or H. With 64 branches it takes some
 * hundredths of a second.
 *
 * Several ranks. A plan knows the rows of every message. Estimates and workspace sizes take at most 2^21 steps for all
 * shards and sequences of the rank (about a tenth of a second on one core). If they would take more, they are
 * ANNULUS_ERROR_UNSUPPORTED, and the message says what is too much. Steps are:
 *
 *   Ranks and heads: each message takes some 20 steps. Each of its key/value heads takes some more for every branch
 *   whose segments reach over the border of a shard. 4096 ranks with 32 heads and 11 branches are not too many.
 *
 *   Shards: a shard exchanges messages with each shard that shares a segment with it. The steps grow with the shards
 *   and with the shards in reach of each, not with all pairs. So a rank of many shards of a few rows can be planned for
 *   if segments reach few of them.
 *
 *   The Hilbert order: about 4 steps for each column of the grid, for each rank in reach, in every branch of dilation
 *   2 or more whose segments reach over the border of a shard. 2^30 positions on a square grid may lie on 8 ranks.
 *
 *   Rows of several branches: branches in the Hilbert order may want rows of the same part of a shard. Then the plan
 *   looks at the rows of all of these branches but one, at some steps a row. Parts that only one branch reaches do not
 *   count.
 *   In the linear order, dilations without common divisors count, if about a million products of them are below the
 *   length of a shard.
 *
 * A call has no such limit, only one of 2^36 steps. Its plan takes time that grows with the rows that the rank sends
 * and receives. This is less time than it takes to move these rows and compute with them. After the call the plan is
 * there, and annulus_workspace_size() answers.
 *
 * A plan takes about a kilobyte for each pair of a sending and a receiving shard. A pair counts if both share a
 * segment, if one is within the other's window, or if one has global positions. All shards between a shard and global
 * positions count. If the shards of a rank are in more than 2^19 pairs, calls and estimates are
 * ANNULUS_ERROR_UNSUPPORTED. If a segment is the whole sequence, 4096 shards may be dealt to 64 ranks, or 724 shards to
 * 2 ranks. Under causality 1024 shards may be dealt to 2 ranks.
 */
ANNULUS_API_STATUS annulus_status annulus_estimate_problem(annulus_context *context, const annulus_problem *problem,
                                                           annulus_pass pass, int32_t branch,
                                                           annulus_estimate *estimate);

/*
 * Writes the bytes of workspace that a call of `pass` on `problem` needs at most under the context's config and threads
 * to *bytes. This is the size for annulus_context_set_workspace(). It is enough for all tensors that the call accepts
 * and that are as row_alignment of problem says. Errors as annulus_estimate_problem(). Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_workspace_size(annulus_context *context, const annulus_problem *problem,
                                                         annulus_pass pass, uint64_t *bytes);

/*
 * Writes the engine that would compute a call of `pass` on `problem` under the context's config to *engine. The tensors
 * are as row_alignment of problem says and no better. If it is 0, the tensors are such that every engine takes them.
 *
 * ANNULUS_ERROR_UNSUPPORTED: no engine takes such tensors, or the config's engine does not. Other errors as
 * annulus_workspace_size(). Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_select_engine(annulus_context *context, const annulus_problem *problem,
                                                        annulus_pass pass, annulus_engine *engine);

/*
 * Returns ANNULUS_OK if `engine` could compute a call of `pass` on `problem` if the config named it, with all else as
 * the config says. ANNULUS_ENGINE_AUTO asks whether any engine could.
 *
 * ANNULUS_ERROR_UNSUPPORTED: it could not, and the message says why. This also holds for an engine that is for another
 * kind of device or not in this build. Other errors as annulus_select_engine(). Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_check_engine(annulus_context *context, const annulus_problem *problem,
                                                       annulus_pass pass, annulus_engine engine);

ANNULUS_END_DECLS

#endif
