/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A config says which keys each query attends to, and how the work is to be done.
 *
 * The pattern is a list of branches. Branch i cuts the sequence into segments of w_i positions and keeps every r_i-th
 * position of each segment. The last segment may be shorter. Two other kinds of branches are windows and global
 * positions. A window slides with the query.
 *
 * A query's keys are the multiset union over the branches: a key that two branches reach counts twice, unless the key
 * rule says otherwise. The result is one softmax over that union. This equals LongNet's mixture of branches by their
 * softmax denominators (Ding et al. 2023, arXiv:2307.02486, equations 9 and 10).
 *
 * Equal inputs give bit-equal results on the same machine and build, whatever the number of threads.
 *
 * A config is plain data: it has no device, and no memory beyond its branches. Only one thread at a time may change a
 * config. Any number of threads may read it while no thread changes it.
 *
 * The functions below return ANNULUS_ERROR_ARGUMENT for a NULL handle, or for a value outside what their comment
 * allows. They return ANNULUS_ERROR_MEMORY if memory runs out. After an error the config is as it was before the call.
 */
#ifndef ANNULUS_CONFIG_H
#define ANNULUS_CONFIG_H

#include <annulus/export.h>
#include <annulus/status.h>
#include <stddef.h>
#include <stdint.h>

ANNULUS_BEGIN_DECLS

/* A config: which keys each query attends to, and how the work is to be done. */
typedef struct annulus_config annulus_config;

/*
 * The rule that gives head h its residue phi of the places in a segment. h is the head's number inside the branch's
 * head range, which has c heads.
 */
typedef enum annulus_phase_rule ANNULUS_ENUM_INT32 {
    ANNULUS_PHASE_BLOCK = 0,      /* phi = h / ceil(c / r), integer division: LongNet's published code (default) */
    ANNULUS_PHASE_INTERLEAVE = 1, /* phi = h mod r: LongNet's paper */
    ANNULUS_PHASE_FIXED = 2       /* phi = residue mod r for every head */
} annulus_phase_rule;

/*
 * The rule that says which queries of a segment attend to which of its keys. A residue is the place in the segment
 * modulo r.
 */
typedef enum annulus_query_rule ANNULUS_ENUM_INT32 {
    ANNULUS_QUERY_DILATED = 0, /* the query's and the key's residue are both phi: LongNet (default) */
    ANNULUS_QUERY_RESIDUE = 1, /* query and key have the same residue, whatever its value: every query attends */
    ANNULUS_QUERY_EVERY = 2    /* the key's residue is phi; the query may have any residue */
} annulus_query_rule;

/*
 * What the keys of a branch are. A window gives a query at position n the keys n + r j for -left <= j <= right, if
 * these keys exist. When causal, it gives only the keys with j <= 0. Global positions beyond the end of a sequence do
 * not exist.
 */
typedef enum annulus_branch_kind ANNULUS_ENUM_INT32 {
    ANNULUS_BRANCH_SEGMENTS = 0, /* the keys of the query's segment (default) */
    ANNULUS_BRANCH_WINDOW = 1,   /* the keys near the query: n + r j, see above */
    ANNULUS_BRANCH_GLOBAL = 2    /* for every query the positions first_global … first_global + global_count - 1 */
} annulus_branch_kind;

/* How a branch numbers the positions of a segment. The branch then keeps every r-th position in this order. */
typedef enum annulus_order ANNULUS_ENUM_INT32 {
    ANNULUS_ORDER_LINEAR = 0, /* 0, 1, 2, … (default) */
    ANNULUS_ORDER_HILBERT = 1 /* along the generalised Hilbert curve of the segment's grid; see hilbert.h */
} annulus_order;

/*
 * What stands in the slots of a segment that has too few positions to fill them.
 *
 * ANNULUS_PADDING_ZERO_KEYS pads as LongNet's published code does: with w' = min(w, N), a segment has ceil(w'/r) slots
 * for each residue. Use this rule for weights that were trained with it. It has no effect when causal.
 */
typedef enum annulus_padding_rule ANNULUS_ENUM_INT32 {
    ANNULUS_PADDING_EXACT = 0,    /* nothing: positions that do not exist are no keys (default) */
    ANNULUS_PADDING_ZERO_KEYS = 1 /* a key of score 0 and value 0, see above */
} annulus_padding_rule;

/*
 * How often a key counts if several branches give this key to a query.
 *
 * If the key rule is ANNULUS_KEY_ONCE, slots without a position (zero_keys padding) belong to their branch alone. They
 * count for each branch, as with ANNULUS_KEY_EACH_BRANCH. `fused` and `mma` support ANNULUS_KEY_ONCE if
 *
 *   - there are up to 8 branches, all in linear order,
 *   - the dilations of the branches divide one another,
 *   - the query rules of the branches are alike, except for branches of dilation 1.
 *
 * Otherwise `fused` and `mma` refuse ANNULUS_KEY_ONCE, and `auto` leaves the call to `gemm`.
 */
typedef enum annulus_key_rule ANNULUS_ENUM_INT32 {
    ANNULUS_KEY_EACH_BRANCH = 0, /* once for each branch that reaches it: LongNet's multiset (default) */
    ANNULUS_KEY_ONCE = 1         /* once: the set union; see above */
} annulus_key_rule;

/*
 * An implementation of attention. The results of all engines agree up to rounding.
 *
 * `auto` is the fastest engine of the context's device that supports the problem and the tensors of the call. On CUDA
 * the choice may depend on the tensors. `auto` takes `gemm` for tensors whose rows do not begin at multiples of 16
 * bytes, even if `fused` or `mma` supports the problem. row_alignment of annulus_problem says what is known of the rows
 * before the call.
 *
 * `fused` and `mma` have kernels for all branches at once. Both need tensors whose rows begin at multiples of 16 bytes,
 * and a positive scale. On compute capability 9.0, `mma` is slower than `fused`.
 */
typedef enum annulus_engine ANNULUS_ENUM_INT32 {
    ANNULUS_ENGINE_AUTO = 0,      /* the fastest engine that supports the call (default) */
    ANNULUS_ENGINE_REFERENCE = 1, /* CPU, float64 inside, brute force in O(N * N) time: for tests; not for a context
                                     with a communicator (comm.h) */
    ANNULUS_ENGINE_CPU = 2,       /* CPU, blocked, threads */
    ANNULUS_ENGINE_GEMM = 3,      /* any CUDA device; float32, bfloat16, float16; cuBLAS inside, bounded workspace */
    ANNULUS_ENGINE_FUSED = 4,     /* CUDA devices of compute capability 9.0; bfloat16, float16; see above */
    ANNULUS_ENGINE_MMA = 5        /* CUDA devices of compute capability 8.0 and newer: float32, bfloat16, float16;
                                     of compute capability 7.5: float16; see above */
} annulus_engine;

/*
 * Returns the name of an engine ("auto", "reference", "cpu", "gemm", "fused", "mma"), or "unknown". Every build knows
 * the names of all engines, whether it can run them or not. Static. Any thread. Since 1.0.
 */
ANNULUS_API const char *annulus_engine_name(annulus_engine engine);

/*
 * Makes an empty config in *config: no branches, not causal, exact padding, keys count for each branch, scale
 * 1/sqrt(D), engine auto. At least one branch must be added before the config is used. The caller destroys the config.
 * Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_create(annulus_config **config);

/* Makes an independent copy of `config` in *copy. The caller destroys the copy. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_copy(annulus_config **copy, const annulus_config *config);

/* Destroys a config. NULL is legal. Contexts that were given the config keep their own copy. Since 1.0. */
ANNULUS_API void annulus_config_destroy(annulus_config *config);

/*
 * A branch. Set `size` to sizeof(annulus_branch) and set all other fields, best by one of the macros below.
 * ANNULUS_BRANCH_INIT(w, r) sets all fields after w and r to 0. These zeros stand for LongNet's branch: all heads,
 * phase rule block, query rule dilated, linear order. ANNULUS_BRANCH_WINDOW_INIT(left, right, r) makes a window of all
 * queries (query rule residue). ANNULUS_BRANCH_GLOBAL_INIT(first, count) makes global keys.
 *
 * Windows and global positions have a segment length of 0, the linear order and no padding keys. A window's query rule
 * is residue or dilated. If the rule is dilated, a head has only the queries whose position modulo r is the head's
 * phase. Global positions have dilation 1, and with dilation 1 all phases and query rules are the same.
 *
 * A branch serves the query heads first_head … first_head + head_count - 1. These heads must fit into H, or into the
 * total of a head shard. This is checked when the config is used for a problem.
 *
 * grid_width is the number of columns of the grid in the Hilbert order, such as the width of an image or a slide. It
 * must divide the segment length, or the sequence length if w is 0. A grid_width of 0 selects the automatic width: the
 * smallest divisor of the segment's length that is at least the square root of this length. A shorter last segment has
 * the automatic width if grid_width does not divide its length.
 *
 * If global_queries is 1, the global positions attend, as queries, to every key, too.
 */
typedef struct annulus_branch {
    size_t size;
    int64_t segment_length;        /* w >= 1 in positions, or 0 for the whole sequence */
    int64_t dilation;              /* r >= 1 */
    int64_t residue;               /* for ANNULUS_PHASE_FIXED: >= 0; else 0 */
    int64_t grid_width;            /* for ANNULUS_ORDER_HILBERT: columns of the grid, or 0 (see above); else 0 */
    int32_t first_head;            /* the first query head that the branch serves: 0 … 2^31 - 2 */
    int32_t head_count;            /* >= 1, first_head + head_count within int32; or 0: all heads from first_head on */
    annulus_phase_rule phase_rule; /* which residue a head uses */
    annulus_query_rule query_rule; /* which queries attend to which keys */
    annulus_order order;           /* how the positions of a segment are numbered */
    int64_t left;                  /* for ANNULUS_BRANCH_WINDOW: keys before the query, >= 0, or -1 for all; else 0 */
    int64_t right;                 /* for ANNULUS_BRANCH_WINDOW: keys after the query, >= 0, or -1 for all; else 0 */
    int64_t first_global;          /* for ANNULUS_BRANCH_GLOBAL: >= 0; else 0 */
    int64_t global_count;     /* for ANNULUS_BRANCH_GLOBAL: >= 1, first_global + global_count within int64; else 0 */
    annulus_branch_kind kind; /* what the keys are */
    int32_t global_queries;   /* for ANNULUS_BRANCH_GLOBAL: 0 or 1 (see above); else 0 */
} annulus_branch;

#define ANNULUS_BRANCH_INIT(segment_length, dilation)                                                                  \
    {                                                                                                                  \
        sizeof(annulus_branch), (segment_length), (dilation), 0, 0, 0, 0, ANNULUS_PHASE_BLOCK, ANNULUS_QUERY_DILATED,  \
            ANNULUS_ORDER_LINEAR, 0, 0, 0, 0, ANNULUS_BRANCH_SEGMENTS, 0                                               \
    }
#define ANNULUS_BRANCH_WINDOW_INIT(left, right, dilation)                                                              \
    {                                                                                                                  \
        sizeof(annulus_branch), 0, (dilation), 0, 0, 0, 0, ANNULUS_PHASE_BLOCK, ANNULUS_QUERY_RESIDUE,                 \
            ANNULUS_ORDER_LINEAR, (left), (right), 0, 0, ANNULUS_BRANCH_WINDOW, 0                                      \
    }
#define ANNULUS_BRANCH_GLOBAL_INIT(first, count)                                                                       \
    {                                                                                                                  \
        sizeof(annulus_branch), 0, 1, 0, 0, 0, 0, ANNULUS_PHASE_BLOCK, ANNULUS_QUERY_DILATED, ANNULUS_ORDER_LINEAR, 0, \
            0, (first), (count), ANNULUS_BRANCH_GLOBAL, 0                                                              \
    }

/*
 * Appends a branch. A config holds up to 65,536 branches. `index` receives the new branch's index, counted from 0, and
 * may be NULL. ANNULUS_ERROR_ARGUMENT: `branch` is NULL, a field is not as above, or non-zero bytes follow what this
 * version knows. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_add_branch(annulus_config *config, const annulus_branch *branch,
                                                            int32_t *index);

/* Replaces branch `index`, which must exist, by *branch. Errors as annulus_config_add_branch(). Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_set_branch(annulus_config *config, int32_t index,
                                                            const annulus_branch *branch);

/*
 * Writes branch `index`, which must exist, to *branch. The caller sets `size` of *branch before the call. If this size
 * is larger than the struct that this version knows, the bytes beyond what this version knows must be 0.
 * ANNULUS_ERROR_UNSUPPORTED: the branch is a window or has global positions, and a smaller struct ends before `kind`.
 * Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_get_branch(const annulus_config *config, int32_t index,
                                                            annulus_branch *branch);

/* Writes the number of branches to *count. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_branch_count(const annulus_config *config, int32_t *count);

/* Sets the padding rule of all branches. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_set_padding_rule(annulus_config *config, annulus_padding_rule rule);

/* Writes the padding rule of all branches to *rule. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_padding_rule(const annulus_config *config,
                                                                  annulus_padding_rule *rule);

/* Sets how often a key counts if several branches reach this key. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_set_key_rule(annulus_config *config, annulus_key_rule rule);

/* Writes to *rule how often a key counts if several branches reach this key. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_key_rule(const annulus_config *config, annulus_key_rule *rule);

/*
 * Sets which heads calls have, for a model whose heads are shared out among processes. Each of these processes computes
 * some of the heads (tensor parallelism, Ulysses). The H query heads of a call are heads first … first + H - 1 of
 * `total`.
 *
 * The head ranges and phases of branches count over all `total` heads. The default of a branch, all heads, also means
 * all `total` heads. So a head gets the same keys wherever it is computed. Key/value heads count within the call: the
 * query heads of the call that have the same h / (H/G) share one key/value head.
 *
 * `total` 0 with `first` 0 means that a call has all heads (default). Otherwise 0 <= first < total. That first + H <=
 * total is checked when the config is used for a problem. The ranks of a communicator (comm.h) share one sequence, and
 * have the same heads. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_set_head_shard(annulus_config *config, int32_t first, int32_t total);

/* Writes to *first and *total which heads calls have. 0 and 0 mean that calls have all heads. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_head_shard(const annulus_config *config, int32_t *first,
                                                                int32_t *total);

/*
 * Sets whether attention is causal. If `causal` is 1, a query attends only to keys at its own global position or before
 * it. If `causal` is 0, there is no such limit. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_set_causal(annulus_config *config, int causal);

/* Writes 1 to *causal if a query attends only to keys at its own position or before it, else 0. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_causal(const annulus_config *config, int *causal);

/*
 * Sets the factor on Q·K. The factor is 0, or a number of either sign with a magnitude from 1e-36 to 1e36. float32 can
 * hold such numbers with room to spare. Without this call the factor is 1/sqrt(D). Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_set_scale(annulus_config *config, double scale);

/* Makes the factor 1/sqrt(D) again, as if no factor had been set. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_unset_scale(annulus_config *config);

/* Writes the factor on Q·K to *scale. Writes NaN if no factor is set: the factor is then 1/sqrt(D). Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_scale(const annulus_config *config, double *scale);

/*
 * Sets the engine. If the engine cannot serve a later call, the call fails with ANNULUS_ERROR_UNSUPPORTED, and the
 * message says why. annulus never falls back in silence from an engine that was asked for. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_set_engine(annulus_config *config, annulus_engine engine);

/* Writes to *engine the engine that was set. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_engine(const annulus_config *config, annulus_engine *engine);

/*
 * Sets whether products of float32 tensors may be computed in TF32 (10 fraction bits, on tensor cores). If `allow` is
 * 0, they are computed in float32 (default). 1 is only a permission: engines and devices without TF32 compute in
 * float32 all the same. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_set_allow_tf32(annulus_config *config, int allow);

/* Writes 1 to *allow if products of float32 tensors may be computed in TF32, else 0. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_allow_tf32(const annulus_config *config, int *allow);

/*
 * Sets an upper bound in bytes for the workspace of a call, as annulus_workspace_size() counts it. 0 leaves the choice
 * to the engine (default; `gemm`: 256 MiB).
 *
 * `gemm` fits its work into the limit. `fused` and `mma` fit two things into the limit:
 *
 *   - the sums of several launches, if the sums may be computed in parts (doc/limits.md),
 *   - a product that backward stores instead of computing it twice.
 *
 * Backward can store this product in the following cases; doc/limits.md has the exceptions. If there is less memory, it
 * stores the product in smaller parts or not at all.
 *
 *   engine  branches                               D                      memory by default
 *   fused   one, or several that share few pairs   above 64, at most 128  up to 1.5 GiB
 *   mma     one                                    above 48, at most 128  up to 1.25 GiB
 *
 * If an engine would need more than the limit for a call, `auto` leaves this call to the next engine. A call that
 * cannot be fitted into the limit fails with ANNULUS_ERROR_WORKSPACE. annulus_last_error_bytes() then says how much its
 * engine needs. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_set_workspace_limit(annulus_config *config, uint64_t bytes);

/* Writes the upper bound for the workspace of a call to *bytes, or 0 for the engine's own choice. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_workspace_limit(const annulus_config *config, uint64_t *bytes);

/*
 * How a context with a communicator (comm.h) moves rows of K and V between ranks. `ring` and `gather` send the same
 * rows: the rows that some query of the receiver attends to. They give the same result up to rounding. For each shard
 * of a sequence, `ring` needs memory for the rows of two other shards. `gather` needs memory for all rows that the
 * rank's queries attend to.
 *
 * `auto` is `gather` if there is room for the rows that each rank then gets, else `ring`. The room is the largest of
 *
 *   - the memory of K and V of the rank with most rows,
 *   - four times that memory, if the ring has more than 8 hops between shards with rows: each message of such a ring is
 *     small, and costs more than its bytes,
 *   - eight times that memory, at most 256 MiB: few rows cost less than the launches of each hop.
 *
 * `auto` decides for each sequence of a call, the shorter sequences first, and counts the rows of all gathered
 * sequences. Along the Hilbert order, and in some cases of the query rule `residue`, `auto` counts a shard whole.
 *
 * `auto` is also `ring` in two cases:
 *
 *   - The decision would take more than 2^21 steps (attention.h). This can happen with thousands of unequal shards.
 *   - More than 2^26 pairs of shards share segments.
 */
typedef enum annulus_exchange ANNULUS_ENUM_INT32 {
    ANNULUS_EXCHANGE_AUTO = 0,  /* `ring` or `gather`, as said above (default) */
    ANNULUS_EXCHANGE_RING = 1,  /* in up to shards - 1 hops; see above */
    ANNULUS_EXCHANGE_GATHER = 2 /* all rows at once; see above */
} annulus_exchange;

/*
 * Sets the exchange. Every rank sets the same exchange. Without a communicator the exchange has no effect. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_set_exchange(annulus_config *config, annulus_exchange exchange);

/* Writes to *exchange the exchange that was set. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_exchange(const annulus_config *config, annulus_exchange *exchange);

/*
 * Appends `count` >= 1 branches with w_i = segment_length * segment_ratio^i and r_i = dilation_ratio^i, and changes
 * nothing else. This is LongNet's geometric series (paper: section 3.1; its models use ratios of 2 or 4).
 * segment_length, segment_ratio and dilation_ratio are >= 1. ANNULUS_ERROR_ARGUMENT: a w_i or r_i is beyond int64.
 * Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_add_longnet(annulus_config *config, int64_t segment_length,
                                                             int64_t segment_ratio, int64_t dilation_ratio,
                                                             int32_t count);

/*
 * Sets up the config for a published model, as the model's weights were trained. Appends the model's branches, and sets
 * the padding rule, the key rule and whether attention is causal. The rules hold for all branches, so the config must
 * have no branch before the call. More branches may follow. The rest of the config stays as it is.
 *
 *   gigapath  Prov-GigaPath's slide encoder: w = 1024, 5792, 32768, 185363, 1048576 and r = 1, 2, 4, 8, 16 with block
 *             phases; zero_keys padding, keys count for each branch, not causal. Its problems have H = 16, D = 48,
 *             N = number of tiles + 1.
 *
 * ANNULUS_ERROR_ARGUMENT: `name` is NULL or is no preset's name, or the config has a branch. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_add_preset(annulus_config *config, const char *name);

/*
 * Returns the name of preset `index`, counted from 0. Returns NULL if there is no such preset, for instance after the
 * last preset. Static. Any thread. Since 1.0.
 */
ANNULUS_API const char *annulus_preset_name(int32_t index);

/*
 * Appends `count` branches and changes nothing else. The branches share the `heads` query heads out among themselves,
 * instead of each branch serving all heads. Head-grouped implementations of dilated attention do the same. Each branch
 * has heads / count heads, and each of the first heads % count branches has one more. Branch i uses the fixed residue i
 * mod r_i.
 *
 * segment_lengths and dilations hold `count` numbers each, with the ranges of annulus_branch. 1 <= count <= heads.
 * Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_add_head_groups(annulus_config *config, int32_t heads, int32_t count,
                                                                 const int64_t *segment_lengths,
                                                                 const int64_t *dilations);

ANNULUS_END_DECLS

#endif
