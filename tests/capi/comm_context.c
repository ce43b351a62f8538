/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What contexts and configs have to do with communicators: every argument wrong, one at a time, and what the functions
 * say of a context without ranks and of one with a single one.
 */
#include "fixture.h"

#include <string.h>

#define ARGUMENT ANNULUS_ERROR_ARGUMENT
#define UNSUPPORTED ANNULUS_ERROR_UNSUPPORTED

enum { RANKS = 3 };

/* The fixture's context as rank 0 of three. */
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
    const annulus_problem problem = fixture_problem();
    for (int i = 0; i < 2; ++i) {
        annulus_rank_estimate estimate = ANNULUS_RANK_ESTIMATE_INIT;
        assert_ok(annulus_config_set_exchange(f->config, all[i]));
        assert_ok(annulus_context_set_config(f->context, f->config));
        assert_ok(annulus_config_set_exchange(f->config, ANNULUS_EXCHANGE_AUTO));
        assert_ok(annulus_estimate_rank(f->context, &problem, NULL, NULL, 0, 2, 0, &estimate));
        assert_int_equal(estimate.exchange, all[i]);
    }
    /* Without ranks it does nothing. */
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

static void set_shards(void **state) {
    fixture *f = *state;
    annulus_comm *comms[RANKS];
    int64_t lengths[RANKS] = {4, 0, 8};
    assert_refused(annulus_context_set_shards(f->context, lengths, NULL, RANKS), ARGUMENT, "communicator");
    assert_refused(annulus_context_set_shards(f->context, NULL, NULL, 0), ARGUMENT, "communicator");
    connect(f, comms);
    assert_refused(annulus_context_set_shards(NULL, lengths, NULL, RANKS), ARGUMENT, "context");
    const int32_t counts[] = {0, 1, RANKS - 1, RANKS + 1, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 7; ++i)
        assert_refused(annulus_context_set_shards(f->context, lengths, NULL, counts[i]), ARGUMENT, "count");
    assert_refused(annulus_context_set_shards(f->context, NULL, NULL, RANKS), ARGUMENT, "lengths");
    assert_refused(annulus_context_set_shards(f->context, NULL, NULL, 1), ARGUMENT, "count");
    for (int i = 0; i < RANKS; ++i) {
        const int64_t wrong[] = {-1, INT64_MIN};
        const int64_t right = lengths[i];
        for (int j = 0; j < 2; ++j) {
            lengths[i] = wrong[j];
            assert_refused(annulus_context_set_shards(f->context, lengths, NULL, RANKS), ARGUMENT, "lengths");
        }
        lengths[i] = right;
    }
    const int64_t none[RANKS] = {0, 0, 0}, too_long[RANKS] = {1, INT64_MAX, 0};
    assert_refused(annulus_context_set_shards(f->context, none, NULL, RANKS), ARGUMENT, "lengths");
    assert_refused(annulus_context_set_shards(f->context, too_long, NULL, RANKS), ARGUMENT, "lengths");

    const int32_t owners[] = {0, 1, 2, 1, 0}, no_ranks[] = {0, 1, RANKS, 1, 0}, negative[] = {0, -1, 2, 1, 0};
    const int64_t five[] = {2, 3, 0, 3, 4}, all_empty[5] = {0};
    assert_refused(annulus_context_set_shards(f->context, five, no_ranks, 5), ARGUMENT, "owners");
    assert_refused(annulus_context_set_shards(f->context, five, negative, 5), ARGUMENT, "owners");
    assert_refused(annulus_context_set_shards(f->context, five, owners, 0), ARGUMENT, "count");
    assert_refused(annulus_context_set_shards(f->context, five, owners, 65537), ARGUMENT, "count");
    assert_refused(annulus_context_set_shards(f->context, NULL, owners, 5), ARGUMENT, "lengths");
    assert_refused(annulus_context_set_shards(f->context, all_empty, owners, 5), ARGUMENT, "lengths");

    /* What was refused changed nothing; what was accepted is a copy. */
    annulus_problem problem = fixture_problem();
    uint64_t bytes = 77;
    assert_ok(annulus_context_set_shards(f->context, lengths, NULL, RANKS));
    memset(lengths, 0xFF, sizeof lengths);
    assert_refused(annulus_context_set_shards(f->context, none, NULL, RANKS), ARGUMENT, "lengths");
    problem.query_length = problem.key_length = 4;
    assert_ok(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, &bytes));
    assert_true(bytes > 0);
    /* Back to the default, and by set_comm() too. */
    const annulus_problem whole = fixture_problem();
    for (int i = 0; i < 2; ++i) {
        if (i == 0)
            assert_ok(annulus_context_set_shards(f->context, NULL, NULL, 0));
        else
            assert_ok(annulus_context_set_comm(f->context, comms[0]));
        assert_ok(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, &bytes));
        assert_ok(annulus_context_set_shards(f->context, (const int64_t[]){2, 5, 5}, NULL, RANKS));
        assert_refused(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, &bytes), ARGUMENT, "problem");
    }
    /* A rank's window is from 0 on where it holds several. */
    annulus_rank_estimate estimate = ANNULUS_RANK_ESTIMATE_INIT;
    assert_ok(annulus_context_set_shards(f->context, five, owners, 5));
    problem.query_length = problem.key_length = 6;
    assert_ok(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, &bytes));
    assert_ok(annulus_estimate_rank(f->context, &problem, five, owners, 5, RANKS, 0, &estimate));
    assert_int_equal(bytes, estimate.forward_workspace_bytes);
    problem.query_start = problem.key_start = 1;
    assert_refused(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, &bytes), ARGUMENT, "problem");
    problem.query_start = problem.key_start = 0;
    /* Where none are set: shards as equal as can be, the first ones longer, as annulus_estimate_rank() has them. */
    assert_ok(annulus_context_set_shards(f->context, NULL, NULL, 0));
    problem.sequence_length = LENGTH + 1;
    assert_refused(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, &bytes), ARGUMENT,
                   "annulus_context_set_shards");
    problem.query_length = problem.key_length = LENGTH / RANKS + 1;
    assert_ok(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, &bytes));
    assert_ok(annulus_estimate_rank(f->context, &problem, NULL, NULL, 0, RANKS, 0, &estimate));
    assert_int_equal(bytes, estimate.forward_workspace_bytes);
    disconnect(f, comms);
    assert_ok(annulus_workspace_size(f->context, &whole, ANNULUS_PASS_FORWARD, &bytes));
}

/* Windows of a problem are the rank's shard, where the context has ranks. */
static void windows_are_shards(void **state) {
    fixture *f = *state;
    annulus_comm *comms[RANKS];
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    uint64_t bytes = 77;
    connect(f, comms);
    assert_ok(annulus_context_set_shards(f->context, (const int64_t[]){4, 0, 8}, NULL, RANKS));
    annulus_problem shard = fixture_problem();
    shard.query_length = shard.key_length = 4;
    assert_ok(annulus_workspace_size(f->context, &shard, ANNULUS_PASS_FORWARD, &bytes));
    annulus_problem unsaid = shard;
    uint64_t same = 0;
    unsaid.query_length = unsaid.key_length = ANNULUS_WHOLE;
    assert_ok(annulus_workspace_size(f->context, &unsaid, ANNULUS_PASS_FORWARD, &same));
    assert_int_equal(same, bytes);
    unsaid.query_start = 1; /* to the end: no shard */
    assert_refused(annulus_workspace_size(f->context, &unsaid, ANNULUS_PASS_FORWARD, &bytes), ARGUMENT, "problem");
    annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
    options.flags = ANNULUS_CALL_QUERY_WINDOW;
    unsaid = shard;
    unsaid.options = &options;
    assert_refused(annulus_workspace_size(f->context, &unsaid, ANNULUS_PASS_FORWARD, &bytes), ANNULUS_ERROR_UNSUPPORTED,
                   "ANNULUS_CALL_QUERY_WINDOW");
    bytes = 77;
    static const size_t fields[] = {offsetof(annulus_problem, query_start), offsetof(annulus_problem, query_length),
                                    offsetof(annulus_problem, key_start), offsetof(annulus_problem, key_length),
                                    offsetof(annulus_problem, sequence_length)};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; ++i) {
        annulus_problem wrong = shard;
        int64_t value;
        memcpy(&value, (char *)&wrong + fields[i], sizeof value);
        ++value;
        memcpy((char *)&wrong + fields[i], &value, sizeof value);
        assert_refused(annulus_workspace_size(f->context, &wrong, ANNULUS_PASS_FORWARD, &bytes), ARGUMENT, "problem");
        assert_refused(annulus_estimate_problem(f->context, &wrong, -1, &estimate), ARGUMENT, "problem");
    }
    assert_int_equal(bytes, 77);
    disconnect(f, comms);
}

static void last_traffic(void **state) {
    fixture *f = *state;
    struct {
        annulus_traffic traffic;
        unsigned char unknown[8];
    } later = {ANNULUS_TRAFFIC_INIT, {0}};
    annulus_traffic traffic = ANNULUS_TRAFFIC_INIT;
    assert_refused(annulus_context_last_traffic(NULL, &traffic), ARGUMENT, "context");
    assert_refused(annulus_context_last_traffic(f->context, NULL), ARGUMENT, "traffic");
    traffic.sent_bytes = traffic.received_bytes = 77;
    const size_t sizes[] = {0, sizeof(size_t), sizeof traffic - 1, 4097, SIZE_MAX};
    for (int i = 0; i < 5; ++i) {
        traffic.size = sizes[i];
        assert_refused(annulus_context_last_traffic(f->context, &traffic), ARGUMENT, "traffic");
    }
    assert_int_equal(traffic.sent_bytes, 77);
    assert_int_equal(traffic.received_bytes, 77);
    traffic.size = sizeof traffic;
    assert_ok(annulus_context_last_traffic(f->context, &traffic));
    assert_int_equal(traffic.sent_bytes, 0);
    assert_int_equal(traffic.received_bytes, 0);
    assert_int_equal(traffic.size, sizeof traffic);

    for (size_t i = 0; i < sizeof later.unknown; ++i) {
        later.traffic.size = sizeof later;
        later.unknown[i] = 1;
        assert_refused(annulus_context_last_traffic(f->context, &later.traffic), ARGUMENT, "traffic");
        later.unknown[i] = 0;
    }
    assert_ok(annulus_context_last_traffic(f->context, &later.traffic));
    assert_int_equal(later.traffic.size, sizeof later);
}

/* Fails unless the estimate is refused and left as it was. */
static void refuse_estimate(annulus_context *context, const annulus_problem *problem, const int64_t *lengths,
                            int32_t ranks, int32_t rank, annulus_status wanted, const char *name) {
    annulus_rank_estimate estimate, untouched;
    memset(&estimate, 0x5A, sizeof estimate);
    estimate.size = sizeof estimate;
    untouched = estimate;
    assert_refused(annulus_estimate_rank(context, problem, lengths, NULL, ranks, ranks, rank, &estimate), wanted, name);
    assert_memory_equal(&estimate, &untouched, sizeof estimate);
}

static void estimate_of_a_rank(void **state) {
    fixture *f = *state;
    annulus_problem problem = fixture_problem();
    int64_t lengths[RANKS] = {4, 0, 8};
    annulus_rank_estimate estimate = ANNULUS_RANK_ESTIMATE_INIT;
    annulus_context *bare = NULL;
    refuse_estimate(NULL, &problem, lengths, RANKS, 0, ARGUMENT, "context");
    refuse_estimate(f->context, NULL, lengths, RANKS, 0, ARGUMENT, "problem");
    assert_refused(annulus_estimate_rank(f->context, &problem, lengths, NULL, RANKS, RANKS, 0, NULL), ARGUMENT,
                   "estimate");
    assert_ok(annulus_context_create(&bare, ANNULUS_DEVICE_CPU, 0));
    refuse_estimate(bare, &problem, lengths, RANKS, 0, ARGUMENT, "config");
    annulus_context_destroy(bare);
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

    const size_t sizes[] = {0, sizeof(size_t), sizeof estimate - 1, 4097, SIZE_MAX};
    for (int i = 0; i < 5; ++i) {
        estimate.size = sizes[i];
        assert_refused(annulus_estimate_rank(f->context, &problem, NULL, NULL, 0, RANKS, 0, &estimate), ARGUMENT,
                       "estimate");
    }
    struct {
        annulus_rank_estimate estimate;
        unsigned char unknown[8];
    } later = {ANNULUS_RANK_ESTIMATE_INIT, {0}};
    for (size_t i = 0; i < sizeof later.unknown; ++i) {
        later.estimate.size = sizeof later;
        later.unknown[i] = 1;
        assert_refused(annulus_estimate_rank(f->context, &problem, NULL, NULL, 0, RANKS, 0, &later.estimate), ARGUMENT,
                       "estimate");
        later.unknown[i] = 0;
    }
    assert_ok(annulus_estimate_rank(f->context, &problem, NULL, NULL, 0, RANKS, 0, &later.estimate));
    assert_int_equal(later.estimate.size, sizeof later);

    problem.head_dim = 12;
    refuse_estimate(f->context, &problem, NULL, RANKS, 0, UNSUPPORTED, "head_dim");
    problem = fixture_problem();
    problem.sequence_length = problem.query_length = problem.key_length = 0;
    refuse_estimate(f->context, &problem, NULL, RANKS, 0, ARGUMENT, "sequence_length");
    problem = fixture_problem();
    problem.size = offsetof(annulus_problem, gradient_dtype);
    refuse_estimate(f->context, &problem, NULL, RANKS, 0, ARGUMENT, "problem");
    problem = fixture_problem();
    assert_ok(annulus_config_set_engine(f->config, ANNULUS_ENGINE_REFERENCE));
    assert_ok(annulus_context_set_config(f->context, f->config));
    refuse_estimate(f->context, &problem, NULL, RANKS, 0, UNSUPPORTED, "reference");
    assert_ok(annulus_config_set_engine(f->config, ANNULUS_ENGINE_CPU));
    assert_ok(annulus_config_set_workspace_limit(f->config, 1));
    assert_ok(annulus_context_set_config(f->context, f->config));
    refuse_estimate(f->context, &problem, NULL, RANKS, 0, ANNULUS_ERROR_WORKSPACE, NULL);
    assert_true(annulus_last_error_bytes() > 1);
}

/* Whatever the lengths: where a rank has all rows of a sequence, or none, and where it is the only rank. */
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

/* What ranks send is received, with fewer positions than ranks too; the windows do not matter, nor does a
 * communicator. */
static void estimates_add_up(void **state) {
    fixture *f = *state;
    annulus_comm *comms[RANKS];
    const annulus_problem problem = fixture_problem();
    annulus_problem windows = problem;
    windows.query_start = 5;
    windows.query_length = 0;
    windows.key_length = 1;
    for (int32_t ranks = 1; ranks <= LENGTH + 3; ++ranks) {
        uint64_t sent[2] = {0}, received[2] = {0};
        for (int32_t rank = 0; rank < ranks; ++rank) {
            annulus_rank_estimate estimate = ANNULUS_RANK_ESTIMATE_INIT, again = ANNULUS_RANK_ESTIMATE_INIT;
            assert_ok(annulus_estimate_rank(f->context, &problem, NULL, NULL, 0, ranks, rank, &estimate));
            assert_true(estimate.exchange == ANNULUS_EXCHANGE_RING || estimate.exchange == ANNULUS_EXCHANGE_GATHER);
            sent[0] += estimate.forward_sent_bytes;
            received[0] += estimate.forward_received_bytes;
            sent[1] += estimate.backward_sent_bytes;
            received[1] += estimate.backward_received_bytes;
            connect(f, comms);
            assert_ok(annulus_estimate_rank(f->context, &windows, NULL, NULL, 0, ranks, rank, &again));
            disconnect(f, comms);
            assert_memory_equal(&estimate, &again, sizeof estimate);
        }
        assert_true((sent[0] > 0) == (ranks > 1));
        assert_int_equal(sent[0], received[0]);
        assert_int_equal(sent[1], received[1]);
        assert_int_equal(sent[1], 2 * sent[0]); /* float32: gradients are as large as what they are of */
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
        TEST(exchanges),          TEST(set_comm),     TEST(set_shards),
        TEST(windows_are_shards), TEST(last_traffic), TEST(estimate_of_a_rank),
        TEST(estimates_add_up),   TEST(a_rank_alone), TEST(reference_has_no_ranks),
    };
    return RUN_TESTS(tests);
}
