/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of the first day of ABI 1. first_declarations.h holds the declarations of that day, with their sizes,
 * numbers and layouts. This program includes no header of today. So, compiled today, it equals the program compiled
 * then. It must work with every library of the soname libannulus.so.1. It computes dilated attention of one small
 * problem and checks it against a loop over all pairs.
 */
#define _POSIX_C_SOURCE 200112L
#include "first_declarations.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { batch = 1, length = 45, heads = 2, dim = 8, segment = 16, dilation = 2, elements = length * heads * dim };

/* Ends the program unless a condition holds. */
#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, annulus_last_error());                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define OK(call) REQUIRE((call) == 0)

static float q[elements], k[elements], v[elements], d_out[elements];
static float out[elements], lse[heads * length], d_q[elements], d_k[elements], d_v[elements], mass[heads * length];

static annulus_tensor rows(float *data) {
    annulus_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.data = data;
    tensor.dtype = 2; /* float32 */
    tensor.ndim = 4;
    tensor.shape[0] = batch, tensor.shape[1] = length, tensor.shape[2] = heads, tensor.shape[3] = dim;
    tensor.stride[0] = elements, tensor.stride[1] = heads * dim, tensor.stride[2] = dim, tensor.stride[3] = 1;
    return tensor;
}

static annulus_tensor statistics(float *data) {
    annulus_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.data = data;
    tensor.dtype = 2;
    tensor.ndim = 3;
    tensor.shape[0] = batch, tensor.shape[1] = heads, tensor.shape[2] = length;
    tensor.stride[0] = heads * length, tensor.stride[1] = length, tensor.stride[2] = 1;
    return tensor;
}

/* Returns whether query n of head h attends to key m. One branch has all positions of a segment, one has every second.
 */
static int reached(int n, int m, int h) {
    int phase = h / ((heads + dilation - 1) / dilation);
    return (n / segment == m / segment) + (n % dilation == phase && m % dilation == phase);
}

static void check_forward(void) {
    int n, m, h, d;
    for (h = 0; h < heads; ++h)
        for (n = 0; n < length; ++n) {
            double sum = 0, values[dim] = {0};
            for (m = 0; m < length; ++m) {
                double score = 0, weight;
                for (d = 0; d < dim; ++d)
                    score += (double)q[(n * heads + h) * dim + d] * k[(m * heads + h) * dim + d];
                weight = reached(n, m, h) * exp(score / sqrt(dim));
                sum += weight;
                for (d = 0; d < dim; ++d)
                    values[d] += weight * v[(m * heads + h) * dim + d];
            }
            REQUIRE(fabs(log(sum) - lse[h * length + n]) < 1e-5);
            for (d = 0; d < dim; ++d)
                REQUIRE(fabs(values[d] / sum - out[(n * heads + h) * dim + d]) < 1e-5);
        }
}

/* Backward with dO = O: the sum over n of dQ[n] . Q[n] is that over m of dK[m] . K[m], and dV sums up to the sum of dO.
 */
static void check_backward(void) {
    double queries = 0, keys = 0, value = 0, given = 0;
    int i;
    for (i = 0; i < elements; ++i) {
        queries += (double)d_q[i] * q[i];
        keys += (double)d_k[i] * k[i];
        value += d_v[i];
        given += d_out[i];
    }
    REQUIRE(fabs(queries - keys) < 1e-4);
    REQUIRE(fabs(value - given) < 1e-3);
    REQUIRE(fabs(queries) > 1e-3);
}

static size_t taken, released;

static void *allocate(void *user, size_t bytes, size_t alignment, void *stream) {
    void *memory = NULL;
    REQUIRE(user == &taken && stream == NULL);
    REQUIRE(posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes) == 0);
    taken += bytes + alignment;
    return memory;
}

static void release(void *user, void *memory, size_t bytes, size_t alignment, void *stream) {
    REQUIRE(user == &taken && stream == NULL);
    released += bytes + alignment;
    free(memory);
}

static annulus_config *make_config(void) {
    annulus_config *config, *copy;
    annulus_branch branch;
    int32_t index = -1, count = 0;
    OK(annulus_config_create(&config));
    memset(&branch, 0, sizeof branch);
    branch.size = sizeof branch;
    branch.segment_length = segment;
    branch.dilation = 1;
    OK(annulus_config_add_branch(config, &branch, NULL));
    branch.segment_length = 0;
    branch.dilation = dilation;
    OK(annulus_config_add_branch(config, &branch, &index));
    REQUIRE(index == 1);
    OK(annulus_config_copy(&copy, config));
    annulus_config_destroy(config);
    OK(annulus_config_branch_count(copy, &count));
    REQUIRE(count == 2);
    branch.size = sizeof branch;
    OK(annulus_config_get_branch(copy, 0, &branch));
    REQUIRE(branch.segment_length == segment && branch.dilation == 1 && branch.phase_rule == 0);
    OK(annulus_config_set_causal(copy, 0));
    OK(annulus_config_set_padding_rule(copy, 0));
    OK(annulus_config_set_key_rule(copy, 0));
    OK(annulus_config_set_engine(copy, 2)); /* cpu */
    OK(annulus_config_set_exchange(copy, 0));
    return copy;
}

/* One context: all passes, estimates, merge. */
static void run_alone(const annulus_config *config) {
    annulus_tensor tq = rows(q), tk = rows(k), tv = rows(v), tout = rows(out), td_out = rows(d_out);
    annulus_tensor td_q = rows(d_q), td_k = rows(d_k), td_v = rows(d_v), tlse = statistics(lse),
                   tmass = statistics(mass);
    static float merged[elements], merged_lse[heads * length];
    annulus_tensor tmerged = rows(merged), tmerged_lse = statistics(merged_lse);
    annulus_context *context;
    annulus_allocator allocator;
    annulus_call_options options;
    annulus_problem problem;
    annulus_estimate estimate;
    annulus_engine engine = 0;
    uint64_t bytes = 0;
    int32_t threads = 0;
    double total = 0;
    int pass, i;

    OK(annulus_context_create(&context, 1, 0)); /* a CPU */
    OK(annulus_context_set_config(context, config));
    memset(&allocator, 0, sizeof allocator);
    allocator.size = sizeof allocator;
    allocator.allocate = allocate;
    allocator.release = release;
    allocator.user = &taken;
    OK(annulus_context_set_allocator(context, &allocator));
    OK(annulus_context_set_threads(context, 2));
    OK(annulus_context_get_threads(context, &threads));
    REQUIRE(threads == 2);

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    OK(annulus_forward(context, &tq, &tk, &tv, &tout, &tlse, &options));
    check_forward();
    memcpy(d_out, out, sizeof out);
    OK(annulus_backward(context, &tq, &tk, &tv, &tout, &tlse, &td_out, NULL, &td_q, &td_k, &td_v, NULL));
    check_backward();
    OK(annulus_attention_mass(context, &tq, &tk, &tlse, &tmass, NULL));
    for (i = 0; i < heads * length; ++i)
        total += mass[i];
    REQUIRE(fabs(total - heads * length) < 1e-3);
    OK(annulus_merge(context, 1, &tout, &tlse, &tmerged, &tmerged_lse, NULL));
    REQUIRE(memcmp(merged_lse, lse, sizeof lse) == 0);
    OK(annulus_context_last_engine(context, &engine));
    REQUIRE(engine == 2);
    REQUIRE(taken > 0 && taken == released);

    memset(&problem, 0, sizeof problem);
    problem.size = sizeof problem;
    problem.dtype = 2;
    problem.heads = problem.kv_heads = heads;
    problem.head_dim = dim;
    problem.batch = batch;
    problem.sequence_length = length;
    for (pass = 1; pass <= 3; ++pass) {
        memset(&estimate, 0, sizeof estimate);
        estimate.size = sizeof estimate;
        OK(annulus_estimate_problem(context, &problem, pass, -1, &estimate));
        OK(annulus_workspace_size(context, &problem, pass, &bytes));
        REQUIRE(bytes == estimate.workspace_bytes);
        REQUIRE(estimate.flops == (pass == 2 ? 10 : 4) * dim * estimate.pairs);
        OK(annulus_check_engine(context, &problem, pass, 2));
        OK(annulus_select_engine(context, &problem, pass, &engine));
        REQUIRE(engine == 2);
    }
    annulus_context_destroy(context);
}

/* One of two ranks, which have the positions 0 to 29 and 30 to 44. */
struct rank {
    annulus_comm *comm;
    const annulus_config *config;
    int first, count;
    float *out;
};

static void *run_rank(void *argument) {
    struct rank *rank = argument;
    const int64_t lengths[2] = {30, 15};
    annulus_shards shards;
    annulus_context *context;
    annulus_traffic traffic;
    annulus_status status = -1;
    annulus_tensor tensors[4];
    int i;
    OK(annulus_context_create(&context, 1, 0));
    OK(annulus_context_set_config(context, rank->config));
    OK(annulus_context_set_comm(context, rank->comm));
    memset(&shards, 0, sizeof shards);
    shards.size = sizeof shards;
    shards.count = 2;
    shards.lengths = lengths;
    OK(annulus_context_set_shards(context, &shards));
    tensors[0] = rows(q + rank->first * heads * dim);
    tensors[1] = rows(k + rank->first * heads * dim);
    tensors[2] = rows(v + rank->first * heads * dim);
    tensors[3] = rows(rank->out + rank->first * heads * dim);
    for (i = 0; i < 4; ++i)
        tensors[i].shape[1] = rank->count;
    OK(annulus_forward(context, &tensors[0], &tensors[1], &tensors[2], &tensors[3], NULL, NULL));
    memset(&traffic, 0, sizeof traffic);
    traffic.size = sizeof traffic;
    OK(annulus_context_last_traffic(context, &traffic));
    REQUIRE(traffic.sent_bytes > 0 && traffic.received_bytes > 0);
    OK(annulus_comm_status(rank->comm, &status));
    REQUIRE(status == 0);
    annulus_context_destroy(context);
    return NULL;
}

static void run_ranks(const annulus_config *config) {
    static float shared[elements];
    annulus_comm *comms[2];
    struct rank ranks[2];
    pthread_t thread;
    int32_t number = -1;
    int i;
    OK(annulus_comm_create_local(comms, 2, NULL));
    OK(annulus_comm_size(comms[1], &number));
    REQUIRE(number == 2);
    OK(annulus_comm_rank(comms[1], &number));
    REQUIRE(number == 1);
    for (i = 0; i < 2; ++i) {
        ranks[i].comm = comms[i];
        ranks[i].config = config;
        ranks[i].first = i * 30;
        ranks[i].count = i == 0 ? 30 : 15;
        ranks[i].out = shared;
    }
    REQUIRE(pthread_create(&thread, NULL, run_rank, &ranks[1]) == 0);
    run_rank(&ranks[0]);
    pthread_join(thread, NULL);
    for (i = 0; i < elements; ++i)
        REQUIRE(fabs(shared[i] - out[i]) < 1e-5);
    annulus_comm_destroy(comms[0]);
    annulus_comm_destroy(comms[1]);
}

static void check_errors(void) {
    annulus_config *config;
    int32_t count = 0;
    OK(annulus_config_create(&config));
    REQUIRE(annulus_config_set_causal(config, 7) == 1); /* ANNULUS_ERROR_ARGUMENT */
    REQUIRE(strstr(annulus_last_error(), "causal") != NULL && annulus_last_error_bytes() == 0);
    REQUIRE(annulus_last_error_library()[0] == 0 && annulus_last_error_code() == 0);
    REQUIRE(annulus_config_add_preset(config, "no such preset") == 1);
    OK(annulus_config_add_preset(config, "gigapath"));
    OK(annulus_config_branch_count(config, &count));
    REQUIRE(count == 5);
    annulus_config_destroy(config);
    REQUIRE(strcmp(annulus_status_name(1), "argument") == 0);
    REQUIRE(strcmp(annulus_dtype_name(2), "float32") == 0 && annulus_dtype_bits(2) == 32);
    REQUIRE(strcmp(annulus_engine_name(2), "cpu") == 0);
    REQUIRE(strcmp(annulus_preset_name(0), "gigapath") == 0);
}

int main(void) {
    annulus_config *config;
    unsigned state = 1;
    int i;
    for (i = 0; i < elements; ++i) {
        float *const arrays[3] = {q, k, v};
        int j;
        for (j = 0; j < 3; ++j) {
            state = state * 1664525u + 1013904223u;
            arrays[j][i] = (float)(state >> 8) / (float)(1 << 23) - 1;
        }
    }
    check_errors();
    config = make_config();
    run_alone(config);
    run_ranks(config);
    annulus_config_destroy(config);
    REQUIRE(annulus_version() >= 1000000 && annulus_version() < 2000000);
    puts("the first program of ABI 1 runs");
    return 0;
}
