// What the parts of the emulated CUDA share.
#pragma once
#include <functional>

struct CUstream_st;

namespace emulated {
// Begins work on a stream; what it returns other than 0 is an error of the device from then on.
int enqueue(CUstream_st* stream, std::function<int()> work);
// Whether all these bytes are memory of a GPU.
bool is_device(const void* place, size_t n_bytes);
// A call that no part of the emulation answers: says so, and returns the status.
int unsupported(const char* name, int status);
}
