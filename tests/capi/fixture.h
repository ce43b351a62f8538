/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the C API share: a small problem with a config, a context and the tensors of both passes, and
 * checks of refused calls. Include this first: cmocka.h wants its own includes before it.
 */
#ifndef ANNULUS_TESTS_CAPI_FIXTURE_H
#define ANNULUS_TESTS_CAPI_FIXTURE_H

#include <annulus/annulus.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The arguments of forward and backward, in the order of annulus_backward(), and what the attention mass has besides.
 */
enum argument { Q, K, V, OUT, LSE, D_OUT, D_LSE, D_Q, D_K, D_V, MASS, ARGUMENTS };
extern const char *const argument_names[ARGUMENTS];

enum { BATCH = 2, LENGTH = 12, HEADS = 4, KV_HEADS = 2, DIM = 8 };

typedef struct fixture {
    annulus_config *config;
    annulus_context *context;
    annulus_tensor tensors[ARGUMENTS];          /* float32, dense */
    const annulus_tensor *arguments[ARGUMENTS]; /* what a call is given: the above, or NULL */
    const annulus_call_options *options;
    float *memory;
} fixture;

/* A pass by its name, so that one test runs on all. */
typedef struct call {
    const char *name;
    annulus_status (*run)(const fixture *f);
    annulus_pass pass;
    enum argument arguments[ARGUMENTS]; /* the tensors that it takes */
    int count;
    enum argument outputs[3];
    int output_count;
} call;
enum { CALLS = 3 };
extern const call forward_call, backward_call, mass_call;
extern const call *const all_calls[CALLS];

/* cmocka's setup and teardown of one test: *state is a fixture. Two branches (segment 6, dilation 1 and 12, 2), not
 * causal, two threads. Inputs are set, out and lse are those of a forward call; gradients and mass hold a pattern. */
int setup(void **state);
int teardown(void **state);

/* Appends a branch for all heads, as ANNULUS_BRANCH_INIT makes it. */
void add_branch(annulus_config *config, int64_t segment_length, int64_t dilation);
void assert_branch_count(const annulus_config *config, int32_t wanted);

/* Puts tensors and arguments back as setup left them; config and context stay. */
void restore(fixture *f);

/* Fills the outputs of a call with a pattern; fails unless it is still there. */
void mark_outputs(fixture *f, const call *c);
void assert_outputs_untouched(const fixture *f, const call *c, const char *what);

/* Fails unless the call refuses with `wanted`, leaves its outputs alone and its message is one line with `name` as a
 * word (NULL: any). `what` says what was wrong with the call. */
void assert_call_refused(fixture *f, const call *c, annulus_status wanted, const char *name, const char *what);

/* The same for a status that is at hand already and has no outputs. */
void assert_refused(annulus_status status, annulus_status wanted, const char *name);
void assert_ok(annulus_status status);

/* All fields, without the padding behind them. */
void assert_same_estimates(const annulus_estimate *a, const annulus_estimate *b);

/* The sizes of the fixture's problem. */
annulus_problem fixture_problem(void);

#define RUN_TESTS(tests) (cmocka_set_message_output(CM_OUTPUT_TAP), cmocka_run_group_tests(tests, NULL, NULL))
#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

#endif
