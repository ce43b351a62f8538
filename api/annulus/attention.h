/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward, backward, and what they will cost. All rules of what is computed, in one place: doc/semantics.md.
 *
 * With A(n, h) the multiset (under the key rule `once` the set) of key positions that the config gives query position n
 * of head h, and g = h / (H/G):
 *
 *   LSE[n,h] = log sum over m in A(n,h) of exp(scale * Q[n,h] . K[m,g])                     (natural logarithm)
 *   O[n,h]   =     sum over m in A(n,h) of exp(scale * Q[n,h] . K[m,g] - LSE[n,h]) * V[m,g]
 *
 * If A(n, h) is empty, O is 0, LSE is -infinity and no gradient flows. Sums, softmax statistics and gradients are
 * accumulated in float32, in float64 for float64 tensors. A NaN or infinity in a row reaches only the rows that attend
 * to it; but on GPUs that of a row which a window gets from another rank may also reach queries near it.
 *
 * At the edge of that type (float32; in brackets float64) this holds. A score scale * Q.K is computed
 * with the factor last, and is off by no more than 2^-20 [2^-49] of scale * sum over d of |Q_d K_d|; O and LSE are
 * those of scores which are off by so much, up to rounding. Where a score reaches 2^26 [2^50], or a sum over |Q_d K_d|
 * or over V leaves the type's range, results of the row are right, infinite or NaN, but never another finite number; a
 * row all of whose keys have the score -infinity is NaN, and only a row without keys is 0. (But the GPU engine `fused`
 * may leave out a key whose sum over |Q_d K_d| leaves the range, and `mma` rounds float32 numbers below 2^-110 to
 * multiples of 2^-136, and takes those within 2^-12 of the end of the range for infinite.) Backward finds probabilities
 * from LSE as it was rounded: they are off by |LSE| * 2^-23 [2^-52] of themselves, and where |LSE| is 2^20 [2^49] or
 * more, all gradients to which the row contributes are NaN.
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
 * Bits of annulus_call_options.flags. Only bits 0 to 30 can be flags, which an int32_t holds; whatever else a call may
 * be told gets a field of its own.
 */
typedef enum annulus_call_flag ANNULUS_ENUM_INT32 {
    ANNULUS_CALL_QUERY_WINDOW = 1, /* Q's rows are a window of the rows of K and V, from query_start on; with ranks
                                      (comm.h) that is ANNULUS_ERROR_UNSUPPORTED */
    ANNULUS_CALL_ADD_D_Q = 2,      /* backward adds dQ to what d_q holds, in one rounding; else d_q is overwritten */
    ANNULUS_CALL_ADD_D_K = 4,      /* the same for d_k */
    ANNULUS_CALL_ADD_D_V = 8       /* the same for d_v */
} annulus_call_flag;

/*
 * What a call may be given beside its tensors. Set `size` to sizeof(annulus_call_options), best by
 * ANNULUS_CALL_OPTIONS_INIT; NULL in place of the struct is the same as that. The arrays are read during the call only.
 *
 * There is at least one row; only a rank of several (comm.h) may have none. Without ANNULUS_CALL_QUERY_WINDOW, Q and
 * K have the same number of rows, Nq == N, and row j of Q, O, LSE and their gradients is position j. With it, row j is
 * position query_start + j, and query_start + Nq <= N: the query rows are a part of the N key rows (one token decoded
 * against a cache, a long job done in pieces).
 *
 * Sequences: the N rows are one sequence for each batch entry, unless sequence_count says how many there are, S. Then
 * they are either
 *
 *   packed  sequence_starts holds S + 1 numbers, as cu_seqlens elsewhere: sequence i has the rows starts[i] …
 *           starts[i + 1] - 1 of every batch entry, 0 <= starts[0], never falling, starts[S] <= N. With
 *           sequence_lengths it has only the first lengths[i] of them, 0 <= lengths[i] <= starts[i + 1] - starts[i].
 *   padded  sequence_starts is NULL, S is B, and batch entry b is a sequence of its first lengths[b] rows,
 *           0 <= lengths[b] <= N.
 *
 * Everything that the config says of the sequence is said of each: segments, places, residues, Hilbert grids, causality
 * and padding count inside a sequence and by its own length, and no query attends to another sequence's keys. Where a
 * branch's segment is the whole sequence, a grid width must divide the length of each that is not empty. Rows of no
 * sequence are no keys; as queries they have O = 0 and LSE = -infinity, and their gradients are 0. Positions are rows
 * of K and V all the same, in a query window too. With several ranks (comm.h) the numbers count the rows of all of
 * them, each rank passes the same, and a sequence may lie on several.
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
 *   k, v  [B, N,  G, D]  inputs           lse   [B, H, Nq]     output, float32 (float64 when q is float64), or NULL
 *   options  what else there is to say, or NULL; bits that say how gradients are written are an error here
 *
 * All tensors are in the memory of the context's device (on CUDA that device's, or managed memory); see tensor.h for
 * strides and overlap. The call is ordered on the context's stream and does not wait for it; on a CPU it returns when
 * the work is done. On success every element of out and lse is written.
 *
 * ANNULUS_ERROR_ARGUMENT: a handle or required tensor is NULL; the context has no config; a dtype, ndim, shape, stride,
 *   alignment, overlap or memory is not as above; the options are not as annulus_call_options says; a branch's heads or
 *   grid width do not fit the problem; sizes overflow.
 *
 * ANNULUS_ERROR_UNSUPPORTED: D is no multiple of 8 from 8 to 256, or the config's engine cannot do this; the message
 *   says why.
 *
 * ANNULUS_ERROR_WORKSPACE: the context's workspace or the config's workspace limit is too small; status.h tells of
 *   annulus_last_error_bytes(). ANNULUS_ERROR_MEMORY: an allocation failed, or no memory can hold what is needed.
 *
 * Nothing was written in these cases. ANNULUS_ERROR_DEVICE: the device failed; outputs may be partly written.
 *
 * Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_forward(annulus_context *context, const annulus_tensor *q,
                                                  const annulus_tensor *k, const annulus_tensor *v,
                                                  const annulus_tensor *out, const annulus_tensor *lse,
                                                  const annulus_call_options *options);

/*
 * Computes the gradients of forward: given dO (and dLSE, if `d_lse` is not NULL), writes dQ, dK and dV. With
 * P[n,m] = (multiplicity of m in A(n,h)) * exp(scale * Q.K - LSE) and delta[n] = O[n] . dO[n]:
 *
 *   dV[m] = sum_n P dO[n]    dS = scale * P * (dO.V - delta + dLSE)    dQ[n] = sum_m dS K[m]    dK[m] = sum_n dS Q[n]
 *
 * dK and dV are summed over the H/G query heads that share a key/value head.
 *
 *   q, out, d_out  [B, Nq, H, D] inputs      d_q       [B, Nq, H, D] output       lse    [B, H, Nq] input, from forward
 *   k, v           [B, N,  G, D] inputs      d_k, d_v  [B, N,  G, D] outputs      d_lse  [B, H, Nq] input, or NULL
 *
 * q, k, v, out and lse must be those of a forward call with the same config, query window and sequences; or out and lse
 * those that annulus_merge() made of its results and others'. P is found with lse, as exactly as its dtype holds it.
 * With a query window, d_k and d_v are the contribution of its query rows.
 *
 * Each of d_q, d_k and d_v has the dtype of q or, where that is bfloat16 or float16, that or float32, each its own:
 * then sums of several calls need not be rounded to 16 bits. Each is overwritten, or, if the options have its bit
 * (ANNULUS_CALL_ADD_D_Q, _K, _V), added to: the sum of what it held and the gradient is computed in float32 (float64
 * for float64) and rounded once. Rows that get no gradient then stay as they are, bit for bit, and what is NaN stays
 * NaN there and nowhere else. With several ranks (comm.h) each has its own dtypes and bits: they say how a rank writes
 * its own rows, whatever the others do.
 *
 * Everything else as annulus_forward. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_backward(annulus_context *context, const annulus_tensor *q,
                                                   const annulus_tensor *k, const annulus_tensor *v,
                                                   const annulus_tensor *out, const annulus_tensor *lse,
                                                   const annulus_tensor *d_out, const annulus_tensor *d_lse,
                                                   const annulus_tensor *d_q, const annulus_tensor *d_k,
                                                   const annulus_tensor *d_v, const annulus_call_options *options);

/*
 * Computes which keys are attended to, and how much: of each key and query head the attention mass, the sum of the
 * probabilities that all queries give it, as forward had them. With P as in annulus_backward():
 *
 *   mass[m,h] = sum_n P[n,m]          P[n,m] = (multiplicity of m in A(n,h)) * exp(scale * Q.K - LSE)
 *
 *   q     [B, Nq, H, D]  input                            mass  [B, H, N]  output, dtype of lse, any strides
 *   k     [B, N,  G, D]  input, dtype of q                options  as in annulus_forward(), or NULL
 *   lse   [B, H, Nq]     input, from forward
 *
 * q, k and lse are those of a forward call with the same config, query window and sequences. The masses of a head add
 * up to the number of queries that attend to anything, less what the keys of zero_keys padding take, which have no row.
 * A key that nobody attends to has 0. With a query window the queries are those of the window: one row of Q tells what
 * this query alone attends to. With several ranks (comm.h) every rank gets the mass of its own keys, over the queries
 * of all.
 *
 * It costs two of backward's five products, about what forward costs, and a workspace that grows with N * D, of which
 * annulus_workspace_size() tells under ANNULUS_PASS_MASS. Where H/G is more than D, it is done in ceil(H/G / D) rounds
 * of the same cost.
 *
 * A probability is off by as much as LSE was rounded, |LSE| * 2^-23 [2^-52] of itself. For bfloat16 and float16 inputs
 * engines may round each to the dtype before they add it, by at most 2^-9 [float16: 2^-11, and what is below 2^-25
 * counts as 0] of itself; sums are in float32 (float64 for float64). Where a query's row holds NaN or its LSE is 2^20
 * [2^49] or more, the masses of the keys that it attends to may be NaN, in all heads that share a key/value head, and
 * no others.
 *
 * Everything else, errors too, as annulus_forward(). Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_attention_mass(annulus_context *context, const annulus_tensor *q,
                                                         const annulus_tensor *k, const annulus_tensor *lse,
                                                         const annulus_tensor *mass,
                                                         const annulus_call_options *options);

/* The most parts that annulus_merge() takes. */
#define ANNULUS_MAX_MERGE_PARTS 48

/*
 * What a merge may be given beside its tensors. Set `size` to sizeof(annulus_merge_options), best by
 * ANNULUS_MERGE_OPTIONS_INIT; NULL in place of the struct is the same as that.
 */
typedef struct annulus_merge_options {
    size_t size;
    uint64_t flags; /* 0: this version knows none */
} annulus_merge_options;

#define ANNULUS_MERGE_OPTIONS_INIT                                                                                     \
    { sizeof(annulus_merge_options), 0 }

/*
 * Merges what forward calls over different keys gave the same queries into what one call over all of these keys would
 * have given. With O_i = outs[i] and LSE_i = lses[i] of part i:
 *
 *   LSE[n,h] = log sum_i exp(LSE_i[n,h])        O[n,h] = sum_i exp(LSE_i[n,h] - LSE[n,h]) * O_i[n,h]
 *
 * the rule for partial results of a softmax (e.g. Milakov & Gimelshein 2018, arXiv:1805.02867). Logarithms are natural;
 * other libraries merge attention states by the same rule, but some keep LSE to the base 2: multiply those by ln 2. A
 * key that two parts have counts twice.
 *
 *   outs  [count], each [B, Nq, H, D]  inputs     out  [B, Nq, H, D]  output, dtype of outs
 *   lses  [count], each [B, H, Nq]     inputs     lse  [B, H, Nq]     output, dtype of lses, or NULL
 *   count  from 1 to ANNULUS_MAX_MERGE_PARTS      options  what else there is to say, or NULL
 *
 * All outs have one dtype, lses float32 (float64 when outs are). Nq may be 0. Strides as elsewhere, each tensor has its
 * own. Sums are in float32 (float64) and rounded to out once. A part whose LSE of a row is -infinity counts for nothing
 * there, whatever its O holds; where all are, O is 0 and LSE -infinity. Where one is NaN or +infinity, that row of O
 * and LSE is NaN, and no other. (FlashAttention-2 gives rows without keys an LSE of +infinity: make it -infinity.)
 *
 * An element of O is infinite where one of the parts' is, however small its weight, and NaN where parts have both
 * infinities or one has NaN. Where a sum over the |O_i| of finite elements leaves the range of the sums, the element is
 * right, infinite or NaN.
 *
 * out may be one of outs, and lse one of lses: the same data, shape and strides. Any other overlap is an error, as in
 * tensor.h.
 *
 * The context needs no config, and no workspace is used. The call is not collective: with a communicator a rank merges
 * its own rows, alone. It is ordered on the context's stream as forward is, and may be captured into a graph.
 *
 * Gradients need no function of their own. Call annulus_backward() for each part, with its q, k, v and config, but with
 * the merged out and lse, and with d_out and d_lse of the merged results: each call gives the whole d_k and d_v of its
 * keys and its share of d_q, and d_q is the sum of the shares. For backward knows the other keys only by
 * P = exp(scale * Q.K - LSE) and delta = O . dO, and both are those of the merged results.
 *
 * ANNULUS_ERROR_ARGUMENT: context, outs, lses or out is NULL; count, a dtype, ndim, shape, stride, alignment, overlap
 *   or memory is not as above; options is not as annulus_merge_options says.
 *
 * ANNULUS_ERROR_UNSUPPORTED: D is no multiple of 8 from 8 to 256, or float64 on CUDA.
 *
 * Nothing was written in these cases. Since 1.0.
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
 * The sizes of a problem without its data. Set `size` to sizeof(annulus_problem), best by ANNULUS_PROBLEM_INIT, and
 * dtype, heads, kv_heads, head_dim, batch and sequence_length to what they are: one that is 0 is an error that names
 * it. In a context with a communicator (comm.h) the problem is that of all ranks together, and the answers are for the
 * context's own rank.
 *
 * options points to the options of the call that is asked about; NULL means that the call has none. A pass checks them
 * as its call does, with sequence_length as the number of rows of K. With ANNULUS_CALL_QUERY_WINDOW the queries are
 * query_length rows from the options' query_start on: 1 <= query_length and query_start + query_length <= N. Without it
 * query_length is 0 or N.
 *
 * row_alignment says what is known of the call's tensors: every row of them (the D elements of a head) begins at a
 * multiple of this number of bytes, a power of two up to 4096, and no dimension of more than one has a stride of 0 or
 * of 2^40 bytes or more; 0: nothing is known. Workspace is told for all tensors that are so: where ANNULUS_ENGINE_AUTO
 * would compute with another engine for some of them, what the engine that needs most needs. 16 is enough for every
 * engine.
 *
 * gradient_dtype is that of d_q, d_k and d_v: dtype or 0 for the same, or ANNULUS_FLOAT32 where dtype is bfloat16 or
 * float16 and at least one of them is float32. Only backward asks for it.
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
 * pairs counts (query, key) pairs of the rank's queries over batch, heads and branches: a key that several branches
 * give a query is counted for each of them, whatever the key rule. It is exact, but for one case: in the Hilbert order
 * with a query window or several ranks, or causal with the query rule `every`, positions are taken as evenly spread
 * over the segment.
 *
 * flops are those of the pass's matrix products, with a multiplication and an addition as two: 4 * pairs * D for
 * forward, 10 * pairs * D for backward, and 4 * pairs * D for each of the ceil(H/G / D) rounds of attention mass.
 *
 * tensor_bytes are those of the rank's elements of all tensors that the pass reads and writes:
 *
 *   forward   q, k, v, out, lse
 *   backward  q, k, v, out, lse, d_out, d_q, d_k, d_v, where gradient_dtype is that of the last three; no d_lse
 *   mass      q, k, lse, mass
 *
 * sent_bytes and received_bytes are exact: a call sends and receives these. Rows of K and V go to the ranks that attend
 * to them, and in backward their dK and dV come back. In each round of attention mass rows of K go out, and a row of
 * sums comes back for each. Where processes of one host share a communicator over NCCL, that keeps besides, on each
 * device, room for what has been sent to each rank at once at most, which for one problem is no more than the bytes
 * sent here, rounded up to 2 MiB.
 *
 * received_messages counts the messages of rows of K and V that the rank's shards receive, those from shards of its own
 * as well. A shard gets one or a few from each shard whose keys it attends to. Messages that arrive at once from shards
 * side by side count as one where their rows lie alike: the shard computes with them together. Each round of attention
 * mass receives as many.
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
    annulus_exchange exchange; /* what `auto` comes to; ANNULUS_EXCHANGE_AUTO where there is one rank */
    int64_t received_messages; /* see above; 0 where there is one rank */
} annulus_estimate;

#define ANNULUS_ESTIMATE_INIT                                                                                          \
    { sizeof(annulus_estimate), 0, 0, 0, 0, 0, 0, 0, ANNULUS_EXCHANGE_AUTO, 0 }

/* In place of a branch's index: all of the config. */
#define ANNULUS_ALL_BRANCHES (-1)

/*
 * Estimates a pass of a problem under the context's config, in *estimate.
 * branch: an index of the config, and pairs and flops are that branch's share, the rest that of the whole call; or
 * ANNULUS_ALL_BRANCHES.
 * ANNULUS_ERROR_ARGUMENT: a pointer is NULL, the context has no config, `pass` is unknown, `branch` does not exist, a
 * size is not known or non-zero bytes follow what this version knows, or the problem is not legal.
 * ANNULUS_ERROR_UNSUPPORTED: as annulus_forward, or the plan of several ranks takes too many steps (below).
 * ANNULUS_ERROR_WORKSPACE: a call needs more than the config's workspace limit. ANNULUS_ERROR_MEMORY: it needs more
 * than any memory can hold, or an allocation failed. Since 1.0.
 *
 * Time and memory grow with the number of branches, not with N or H: with 64 branches some hundredths of a second. Of
 * several ranks a plan tells the rows of every message; estimates and workspace sizes answer within 2^21 steps for all
 * shards and sequences of the rank (about a tenth of a second on one core) or not at all, with
 * ANNULUS_ERROR_UNSUPPORTED and what is too much:
 *
 *   Ranks and heads: each message takes some 20 steps, and each of its key/value heads some for every branch whose
 *   segments reach over the border of a shard. 4096 ranks with 32 heads and 11 branches are not too many.
 *
 *   Shards: a shard exchanges messages with each shard that shares a segment with it. A rank of many shards of a few
 *   rows is planned for where segments reach few of them: its cost grows with the shards and with those in reach of
 *   each, not with all pairs.
 *
 *   The Hilbert order: about 4 steps for each column of the grid, for each rank in reach, in every branch of dilation
 *   2 or more whose segments reach over the border of a shard. 2^30 positions on a square grid may lie on 8 ranks.
 *
 *   Rows of several branches: where branches in the Hilbert order want rows of the same part of a shard, the rows of
 *   all but one are looked at one by one, at some steps each. Parts that one branch alone reaches do not count. In the
 *   linear order it is the dilations without common divisors that count, where about a million products of these are
 *   below the length of a shard.
 *
 * A call has no such limit (but one of 2^36 steps): it plans in time that grows with the rows that the rank sends and
 * receives, which is less than it takes to move and compute with them. After it the plan is there, and
 * annulus_workspace_size() answers.
 *
 * Calls and estimates are ANNULUS_ERROR_UNSUPPORTED where the shards of a rank are in more than 2^19 pairs of a sender
 * and a receiver that share a segment, or of which one is within the other's window or has global positions; all shards
 * between a shard and global positions count: a plan takes about a kilobyte for each. Where a segment is the whole
 * sequence, that is up to 4096 shards dealt to 64 ranks, or 724 to 2, and under causality 1024 to 2.
 */
ANNULUS_API_STATUS annulus_status annulus_estimate_problem(annulus_context *context, const annulus_problem *problem,
                                                           annulus_pass pass, int32_t branch,
                                                           annulus_estimate *estimate);

/*
 * The bytes of workspace that a call of `pass` on `problem` needs at most under the context's config and threads, in
 * *bytes: what to hand to annulus_context_set_workspace(). It is enough for all tensors that the call accepts and that
 * are as row_alignment of problem says. Errors as annulus_estimate_problem. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_workspace_size(annulus_context *context, const annulus_problem *problem,
                                                         annulus_pass pass, uint64_t *bytes);

/*
 * Which engine would compute a call of `pass` on `problem` under the context's config, in *engine. The tensors are as
 * row_alignment of problem says and no better; where it is 0, they are as every engine takes them. Errors as
 * annulus_workspace_size(), and ANNULUS_ERROR_UNSUPPORTED where no engine, or not the config's, takes such tensors.
 * Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_select_engine(annulus_context *context, const annulus_problem *problem,
                                                        annulus_pass pass, annulus_engine *engine);

/*
 * Whether `engine` could compute that call if the config named it, with all else as the config says: ANNULUS_OK if so.
 * ANNULUS_ERROR_UNSUPPORTED: it could not, and the message says why, also of an engine that is for another kind of
 * device or not in this build. Other errors as annulus_select_engine(). ANNULUS_ENGINE_AUTO asks whether any engine
 * could. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_check_engine(annulus_context *context, const annulus_problem *problem,
                                                       annulus_pass pass, annulus_engine engine);

ANNULUS_END_DECLS

#endif
