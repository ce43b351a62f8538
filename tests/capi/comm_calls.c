/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators as handles: bad arguments, what an end tells of itself, and what builds and machines without MPI, CUDA
 * or NCCL report. Other tests cover what ranks compute together.
 */
#include "fixture.h"

#include <math.h>
#include <string.h>

#define ARGUMENT ANNULUS_ERROR_ARGUMENT
#define UNSUPPORTED ANNULUS_ERROR_UNSUPPORTED

static void local_ends(void **state) {
    (void)state;
    annulus_comm *comms[5] = {NULL, NULL, NULL, NULL, NULL};
    for (int32_t ranks = 1; ranks <= 4; ++ranks) {
        assert_ok(annulus_comm_create_local(comms, ranks, NULL));
        assert_null(comms[ranks]);
        for (int32_t i = 0; i < ranks; ++i) {
            int32_t size = -1, rank = -1;
            assert_ok(annulus_comm_size(comms[i], &size));
            assert_ok(annulus_comm_rank(comms[i], &rank));
            assert_int_equal(size, ranks);
            assert_int_equal(rank, i);
        }
        for (int32_t i = 0; i < ranks; ++i)
            annulus_comm_destroy(comms[i]);
    }
    annulus_comm_destroy(NULL);
}

static void as_many_ends_as_there_may_be(void **state) {
    (void)state;
    static annulus_comm *comms[4096];
    assert_ok(annulus_comm_create_local(comms, 4096, NULL));
    for (int32_t i = 0; i < 4096; ++i)
        annulus_comm_destroy(comms[i]);
}

static void local_arguments(void **state) {
    (void)state;
    annulus_comm *comm = NULL;
    const int32_t wrong[] = {0, -1, 4097, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 5; ++i)
        assert_refused(annulus_comm_create_local(&comm, wrong[i], NULL), ARGUMENT, "ranks");
    assert_refused(annulus_comm_create_local(NULL, 2, NULL), ARGUMENT, "comms");
    assert_null(comm);
}

static void null_handles(void **state) {
    (void)state;
    annulus_comm *comm = NULL;
    int32_t number = 77;
    assert_refused(annulus_comm_size(NULL, &number), ARGUMENT, "comm");
    assert_refused(annulus_comm_rank(NULL, &number), ARGUMENT, "comm");
    assert_int_equal(number, 77);
    assert_refused(annulus_comm_set_timeout(NULL, 1), ARGUMENT, "comm");
    assert_refused(annulus_comm_abort(NULL), ARGUMENT, "comm");
    assert_ok(annulus_comm_create_local(&comm, 1, NULL));
    assert_refused(annulus_comm_size(comm, NULL), ARGUMENT, "size");
    assert_refused(annulus_comm_rank(comm, NULL), ARGUMENT, "rank");
    annulus_comm_destroy(comm);
}

static void timeouts(void **state) {
    (void)state;
    annulus_comm *comm = NULL;
    assert_ok(annulus_comm_create_local(&comm, 1, NULL));
    const double wrong[] = {0, -0.0, -1, (double)NAN, (double)INFINITY, -(double)INFINITY};
    for (int i = 0; i < 6; ++i)
        assert_refused(annulus_comm_set_timeout(comm, wrong[i]), ARGUMENT, "seconds");
    const double right[] = {1e-300, 0.5, 300, 1e300};
    for (int i = 0; i < 4; ++i)
        assert_ok(annulus_comm_set_timeout(comm, right[i]));
    annulus_comm_destroy(comm);
}

static void ends_are_aborted_and_destroyed_in_any_order(void **state) {
    (void)state;
    annulus_comm *comms[3];
    assert_ok(annulus_comm_create_local(comms, 3, NULL));
    assert_ok(annulus_comm_abort(comms[1]));
    assert_ok(annulus_comm_abort(comms[1]));
    annulus_comm_destroy(comms[1]);
    assert_ok(annulus_comm_abort(comms[0]));
    annulus_comm_destroy(comms[2]);
    annulus_comm_destroy(comms[0]);
}

/* Checks that the call succeeds and tells that the communicator is broken. The thread's last error says why. */
static void assert_broken(const annulus_comm *comm, const char *why) {
    annulus_status found = ANNULUS_OK;
    assert_refused(annulus_comm_size(NULL, NULL), ARGUMENT, "size"); /* another message */
    assert_ok(annulus_comm_status(comm, &found));
    assert_int_equal(found, ANNULUS_ERROR_COMM);
    assert_string_equal(annulus_last_error(), why);
    assert_true(annulus_last_error_bytes() == 0);
}

static void statuses(void **state) {
    (void)state;
    annulus_comm *comms[2];
    annulus_status found = ANNULUS_ERROR_INTERNAL;
    assert_ok(annulus_comm_create_local(comms, 2, NULL));
    assert_refused(annulus_comm_status(NULL, &found), ARGUMENT, "comm");
    assert_int_equal(found, ANNULUS_ERROR_INTERNAL);
    for (int i = 0; i < 2; ++i) {
        assert_refused(annulus_comm_status(comms[i], NULL), ARGUMENT, "status");
        assert_ok(annulus_comm_status(comms[i], &found));
        assert_int_equal(found, ANNULUS_OK);
        assert_non_null(strstr(annulus_last_error(), "status")); /* without a failure the message stays */
    }
    assert_ok(annulus_comm_abort(comms[1]));
    for (int i = 0; i < 2; ++i)
        assert_broken(comms[i], "rank 1 aborted the communicator");
    assert_refused(annulus_comm_status(comms[0], NULL), ARGUMENT, "status"); /* a failure of the call, not of comm */
    annulus_comm_destroy(comms[1]);
    assert_broken(comms[0], "rank 1 aborted the communicator");
    annulus_comm_destroy(comms[0]);
}

/* Calls every constructor with arguments that are right, as far as a build without MPI and a machine without GPUs can
 * tell. */
enum { LOCAL, MPI, NCCL, NCCL_DEVICES, FROM_NCCL, CONSTRUCTORS };

static annulus_status create(int constructor, annulus_comm **comm, const annulus_comm_options *options) {
    static annulus_nccl_id id;
    const void *const not_used[1] = {NULL};
    const void *const nccl_comm = &id;
    switch (constructor) {
    case LOCAL:
        return annulus_comm_create_local(comm, 1, options);
    case MPI:
        return annulus_comm_create_from_mpi(comm, not_used, options);
    case NCCL:
        return annulus_comm_create_nccl(comm, &id, 2, 1, 0, options);
    case NCCL_DEVICES:
        return annulus_comm_create_nccl_devices(comm, 1, NULL, options);
    default:
        return annulus_comm_create_from_nccl(comm, &nccl_comm, options);
    }
}

static annulus_status create_sized(void *constructor, void *options) {
    annulus_comm *comm = NULL;
    const annulus_status status = create(*(int *)constructor, &comm, options);
    if (status != ANNULUS_OK)
        assert_null(comm);
    annulus_comm_destroy(comm);
    return status;
}

static void options_of_every_constructor(void **state) {
    (void)state;
    const double timeouts[] = {-1, -1e-300, (double)NAN, (double)INFINITY, -(double)INFINITY};
    const uint64_t flags[] = {4, 7, UINT64_C(1) << 32, UINT64_C(1) << 63, UINT64_MAX};
    for (int c = 0; c < CONSTRUCTORS; ++c) {
        annulus_comm_options options = ANNULUS_COMM_OPTIONS_INIT;
        for (int i = 0; i < 5; ++i) {
            options.creation_timeout = timeouts[i];
            assert_refused(create_sized(&c, &options), ARGUMENT, "creation_timeout");
        }
        options.creation_timeout = 0.5;
        for (int i = 0; i < 5; ++i) {
            options.flags = flags[i];
            assert_refused(create_sized(&c, &options), ARGUMENT, "flags");
        }
        options.flags = ANNULUS_COMM_MAY_ABORT;
        if (c != FROM_NCCL)
            assert_refused(create_sized(&c, &options), ARGUMENT, "flags of options is 1; here it must be 0");
        options.flags = ANNULUS_COMM_ONLY_NCCL;
        if (c == LOCAL || c == MPI)
            assert_refused(create_sized(&c, &options), ARGUMENT, "flags of options is 2; here it must be 0");
        else if (create_sized(&c, &options) != ANNULUS_OK)
            assert_null(strstr(annulus_last_error(), "flags"));
        options.flags = 0;
        const annulus_status status = assert_sized(create_sized, &c, &options, sizeof options,
                                                   FIRST_BYTES(annulus_comm_options, flags), "options");
        if (c == LOCAL)
            assert_ok(status);
    }
}

/* MPI is not initialised here. */
static void mpi(void **state) {
    (void)state;
    annulus_comm *comm = NULL;
    const void *const not_used[1] = {NULL};
    assert_refused(annulus_comm_create_from_mpi(NULL, not_used, NULL), ARGUMENT, "comm");
    assert_refused(annulus_comm_create_from_mpi(&comm, NULL, NULL), ARGUMENT, "mpi_comm");
#ifdef ANNULUS_HAVE_MPI
    assert_refused(annulus_comm_create_from_mpi(&comm, not_used, NULL), ARGUMENT, "initialised");
    assert_non_null(strstr(annulus_build_info(), "MPI "));
    assert_null(strstr(annulus_build_info(), "MPI none"));
#else
    assert_refused(annulus_comm_create_from_mpi(&comm, not_used, NULL), UNSUPPORTED, "MPI");
    assert_non_null(strstr(annulus_build_info(), "MPI none"));
#endif
    assert_null(comm);
}

/* In the order of the checks: first wrong arguments, in any build, then what the build or machine lacks. */
static void nccl_arguments(void **state) {
    (void)state;
    annulus_comm *comm = NULL;
    annulus_nccl_id id;
    memset(&id, 0, sizeof id);
    assert_refused(annulus_nccl_id_generate(NULL), ARGUMENT, "id");
    assert_refused(annulus_comm_create_nccl(NULL, &id, 2, 0, 0, NULL), ARGUMENT, "comm");
    assert_refused(annulus_comm_create_nccl(&comm, NULL, 2, 0, 0, NULL), ARGUMENT, "id");
    assert_refused(annulus_comm_create_nccl(&comm, &id, 0, 0, 0, NULL), ARGUMENT, "ranks");
    assert_refused(annulus_comm_create_nccl(&comm, &id, INT32_MIN, 0, 0, NULL), ARGUMENT, "ranks");
    assert_refused(annulus_comm_create_nccl(&comm, &id, 2, 2, 0, NULL), ARGUMENT, "rank");
    assert_refused(annulus_comm_create_nccl(&comm, &id, 2, -1, 0, NULL), ARGUMENT, "rank");
    assert_refused(annulus_comm_create_nccl_devices(NULL, 1, NULL, NULL), ARGUMENT, "comms");
    assert_refused(annulus_comm_create_nccl_devices(&comm, 0, NULL, NULL), ARGUMENT, "ranks");
    const void *const nccl_comm = &id, *const no_nccl_comm = NULL;
    assert_refused(annulus_comm_create_from_nccl(NULL, &nccl_comm, NULL), ARGUMENT, "comm");
    assert_refused(annulus_comm_create_from_nccl(&comm, NULL, NULL), ARGUMENT, "nccl_comm");
    assert_refused(annulus_comm_create_from_nccl(&comm, &no_nccl_comm, NULL), ARGUMENT, "nccl_comm points to");
    assert_null(comm);
}

static void nccl_devices(void **state) {
    (void)state;
    annulus_comm *comms[2] = {NULL, NULL};
    annulus_nccl_id id;
    memset(&id, 0, sizeof id);
    const int32_t twice[] = {0, 0}, negative[] = {-1};
    int32_t count = -1;
    assert_ok(annulus_device_count(ANNULUS_DEVICE_CUDA, &count));
    if (count == 0) {
        assert_refused(annulus_comm_create_nccl(comms, &id, 2, 1, 0, NULL), UNSUPPORTED, "CUDA");
        assert_refused(annulus_comm_create_nccl(comms, &id, 2, 1, -1, NULL), UNSUPPORTED, "CUDA");
        assert_refused(annulus_comm_create_nccl_devices(comms, 1, NULL, NULL), UNSUPPORTED, "CUDA");
    } else {
        assert_refused(annulus_comm_create_nccl(comms, &id, 2, 1, count, NULL), ARGUMENT, "device");
        assert_refused(annulus_comm_create_nccl(comms, &id, 2, 1, -1, NULL), ARGUMENT, "device");
        assert_refused(annulus_comm_create_nccl_devices(comms, count + 1, NULL, NULL), ARGUMENT, "ranks");
        assert_refused(annulus_comm_create_nccl_devices(comms, 1, negative, NULL), ARGUMENT, "devices");
    }
    if (count >= 2)
        assert_refused(annulus_comm_create_nccl_devices(comms, 2, twice, NULL), ARGUMENT, "devices");
    assert_null(comms[0]);
    assert_null(comms[1]);
}

#ifndef ANNULUS_HAVE_NCCL
static void builds_without_nccl(void **state) {
    (void)state;
    annulus_comm *comm = NULL;
    annulus_nccl_id id;
    assert_refused(annulus_nccl_id_generate(&id), UNSUPPORTED, "NCCL");
    const void *const nccl_comm = &id;
    assert_refused(annulus_comm_create_from_nccl(&comm, &nccl_comm, NULL), UNSUPPORTED, "NCCL");
    assert_null(comm);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(local_ends),
        TEST(as_many_ends_as_there_may_be),
        TEST(local_arguments),
        TEST(null_handles),
        TEST(timeouts),
        TEST(ends_are_aborted_and_destroyed_in_any_order),
        TEST(statuses),
        TEST(options_of_every_constructor),
        TEST(mpi),
        TEST(nccl_arguments),
        TEST(nccl_devices),
#ifndef ANNULUS_HAVE_NCCL
        TEST(builds_without_nccl),
#endif
    };
    return RUN_TESTS(tests);
}
