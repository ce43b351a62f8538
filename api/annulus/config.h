/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A config says which keys each query attends to, and how the work is to be done.
 *
 * The pattern is a list of branches. Branch i cuts the sequence into segments of w_i positions (the last may be
 * shorter) and keeps every r_i-th position of each. Two other kinds of branches are windows, which slide with the
 * query, and global positions. A query's keys are the multiset union over the branches (a key reached by two branches
 * counts twice, unless the key rule says otherwise), and the result is one softmax over that union. This equals
 * LongNet's mixture of branches by their softmax denominators (Ding et al. 2023, arXiv:2307.02486, equations 9 and 10).
 *
 * Equal inputs give bit-equal results on the same machine and build, whatever the number of threads.
 *
 * A config is plain data: no device, no memory beyond its branches. One thread at a time may change it; any number may
 * read it while none changes it. Functions below return ANNULUS_ERROR_ARGUMENT for a NULL handle or a value outside
 * what their comment allows, and ANNULUS_ERROR_MEMORY when memory runs out; the config is then as it was before.
 */
#ifndef ANNULUS_CONFIG_H
#define ANNULUS_CONFIG_H

#include <annulus/export.h>
#include <annulus/status.h>
#include <stddef.h>
#include <stdint.h>

ANNULUS_BEGIN_DECLS

/* Which keys each query attends to, and how the work is to be done. */
typedef struct annulus_config annulus_config;

/*
 * Which residue phi of the places in a segment head h uses. h is counted inside the branch's head range of c heads.
 */
typedef enum annulus_phase_rule ANNULUS_ENUM_INT32 {
    ANNULUS_PHASE_BLOCK = 0,      /* phi = h / ceil(c / r), integer division: LongNet's published code (default) */
    ANNULUS_PHASE_INTERLEAVE = 1, /* phi = h mod r: LongNet's paper */
    ANNULUS_PHASE_FIXED = 2       /* phi = residue mod r for every head */
} annulus_phase_rule;

/*
 * Which queries of a segment attend to which of its keys. "Residue" is the place in the segment modulo r.
 */
typedef enum annulus_query_rule ANNULUS_ENUM_INT32 {
    ANNULUS_QUERY_DILATED = 0, /* the query's and the key's residue are both phi: LongNet (default) */
    ANNULUS_QUERY_RESIDUE = 1, /* the query's residue equals the key's, whatever it is: every query attends */
    ANNULUS_QUERY_EVERY = 2    /* the key's residue is phi, any query */
} annulus_query_rule;

/*
 * What the keys of a branch are.
 */
typedef enum annulus_branch_kind ANNULUS_ENUM_INT32 {
    ANNULUS_BRANCH_SEGMENTS = 0, /* those of the query's segment (default) */
    ANNULUS_BRANCH_WINDOW = 1,   /* those near the query: n + r j for -left <= j <= right, as far as they exist; when
                                    causal, for j <= 0 alone */
    ANNULUS_BRANCH_GLOBAL = 2 /* the positions first_global … first_global + global_count - 1, for every query. Those
                                 beyond the end of a sequence do not exist. */
} annulus_branch_kind;

/* How the positions of a segment are numbered before every r-th is kept. */
typedef enum annulus_order ANNULUS_ENUM_INT32 {
    ANNULUS_ORDER_LINEAR = 0, /* 0, 1, 2, … (default) */
    ANNULUS_ORDER_HILBERT = 1 /* along the generalised Hilbert curve of the segment's grid, see hilbert.h */
} annulus_order;

/* What stands in the slots that a segment has too few positions to fill. */
typedef enum annulus_padding_rule ANNULUS_ENUM_INT32 {
    ANNULUS_PADDING_EXACT = 0,    /* nothing: positions that do not exist are no keys (default) */
    ANNULUS_PADDING_ZERO_KEYS = 1 /* a key of score 0 and value 0, as LongNet's published code pads: with w' = min(w, N)
                                     a segment has ceil(w'/r) slots for each residue. No effect when causal. For weights
                                     that were trained with it. */
} annulus_padding_rule;

/* How often a key counts that several branches give to a query. */
typedef enum annulus_key_rule ANNULUS_ENUM_INT32 {
    ANNULUS_KEY_EACH_BRANCH = 0, /* once for each branch that reaches it: LongNet's multiset (default) */
    ANNULUS_KEY_ONCE = 1 /* once: the set union. Slots without a position (zero_keys padding) are of their branch
                            alone and count for each as ever. `fused` and `mma` do so for up to 8 branches in linear
                            order whose dilations divide one another and, but for dilations of 1, whose query rules
                            are alike, and refuse others, which `auto` leaves to `gemm`. */
} annulus_key_rule;

/*
 * An implementation of attention. Results of all engines agree up to rounding.
 *
 * `auto` is the fastest engine of the context's device that supports the problem and the tensors of the call. On CUDA
 * that may depend on the tensors: where `fused` or `mma` supports a problem, a call whose tensors have rows that do not
 * begin at multiples of 16 bytes is computed by `gemm` (row_alignment of annulus_problem says what is known of them
 * beforehand).
 */
typedef enum annulus_engine ANNULUS_ENUM_INT32 {
    ANNULUS_ENGINE_AUTO = 0,      /* the fastest engine that supports the call (default) */
    ANNULUS_ENGINE_REFERENCE = 1, /* CPU, float64 inside, brute force in O(N * N) time: for tests; not with a
                                     communicator (comm.h) */
    ANNULUS_ENGINE_CPU = 2,       /* CPU, blocked, threads */
    ANNULUS_ENGINE_GEMM = 3,      /* any CUDA device; float32, bfloat16, float16; cuBLAS inside, bounded workspace */
    ANNULUS_ENGINE_FUSED = 4,     /* CUDA devices of compute capability 9.0; bfloat16, float16; kernels for all branches
                                     at once; tensors whose rows begin at multiples of 16 bytes; positive scale */
    ANNULUS_ENGINE_MMA = 5        /* the same on CUDA devices of compute capability 8.0 and newer, in float32, too; in
                                     float16 of 7.5; on 9.0 slower than `fused` */
} annulus_engine;

/*
 * The name of an engine ("auto", "reference", "cpu", "gemm", "fused", "mma"), or "unknown". Every build knows all of
 * them by name, whether it can run them or not. Static. Any thread. Since 1.0.
 */
ANNULUS_API const char *annulus_engine_name(annulus_engine engine);

/*
 * Makes an empty config in *config: no branches, not causal, exact padding, keys count for each branch, scale
 * 1/sqrt(D), engine auto. At least one branch must be added before it is used. The caller destroys it. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_create(annulus_config **config);

/* Makes an independent copy of `config` in *copy. The caller destroys it. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_copy(annulus_config **copy, const annulus_config *config);

/* Destroys a config; NULL is legal. Contexts that were given it keep their own copy. Since 1.0. */
ANNULUS_API void annulus_config_destroy(annulus_config *config);

/*
 * A branch. Set `size` to sizeof(annulus_branch) and all other fields, best by ANNULUS_BRANCH_INIT(w, r). Fields that
 * are 0 behind w and r, as the macro sets them, are LongNet's branch: all heads, phase rule block, query rule dilated,
 * linear order. ANNULUS_BRANCH_WINDOW_INIT(left, right, r) makes a window of all queries (query rule residue), and
 * ANNULUS_BRANCH_GLOBAL_INIT(first, count) global keys.
 *
 * Windows and global positions have a segment length of 0 and the linear order, and no padding keys. A window's query
 * rule is residue, or dilated: then a head has the queries of its phase alone, in positions modulo r. Global positions
 * have dilation 1, with which all phases and query rules are the same.
 */
typedef struct annulus_branch {
    size_t size;
    int64_t segment_length; /* w >= 1 in positions, or 0 for the whole sequence */
    int64_t dilation;       /* r >= 1 */
    int64_t residue;        /* of ANNULUS_PHASE_FIXED, >= 0; else 0 */
    int64_t grid_width;     /* of ANNULUS_ORDER_HILBERT: the columns of the grid (an image's or a slide's width), or 0
                               for the smallest divisor of the segment's length that is at least its square root; else 0.
                               It must divide the segment length (the sequence length where w is 0); in a shorter last
                               segment whose length it does not divide, the automatic width is taken. */
    int32_t first_head; /* serves the query heads first_head … first_head + head_count - 1; 0 … 2^31 - 2. Whether they
                           fit into H, or the total of a head shard, is checked when the config meets a problem. */
    int32_t head_count; /* >= 1, first_head + head_count within int32; or 0 for all heads from first_head on */
    annulus_phase_rule phase_rule; /* which residue a head uses */
    annulus_query_rule query_rule; /* which queries attend to which keys */
    annulus_order order;           /* how the positions of a segment are numbered */
    int64_t left;                  /* of ANNULUS_BRANCH_WINDOW: keys before the query, >= 0, or -1 for all; else 0 */
    int64_t right;                 /* of ANNULUS_BRANCH_WINDOW: keys after the query, >= 0, or -1 for all; else 0 */
    int64_t first_global;          /* of ANNULUS_BRANCH_GLOBAL, >= 0; else 0 */
    int64_t global_count;     /* of ANNULUS_BRANCH_GLOBAL, >= 1, first_global + global_count within int64; else 0 */
    annulus_branch_kind kind; /* what the keys are */
    int32_t global_queries;   /* of ANNULUS_BRANCH_GLOBAL, 1: the global positions as queries attend to every key, too;
                                 else 0 */
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
 * Appends a branch. A config holds up to 65,536. index: receives the new branch's index, counted from 0; may be NULL.
 * ANNULUS_ERROR_ARGUMENT: `branch` is NULL, a field is not as above, or non-zero bytes follow what this version knows.
 * Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_add_branch(annulus_config *config, const annulus_branch *branch,
                                                            int32_t *index);

/* Puts a branch in the place of branch `index`, which must be there. Errors as add_branch. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_set_branch(annulus_config *config, int32_t index,
                                                            const annulus_branch *branch);

/*
 * Reads branch `index`, which must be there, into *branch, whose `size` the caller has set; of a larger struct the
 * bytes beyond what this version knows must be 0. ANNULUS_ERROR_UNSUPPORTED: the branch is a window or has global
 * positions, and a smaller struct ends before `kind`. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_get_branch(const annulus_config *config, int32_t index,
                                                            annulus_branch *branch);

/* The number of branches, in *count. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_branch_count(const annulus_config *config, int32_t *count);

/* Sets the padding rule of all branches. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_set_padding_rule(annulus_config *config, annulus_padding_rule rule);

/* The padding rule of all branches, in *rule. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_padding_rule(const annulus_config *config,
                                                                  annulus_padding_rule *rule);

/* Sets how often a key counts that several branches reach. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_set_key_rule(annulus_config *config, annulus_key_rule rule);

/* How often a key counts that several branches reach, in *rule. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_key_rule(const annulus_config *config, annulus_key_rule *rule);

/*
 * Says which heads calls have where a model's heads are shared out among processes, each of which computes some of them
 * (tensor parallelism, Ulysses): the H query heads of a call are heads first … first + H - 1 of `total`. Head ranges
 * and phases of branches, and their default of all heads, then count over all `total` heads, so that a head gets the
 * same keys wherever it is computed. Key/value heads are those of the call: its heads h / (H/G) share one. total 0,
 * with first 0: a call has all heads (default). Otherwise 0 <= first < total; that first + H <= total is checked when
 * the config meets a problem. With a communicator (comm.h) its ranks share one sequence, and have the same heads. Since
 * 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_set_head_shard(annulus_config *config, int32_t first, int32_t total);

/* Which heads calls have, in *first and *total; 0 and 0: all that there are. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_head_shard(const annulus_config *config, int32_t *first,
                                                                int32_t *total);

/* causal 1: a query attends only to keys at its own global position or before; 0: no such limit. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_set_causal(annulus_config *config, int causal);

/* Whether a query attends only to keys at its own position or before, 1 or 0, in *causal. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_causal(const annulus_config *config, int *causal);

/*
 * Sets the factor on Q·K: 0, or a number of either sign and of a magnitude from 1e-36 to 1e36, which float32 can hold
 * with room to spare. Without this call it is 1/sqrt(D). Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_set_scale(annulus_config *config, double scale);

/* Makes the factor 1/sqrt(D) again, as if none had been set. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_unset_scale(annulus_config *config);

/* The factor on Q·K in *scale: NaN where none is set, and it is 1/sqrt(D). Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_scale(const annulus_config *config, double *scale);

/*
 * Sets the engine. One that cannot serve a later call makes that call fail with ANNULUS_ERROR_UNSUPPORTED and the
 * reason; annulus never falls back in silence from an engine that was asked for. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_set_engine(annulus_config *config, annulus_engine engine);

/* The engine that was set, in *engine. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_engine(const annulus_config *config, annulus_engine *engine);

/*
 * allow 1: products of float32 tensors may be computed in TF32 (10 fraction bits, on tensor cores); 0: in float32
 * (default). A permission: engines and devices without TF32 compute in float32 all the same. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_set_allow_tf32(annulus_config *config, int allow);

/* Whether products of float32 tensors may be computed in TF32, 1 or 0, in *allow. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_allow_tf32(const annulus_config *config, int *allow);

/*
 * Sets an upper bound in bytes for the workspace of a call, as annulus_workspace_size() counts it, or 0 for the
 * engine's own choice (default; `gemm`: 256 MiB). `gemm` fits its work into the limit; `fused` and `mma` do so with the
 * sums of several launches where these may be in parts (doc/limits.md), and with a product that backward keeps instead
 * of computing it twice (one branch, of `fused` also several that share few pairs, D <= 128 and above 64, of `mma`
 * above 48: by default in up to 1.5 GiB, of `mma` 1.25, with less memory in smaller parts or not at all); `auto` leaves
 * to the next engine what one would need more for. A call that cannot be fitted fails with ANNULUS_ERROR_WORKSPACE, and
 * annulus_last_error_bytes() says how much its engine needs. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_set_workspace_limit(annulus_config *config, uint64_t bytes);

/* The upper bound for the workspace of a call, 0 for the engine's own choice, in *bytes. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_workspace_limit(const annulus_config *config, uint64_t *bytes);

/*
 * How a context with a communicator (comm.h) moves rows of K and V between ranks. Both send the same rows, those that
 * some query of the receiver attends to, and give the same result up to rounding. `auto` is `gather` if there is room
 * for the rows that each rank then gets, else `ring`. The room is the largest of
 *
 *   - the memory of K and V of the rank with most rows,
 *   - four times that memory, if the ring has more than 8 hops between shards with rows: each message of such a ring is
 *     small, and costs more than its bytes,
 *   - eight times that memory, at most 256 MiB: few rows cost less than the launches of each hop.
 *
 * `auto` decides for each sequence of a call, the shorter ones first, and counts the rows of all gathered sequences.
 * Along the Hilbert order, and in some cases of the query rule `residue`, it counts a shard whole. If it takes more
 * than 2^21 steps (attention.h) to find out, as it can with thousands of unequal shards, or if more than 2^26 pairs of
 * shards share segments, `auto` is `ring`.
 */
typedef enum annulus_exchange ANNULUS_ENUM_INT32 {
    ANNULUS_EXCHANGE_AUTO = 0,  /* one of the two, as said above (default) */
    ANNULUS_EXCHANGE_RING = 1,  /* in up to shards - 1 hops: for each shard of a sequence the rows of two others */
    ANNULUS_EXCHANGE_GATHER = 2 /* all at once: memory for all rows that the rank's queries attend to */
} annulus_exchange;

/* Sets the exchange; every rank sets the same. Without ranks it does nothing. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_set_exchange(annulus_config *config, annulus_exchange exchange);

/* The exchange that was set, in *exchange. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_config_get_exchange(const annulus_config *config, annulus_exchange *exchange);

/*
 * Appends branches and changes nothing else: `count` >= 1 branches with w_i = segment_length * segment_ratio^i and r_i
 * = dilation_ratio^i, as LongNet's geometric series (paper: section 3.1; its models use ratios of 2 or 4).
 * segment_length, segment_ratio and dilation_ratio are >= 1; a w_i or r_i beyond int64 is an argument error. Since
 * 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_add_longnet(annulus_config *config, int64_t segment_length,
                                                             int64_t segment_ratio, int64_t dilation_ratio,
                                                             int32_t count);

/*
 * Makes the config that of a published model, as its weights were trained: appends the model's branches, and sets the
 * padding rule, the key rule and whether it is causal. The rules hold for all branches, so the config must have none
 * yet; more may follow. The rest of the config stays as it is.
 *
 *   gigapath  Prov-GigaPath's slide encoder: w = 1024, 5792, 32768, 185363, 1048576 and r = 1, 2, 4, 8, 16 with block
 *             phases; zero_keys padding, keys count for each branch, not causal. Its problems have H = 16, D = 48,
 *             N = number of tiles + 1.
 *
 * ANNULUS_ERROR_ARGUMENT: name is NULL or no preset's name, or the config has a branch. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_add_preset(annulus_config *config, const char *name);

/*
 * The name of preset `index`, counted from 0; NULL where there is no such preset, as behind the last. Static. Any
 * thread. Since 1.0.
 */
ANNULUS_API const char *annulus_preset_name(int32_t index);

/*
 * Appends branches and changes nothing else: `count` branches that share the `heads` query heads out among themselves
 * instead of each serving all, as head-grouped implementations of dilated attention do: heads / count each, the first
 * heads % count branches one more; branch i uses the fixed residue i mod r_i. segment_lengths and dilations hold
 * `count` numbers each, as annulus_branch has them; 1 <= count <= heads. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_config_add_head_groups(annulus_config *config, int32_t heads, int32_t count,
                                                                 const int64_t *segment_lengths,
                                                                 const int64_t *dilations);

ANNULUS_END_DECLS

#endif
