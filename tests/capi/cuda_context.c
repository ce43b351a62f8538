/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts on CUDA devices, as far as they need no memory of the device. Skipped without a device.
 */
#include "fixture.h"

#include <stdio.h>

/* On every device: host memory is refused by name, nothing is written, and the CPU's engines are refused. */
static void host_memory_and_other_engines_are_refused(void **state) {
    fixture *f = *state;
    annulus_context *const cpu = f->context;
    int32_t count = 0;
    assert_ok(annulus_device_count(ANNULUS_DEVICE_CUDA, &count));
    assert_true(count > 0);
    for (int32_t index = 0; index < count; ++index) {
        assert_ok(annulus_context_create(&f->context, ANNULUS_DEVICE_CUDA, index));
        for (int engine = ANNULUS_ENGINE_REFERENCE; engine <= ANNULUS_ENGINE_CPU; ++engine) {
            assert_ok(annulus_config_set_engine(f->config, (annulus_engine)engine));
            assert_refused(annulus_context_set_config(f->context, f->config), ANNULUS_ERROR_UNSUPPORTED,
                           annulus_engine_name((annulus_engine)engine));
        }
        assert_ok(annulus_config_set_engine(f->config, ANNULUS_ENGINE_AUTO));
        assert_ok(annulus_context_set_config(f->context, f->config));
        assert_call_refused(f, &forward_call, ANNULUS_ERROR_ARGUMENT, "q", "host memory");
        assert_call_refused(f, &backward_call, ANNULUS_ERROR_ARGUMENT, "q", "host memory");
        assert_refused(annulus_context_set_workspace(f->context, f->memory, 1000), ANNULUS_ERROR_ARGUMENT, "workspace");
        assert_ok(annulus_context_set_workspace(f->context, NULL, 0));
        assert_ok(annulus_context_set_stream(f->context, NULL));
        annulus_context_destroy(f->context);
    }
    f->context = cpu;
    assert_ok(forward_call.run(f));
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(host_memory_and_other_engines_are_refused)};
    int32_t count = 0;
    if (annulus_device_count(ANNULUS_DEVICE_CUDA, &count) == ANNULUS_OK && count == 0) {
        puts("1..0 # SKIP no CUDA device");
        return 0;
    }
    return RUN_TESTS(tests);
}
