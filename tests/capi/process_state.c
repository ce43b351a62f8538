/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library changes nothing of the process: floating-point modes, locale, signals, affinity; and a thread that is to
 * be cancelled comes out of it first.
 */
#include "fixture.h"

#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

enum { SIGNALS = 65 };

typedef struct process_state {
    int rounding, exceptions, cancel_state, cancel_type;
    unsigned modes;
    char locale[256];
    struct sigaction actions[SIGNALS];
    sigset_t blocked;
    cpu_set_t affinity;
} process_state;

/* Rounding, denormals and masks of the vector unit; without its sticky flags. */
static unsigned vector_modes(void) {
#if defined(__SSE__)
    return _mm_getcsr() & ~0x3Fu;
#else
    return 0;
#endif
}

static void set_vector_modes(unsigned modes) {
#if defined(__SSE__)
    _mm_setcsr(modes);
#else
    (void)modes;
#endif
}

static process_state observe(void) {
    process_state s;
    memset(&s, 0, sizeof s);
    s.rounding = fegetround();
    s.exceptions = fegetexcept();
    s.modes = vector_modes();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &s.cancel_state);
    pthread_setcancelstate(s.cancel_state, NULL);
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &s.cancel_type);
    pthread_setcanceltype(s.cancel_type, NULL);
    strncpy(s.locale, setlocale(LC_ALL, NULL), sizeof s.locale - 1);
    for (int i = 1; i < SIGNALS; ++i)
        sigaction(i, NULL, &s.actions[i]);
    sigprocmask(SIG_BLOCK, NULL, &s.blocked);
    sched_getaffinity(0, sizeof s.affinity, &s.affinity);
    return s;
}

static void assert_same(const process_state *a, const process_state *b) {
    assert_int_equal(a->rounding, b->rounding);
    assert_int_equal(a->exceptions, b->exceptions);
    assert_int_equal(a->modes, b->modes);
    assert_int_equal(a->cancel_state, b->cancel_state);
    assert_int_equal(a->cancel_type, b->cancel_type);
    assert_string_equal(a->locale, b->locale);
    for (int i = 1; i < SIGNALS; ++i) {
        assert_ptr_equal(a->actions[i].sa_handler, b->actions[i].sa_handler);
        assert_int_equal(a->actions[i].sa_flags, b->actions[i].sa_flags);
    }
    assert_memory_equal(&a->blocked, &b->blocked, sizeof a->blocked);
    assert_memory_equal(&a->affinity, &b->affinity, sizeof a->affinity);
}

/* Everything once, with calls that fail among it. */
static void use_the_library(void) {
    void *state = NULL;
    assert_int_equal(setup(&state), 0);
    fixture *f = state;
    for (int32_t threads = 0; threads < 4; ++threads) {
        assert_ok(annulus_context_set_threads(f->context, threads));
        assert_ok(forward_call.run(f));
        assert_ok(backward_call.run(f));
    }
    f->arguments[V] = NULL;
    assert_refused(forward_call.run(f), ANNULUS_ERROR_ARGUMENT, "v");
    teardown(&state);
}

static void ordinary_modes(void **state) {
    (void)state;
    const process_state before = observe();
    use_the_library();
    const process_state after = observe();
    assert_same(&after, &before);
}

static void unusual_modes(void **state) {
    (void)state;
    const unsigned modes = vector_modes();
    const int rounding = fegetround();
    assert_non_null(setlocale(LC_ALL, "C.UTF-8"));
    assert_int_equal(fesetround(FE_TOWARDZERO), 0);
    set_vector_modes(vector_modes() | 0x8040); /* flush to zero, denormals are zero */
    assert_int_equal(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL), 0);
    const process_state before = observe();
    use_the_library();
    const process_state after = observe();
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    fesetround(rounding);
    set_vector_modes(modes);
    setlocale(LC_ALL, "C");
    assert_same(&after, &before);
}

/* Uses the library with a cancellation pending, which waits for the next cancellation point of the program's own. */
static void *use_while_cancelled(void *has_returned) {
    pthread_cancel(pthread_self());
    use_the_library();
    annulus_build_info();
    *(int *)has_returned = 1;
    pthread_testcancel();
    return NULL;
}

static void cancelled_thread(void **state) {
    (void)state;
    pthread_t thread;
    int has_returned = 0;
    void *result = NULL;
    assert_int_equal(pthread_create(&thread, NULL, use_while_cancelled, &has_returned), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_true(has_returned);
    assert_ptr_equal(result, PTHREAD_CANCELED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ordinary_modes),
        cmocka_unit_test(unusual_modes),
        cmocka_unit_test(cancelled_thread),
    };
    return RUN_TESTS(tests);
}
