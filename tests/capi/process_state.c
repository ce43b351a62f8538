/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library does not change the process: floating-point modes, locale, signals, affinity. A thread that is to be
 * cancelled leaves the library first.
 */
#include "fixture.h"

#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
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

/* Returns rounding, denormals and masks of the vector unit, without its sticky flags. */
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

/* Calls everything once, with some calls that fail. */
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

/* Uses the library with a cancellation pending. It takes effect at the program's own next cancellation point. */
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

/* The V of a call is memory in which every page faults once. The handler notes the signals that the thread blocks. The
 * calling thread waits in it until a thread of the library was there. */
enum { ROWS = 64, PAGE_FLOATS = 1 << 14 }; /* rows of V in pages of their own, of up to 64 KiB */
static pthread_t caller;
static int has_seen_worker, worker_blocks[SIGNALS];
static size_t page_bytes;

static void open_page(int signal, siginfo_t *info, void *context) {
    (void)signal;
    if (pthread_equal(pthread_self(), caller)) {
        while (!__atomic_load_n(&has_seen_worker, __ATOMIC_ACQUIRE))
            sched_yield();
    } else {
        const ucontext_t *const interrupted = context;
        for (int i = 1; i < SIGNALS; ++i)
            worker_blocks[i] = sigismember(&interrupted->uc_sigmask, i);
        __atomic_store_n(&has_seen_worker, 1, __ATOMIC_RELEASE);
    }
    mprotect((void *)((uintptr_t)info->si_addr & ~(page_bytes - 1)), page_bytes, PROT_READ | PROT_WRITE);
}

static void workers_block_signals(void **state) {
    fixture *f = *state;
    float q[ROWS * DIM] = {0}, out[ROWS * DIM];
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    assert_true(page_bytes <= PAGE_FLOATS * sizeof(float));
    float *const v = mmap(NULL, sizeof(float) * PAGE_FLOATS * ROWS, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(v != MAP_FAILED);
    const annulus_tensor rows = {q, ANNULUS_FLOAT32, 4, {ROWS, 1, 1, DIM}, {DIM, DIM, DIM, 1}};
    annulus_tensor tensors[3] = {rows, rows, rows};
    tensors[1].data = v;
    tensors[1].stride[0] = tensors[1].stride[1] = tensors[1].stride[2] = PAGE_FLOATS;
    tensors[2].data = out;
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = open_page;
    action.sa_flags = SA_SIGINFO;
    caller = pthread_self();
    assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
    const annulus_status status =
        annulus_forward(f->context, &tensors[0], &tensors[0], &tensors[1], &tensors[2], NULL, NULL);
    sigaction(SIGSEGV, &before, NULL);
    munmap(v, sizeof(float) * PAGE_FLOATS * ROWS);
    assert_ok(status);
    for (int i = 0; i < ROWS * DIM; ++i)
        assert_true(out[i] == 0);
    const int program[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD, SIGPIPE, SIGPROF};
    for (size_t i = 0; i < sizeof program / sizeof *program; ++i)
        if (!worker_blocks[program[i]])
            fail_msg("a thread of the library takes the signal %s", strsignal(program[i]));
    /* An emulator keeps some realtime signals to itself. This thread blocks all signals, and reads back which ones it
     * could block: a worker must block the same. */
    sigset_t all, own, blocked;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &own);
    pthread_sigmask(SIG_SETMASK, &own, &blocked);
    for (int i = SIGRTMIN; i <= SIGRTMAX; ++i)
        assert_int_equal(worker_blocks[i], sigismember(&blocked, i));
    assert_false(worker_blocks[SIGBUS]);
    assert_false(worker_blocks[SIGFPE]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ordinary_modes),
        cmocka_unit_test(unusual_modes),
        cmocka_unit_test(cancelled_thread),
        TEST(workers_block_signals),
    };
    return RUN_TESTS(tests);
}
