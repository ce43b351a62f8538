/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on a GPU: tensors in its memory, calls on a stream that wait for nothing, and a forward and backward pass
   captured into a CUDA graph that is replayed on new data. Exits 77 where there is no GPU. */
#include <annulus/annulus.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 65536, HEADS = 8, HEAD_DIM = 64, COUNT = TOKENS * HEADS * HEAD_DIM, REPLAYS = 3 };

static void check(annulus_status status) {
    if (status != ANNULUS_OK) {
        fprintf(stderr, "%s error: %s\n", annulus_status_name(status), annulus_last_error());
        exit(1);
    }
}

static void check_cuda(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "CUDA error: %s\n", cudaGetErrorString(error));
        exit(1);
    }
}

/* A contiguous float32 tensor in the GPU's memory. */
static annulus_tensor device_tensor(int ndim, int64_t a, int64_t b, int64_t c, int64_t d) {
    annulus_tensor t = {NULL, ANNULUS_FLOAT32, ndim, {a, b, c, d}, {b * c * d, c * d, d, 1}};
    check_cuda(cudaMalloc(&t.data, (size_t)(a * b * c * d) * sizeof(float)));
    return t;
}

static annulus_tensor device_rows(void) {
    return device_tensor(4, 1, TOKENS, HEADS, HEAD_DIM);
}

static void upload_random(const annulus_tensor *t, float *buffer, cudaStream_t stream) {
    for (int i = 0; i < COUNT; ++i)
        buffer[i] = 2 * (float)rand() / (float)RAND_MAX - 1;
    check_cuda(cudaMemcpyAsync(t->data, buffer, COUNT * sizeof *buffer, cudaMemcpyHostToDevice, stream));
    check_cuda(cudaStreamSynchronize(stream)); /* the buffer is used again */
}

static double dot(const annulus_tensor *a, const annulus_tensor *b, float *buffers[2]) {
    double sum = 0;
    check_cuda(cudaMemcpy(buffers[0], a->data, COUNT * sizeof(float), cudaMemcpyDeviceToHost));
    check_cuda(cudaMemcpy(buffers[1], b->data, COUNT * sizeof(float), cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; ++i)
        sum += (double)buffers[0][i] * buffers[1][i];
    return sum;
}

int main(void) {
    int32_t gpus;
    check(annulus_device_count(ANNULUS_DEVICE_CUDA, &gpus));
    if (gpus == 0) {
        puts("skipped: no GPU");
        return 77;
    }
    cudaStream_t stream;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    annulus_tensor q = device_rows(), k = device_rows(), v = device_rows(), out = device_rows();
    annulus_tensor d_out = device_rows(), d_q = device_rows(), d_k = device_rows(), d_v = device_rows();
    annulus_tensor lse = device_tensor(3, 1, HEADS, TOKENS, 1);
    float *buffers[2] = {malloc(COUNT * sizeof(float)), malloc(COUNT * sizeof(float))};
    if (!buffers[0] || !buffers[1])
        return 1;

    annulus_config *config;
    check(annulus_config_create(&config));
    check(annulus_config_add_longnet(config, 2048, 4, 4, 3)); /* 2048:1, 8192:4, 32768:16 */
    check(annulus_config_set_causal(config, 1));
    annulus_context *context;
    check(annulus_context_create(&context, ANNULUS_DEVICE_CUDA, 0));
    check(annulus_context_set_stream(context, stream));
    check(annulus_context_set_config(context, config));

    /* The calls go into a graph instead of onto the device. */
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    check(annulus_forward(context, &q, &k, &v, &out, &lse, NULL));
    check(annulus_backward(context, &q, &k, &v, &out, &lse, &d_out, NULL, &d_q, &d_k, &d_v, NULL));
    check_cuda(cudaStreamEndCapture(stream, &graph));
    check_cuda(cudaGraphInstantiate(&executable, graph, 0));

    /* The gradients of any attention obey sum(q * dq) = sum(k * dk). */
    int holds = 1;
    for (int i = 0; i < REPLAYS; ++i) {
        const annulus_tensor *inputs[] = {&q, &k, &v, &d_out};
        for (int j = 0; j < 4; ++j)
            upload_random(inputs[j], buffers[0], stream);
        check_cuda(cudaGraphLaunch(executable, stream));
        check_cuda(cudaStreamSynchronize(stream));
        const double by_q = dot(&q, &d_q, buffers), by_k = dot(&k, &d_k, buffers);
        printf("replay %d: sum(q * dq) = %.3f, sum(k * dk) = %.3f\n", i, by_q, by_k);
        holds = holds && fabs(by_q - by_k) < 1e-4 * sqrt(COUNT);
    }

    check_cuda(cudaGraphExecDestroy(executable));
    check_cuda(cudaGraphDestroy(graph));
    annulus_context_destroy(context);
    annulus_config_destroy(config);
    annulus_tensor tensors[] = {q, k, v, out, d_out, d_q, d_k, d_v, lse};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; ++i)
        check_cuda(cudaFree(tensors[i].data));
    check_cuda(cudaStreamDestroy(stream));
    free(buffers[0]);
    free(buffers[1]);
    return holds ? 0 : 1;
}
