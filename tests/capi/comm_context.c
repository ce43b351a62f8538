/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts and configs with communicators. Makes every argument wrong, one at a time. Checks what the functions tell
 * for a context without ranks and with a single rank.
 */
#include "fixture.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#define ARGUMENT ANNULUS_ERROR_ARGUMENT
#define UNSUPPORTED ANNULUS_ERROR_UNSUPPORTED

enum { RANKS = 3 };

/* Makes the fixture's context rank 0 of three. */
static void connect(fixture *f, annulus_comm *comms[RANKS]) {
    assert_ok(annulus_comm_create_local(comms, RANKS, NULL));
    assert_ok(annulus_context_set_comm(f->context, comms[0]));
}

static void disconnect(fixture *f, annulus_comm *comms[RANKS]) {
    assert_ok(annulus_context_set_comm(f->context, NULL));
    for (int i = 0; i < RANKS; ++i)
        annulus_comm_destroy(comms[i]);
}

static void exchanges(void **state) {
    fixture *f = *state;
    const int unknown[] = {-1, 3, INT32_MAX, INT32_MIN};
    assert_refused(annulus_config_set_exchange(NULL, ANNULUS_EXCHANGE_RING), ARGUMENT, "config");
    assert_ok(annulus_config_set_exchange(f->config, ANNULUS_EXCHANGE_GATHER));
    for (int i = 0; i < 4; ++i)
        assert_refused(annulus_config_set_exchange(f->config, (annulus_exchange)unknown[i]), ARGUMENT, "exchange");

    /* Neither the refused values nor a later change of the config reach the context. */
    const annulus_exchange all[] = {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER};
    const annulus_shards two = {sizeof two, 2, 0, NULL, NULL};
    const annulus_problem problem = fixture_problem();
    for (int i = 0; i < 2; ++i) {
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        assert_ok(annulus_config_set_exchange(f->config, all[i]));
        assert_ok(annulus_context_set_config(f->context, f->config));
        assert_ok(annulus_config_set_exchange(f->config, ANNULUS_EXCHANGE_AUTO));
        assert_ok(annulus_estimate_rank(f->context, &problem, ANNULUS_PASS_FORWARD, &two, 0, &estimate));
        assert_int_equal(estimate.exchange, all[i]);
    }
    /* Without ranks the call does nothing. */
    assert_ok(forward_call.run(f));
}

static void set_comm(void **state) {
    fixture *f = *state;
    annulus_comm *comms[RANKS], *others[RANKS];
    connect(f, comms);
    assert_refused(annulus_context_set_comm(NULL, comms[0]), ARGUMENT, "context");
    assert_refused(annulus_context_set_comm(NULL, NULL), ARGUMENT, "context");
    /* Another communicator has another number of ranks. */
    assert_ok(annulus_comm_create_local(others, 1, NULL));
    assert_ok(annulus_context_set_comm(f->context, others[0]));
    assert_ok(forward_call.run(f));
    assert_ok(annulus_context_set_comm(f->context, comms[1]));
    assert_ok(annulus_context_set_comm(f->context, comms[1]));
    disconnect(f, comms);
    annulus_comm_destroy(others[0]);
    assert_ok(forward_call.run(f));
}

/* A call in a thread of its own, and its outcome. Its allocator signals when the call has begun. */
typedef struct caller {
    const fixture *f;
    const fixture *other; /* if not NULL, calls, too, when */
    sem_t begun;
    annulus_status status, status_of_other;
    char message[512];
} caller;

static void *tell_and_allocate(void *user, size_t bytes, size_t alignment, void *stream) {
    caller *c = user;
    void *memory = NULL;
    (void)stream;
    if (c->other)
        c->status_of_other = forward_call.run(c->other);
    sem_post(&c->begun);
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void free_memory(void *user, void *memory, size_t bytes, size_t alignment, void *stream) {
    (void)user;
    (void)bytes;
    (void)alignment;
    (void)stream;
    free(memory);
}

static void *call_forward(void *user) {
    caller *c = user;
    c->status = forward_call.run(c->f);
    strcpy(c->message, annulus_last_error());
    return NULL;
}

static void set_caller(const fixture *f, caller *c) {
    annulus_allocator allocator = ANNULUS_ALLOCATOR_INIT;
    allocator.allocate = tell_and_allocate;
    allocator.release = free_memory;
    allocator.user = c;
    c->f = f;
    assert_int_equal(sem_init(&c->begun, 0, 0), 0);
    assert_ok(annulus_context_set_allocator(f->context, &allocator));
}

/* Returns the fixture with a new context, as a rank whose calls need memory. */
static fixture as_rank(const fixture *f, annulus_comm *comm, const int64_t *lengths, int32_t ranks) {
    fixture other = *f;
    other.context = NULL;
    assert_ok(annulus_context_create(&other.context, ANNULUS_DEVICE_CPU, 0));
    assert_ok(annulus_context_set_config(other.context, f->config));
    assert_ok(annulus_context_set_comm(other.context, comm));
    const annulus_shards shards = {sizeof shards, ranks, ranks, lengths, NULL};
    assert_ok(annulus_context_set_shards(other.context, &shards));
    return other;
}

static void ends_know_that_they_are_in_use(void **state) {
    fixture *f = *state;
    const int64_t lengths[RANKS] = {LENGTH, LENGTH, LENGTH};
    annulus_comm *comms[RANKS];
    int32_t number = 0;
    uint64_t bytes = 0;
    pthread_t thread;
    caller c = {0};
    add_branch(f->config, 0, 1);
    assert_ok(annulus_comm_create_local(comms, RANKS, NULL));
    fixture first = as_rank(f, comms[0], lengths, RANKS), second = as_rank(f, comms[0], lengths, RANKS);
    fixture other_rank = as_rank(f, comms[1], lengths, RANKS);
    set_caller(&first, &c);
    assert_int_equal(pthread_create(&thread, NULL, call_forward, &c), 0);
    assert_int_equal(sem_wait(&c.begun), 0); /* and now it waits for the other ranks */

    for (int i = 0; i < CALLS; ++i)
        assert_refused(all_calls[i]->run(&second), ARGUMENT, "communicator");
    assert_refused(annulus_comm_set_timeout(comms[0], 1), ARGUMENT, "comm");
    assert_ok(annulus_comm_size(comms[0], &number));
    assert_ok(annulus_comm_rank(comms[0], &number));
    annulus_status status = ANNULUS_ERROR_INTERNAL;
    assert_ok(annulus_comm_status(comms[0], &status));
    assert_int_equal(status, ANNULUS_OK);
    assert_ok(annulus_context_set_comm(second.context, comms[0]));

    annulus_comm_destroy(comms[0]);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(c.status, ANNULUS_ERROR_COMM);
    assert_string_equal(c.message, "rank 0 aborted the communicator");
    assert_refused(forward_call.run(&other_rank), ANNULUS_ERROR_COMM, "aborted");
    for (int i = 0; i < CALLS; ++i) {
        assert_call_refused(&first, all_calls[i], ARGUMENT, "destroyed", "the end was destroyed in a call");
        assert_call_refused(&second, all_calls[i], ARGUMENT, "destroyed", "the end was destroyed in a call of another");
    }
    /* Functions that ask no other rank still work, and so does a context without the communicator. */
    annulus_problem problem = fixture_problem();
    problem.sequence_length = RANKS * LENGTH;
    assert_ok(annulus_workspace_size(first.context, &problem, ANNULUS_PASS_FORWARD, &bytes));
    assert_ok(annulus_context_set_comm(first.context, NULL));
    assert_ok(forward_call.run(&first));
    annulus_context_destroy(first.context);
    annulus_context_destroy(second.context);
    annulus_context_destroy(other_rank.context);
    annulus_comm_destroy(comms[1]);
    annulus_comm_destroy(comms[2]);
    sem_destroy(&c.begun);
}

/* Calls may follow one another, but not from a function of an allocator. */
static void contexts_share_an_end(void **state) {
    fixture *f = *state;
    const int64_t length = LENGTH;
    annulus_comm *comm = NULL;
    caller c = {0};
    add_branch(f->config, 0, 1);
    assert_ok(annulus_comm_create_local(&comm, 1, NULL));
    fixture first = as_rank(f, comm, &length, 1), second = as_rank(f, comm, &length, 1);
    for (int i = 0; i < 3; ++i)
        for (int p = 0; p < CALLS; ++p) {
            assert_ok(all_calls[p]->run(i % 2 ? &second : &first));
            assert_ok(annulus_comm_set_timeout(comm, 10));
        }
    set_caller(&first, &c);
    c.other = &second;
    assert_ok(backward_call.run(&first));
    assert_int_equal(c.status_of_other, ARGUMENT);
    assert_ok(backward_call.run(&second));

    annulus_comm_destroy(comm);
    for (int p = 0; p < CALLS; ++p)
        assert_call_refused(&second, all_calls[p], ARGUMENT, "destroyed", "the end was destroyed");
    assert_ok(annulus_merge(second.context, 1, f->arguments[OUT], f->arguments[LSE], f->arguments[OUT], NULL, NULL));
    annulus_context_destroy(first.context);
    annulus_context_destroy(second.context);
    sem_destroy(&c.begun);
}

static annulus_status set_lengths(annulus_context *context, const int64_t *lengths, const int32_t *owners,
                                  int32_t count) {
    const annulus_shards shards = {sizeof shards, 0, count, lengths, owners};
    return annulus_context_set_shards(context, &shards);
}

static annulus_status set_sized_shards(void *f, void *shards) {
    return annulus_context_set_shards(((fixture *)f)->context, shards);
}

static void set_shards(void **state) {
    fixture *f = *state;
    annulus_comm *comms[RANKS];
    int64_t lengths[RANKS] = {4, 0, 8};
    assert_refused(set_lengths(f->context, lengths, NULL, RANKS), ARGUMENT, "communicator");
    assert_refused(annulus_context_set_shards(f->context, NULL), ARGUMENT, "communicator");
    connect(f, comms);
    assert_refused(set_lengths(NULL, lengths, NULL, RANKS), ARGUMENT, "context");
    const int32_t counts[] = {0, 1, RANKS - 1, RANKS + 1, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 7; ++i)
        assert_refused(set_lengths(f->context, lengths, NULL, counts[i]), ARGUMENT, "count");
    assert_refused(set_lengths(f->context, NULL, NULL, RANKS), ARGUMENT, "lengths");
    assert_refused(set_lengths(f->context, NULL, NULL, 0), ARGUMENT, "count"); /* even shards of an unknown length */
    for (int i = 0; i < RANKS; ++i) {
        const int64_t wrong[] = {-1, INT64_MIN};
        const int64_t right = lengths[i];
        for (int j = 0; j < 2; ++j) {
            lengths[i] = wrong[j];
            assert_refused(set_lengths(f->context, lengths, NULL, RANKS), ARGUMENT, "lengths");
        }
        lengths[i] = right;
    }
    const int64_t none[RANKS] = {0, 0, 0}, too_long[RANKS] = {1, INT64_MAX, 0};
    assert_refused(set_lengths(f->context, none, NULL, RANKS), ARGUMENT, "lengths");
    assert_refused(set_lengths(f->context, too_long, NULL, RANKS), ARGUMENT, "lengths");

    const int32_t owners[] = {0, 1, 2, 1, 0}, no_ranks[] = {0, 1, RANKS, 1, 0}, negative[] = {0, -1, 2, 1, 0};
    const int64_t five[] = {2, 3, 0, 3, 4}, all_empty[5] = {0};
    assert_refused(set_lengths(f->context, five, no_ranks, 5), ARGUMENT, "owners");
    assert_refused(set_lengths(f->context, five, negative, 5), ARGUMENT, "owners");
    assert_refused(set_lengths(f->context, five, owners, 0), ARGUMENT, "count");
    assert_refused(set_lengths(f->context, five, owners, 65537), ARGUMENT, "count");
    assert_refused(set_lengths(f->context, NULL, owners, 5), ARGUMENT, "lengths");
    assert_refused(set_lengths(f->context, all_empty, owners, 5), ARGUMENT, "lengths");

    annulus_shards shards = {sizeof shards, RANKS, RANKS, lengths, NULL};
    const int32_t other_ranks[] = {1, RANKS + 1, -1, INT32_MIN};
    for (int i = 0; i < 4; ++i) {
        shards.ranks = other_ranks[i];
        assert_refused(set_sized_shards(f, &shards), ARGUMENT, "ranks");
    }
    shards.ranks = RANKS;
    assert_ok(assert_sized(set_sized_shards, f, &shards, sizeof shards, FIRST_BYTES(annulus_shards, owners), "shards"));

    disconnect(f, comms);
}

/* Refused lengths change nothing, and accepted lengths are copied. */
static void shards_that_stay(void **state) {
    fixture *f = *state;
    annulus_comm *comms[RANKS];
    int64_t lengths[RANKS] = {4, 0, 8};
    const int64_t none[RANKS] = {0, 0, 0};
    connect(f, comms);
    annulus_problem problem = fixture_problem(), longer = problem;
    ++longer.sequence_length;
    uint64_t bytes = 77;
    assert_ok(set_lengths(f->context, lengths, NULL, RANKS));
    memset(lengths, 0xFF, sizeof lengths);
    assert_refused(set_lengths(f->context, none, NULL, RANKS), ARGUMENT, "lengths");
    assert_ok(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, &bytes));
    assert_true(bytes > 0);
    /* Resets the lengths to the default, by set_comm(), too. Then any length is accepted. */
    for (int i = 0; i < 2; ++i) {
        assert_refused(annulus_workspace_size(f->context, &longer, ANNULUS_PASS_FORWARD, &bytes), ARGUMENT,
                       "annulus_context_set_shards");
        if (i == 0)
            assert_ok(annulus_context_set_shards(f->context, NULL));
        else
            assert_ok(annulus_context_set_comm(f->context, comms[0]));
        assert_ok(annulus_workspace_size(f->context, &longer, ANNULUS_PASS_FORWARD, &bytes));
        assert_ok(set_lengths(f->context, (const int64_t[]){2, 5, 5}, NULL, RANKS));
    }
    disconnect(f, comms);
}

/* In a context with ranks a problem is that of all ranks, and the answer is for the context's rank and shards. It
 * equals annulus_estimate_rank() in a context without ranks. */
static void estimates_of_the_own_rank(void **state) {
    fixture *f = *state;
    annulus_comm *comms[RANKS];
    const int64_t uneven[] = {4, 0, 8}, five[] = {2, 3, 0, 3, 4};
    const int32_t owners[] = {0, 1, 2, 1, 0};
    const annulus_shards all[] = {{sizeof all[0], RANKS, 0, NULL, NULL},
                                  {sizeof all[0], RANKS, RANKS, uneven, NULL},
                                  {sizeof all[0], RANKS, 5, five, owners}};
    annulus_problem problem = fixture_problem();
    for (int i = 0; i < 3; ++i)
        for (int c = 0; c < CALLS; ++c) {
            annulus_estimate own = ANNULUS_ESTIMATE_INIT, alone = ANNULUS_ESTIMATE_INIT;
            const annulus_pass pass = all_calls[c]->pass;
            uint64_t bytes = 77;
            assert_ok(annulus_estimate_rank(f->context, &problem, pass, &all[i], 0, &alone));
            connect(f, comms);
            assert_ok(annulus_context_set_shards(f->context, i == 0 ? NULL : &all[i]));
            assert_ok(annulus_estimate_problem(f->context, &problem, pass, ANNULUS_ALL_BRANCHES, &own));
            assert_ok(annulus_workspace_size(f->context, &problem, pass, &bytes));
            assert_same_estimates(&own, &alone);
            assert_int_equal(bytes, own.workspace_bytes);
            assert_true(own.sent_bytes > 0 && own.exchange != ANNULUS_EXCHANGE_AUTO);
            double pairs = 0;
            for (int32_t branch = 0; branch < 2; ++branch) {
                annulus_estimate branch_estimate = ANNULUS_ESTIMATE_INIT;
                assert_ok(annulus_estimate_problem(f->context, &problem, pass, branch, &branch_estimate));
                pairs += branch_estimate.pairs;
                assert_int_equal(branch_estimate.sent_bytes, own.sent_bytes);
            }
            assert_true(pairs == own.pairs);
            disconnect(f, comms);
        }
    connect(f, comms);
    annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
    uint64_t bytes = 77;
    options.flags = ANNULUS_CALL_QUERY_WINDOW;
    problem.options = &options;
    problem.query_length = 4;
    assert_refused(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, &bytes),
                   ANNULUS_ERROR_UNSUPPORTED, "ANNULUS_CALL_QUERY_WINDOW");
    problem.options = NULL;
    assert_refused(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, &bytes), ARGUMENT,
                   "query_length");
    assert_int_equal(bytes, 77);
    disconnect(f, comms);
}

static void last_traffic(void **state) {
    fixture *f = *state;
    annulus_traffic traffic = ANNULUS_TRAFFIC_INIT;
    assert_refused(annulus_context_last_traffic(NULL, &traffic), ARGUMENT, "context");
    assert_refused(annulus_context_last_traffic(f->context, NULL), ARGUMENT, "traffic");
    traffic.sent_bytes = traffic.received_bytes = 77;
    assert_ok(annulus_context_last_traffic(f->context, &traffic));
    assert_int_equal(traffic.sent_bytes, 0);
    assert_int_equal(traffic.received_bytes, 0);
    assert_int_equal(traffic.size, sizeof traffic);
}

/* Fails unless the estimate is refused and left unchanged. lengths NULL: even shards. */
static void refuse_estimate(annulus_context *context, const annulus_problem *problem, const int64_t *lengths,
                            int32_t ranks, int32_t rank, annulus_status wanted, const char *name) {
    const annulus_shards shards = {sizeof shards, ranks, lengths ? ranks : 0, lengths, NULL};
    annulus_estimate estimate, untouched;
    memset(&estimate, 0x5A, sizeof estimate);
    estimate.size = sizeof estimate;
    untouched = estimate;
    assert_refused(annulus_estimate_rank(context, problem, ANNULUS_PASS_BACKWARD, &shards, rank, &estimate), wanted,
                   name);
    assert_memory_equal(&estimate, &untouched, sizeof estimate);
}

static annulus_status estimate_sized_shards(void *f, void *shards) {
    const annulus_problem problem = fixture_problem();
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    return annulus_estimate_rank(((fixture *)f)->context, &problem, ANNULUS_PASS_FORWARD, shards, 0, &estimate);
}
static annulus_status estimate_into(void *f, void *estimate) {
    const annulus_problem problem = fixture_problem();
    const annulus_shards even = {sizeof even, RANKS, 0, NULL, NULL};
    return annulus_estimate_rank(((fixture *)f)->context, &problem, ANNULUS_PASS_FORWARD, &even, 0, estimate);
}

/* Fails unless the question is refused, and nothing is written. */
static void refuse_balance(annulus_context *context, const annulus_problem *problem, int32_t ranks, int32_t capacity,
                           const char *name) {
    int64_t lengths[RANKS] = {7, 7, 7};
    int32_t owners[RANKS] = {7, 7, 7}, count = 7;
    assert_refused(annulus_balance_shards(context, problem, ranks, capacity, lengths, owners, &count), ARGUMENT, name);
    for (int i = 0; i < RANKS; ++i)
        assert_true(lengths[i] == 7 && owners[i] == 7);
    assert_int_equal(count, 7);
}

static void balanced_shards(void **state) {
    fixture *f = *state;
    const annulus_problem problem = fixture_problem();
    annulus_problem none = problem;
    annulus_context *bare = NULL;
    int64_t lengths[RANKS], sum = 0;
    int32_t owners[RANKS], count = 0;
    none.sequence_length = 0;
    assert_ok(annulus_context_create(&bare, ANNULUS_DEVICE_CPU, 0));
    refuse_balance(NULL, &problem, RANKS, RANKS, "context");
    refuse_balance(bare, &problem, RANKS, RANKS, "config");
    refuse_balance(f->context, NULL, RANKS, RANKS, "problem");
    refuse_balance(f->context, &none, RANKS, RANKS, "sequence_length");
    refuse_balance(f->context, &problem, 0, RANKS, "ranks is 0");
    refuse_balance(f->context, &problem, 4097, RANKS, "ranks is 4097");
    refuse_balance(f->context, &problem, RANKS, 0, "capacity is 0");
    refuse_balance(f->context, &problem, RANKS, RANKS - 1, "capacity is 2; it must be");
    assert_refused(annulus_balance_shards(f->context, &problem, RANKS, RANKS, NULL, owners, &count), ARGUMENT,
                   "lengths");
    assert_refused(annulus_balance_shards(f->context, &problem, RANKS, RANKS, lengths, NULL, &count), ARGUMENT,
                   "owners");
    assert_refused(annulus_balance_shards(f->context, &problem, RANKS, RANKS, lengths, owners, NULL), ARGUMENT,
                   "count");
    assert_ok(annulus_balance_shards(f->context, &problem, RANKS, RANKS, lengths, owners, &count));
    assert_int_equal(count, RANKS);
    for (int i = 0; i < RANKS; ++i) {
        assert_int_equal(owners[i], i);
        sum += lengths[i];
    }
    assert_true(sum == problem.sequence_length);
    annulus_context_destroy(bare);
}

static void estimate_of_a_rank(void **state) {
    fixture *f = *state;
    annulus_problem problem = fixture_problem();
    int64_t lengths[RANKS] = {4, 0, 8};
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    annulus_shards even = ANNULUS_SHARDS_INIT;
    const annulus_pass pass = ANNULUS_PASS_FORWARD;
    even.ranks = RANKS;
    assert_refused(annulus_estimate_rank(f->context, &problem, pass, &even, 0, NULL), ARGUMENT, "estimate");
    assert_refused(annulus_estimate_rank(f->context, &problem, pass, NULL, 0, &estimate), ARGUMENT, "shards");
    const int32_t no_ranks[] = {0, -1, 4097, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 5; ++i)
        refuse_estimate(f->context, &problem, NULL, no_ranks[i], 0, ARGUMENT, "ranks");
    const int32_t no_rank[] = {-1, RANKS, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; ++i)
        refuse_estimate(f->context, &problem, lengths, RANKS, no_rank[i], ARGUMENT, "rank");
    for (int i = 0; i < RANKS; ++i) {
        const int64_t wrong[] = {-1, INT64_MIN, INT64_MAX, 1000};
        const int64_t right = lengths[i];
        for (int j = 0; j < 4; ++j) {
            lengths[i] = wrong[j];
            refuse_estimate(f->context, &problem, lengths, RANKS, 0, ARGUMENT, NULL);
        }
        lengths[i] = right;
    }
    const int64_t none[RANKS] = {0, 0, 0}, shorter[RANKS] = {4, 0, 7};
    refuse_estimate(f->context, &problem, none, RANKS, 0, ARGUMENT, "lengths");
    refuse_estimate(f->context, &problem, shorter, RANKS, 0, ARGUMENT, "lengths");
    const int32_t owners[] = {0};
    const annulus_shards half_said[] = {{sizeof even, RANKS, 0, lengths, NULL},
                                        {sizeof even, RANKS, 0, NULL, owners},
                                        {sizeof even, RANKS, RANKS, NULL, NULL}};
    for (int i = 0; i < 3; ++i)
        assert_refused(annulus_estimate_rank(f->context, &problem, pass, &half_said[i], 0, &estimate), ARGUMENT,
                       i < 2 ? "count" : "lengths");
    assert_ok(
        assert_sized(estimate_sized_shards, f, &even, sizeof even, FIRST_BYTES(annulus_shards, owners), "shards"));
    assert_ok(assert_sized(estimate_into, f, &estimate, sizeof estimate, FIRST_BYTES(annulus_estimate, exchange),
                           "estimate"));
}

/* Any lengths: a rank may have all rows of a sequence, or none, or be the only rank. */
static void reference_has_no_ranks(void **state) {
    fixture *f = *state;
    const int64_t starts[] = {0, 4, LENGTH};
    const int64_t lengths[][RANKS] = {{4, 8, 0}, {0, LENGTH, 0}, {5, 0, 7}};
    annulus_call_options sequences = ANNULUS_CALL_OPTIONS_INIT;
    sequences.sequence_count = 2;
    sequences.sequence_starts = starts;
    const annulus_call_options *const options[] = {NULL, &sequences};
    annulus_comm *comm = NULL;
    assert_ok(annulus_config_set_engine(f->config, ANNULUS_ENGINE_REFERENCE));
    assert_ok(annulus_context_set_config(f->context, f->config));
    assert_ok(annulus_comm_create_local(&comm, 1, NULL));
    for (int o = 0; o < 2; ++o) {
        annulus_problem problem = fixture_problem();
        problem.options = f->options = options[o];
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i)
            for (int32_t rank = 0; rank < RANKS; ++rank)
                refuse_estimate(f->context, &problem, lengths[i], RANKS, rank, UNSUPPORTED, "reference");
        assert_ok(annulus_context_set_comm(f->context, comm));
        for (int c = 0; c < CALLS; ++c)
            assert_call_refused(f, all_calls[c], UNSUPPORTED, "reference", "engine reference with a communicator");
        assert_ok(annulus_context_set_comm(f->context, NULL));
        for (int c = 0; c < CALLS; ++c)
            assert_ok(all_calls[c]->run(f));
    }
    annulus_comm_destroy(comm);
}

/* Two global keys, on rank 0 with even shards: each other rank gets the two rows. One rank sends nothing. */
static void ranks_share_global_positions(void **state) {
    fixture *f = *state;
    const annulus_branch branch = ANNULUS_BRANCH_GLOBAL_INIT(0, 2);
    const annulus_problem problem = fixture_problem();
    const uint64_t row_bytes = 2 * BATCH * KV_HEADS * DIM * sizeof(float); /* of K and V */
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    annulus_shards even = ANNULUS_SHARDS_INIT;
    annulus_comm *comm = NULL;
    even.ranks = RANKS;
    assert_ok(annulus_comm_create_local(&comm, 1, NULL));
    for (int32_t i = 0; i < 2; ++i)
        assert_ok(annulus_config_set_branch(f->config, i, &branch));
    assert_ok(annulus_context_set_config(f->context, f->config));
    for (int32_t rank = 0; rank < RANKS; ++rank) {
        assert_ok(annulus_estimate_rank(f->context, &problem, ANNULUS_PASS_FORWARD, &even, rank, &estimate));
        assert_int_equal(estimate.sent_bytes, rank == 0 ? 2 * (RANKS - 1) * row_bytes : 0);
        assert_int_equal(estimate.received_bytes, rank == 0 ? 0 : 2 * row_bytes);
    }
    int64_t lengths[RANKS];
    int32_t owners[RANKS], count = 0;
    assert_ok(annulus_balance_shards(f->context, &problem, RANKS, RANKS, lengths, owners, &count));
    assert_int_equal(count, RANKS);
    assert_ok(annulus_context_set_comm(f->context, comm));
    for (int c = 0; c < CALLS; ++c)
        assert_ok(all_calls[c]->run(f));
    assert_ok(annulus_context_set_comm(f->context, NULL));
    for (int c = 0; c < CALLS; ++c)
        assert_ok(all_calls[c]->run(f));
    annulus_comm_destroy(comm);
}

/* The ranks receive in total what they send, also with fewer positions than ranks. Their pairs, FLOPs and tensors add
 * up to those of one rank. A mass has one tensor of rows where other passes have two. */
static void estimates_add_up(void **state) {
    fixture *f = *state;
    const annulus_problem problem = fixture_problem();
    for (int32_t ranks = 1; ranks <= LENGTH + 3; ++ranks) {
        const annulus_shards shards = {sizeof shards, ranks, 0, NULL, NULL};
        uint64_t sent[CALLS] = {0}, received[CALLS] = {0};
        for (int c = 0; c < CALLS; ++c) {
            const annulus_pass pass = all_calls[c]->pass;
            annulus_estimate alone = ANNULUS_ESTIMATE_INIT, sum = ANNULUS_ESTIMATE_INIT;
            assert_ok(annulus_estimate_problem(f->context, &problem, pass, ANNULUS_ALL_BRANCHES, &alone));
            for (int32_t rank = 0; rank < ranks; ++rank) {
                annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
                assert_ok(annulus_estimate_rank(f->context, &problem, pass, &shards, rank, &estimate));
                assert_true((estimate.exchange == ANNULUS_EXCHANGE_AUTO) == (ranks == 1));
                assert_true(estimate.plan_bytes > 0 && estimate.plan_bytes < 1 << 20);
                if (pass == ANNULUS_PASS_FORWARD) /* and rows of K and V are all that travels */
                    assert_true((estimate.received_messages > 0) == (estimate.received_bytes > 0));
                sum.pairs += estimate.pairs;
                sum.flops += estimate.flops;
                sum.tensor_bytes += estimate.tensor_bytes;
                sent[c] += estimate.sent_bytes;
                received[c] += estimate.received_bytes;
            }
            assert_true(sum.pairs == alone.pairs && sum.flops == alone.flops);
            assert_int_equal(sum.tensor_bytes, alone.tensor_bytes);
            assert_int_equal(sent[c], received[c]);
            assert_true((sent[c] > 0) == (ranks > 1));
        }
        assert_int_equal(sent[1], 2 * sent[0]); /* float32: gradients are as large as their tensors */
        assert_int_equal(sent[2], sent[0]);
    }
}

/* A communicator of one rank: the same result, and nothing is sent. */
static void a_rank_alone(void **state) {
    fixture *f = *state;
    annulus_comm *comm = NULL;
    annulus_traffic traffic = ANNULUS_TRAFFIC_INIT;
    float alone[BATCH * LENGTH * HEADS * DIM];
    for (int c = 0; c < CALLS; ++c) {
        const annulus_tensor *output = f->arguments[all_calls[c]->outputs[0]];
        assert_ok(all_calls[c]->run(f));
        memcpy(alone, output->data, sizeof alone);
        mark_outputs(f, all_calls[c]);
        assert_ok(annulus_comm_create_local(&comm, 1, NULL));
        assert_ok(annulus_context_set_comm(f->context, comm));
        assert_ok(all_calls[c]->run(f));
        assert_memory_equal(alone, output->data, sizeof alone);
        assert_ok(annulus_context_last_traffic(f->context, &traffic));
        assert_int_equal(traffic.sent_bytes, 0);
        assert_int_equal(traffic.received_bytes, 0);
        assert_ok(annulus_context_set_comm(f->context, NULL));
        annulus_comm_destroy(comm);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(exchanges),
        TEST(set_comm),
        TEST(ends_know_that_they_are_in_use),
        TEST(contexts_share_an_end),
        TEST(set_shards),
        TEST(shards_that_stay),
        TEST(estimates_of_the_own_rank),
        TEST(last_traffic),
        TEST(balanced_shards),
        TEST(estimate_of_a_rank),
        TEST(estimates_add_up),
        TEST(a_rank_alone),
        TEST(reference_has_no_ranks),
        TEST(ranks_share_global_positions),
    };
    return RUN_TESTS(tests);
}
