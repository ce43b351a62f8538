/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA devices through the C API only: correct in builds with and without CUDA, on machines with and without a GPU.
 */
#include "fixture.h"

static int32_t cuda_devices(void) {
    int32_t count = -1;
    assert_ok(annulus_device_count(ANNULUS_DEVICE_CUDA, &count));
    assert_true(count >= 0);
    return count;
}

static void counting(void **state) {
    (void)state;
    assert_int_equal(cuda_devices(), cuda_devices());
    assert_refused(annulus_device_count(ANNULUS_DEVICE_CUDA, NULL), ANNULUS_ERROR_ARGUMENT, "count");
}

/* Without any device the status says so for every index. Otherwise the index is out of range. */
static void devices_that_are_not_there(void **state) {
    (void)state;
    const int32_t count = cuda_devices();
    const int32_t wrong[] = {count, -1, INT32_MAX, INT32_MIN};
    annulus_context *context = NULL;
    for (int i = 0; i < 4; ++i)
        if (count == 0)
            assert_refused(annulus_context_create(&context, ANNULUS_DEVICE_CUDA, wrong[i]), ANNULUS_ERROR_UNSUPPORTED,
                           "CUDA");
        else
            assert_refused(annulus_context_create(&context, ANNULUS_DEVICE_CUDA, wrong[i]), ANNULUS_ERROR_ARGUMENT,
                           "index");
    assert_null(context);
    assert_refused(annulus_context_create(NULL, ANNULUS_DEVICE_CUDA, 0), ANNULUS_ERROR_ARGUMENT, "context");
}

/* The CPU's engines work whatever was asked of CUDA before, and without CUDA. */
static void the_cpu_works_on(void **state) {
    fixture *f = *state;
    annulus_context *context = NULL;
    assert_true(annulus_context_create(&context, ANNULUS_DEVICE_CUDA, INT32_MAX) != ANNULUS_OK);
    assert_null(context);
    assert_ok(forward_call.run(f));
    assert_ok(backward_call.run(f));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(counting),
        TEST(devices_that_are_not_there),
        TEST(the_cpu_works_on),
    };
    return RUN_TESTS(tests);
}
