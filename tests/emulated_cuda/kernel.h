// What a kernel's text needs to run on the host: every thread of a block is a fiber, and a barrier yields.
// Fibers take turns in one order and then in the other, so that a barrier that is missing shows.
#pragma once
#include <math.h>
#include <stddef.h>
#include <ucontext.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <tuple>
#include <type_traits>
#include <utility>

#include "launch.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static thread_local

namespace emulated {
struct Triple {
    unsigned x = 0, y = 0, z = 0;
};
}
inline thread_local emulated::Triple threadIdx, blockIdx, blockDim, gridDim;
namespace emulated {
struct Fibers {
    static constexpr size_t STACK_BYTES = 64 << 10, MOST = 1024;
    ucontext_t own, threads[MOST];
    bool is_over[MOST];
    unsigned now;
    char* stacks = nullptr;
    char* shared = nullptr;
    const std::function<void()>* body;
};
inline thread_local Fibers* fibers = nullptr;
inline Triple place_of(unsigned i) {
    return {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
}
inline void fiber_main() {
    (*fibers->body)();
    fibers->is_over[fibers->now] = true;
}
inline void barrier() {
    unsigned now = fibers->now;
    swapcontext(&fibers->threads[now], &fibers->own);
}
inline void run_block(const std::function<void()>& body, unsigned n_threads) {
    Fibers& all = *fibers;
    all.body = &body;
    if (!all.stacks) all.stacks = (char*)malloc(Fibers::STACK_BYTES * Fibers::MOST);
    for (unsigned i = 0; i < n_threads; i++) {
        all.is_over[i] = false;
        getcontext(&all.threads[i]);
        all.threads[i].uc_stack.ss_sp = all.stacks + Fibers::STACK_BYTES * i;
        all.threads[i].uc_stack.ss_size = Fibers::STACK_BYTES;
        all.threads[i].uc_link = &all.own;
        makecontext(&all.threads[i], fiber_main, 0);
    }
    for (unsigned left = n_threads, turn = 0; left; turn++) {
        for (unsigned i = 0; i < n_threads; i++) {
            unsigned next = turn % 2 ? n_threads - 1 - i : i;
            if (all.is_over[next]) continue;
            all.now = next;
            threadIdx = place_of(next);
            swapcontext(&all.own, &all.threads[next]);
            left -= all.is_over[next];
        }
    }
}
template <class Body>
void run_grid(const Launch& launch, const Body& body, bool has_barriers) {
    if (!fibers) fibers = new Fibers;
    static thread_local char shared[228 << 10] __attribute__((aligned(128)));
    fibers->shared = shared;
    gridDim = {launch.grid[0], launch.grid[1], launch.grid[2]};
    blockDim = {launch.block[0], launch.block[1], launch.block[2]};
    unsigned n_threads = blockDim.x * blockDim.y * blockDim.z;
    std::function<void()> call = body;
    for (unsigned z = 0; z < gridDim.z; z++)
        for (unsigned y = 0; y < gridDim.y; y++)
            for (unsigned x = 0; x < gridDim.x; x++) {
                blockIdx = {x, y, z};
                memset(shared, 0xFF, launch.shared);
                if (has_barriers) run_block(call, n_threads);
                for (unsigned i = 0; i < n_threads && !has_barriers; i++) {
                    threadIdx = place_of(i);
                    body();
                }
            }
}
template <class T>
using Plain = std::remove_cv_t<std::remove_reference_t<T>>;
template <class... Arguments, size_t... Is>
Kernel bound(void (*kernel)(Arguments...), void** places, bool has_barriers, std::index_sequence<Is...>) {
    std::tuple<Plain<Arguments>...> values(*(Plain<Arguments>*)places[Is]...);
    return [=](const Launch& launch) {
        run_grid(launch, [&] { kernel(std::get<Is>(values)...); }, has_barriers);
    };
}
template <class... Arguments>
Kernel bound(void (*kernel)(Arguments...), void** places, bool has_barriers) {
    return bound(kernel, places, has_barriers, std::index_sequence_for<Arguments...>());
}
}  // namespace emulated

#define __syncthreads() emulated::barrier()
#define EMULATED_KERNEL(name, has_barriers)                                     \
    extern "C" emulated::Kernel emulated_bind_##name(void** places) {           \
        return emulated::bound(name, places, has_barriers);                      \
    }

using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
template <class T, class U>
T atomicAdd(T* place, U value) {
    return __atomic_fetch_add(place, (T)value, __ATOMIC_RELAXED);
}
