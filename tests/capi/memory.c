/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sources of a call's memory: an exact workspace, an allocator, the process. All memory must be returned.
 */
#include "fixture.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The library's own alignment of the workspace. An address one byte after a multiple of it wastes most. */
enum { ALIGNMENT = 256, GUARD = ALIGNMENT + 1 };

static uint64_t workspace_size(const fixture *f, annulus_pass pass) {
    const annulus_problem problem = fixture_problem();
    uint64_t bytes = 0;
    assert_ok(annulus_workspace_size(f->context, &problem, pass, &bytes));
    return bytes;
}

static void workspace_to_the_byte(void **state) {
    fixture *f = *state;
    for (int c = 0; c < CALLS; ++c) {
        const uint64_t bytes = workspace_size(f, all_calls[c]->pass);
        void *aligned = NULL;
        assert_int_equal(posix_memalign(&aligned, ALIGNMENT, bytes + 2 * GUARD), 0);
        unsigned char *memory = aligned;
        for (int shift = 0; shift < ALIGNMENT; ++shift) {
            unsigned char *workspace = memory + 1 + shift;
            memset(memory, 0xFF, bytes + 2 * GUARD);
            assert_ok(annulus_context_set_workspace(f->context, workspace, bytes));
            assert_ok(all_calls[c]->run(f));
            for (unsigned char *p = memory; p < workspace; ++p)
                assert_int_equal(*p, 0xFF);
            for (unsigned char *p = workspace + bytes; p < memory + bytes + 2 * GUARD; ++p)
                assert_int_equal(*p, 0xFF);
        }
        if (bytes > 0) {
            assert_ok(annulus_context_set_workspace(f->context, memory + 1, bytes - 1));
            assert_call_refused(f, all_calls[c], ANNULUS_ERROR_WORKSPACE, NULL, "workspace one byte too small");
            assert_int_equal(annulus_last_error_bytes(), bytes);
            assert_ok(annulus_context_set_workspace(f->context, memory + 1, 0));
            assert_call_refused(f, all_calls[c], ANNULUS_ERROR_WORKSPACE, NULL, "workspace of no bytes");
            assert_int_equal(annulus_last_error_bytes(), bytes);
            /* A successful call leaves the number of bytes; a failure for another reason resets it. */
            assert_ok(annulus_context_set_workspace(f->context, NULL, 0));
            assert_int_equal(annulus_last_error_bytes(), bytes);
            assert_refused(annulus_context_set_workspace(f->context, NULL, 1), ANNULUS_ERROR_ARGUMENT, "bytes");
            assert_int_equal(annulus_last_error_bytes(), 0);
        }
        assert_ok(annulus_context_set_workspace(f->context, NULL, 0));
        free(memory);
        assert_ok(all_calls[c]->run(f));
    }
}

/* A workspace next to a tensor is legal. A workspace that shares a byte with any tensor is not. */
static void workspace_apart_from_tensors(void **state) {
    fixture *f = *state;
    for (int c = 0; c < CALLS; ++c) {
        const uint64_t bytes = workspace_size(f, all_calls[c]->pass);
        const size_t extent = sizeof(float) * BATCH * LENGTH * HEADS * DIM, front = (bytes + 3) / 4 * 4;
        unsigned char *memory = calloc(1, front + extent + bytes), *copy = malloc(front + extent + bytes);
        assert_true(bytes > 0 && memory && copy);
        for (int i = 0; i < all_calls[c]->count; ++i) {
            const enum argument a = all_calls[c]->arguments[i];
            annulus_tensor *const t = &f->tensors[a];
            const size_t own = sizeof(float) * (size_t)(t->shape[0] * t->stride[0]);
            unsigned char *const tensor = memory + front;
            memcpy(tensor, t->data, own);
            memcpy(copy, memory, front + extent + bytes);
            t->data = tensor;
            unsigned char *const overlapping[] = {tensor - bytes + 1, tensor, tensor + own - 1};
            for (int w = 0; w < 3; ++w) {
                assert_ok(annulus_context_set_workspace(f->context, overlapping[w], bytes));
                assert_call_refused(f, all_calls[c], ANNULUS_ERROR_ARGUMENT, argument_names[a], "workspace overlaps");
                assert_non_null(strstr(annulus_last_error(), "workspace"));
                assert_memory_equal(memory, copy, front + extent + bytes);
            }
            unsigned char *const beside[] = {tensor - bytes, tensor + own};
            for (int w = 0; w < 2; ++w) {
                assert_ok(annulus_context_set_workspace(f->context, beside[w], bytes));
                assert_ok(all_calls[c]->run(f));
            }
            assert_ok(annulus_context_set_workspace(f->context, tensor, 0));
            assert_call_refused(f, all_calls[c], ANNULUS_ERROR_WORKSPACE, NULL, "workspace of no bytes");
            restore(f);
        }
        assert_ok(annulus_context_set_workspace(f->context, NULL, 0));
        free(memory);
        free(copy);
    }
}

static void estimate_announces_the_workspace(void **state) {
    fixture *f = *state;
    const annulus_problem problem = fixture_problem();
    for (int c = 0; c < CALLS; ++c) {
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        assert_ok(annulus_estimate_problem(f->context, &problem, all_calls[c]->pass, ANNULUS_ALL_BRANCHES, &estimate));
        assert_true(estimate.workspace_bytes == workspace_size(f, all_calls[c]->pass));
    }
}

/* At most one thread works for each piece of the problem, or of a long sequence. */
static void threads_without_work_need_no_workspace(void **state) {
    fixture *f = *state;
    const int64_t lengths[BATCH] = {LENGTH, LENGTH - 5};
    annulus_call_options sequences = ANNULUS_CALL_OPTIONS_INIT;
    sequences.sequence_count = BATCH;
    sequences.sequence_lengths = lengths;
    const annulus_call_options *const options[] = {NULL, &sequences};
    for (int o = 0; o < 2; ++o) {
        annulus_problem problem = fixture_problem();
        problem.options = f->options = options[o];
        for (int c = 0; c < CALLS; ++c) {
            uint64_t hundreds = 0, thousand = 0;
            assert_ok(annulus_context_set_threads(f->context, 200));
            assert_ok(annulus_workspace_size(f->context, &problem, all_calls[c]->pass, &hundreds));
            assert_ok(annulus_context_set_threads(f->context, 1024));
            assert_ok(annulus_workspace_size(f->context, &problem, all_calls[c]->pass, &thousand));
            assert_true(thousand == hundreds);
            void *const workspace = malloc(thousand);
            assert_non_null(workspace);
            assert_ok(annulus_context_set_workspace(f->context, workspace, thousand));
            assert_ok(all_calls[c]->run(f));
            assert_ok(annulus_context_set_workspace(f->context, NULL, 0));
            free(workspace);
        }
    }
}

static void workspace_limit_is_kept(void **state) {
    fixture *f = *state;
    const annulus_problem problem = fixture_problem();
    for (int c = 0; c < CALLS; ++c) {
        const uint64_t needed = workspace_size(f, all_calls[c]->pass);
        const uint64_t limits[] = {needed, needed - 1, 1, 0};
        assert_true(needed > 1);
        for (int i = 0; i < 4; ++i) {
            annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
            uint64_t bytes = 77;
            const int enough = i == 0 || i == 3;
            char limit[24], wanted[24];
            assert_ok(annulus_config_set_workspace_limit(f->config, limits[i]));
            assert_ok(annulus_context_set_config(f->context, f->config));
            if (enough) {
                assert_ok(all_calls[c]->run(f));
                assert_true(workspace_size(f, all_calls[c]->pass) == needed);
                continue;
            }
            snprintf(limit, sizeof limit, "%" PRIu64, limits[i]);
            snprintf(wanted, sizeof wanted, "%" PRIu64, needed);
            assert_call_refused(f, all_calls[c], ANNULUS_ERROR_WORKSPACE, limit, "limit of the workspace");
            assert_non_null(strstr(annulus_last_error(), wanted));
            assert_int_equal(annulus_last_error_bytes(), needed);
            assert_refused(annulus_workspace_size(f->context, &problem, all_calls[c]->pass, &bytes),
                           ANNULUS_ERROR_WORKSPACE, limit);
            assert_int_equal(annulus_last_error_bytes(), needed);
            assert_int_equal(bytes, 77);
            assert_refused(
                annulus_estimate_problem(f->context, &problem, all_calls[c]->pass, ANNULUS_ALL_BRANCHES, &estimate),
                ANNULUS_ERROR_WORKSPACE, limit);
            assert_int_equal(annulus_last_error_bytes(), needed);
            assert_true(estimate.pairs == 0);
        }
    }
}

/* An allocator that counts live memory, checks released memory and can refuse. */
typedef struct counter {
    size_t calls, live, bytes, alignment; /* of the last call of allocate */
    int refuses, wrong;
} counter;

static void *count_allocate(void *user, size_t bytes, size_t alignment, void *stream) {
    counter *c = user;
    void *memory = NULL;
    ++c->calls;
    if (c->refuses)
        return NULL;
    c->alignment = alignment;
    c->wrong |= alignment == 0 || (alignment & (alignment - 1)) != 0 || stream != NULL;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    if (posix_memalign(&memory, alignment, bytes ? bytes : 1) != 0)
        return NULL;
    memset(memory, 0xFF, bytes);
    ++c->live;
    c->bytes += bytes;
    return memory;
}

static void count_release(void *user, void *memory, size_t bytes, size_t alignment, void *stream) {
    counter *c = user;
    c->wrong |= memory == NULL || alignment != c->alignment || stream != NULL;
    --c->live;
    c->bytes -= bytes;
    free(memory);
}

static void allocator_is_called_and_balanced(void **state) {
    fixture *f = *state;
    counter count = {0, 0, 0, 0, 0, 0};
    annulus_allocator allocator = ANNULUS_ALLOCATOR_INIT;
    allocator.allocate = count_allocate;
    allocator.release = count_release;
    allocator.user = &count;
    assert_ok(annulus_context_set_allocator(f->context, &allocator));
    memset(&allocator, 0, sizeof allocator); /* the context has a copy */
    for (int c = 0; c < CALLS; ++c) {
        const int needed = workspace_size(f, all_calls[c]->pass) > 0;
        count.calls = 0;
        count.refuses = 0;
        assert_ok(all_calls[c]->run(f));
        assert_int_equal(count.calls > 0, needed);
        count.refuses = 1;
        if (needed)
            assert_call_refused(f, all_calls[c], ANNULUS_ERROR_MEMORY, NULL, "allocator returned NULL");
        assert_int_equal(annulus_last_error_bytes(), 0);
        /* A workspace has priority over the allocator. */
        const uint64_t bytes = workspace_size(f, all_calls[c]->pass);
        void *workspace = malloc(bytes ? bytes : 1);
        count.calls = 0;
        assert_ok(annulus_context_set_workspace(f->context, workspace, bytes));
        assert_ok(all_calls[c]->run(f));
        assert_ok(annulus_context_set_workspace(f->context, NULL, 0));
        free(workspace);
        assert_int_equal(count.calls, 0);
    }
    assert_int_equal(count.wrong, 0);
    assert_ok(annulus_context_set_allocator(f->context, NULL));
    assert_ok(forward_call.run(f));
    assert_int_equal(count.calls, 0);
    assert_int_equal(count.live, 0);
    assert_int_equal(count.bytes, 0);
}

/* An allocator whose functions use the calling context in every possible way. */
typedef struct meddler {
    fixture *f;
    int uses, not_refused;
    char last[64]; /* the function that was not refused */
} meddler;

static void expect_in_call(meddler *m, const char *name, annulus_status status) {
    ++m->uses;
    if (status == ANNULUS_ERROR_ARGUMENT && strstr(annulus_last_error(), "context is in a call"))
        return;
    ++m->not_refused;
    snprintf(m->last, sizeof m->last, "%s: %s", name, annulus_status_name(status));
}

static void use_in_every_way(meddler *m) {
    const fixture *f = m->f;
    annulus_context *context = f->context;
    const annulus_problem problem = fixture_problem();
    const annulus_allocator allocator = ANNULUS_ALLOCATOR_INIT;
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    const annulus_shards shards = {sizeof shards, 1, 0, NULL, NULL};
    annulus_traffic traffic = ANNULUS_TRAFFIC_INIT;
    annulus_config *config = NULL;
    annulus_engine engine = ANNULUS_ENGINE_AUTO;
    int32_t threads = 0;
    uint64_t bytes = 0;
    for (int c = 0; c < CALLS; ++c)
        expect_in_call(m, all_calls[c]->name, all_calls[c]->run(f));
    expect_in_call(m, "merge",
                   annulus_merge(context, 1, f->arguments[OUT], f->arguments[LSE], f->arguments[OUT], NULL, NULL));
    expect_in_call(m, "workspace_size", annulus_workspace_size(context, &problem, ANNULUS_PASS_FORWARD, &bytes));
    expect_in_call(m, "select_engine", annulus_select_engine(context, &problem, ANNULUS_PASS_FORWARD, &engine));
    expect_in_call(m, "check_engine",
                   annulus_check_engine(context, &problem, ANNULUS_PASS_FORWARD, ANNULUS_ENGINE_CPU));
    expect_in_call(m, "estimate_problem",
                   annulus_estimate_problem(context, &problem, ANNULUS_PASS_FORWARD, ANNULUS_ALL_BRANCHES, &estimate));
    expect_in_call(m, "estimate_rank",
                   annulus_estimate_rank(context, &problem, ANNULUS_PASS_FORWARD, &shards, 0, &estimate));
    expect_in_call(m, "set_config", annulus_context_set_config(context, f->config));
    expect_in_call(m, "copy_config", annulus_context_copy_config(&config, context));
    expect_in_call(m, "set_stream", annulus_context_set_stream(context, NULL));
    expect_in_call(m, "set_allocator", annulus_context_set_allocator(context, &allocator));
    expect_in_call(m, "set_workspace", annulus_context_set_workspace(context, NULL, 0));
    expect_in_call(m, "set_threads", annulus_context_set_threads(context, 1));
    expect_in_call(m, "get_threads", annulus_context_get_threads(context, &threads));
    expect_in_call(m, "set_comm", annulus_context_set_comm(context, NULL));
    expect_in_call(m, "set_shards", annulus_context_set_shards(context, NULL));
    expect_in_call(m, "last_engine", annulus_context_last_engine(context, &engine));
    expect_in_call(m, "last_traffic", annulus_context_last_traffic(context, &traffic));
    annulus_context_destroy(context);
}

static void *meddle_allocate(void *user, size_t bytes, size_t alignment, void *stream) {
    void *memory = NULL;
    (void)stream;
    use_in_every_way(user);
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void meddle_release(void *user, void *memory, size_t bytes, size_t alignment, void *stream) {
    (void)bytes;
    (void)alignment;
    (void)stream;
    use_in_every_way(user);
    free(memory);
}

static void allocator_cannot_use_its_context(void **state) {
    fixture *f = *state;
    enum { BYTES = sizeof(float) * BATCH * LENGTH * HEADS * DIM };
    meddler m = {f, 0, 0, ""};
    unsigned char wanted[CALLS][3][BYTES];
    const annulus_allocator allocator = {sizeof allocator, meddle_allocate, meddle_release, &m};
    for (int c = 0; c < CALLS; ++c) {
        assert_ok(all_calls[c]->run(f));
        for (int i = 0; i < all_calls[c]->output_count; ++i)
            memcpy(wanted[c][i], f->tensors[all_calls[c]->outputs[i]].data, BYTES);
    }
    assert_ok(annulus_context_set_allocator(f->context, &allocator));
    for (int c = 0; c < CALLS; ++c) {
        m.uses = m.not_refused = 0;
        assert_ok(all_calls[c]->run(f));
        assert_int_equal(m.uses, 2 * 20);
        if (m.not_refused)
            fail_msg("%s: not refused in its allocator: %s", all_calls[c]->name, m.last);
        for (int i = 0; i < all_calls[c]->output_count; ++i)
            assert_memory_equal(f->tensors[all_calls[c]->outputs[i]].data, wanted[c][i], BYTES);
    }
}

static void use_once(const fixture *f) {
    fixture own = *f;
    annulus_config *copy = NULL;
    assert_ok(annulus_config_copy(&copy, f->config));
    assert_ok(annulus_context_create(&own.context, ANNULUS_DEVICE_CPU, 0));
    assert_ok(annulus_context_set_config(own.context, copy));
    assert_ok(annulus_context_set_threads(own.context, 2));
    assert_ok(forward_call.run(&own));
    assert_ok(backward_call.run(&own));
    own.arguments[Q] = NULL;
    assert_refused(forward_call.run(&own), ANNULUS_ERROR_ARGUMENT, "q");
    annulus_context_destroy(own.context);
    annulus_config_destroy(copy);
}

static size_t bytes_in_use(void) {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* Under the address sanitizer malloc has no statistics. Its leak checker works instead. */
static void a_thousand_cycles_leave_no_memory(void **state) {
    const fixture *f = *state;
    for (int i = 0; i < 10; ++i)
        use_once(f);
    const size_t before = bytes_in_use();
    for (int i = 0; i < 1000; ++i)
        use_once(f);
    const size_t after = bytes_in_use();
    if (after >= before + 1000)
        fail_msg("%zu bytes more in use than 1000 cycles ago", after - before);
}

/* Gives the fixture's context `branches` branches of the whole sequence on an engine. */
static void set_branches(fixture *f, int branches, annulus_engine engine) {
    annulus_config *config = NULL;
    assert_ok(annulus_config_create(&config));
    for (int i = 0; i < branches; ++i)
        add_branch(config, 0, 1);
    assert_ok(annulus_config_set_engine(config, engine));
    assert_ok(annulus_context_set_config(f->context, config));
    annulus_config_destroy(config);
}

/* Returns a problem of `length` positions, with B = H = G = 1. */
static annulus_problem one_head_of(int64_t length) {
    annulus_problem problem = ANNULUS_PROBLEM_INIT;
    problem.dtype = ANNULUS_FLOAT32;
    problem.heads = problem.kv_heads = problem.batch = 1;
    problem.head_dim = DIM;
    problem.sequence_length = length;
    return problem;
}

/* The memory that `reference` needs for every position in every branch exceeds 64 bits. */
static void sizes_beyond_any_memory(void **state) {
    fixture *f = *state;
    const struct {
        int branches;
        int64_t length;
    } sizes[] = {{1000, 1152921504606847}, {1024, (int64_t)1 << 50}, {65536, ((int64_t)1 << 54) - 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        /* One query at the end, and keys that all share one row. */
        annulus_problem problem = one_head_of(sizes[i].length);
        annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
        options.flags = ANNULUS_CALL_QUERY_WINDOW;
        options.query_start = sizes[i].length - 1;
        problem.query_length = 1;
        problem.options = &options;
        set_branches(f, sizes[i].branches, ANNULUS_ENGINE_REFERENCE);
        for (int pass = ANNULUS_PASS_FORWARD; pass <= ANNULUS_PASS_MASS; ++pass) {
            uint64_t bytes = 77;
            assert_refused(annulus_workspace_size(f->context, &problem, (annulus_pass)pass, &bytes),
                           ANNULUS_ERROR_MEMORY, "workspace");
            assert_int_equal(bytes, 77);
        }
        f->options = &options;
        for (int t = 0; t < ARGUMENTS; ++t) {
            const int is_key = t == K || t == V;
            f->tensors[t].shape[0] = 1;
            f->tensors[t].shape[1] = is_key ? sizes[i].length : 1;
            f->tensors[t].shape[2] = 1;
            if (is_key)
                f->tensors[t].stride[1] = 0;
        }
        assert_call_refused(f, &forward_call, ANNULUS_ERROR_MEMORY, "workspace", "more than any memory");
        restore(f);
    }
}

/* The bytes that one rank with nearly all rows sends to a thousand ranks with one row exceed 64 bits, too. */
static void traffic_beyond_64_bits(void **state) {
    fixture *f = *state;
    enum { RANKS = 1024 };
    const annulus_problem problem = one_head_of((int64_t)1 << 54);
    int64_t lengths[RANKS];
    for (int i = 0; i < RANKS; ++i)
        lengths[i] = i == 0 ? problem.sequence_length - (RANKS - 1) : 1;
    const annulus_shards shards = {sizeof shards, RANKS, RANKS, lengths, NULL};
    annulus_config *config = NULL;
    assert_ok(annulus_config_create(&config));
    add_branch(config, 0, 1);
    const annulus_exchange exchanges[] = {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER};
    for (int i = 0; i < 2; ++i) {
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        assert_ok(annulus_config_set_exchange(config, exchanges[i]));
        assert_ok(annulus_context_set_config(f->context, config));
        assert_refused(annulus_estimate_rank(f->context, &problem, ANNULUS_PASS_BACKWARD, &shards, 0, &estimate),
                       i == 0 ? ANNULUS_ERROR_ARGUMENT : ANNULUS_ERROR_MEMORY, i == 0 ? "rows" : "workspace");
        assert_int_equal(estimate.sent_bytes, 0);
        assert_ok(annulus_estimate_rank(f->context, &problem, ANNULUS_PASS_FORWARD, &shards, 1, &estimate));
        assert_true(estimate.received_bytes == 2 * sizeof(float) * DIM * (uint64_t)(problem.sequence_length - 1));
    }
    /* 2^24 query heads share one key head. A mass then takes several rounds, which count. */
    annulus_problem many = one_head_of((int64_t)1 << 30);
    many.heads = 1 << 24;
    const annulus_shards two = {sizeof two, 2, 0, NULL, NULL};
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    assert_ok(annulus_estimate_rank(f->context, &many, ANNULUS_PASS_MASS, &two, 0, &estimate));
    assert_true(estimate.sent_bytes == ((uint64_t)1 << 29) * sizeof(float) * DIM * 2 * ((1 << 24) / DIM));
    many.heads = 1 << 20;
    many.sequence_length = (int64_t)1 << 34;
    lengths[0] = many.sequence_length - (RANKS - 1);
    assert_refused(annulus_estimate_rank(f->context, &many, ANNULUS_PASS_MASS, &shards, 0, &estimate),
                   ANNULUS_ERROR_ARGUMENT, "rounds");
    annulus_config_destroy(config);
}

/* A size that wraps around would be smaller than the size for half the sequence. */
static void workspace_grows_with_the_sequence(void **state) {
    fixture *f = *state;
    const annulus_engine engines[] = {ANNULUS_ENGINE_AUTO, ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU};
    for (int e = 0; e < 3; ++e) {
        set_branches(f, 1000, engines[e]);
        for (int pass = ANNULUS_PASS_FORWARD; pass <= ANNULUS_PASS_BACKWARD; ++pass) {
            uint64_t least = 0;
            for (int64_t length = 1; length < (int64_t)1 << 54; length = 2 * length + 1) {
                annulus_problem problem = one_head_of(length);
                problem.dtype = ANNULUS_BFLOAT16;
                uint64_t bytes = 0;
                const annulus_status status = annulus_workspace_size(f->context, &problem, (annulus_pass)pass, &bytes);
                if (status == ANNULUS_ERROR_MEMORY && engines[e] == ANNULUS_ENGINE_REFERENCE)
                    break;
                assert_ok(status);
                assert_true(bytes >= least);
                least = bytes;
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(sizes_beyond_any_memory),
        TEST(traffic_beyond_64_bits),
        TEST(workspace_grows_with_the_sequence),
        TEST(workspace_to_the_byte),
        TEST(workspace_apart_from_tensors),
        TEST(estimate_announces_the_workspace),
        TEST(threads_without_work_need_no_workspace),
        TEST(workspace_limit_is_kept),
        TEST(allocator_is_called_and_balanced),
        TEST(allocator_cannot_use_its_context),
        TEST(a_thousand_cycles_leave_no_memory),
    };
    return RUN_TESTS(tests);
}
