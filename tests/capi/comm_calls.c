/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators as handles: bad arguments, what an end says of itself, and what builds and machines that lack MPI, CUDA
 * or NCCL say. What ranks compute together is tested elsewhere.
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
        assert_ok(annulus_comm_create_local(comms, ranks));
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
    assert_ok(annulus_comm_create_local(comms, 4096));
    for (int32_t i = 0; i < 4096; ++i)
        annulus_comm_destroy(comms[i]);
}

static void local_arguments(void **state) {
    (void)state;
    annulus_comm *comm = NULL;
    const int32_t wrong[] = {0, -1, 4097, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 5; ++i)
        assert_refused(annulus_comm_create_local(&comm, wrong[i]), ARGUMENT, "ranks");
    assert_refused(annulus_comm_create_local(NULL, 2), ARGUMENT, "comms");
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
    assert_ok(annulus_comm_create_local(&comm, 1));
    assert_refused(annulus_comm_size(comm, NULL), ARGUMENT, "size");
    assert_refused(annulus_comm_rank(comm, NULL), ARGUMENT, "rank");
    annulus_comm_destroy(comm);
}

static void timeouts(void **state) {
    (void)state;
    annulus_comm *comm = NULL;
    assert_ok(annulus_comm_create_local(&comm, 1));
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
    assert_ok(annulus_comm_create_local(comms, 3));
    assert_ok(annulus_comm_abort(comms[1]));
    assert_ok(annulus_comm_abort(comms[1]));
    annulus_comm_destroy(comms[1]);
    assert_ok(annulus_comm_abort(comms[0]));
    annulus_comm_destroy(comms[2]);
    annulus_comm_destroy(comms[0]);
}

/* Nobody has initialised MPI here. */
static void mpi(void **state) {
    (void)state;
    annulus_comm *comm = NULL;
    const void *const not_used[1] = {NULL};
    assert_refused(annulus_comm_create_mpi(NULL, not_used), ARGUMENT, "comm");
    assert_refused(annulus_comm_create_mpi(&comm, NULL), ARGUMENT, "mpi_comm");
#ifdef ANNULUS_HAVE_MPI
    assert_refused(annulus_comm_create_mpi(&comm, not_used), ARGUMENT, "initialised");
    assert_non_null(strstr(annulus_build_info(), "MPI "));
    assert_null(strstr(annulus_build_info(), "MPI none"));
#else
    assert_refused(annulus_comm_create_mpi(&comm, not_used), UNSUPPORTED, "MPI");
    assert_non_null(strstr(annulus_build_info(), "MPI none"));
#endif
    assert_null(comm);
}

/* In the order of the checks: what is wrong with the arguments in any build, before what the build or machine lacks. */
static void nccl_arguments(void **state) {
    (void)state;
    annulus_comm *comm = NULL;
    annulus_nccl_id id;
    memset(&id, 0, sizeof id);
    assert_refused(annulus_nccl_id_create(NULL), ARGUMENT, "id");
    assert_refused(annulus_comm_create_nccl(NULL, &id, 2, 0, 0), ARGUMENT, "comm");
    assert_refused(annulus_comm_create_nccl(&comm, NULL, 2, 0, 0), ARGUMENT, "id");
    assert_refused(annulus_comm_create_nccl(&comm, &id, 0, 0, 0), ARGUMENT, "ranks");
    assert_refused(annulus_comm_create_nccl(&comm, &id, INT32_MIN, 0, 0), ARGUMENT, "ranks");
    assert_refused(annulus_comm_create_nccl(&comm, &id, 2, 2, 0), ARGUMENT, "rank");
    assert_refused(annulus_comm_create_nccl(&comm, &id, 2, -1, 0), ARGUMENT, "rank");
    assert_refused(annulus_comm_create_nccl_devices(NULL, 1, NULL), ARGUMENT, "comms");
    assert_refused(annulus_comm_create_nccl_devices(&comm, 0, NULL), ARGUMENT, "ranks");
    assert_refused(annulus_comm_create_from_nccl(NULL, &id), ARGUMENT, "comm");
    assert_refused(annulus_comm_create_from_nccl(&comm, NULL), ARGUMENT, "nccl_comm");
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
        assert_refused(annulus_comm_create_nccl(comms, &id, 2, 1, 0), UNSUPPORTED, "CUDA");
        assert_refused(annulus_comm_create_nccl(comms, &id, 2, 1, -1), UNSUPPORTED, "CUDA");
        assert_refused(annulus_comm_create_nccl_devices(comms, 1, NULL), UNSUPPORTED, "CUDA");
    } else {
        assert_refused(annulus_comm_create_nccl(comms, &id, 2, 1, count), ARGUMENT, "device");
        assert_refused(annulus_comm_create_nccl(comms, &id, 2, 1, -1), ARGUMENT, "device");
        assert_refused(annulus_comm_create_nccl_devices(comms, count + 1, NULL), ARGUMENT, "ranks");
        assert_refused(annulus_comm_create_nccl_devices(comms, 1, negative), ARGUMENT, "devices");
    }
    if (count >= 2)
        assert_refused(annulus_comm_create_nccl_devices(comms, 2, twice), ARGUMENT, "devices");
    assert_null(comms[0]);
    assert_null(comms[1]);
}

#ifndef ANNULUS_HAVE_NCCL
static void builds_without_nccl(void **state) {
    (void)state;
    annulus_comm *comm = NULL;
    annulus_nccl_id id;
    assert_refused(annulus_nccl_id_create(&id), UNSUPPORTED, "NCCL");
    assert_refused(annulus_comm_create_from_nccl(&comm, &id), UNSUPPORTED, "NCCL");
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
        TEST(mpi),
        TEST(nccl_arguments),
        TEST(nccl_devices),
#ifndef ANNULUS_HAVE_NCCL
        TEST(builds_without_nccl),
#endif
    };
    return RUN_TESTS(tests);
}
