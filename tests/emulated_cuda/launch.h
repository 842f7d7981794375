// How a kernel gets from the emulated compiler to the emulated GPU.
#pragma once
#include <cstring>
#include <functional>

namespace emulated {
struct Launch {
    unsigned grid[3], block[3], shared;
};
using Kernel = std::function<void(const Launch&)>;
// Copies a kernel's arguments from where cuLaunchKernel is told they lie.
using Bind = Kernel (*)(void** arguments);

// What the emulated compiler calls a cubin: this, and a library of the host after it.
struct Image {
    char magic[16];
    size_t n_bytes;
};
constexpr char MAGIC[16] = "emulated cubin";
inline size_t image_bytes(const void* image) {
    Image head;
    memcpy(&head, image, sizeof head);
    return memcmp(head.magic, MAGIC, sizeof MAGIC) ? 0 : head.n_bytes;
}
}
