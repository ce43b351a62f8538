/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of the C API: a small problem with a config, a context and tensors, and checks of refused calls.
 * Include this first: cmocka.h requires its own includes before it.
 */
#ifndef ANNULUS_TESTS_CAPI_FIXTURE_H
#define ANNULUS_TESTS_CAPI_FIXTURE_H

#include <annulus/annulus.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The arguments of forward and backward, in the order of annulus_backward(), and the further argument of the attention
 * mass. */
enum argument { Q, K, V, OUT, LSE, D_OUT, D_LSE, D_Q, D_K, D_V, MASS, ARGUMENTS };
extern const char *const argument_names[ARGUMENTS];

enum { BATCH = 2, LENGTH = 12, HEADS = 4, KV_HEADS = 2, DIM = 8 };

typedef struct fixture {
    annulus_config *config;
    annulus_context *context;
    annulus_tensor tensors[ARGUMENTS];          /* float32, dense */
    const annulus_tensor *arguments[ARGUMENTS]; /* the arguments of a call: the tensors above */
    const annulus_call_options *options;
    float *memory;
} fixture;

/* A pass with its name, so that one test runs on all passes. */
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

/* cmocka's setup and teardown of one test; *state is a fixture. It has two branches (segment 6, dilation 1 and 12, 2),
 * is not causal, and has two threads. Setup fills the inputs and calls forward for out and lse. Gradients and mass hold
 * a pattern. */
int setup(void **state);
int teardown(void **state);

/* Appends a branch for all heads, made by ANNULUS_BRANCH_INIT. */
void add_branch(annulus_config *config, int64_t segment_length, int64_t dilation);
void assert_branch_count(const annulus_config *config, int32_t wanted);

/* Resets tensors and arguments to their state after setup. Config and context stay. */
void restore(fixture *f);

/* The first function fills the outputs of a call with a pattern, the second fails unless the pattern is still there. */
void mark_outputs(fixture *f, const call *c);
void assert_outputs_untouched(const fixture *f, const call *c, const char *what);

/* Fails unless the call refuses with `wanted`, leaves its outputs unchanged, and its message is one line with the word
 * `name` (NULL: any). `what` says what was wrong with the call. */
void assert_call_refused(fixture *f, const call *c, annulus_status wanted, const char *name, const char *what);

/* Does the same for a status of an earlier call, without outputs. */
void assert_refused(annulus_status status, annulus_status wanted, const char *name);
void assert_ok(annulus_status status);

/* A field of a struct with a value that must be refused. `name` is what the message must name; NULL: anything. */
typedef struct bad_field {
    const char *name;
    size_t offset, bytes; /* FIELD(type, member) */
    int64_t value;
} bad_field;
#define FIELD(type, member) offsetof(type, member), sizeof(((type *)0)->member)
void set_field(void *object, const bad_field *field);

/* A function of the library that takes a struct with a size. */
typedef annulus_status (*sized_function)(void *context, void *given);

/* Fails unless the function refuses sizes that no version of the struct has, and a longer struct with a byte that this
 * version does not know; the message must have the word `name`, and the struct must stay as it is. `given` is a struct
 * of `bytes` bytes that the function takes. Its first version had first_bytes; FIRST_BYTES tells them from the
 * version's last member. Returns the status for a longer struct whose further bytes are zero, and writes what the
 * function has made of it to `given`. */
annulus_status assert_sized(sized_function function, void *context, void *given, size_t bytes, size_t first_bytes,
                            const char *name);
#define FIRST_BYTES(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

/* Compares all fields, without the padding after them. */
void assert_same_estimates(const annulus_estimate *a, const annulus_estimate *b);

/* Returns the sizes of the fixture's problem. */
annulus_problem fixture_problem(void);

#define RUN_TESTS(tests) (cmocka_set_message_output(CM_OUTPUT_TAP), cmocka_run_group_tests(tests, NULL, NULL))
#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

#endif
