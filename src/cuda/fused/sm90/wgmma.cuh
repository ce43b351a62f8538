// SPDX-License-Identifier: Apache-2.0
// Products of a warpgroup (wgmma, sm_90a): 64 rows of A times columns of B, 16 elements deep, added to float32
// accumulators in registers. Lane l of warp w holds, in d[4 i + 2 r + e], row 16 w + l / 4 + 8 r and column
// 8 i + 2 (l % 4) + e.
//
// Operands in shared memory are chunks of 64 columns with 128-byte swizzle (shared_rows.cuh).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace annulus {

// Returns the low half of an operand's descriptor, which says where the operand begins. To advance, add bytes / 16.
// `lbo` is the distance between the 64-column chunks of an operand that is read across its rows, else unused.
__device__ __forceinline__ std::uint32_t smem_descriptor_start(std::uint32_t address, std::uint32_t lbo = 0) {
    return (address & 0x3ffff) >> 4 | lbo >> 4 << 16;
}
// Returns the address in shared memory that such a low half holds.
__device__ __forceinline__ std::uint32_t address_of_descriptor(std::uint32_t start) {
    return (start & 0x3fff) << 4;
}
// Returns the descriptor with its high half: 8 rows are 1024 bytes, 128-byte swizzle.
__device__ __forceinline__ std::uint64_t smem_descriptor(std::uint32_t start) {
    return std::uint64_t{1u << 30 | 1024 >> 4} << 32 | start;
}

// For use before the first product, and after writes to registers that products use.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `pending` committed groups are running.
template <int pending> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Keeps the compiler from moving registers past this point, which products in flight read or write.
template <int count> __device__ __forceinline__ void fence_registers(float (&x)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i)
        asm volatile("" : "+f"(x[i])::"memory");
}
template <int count> __device__ __forceinline__ void fence_registers(std::uint32_t (&x)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i)
        asm volatile("" : "+r"(x[i])::"memory");
}

// d = A B^T, or d += A B^T with `add`: A [64, 16] and B [columns, 16] in shared memory, both along their rows.
template <class Element, int columns> struct WgmmaSsKMajor;
// The same with A in registers.
template <class Element, int columns> struct WgmmaRsKMajor;
// d += A B: A [64, 16] in registers, B [16, columns] in shared memory, read across its rows.
template <class Element, int columns> struct WgmmaRsMnMajor;
// d += A^T B: A [16, 64] and B [16, columns] in shared memory, both read across their rows.
template <class Element, int columns> struct WgmmaSsMnMajor;

// The operands of an instruction: accumulators %0, %1, …, then the other operands.
#define ANNULUS_NAMES_4(t) "%" t "0, %" t "1, %" t "2, %" t "3"
#define ANNULUS_NAMES_6(t) ANNULUS_NAMES_4(t) ", %" t "4, %" t "5"
#define ANNULUS_NAMES_8(t) ANNULUS_NAMES_6(t) ", %" t "6, %" t "7"
#define ANNULUS_NAMES_10(t) ANNULUS_NAMES_8(t) ", %" t "8, %" t "9"
#define ANNULUS_NAMES_TO_20 ANNULUS_NAMES_10("") ", " ANNULUS_NAMES_10("1")
#define ANNULUS_NAMES_TO_40 ANNULUS_NAMES_TO_20 ", " ANNULUS_NAMES_10("2") ", " ANNULUS_NAMES_10("3")
#define ANNULUS_NAMES_TO_60 ANNULUS_NAMES_TO_40 ", " ANNULUS_NAMES_10("4") ", " ANNULUS_NAMES_10("5")
#define ANNULUS_NAMES_TO_90                                                                                            \
    ANNULUS_NAMES_TO_60 ", " ANNULUS_NAMES_10("6") ", " ANNULUS_NAMES_10("7") ", " ANNULUS_NAMES_10("8")
#define ANNULUS_NAMES_TO_120                                                                                           \
    ANNULUS_NAMES_TO_90 ", " ANNULUS_NAMES_10("9") ", " ANNULUS_NAMES_10("10") ", " ANNULUS_NAMES_10("11")
#define ANNULUS_NAMES_16 ANNULUS_NAMES_10("") ", " ANNULUS_NAMES_6("1")
#define ANNULUS_NAMES_24 ANNULUS_NAMES_TO_20 ", " ANNULUS_NAMES_4("2")
#define ANNULUS_NAMES_32 ANNULUS_NAMES_TO_20 ", " ANNULUS_NAMES_10("2") ", %30, %31"
#define ANNULUS_NAMES_40 ANNULUS_NAMES_TO_40
#define ANNULUS_NAMES_48 ANNULUS_NAMES_TO_40 ", " ANNULUS_NAMES_8("4")
#define ANNULUS_NAMES_64 ANNULUS_NAMES_TO_60 ", " ANNULUS_NAMES_4("6")
#define ANNULUS_NAMES_96 ANNULUS_NAMES_TO_90 ", " ANNULUS_NAMES_6("9")
#define ANNULUS_NAMES_128 ANNULUS_NAMES_TO_120 ", " ANNULUS_NAMES_8("12")

#define ANNULUS_ACCUMULATORS_8(i)                                                                                      \
    "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]),              \
        "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define ANNULUS_ACCUMULATORS_16(i) ANNULUS_ACCUMULATORS_8(i), ANNULUS_ACCUMULATORS_8((i) + 8)
#define ANNULUS_ACCUMULATORS_24(i) ANNULUS_ACCUMULATORS_16(i), ANNULUS_ACCUMULATORS_8((i) + 16)
#define ANNULUS_ACCUMULATORS_32(i) ANNULUS_ACCUMULATORS_16(i), ANNULUS_ACCUMULATORS_16((i) + 16)
#define ANNULUS_ACCUMULATORS_40(i) ANNULUS_ACCUMULATORS_32(i), ANNULUS_ACCUMULATORS_8((i) + 32)
#define ANNULUS_ACCUMULATORS_48(i) ANNULUS_ACCUMULATORS_32(i), ANNULUS_ACCUMULATORS_16((i) + 32)
#define ANNULUS_ACCUMULATORS_64(i) ANNULUS_ACCUMULATORS_32(i), ANNULUS_ACCUMULATORS_32((i) + 32)
#define ANNULUS_ACCUMULATORS_96(i) ANNULUS_ACCUMULATORS_64(i), ANNULUS_ACCUMULATORS_32((i) + 64)
#define ANNULUS_ACCUMULATORS_128(i) ANNULUS_ACCUMULATORS_64(i), ANNULUS_ACCUMULATORS_64((i) + 64)

// n columns take c = n / 2 accumulators of a lane. The operands behind the accumulators are named by their numbers.
#define ANNULUS_WGMMA_SS_K_MAJOR(type, ptx, n, c, a, b, p)                                                             \
    template <> struct WgmmaSsKMajor<type, n> {                                                                        \
        static __device__ __forceinline__ void run(float (&d)[c], std::uint64_t rows, std::uint64_t columns,           \
                                                   bool add) {                                                         \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p ", 0;\n"                                                \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ptx "." ptx " {" ANNULUS_NAMES_##c          \
                         "}, " a ", " b ", p, 1, 1, 0, 0;\n}\n"                                                        \
                         : ANNULUS_ACCUMULATORS_##c(0)                                                                 \
                         : "l"(rows), "l"(columns), "r"(static_cast<int>(add)));                                       \
        }                                                                                                              \
    };
#define ANNULUS_WGMMA_RS_K_MAJOR(type, ptx, n, c, a0, a1, a2, a3, b, p)                                                \
    template <> struct WgmmaRsKMajor<type, n> {                                                                        \
        static __device__ __forceinline__ void run(float (&d)[c], const std::uint32_t *a, std::uint64_t columns,       \
                                                   bool add) {                                                         \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p ", 0;\n"                                                \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ptx "." ptx " {" ANNULUS_NAMES_##c          \
                         "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b ", p, 1, 1, 0;\n}\n"                                \
                         : ANNULUS_ACCUMULATORS_##c(0)                                                                 \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns), "r"(static_cast<int>(add)));      \
        }                                                                                                              \
    };
#define ANNULUS_WGMMA_RS_MN_MAJOR(type, ptx, n, c, a0, a1, a2, a3, b)                                                  \
    template <> struct WgmmaRsMnMajor<type, n> {                                                                       \
        static __device__ __forceinline__ void run(float (&d)[c], const std::uint32_t *a, std::uint64_t columns) {     \
            asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                                    \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ptx "." ptx " {" ANNULUS_NAMES_##c          \
                         "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b ", p, 1, 1, 1;\n}\n"                                \
                         : ANNULUS_ACCUMULATORS_##c(0)                                                                 \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns));                                  \
        }                                                                                                              \
    };
#define ANNULUS_WGMMA_SS_MN_MAJOR(type, ptx, n, c, a, b)                                                               \
    template <> struct WgmmaSsMnMajor<type, n> {                                                                       \
        static __device__ __forceinline__ void run(float (&d)[c], std::uint64_t rows, std::uint64_t columns) {         \
            asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                                    \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ptx "." ptx " {" ANNULUS_NAMES_##c          \
                         "}, " a ", " b ", p, 1, 1, 1, 1;\n}\n"                                                        \
                         : ANNULUS_ACCUMULATORS_##c(0)                                                                 \
                         : "l"(rows), "l"(columns));                                                                   \
        }                                                                                                              \
    };
#define ANNULUS_WGMMA(type, ptx)                                                                                       \
    ANNULUS_WGMMA_SS_MN_MAJOR(type, ptx, 48, 24, "%24", "%25")                                                         \
    ANNULUS_WGMMA_SS_MN_MAJOR(type, ptx, 64, 32, "%32", "%33")                                                         \
    ANNULUS_WGMMA_SS_MN_MAJOR(type, ptx, 80, 40, "%40", "%41")                                                         \
    ANNULUS_WGMMA_SS_MN_MAJOR(type, ptx, 96, 48, "%48", "%49")                                                         \
    ANNULUS_WGMMA_SS_MN_MAJOR(type, ptx, 128, 64, "%64", "%65")                                                        \
    ANNULUS_WGMMA_SS_K_MAJOR(type, ptx, 32, 16, "%16", "%17", "%18")                                                   \
    ANNULUS_WGMMA_SS_K_MAJOR(type, ptx, 64, 32, "%32", "%33", "%34")                                                   \
    ANNULUS_WGMMA_SS_K_MAJOR(type, ptx, 128, 64, "%64", "%65", "%66")                                                  \
    ANNULUS_WGMMA_RS_K_MAJOR(type, ptx, 64, 32, "%32", "%33", "%34", "%35", "%36", "%37")                              \
    ANNULUS_WGMMA_RS_MN_MAJOR(type, ptx, 32, 16, "%16", "%17", "%18", "%19", "%20")                                    \
    ANNULUS_WGMMA_RS_MN_MAJOR(type, ptx, 48, 24, "%24", "%25", "%26", "%27", "%28")                                    \
    ANNULUS_WGMMA_RS_MN_MAJOR(type, ptx, 64, 32, "%32", "%33", "%34", "%35", "%36")                                    \
    ANNULUS_WGMMA_RS_MN_MAJOR(type, ptx, 80, 40, "%40", "%41", "%42", "%43", "%44")                                    \
    ANNULUS_WGMMA_RS_MN_MAJOR(type, ptx, 96, 48, "%48", "%49", "%50", "%51", "%52")                                    \
    ANNULUS_WGMMA_RS_MN_MAJOR(type, ptx, 128, 64, "%64", "%65", "%66", "%67", "%68")                                   \
    ANNULUS_WGMMA_RS_MN_MAJOR(type, ptx, 192, 96, "%96", "%97", "%98", "%99", "%100")                                  \
    ANNULUS_WGMMA_RS_MN_MAJOR(type, ptx, 256, 128, "%128", "%129", "%130", "%131", "%132")

ANNULUS_WGMMA(__nv_bfloat16, "bf16")
ANNULUS_WGMMA(__half, "f16")

} // namespace annulus
