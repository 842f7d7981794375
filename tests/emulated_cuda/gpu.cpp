// Emulated GPUs: the documented functions of CUDA's runtime and driver that CuPy calls, on the CPU.
//
// A GPU's memory is the process's own, filled with 0xFF when it is taken and watched: a copy from or to what
// is not memory of the kind it says is refused. Each stream is a thread that waits a random moment before
// each piece of work, so that a result read too early is wrong. Copies to and from memory that is not pinned
// wait as CUDA's do; those with pinned memory do not. Settings, all from the environment:
//   EMULATED_CUDA_GPUS      UUIDs of the machine's GPUs, with commas
//   EMULATED_CUDA_MEMORY    bytes of each
//   EMULATED_CUDA_DELAY_US  longest wait of a stream before a piece of work
//   EMULATED_CUDA_SEED      of those waits
//   EMULATED_CUDA_FAULTS    a file, read again when it has changed, with lines "UUID CALL ERROR": CALL is
//                           malloc, copy, launch or any; errors from 700 on, and 214, stay, others only refuse the call.
//                           CALL held: so many MiB of its memory are in use by other processes.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "emulated.h"
#include "launch.h"

using Lock = std::unique_lock<std::mutex>;

using Clock = std::chrono::steady_clock;
using Mark = std::shared_future<Clock::time_point>;  // A point in a stream's work: when it was passed.

struct Gpu {
    int number;
    std::string uuid;
    size_t used = 0;
    std::atomic<int> sticky{0};
    CUstream_st* legacy = nullptr;  // The default stream.
    std::set<CUstream_st*> streams;
};

struct CUstream_st {
    struct Work {
        std::function<int()> run;
        bool is_mark;
    };
    Gpu* gpu;
    std::mt19937 random;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Work> queue;
    bool is_closed = false;
};

struct CUevent_st {
    Mark mark;
    bool has_passed() { return mark.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
};

struct CUfunc_st {
    emulated::Bind bind;
    int most_shared = 48 << 10;
};

struct CUmod_st {
    void* library;
    std::map<std::string, CUfunc_st> functions;
};

namespace {
enum Kind { DEVICE = cudaMemoryTypeDevice, PINNED = cudaMemoryTypeHost };

struct Block {
    size_t n_bytes;
    Kind kind;
    Gpu* gpu;
};

struct Machine {
    std::mutex mutex;
    std::vector<Gpu*> gpus;
    std::map<const char*, Block> blocks;
    size_t memory;
    unsigned delay_us, seed, n_streams = 0;
    pid_t process = getpid();
    std::atomic<bool> is_held{false};
    std::string faults_path;
    struct stat faults_stat {};
    std::vector<std::tuple<std::string, std::string, int>> faults;
};

const char* setting(const char* name, const char* otherwise) {
    const char* found = getenv(name);
    return found ? found : otherwise;
}

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    std::stringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
    return parts;
}

Machine* make_machine() {
    auto* machine = new Machine;  // Never freed: streams' threads may outlive main.
    std::vector<std::string> all = split(setting("EMULATED_CUDA_GPUS", "")), visible = all;
    if (const char* names = getenv("CUDA_VISIBLE_DEVICES")) {
        visible.clear();
        for (const std::string& name : split(names)) {  // An unknown name ends the list, as CUDA has it.
            std::string found;
            for (size_t i = 0; i < all.size(); i++)
                if (std::to_string(i) == name || (name.size() > 4 && all[i].rfind(name, 0) == 0)) found = all[i];
            if (found.empty()) break;
            visible.push_back(found);
        }
    }
    for (const std::string& uuid : visible) machine->gpus.push_back(new Gpu{(int)machine->gpus.size(), uuid});
    machine->memory = strtoull(setting("EMULATED_CUDA_MEMORY", "2147483648"), nullptr, 10);
    machine->delay_us = atoi(setting("EMULATED_CUDA_DELAY_US", "200"));
    machine->seed = atoi(setting("EMULATED_CUDA_SEED", "1"));
    machine->faults_path = setting("EMULATED_CUDA_FAULTS", "");
    return machine;
}

Machine& machine() {
    static Machine* made = make_machine();
    return *made;
}

// What was asked of all GPUs so far, in the order of tests/emulated_cuda/conftest.py's Counts.
struct Counts {
    std::atomic<long long> copies_in{0}, bytes_in{0}, copies_out{0}, bytes_out{0}, launches{0}, waits{0};
} counts;

thread_local int current_gpu = 0, last_error = 0;

cudaError_t runtime(int status) { return (cudaError_t)(status ? last_error = status : 0); }

int complain(int status, const char* what) {
    fprintf(stderr, "emulated CUDA: %s\n", what);
    return status;
}

int fault_of(const Gpu& gpu, const std::string& call) {
    Machine& all = machine();
    struct stat now {};
    if (all.faults_path.empty() || stat(all.faults_path.c_str(), &now)) return 0;
    if (now.st_ino != all.faults_stat.st_ino || now.st_mtim.tv_nsec != all.faults_stat.st_mtim.tv_nsec) {
        all.faults_stat = now;
        all.faults.clear();
        std::ifstream file(all.faults_path);
        std::string uuid, name;
        for (int code; file >> uuid >> name >> code;) all.faults.emplace_back(uuid, name, code);
    }
    for (auto& [uuid, name, code] : all.faults)
        if (uuid == gpu.uuid && (name == call || name == "any")) return code;
    return 0;
}

// What every call begins with. An error of a launch shows only when the kernel would have run.
int enter(const char* call, int* late = nullptr) {
    Machine& all = machine();
    if (getpid() != all.process) return complain(cudaErrorInitializationError, "used after fork");
    if (all.gpus.empty()) return cudaErrorNoDevice;
    Lock lock(all.mutex);
    Gpu& gpu = *all.gpus[current_gpu];
    if (gpu.sticky) return gpu.sticky;
    int fault = fault_of(gpu, call);
    if (fault && late) return *late = fault, 0;
    // Errors below 700 leave the context as it is, but for that of its memory.
    if (fault >= cudaErrorIllegalAddress || fault == cudaErrorECCUncorrectable) gpu.sticky = fault;
    return fault;
}

void work(CUstream_st* stream) {
    for (;;) {
        CUstream_st::Work next;
        {
            Lock lock(stream->mutex);
            stream->changed.wait(lock, [&] { return stream->is_closed || !stream->queue.empty(); });
            if (stream->queue.empty()) break;
            next = std::move(stream->queue.front());
            stream->queue.pop_front();
        }
        if (next.is_mark) {
            next.run();
            continue;
        }
        while (machine().is_held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (unsigned most = machine().delay_us)
            std::this_thread::sleep_for(std::chrono::microseconds(stream->random() % most));
        if (stream->gpu->sticky) continue;
        if (int error = next.run()) {
            Lock lock(machine().mutex);
            stream->gpu->sticky = error;
        }
    }
    delete stream;
}

CUstream_st* start_stream(Gpu* gpu) {
    auto* stream = new CUstream_st{gpu, std::mt19937(machine().seed * 1000 + machine().n_streams++)};
    std::thread(work, stream).detach();
    return stream;
}

void push(CUstream_st* stream, std::function<int()> run, bool is_mark) {
    Lock lock(stream->mutex);
    stream->queue.push_back({std::move(run), is_mark});
    stream->changed.notify_all();
}

Mark mark(CUstream_st* stream) {
    auto made = std::make_shared<std::promise<Clock::time_point>>();
    push(stream, [made] { return made->set_value(Clock::now()), 0; }, true);
    return made->get_future();
}

// The stream of a handle.
CUstream_st* stream_of(CUstream_st* handle) {
    Machine& all = machine();
    Lock lock(all.mutex);
    Gpu& gpu = *all.gpus[current_gpu];
    if (!gpu.legacy) gpu.legacy = start_stream(&gpu);
    if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) return gpu.legacy;
    return gpu.streams.count(handle) ? handle : nullptr;  // Of another GPU, or destroyed.
}

void wait_for_all(Gpu& gpu) {
    std::vector<Mark> marks;
    {
        Lock lock(machine().mutex);
        if (gpu.legacy) marks.push_back(mark(gpu.legacy));
        for (CUstream_st* stream : gpu.streams) marks.push_back(mark(stream));
    }
    for (Mark& one : marks) one.wait();
}

const Block* block_of(const void* place, size_t n_bytes) {
    auto& blocks = machine().blocks;
    auto next = blocks.upper_bound((const char*)place);
    if (next == blocks.begin()) return nullptr;
    --next;
    return (const char*)place + n_bytes > next->first + next->second.n_bytes ? nullptr : &next->second;
}

bool is_kind(const void* place, size_t n_bytes, Kind kind) {
    Lock lock(machine().mutex);
    const Block* block = block_of(place, n_bytes);
    return block && block->kind == kind;
}

size_t used_of(const Gpu& gpu) { return gpu.used + ((size_t)fault_of(gpu, "held") << 20); }

int take(void** place, size_t n_bytes, Kind kind) {
    Machine& all = machine();
    Lock lock(all.mutex);
    Gpu& gpu = *all.gpus[current_gpu];
    if (kind == DEVICE && used_of(gpu) + n_bytes > all.memory) return cudaErrorMemoryAllocation;
    if (posix_memalign(place, 512, n_bytes ? n_bytes : 1)) return cudaErrorMemoryAllocation;
    memset(*place, 0xFF, n_bytes);
    all.blocks[(const char*)*place] = {n_bytes, kind, &gpu};
    if (kind == DEVICE) gpu.used += n_bytes;
    return 0;
}

int give_back(void* place, Kind kind) {
    if (!place) return 0;
    Machine& all = machine();
    wait_for_all(*all.gpus[current_gpu]);
    Lock lock(all.mutex);
    auto found = all.blocks.find((const char*)place);
    if (found == all.blocks.end() || found->second.kind != kind)
        return complain(cudaErrorInvalidValue, "what is freed is not memory of that kind");
    if (kind == DEVICE) found->second.gpu->used -= found->second.n_bytes;
    memset(place, 0xFF, found->second.n_bytes);
    all.blocks.erase(found);
    free(place);
    return 0;
}

int copy(void* to, const void* from, size_t n_bytes, int kind, cudaStream_t handle, bool waits) {
    if (int error = enter("copy")) return error;
    if (n_bytes == 0) return 0;
    bool to_gpu = is_kind(to, n_bytes, DEVICE), from_gpu = is_kind(from, n_bytes, DEVICE);
    static const int kinds[] = {cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                cudaMemcpyDeviceToDevice};
    if (kind != cudaMemcpyDefault && kind != kinds[from_gpu * 2 + to_gpu])
        return complain(cudaErrorInvalidValue, "a copy from or to memory that is not of the kind it says");
    CUstream_st* stream = stream_of(handle);
    if (!stream) return complain(cudaErrorInvalidResourceHandle, "a stream of another device, or none");
    if (to_gpu && !from_gpu) counts.copies_in++, counts.bytes_in += n_bytes;
    if (from_gpu && !to_gpu) counts.copies_out++, counts.bytes_out += n_bytes;
    bool is_staged = !from_gpu && !is_kind(from, n_bytes, PINNED);
    if (is_staged) {
        auto staged = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + n_bytes);
        push(stream, [=] { return memcpy(to, staged->data(), n_bytes), 0; }, false);
    } else {
        push(stream, [=] { return memmove(to, from, n_bytes), 0; }, false);
    }
    if (!waits && (to_gpu || is_kind(to, n_bytes, PINNED))) return 0;
    counts.waits++;
    mark(stream).wait();
    return stream->gpu->sticky;
}

int fill(void* place, int value, size_t n_bytes, cudaStream_t handle) {
    if (n_bytes && !is_kind(place, n_bytes, DEVICE))
        return complain(cudaErrorInvalidValue, "memset of what is not a GPU's memory");
    return emulated::enqueue(handle, [=] { return memset(place, value, n_bytes), 0; });
}

int attribute_of(int* value, int attribute) {
    static const std::map<int, int> known = {
        {cudaDevAttrMaxThreadsPerBlock, 1024}, {cudaDevAttrMaxBlockDimX, 1024},
        {cudaDevAttrMaxBlockDimY, 1024},       {cudaDevAttrMaxBlockDimZ, 64},
        {cudaDevAttrMaxGridDimX, 2147483647},  {cudaDevAttrMaxGridDimY, 65535},
        {cudaDevAttrMaxGridDimZ, 65535},       {cudaDevAttrMaxSharedMemoryPerBlock, 48 << 10},
        {cudaDevAttrWarpSize, 32},             {cudaDevAttrMultiProcessorCount, 4},
        {cudaDevAttrComputeCapabilityMajor, 9}, {cudaDevAttrComputeCapabilityMinor, 0},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 << 10}};
    auto found = known.find(attribute);
    if (found == known.end()) return cudaErrorInvalidValue;
    *value = found->second;
    return 0;
}
}  // namespace

namespace emulated {
int enqueue(CUstream_st* handle, std::function<int()> run) {
    int late = 0;
    if (int error = enter("launch", &late)) return error;
    counts.launches++;
    CUstream_st* stream = stream_of(handle);
    if (!stream) return complain(cudaErrorInvalidResourceHandle, "a stream of another device, or none");
    push(stream, [=] { return late ? late : run(); }, false);
    return 0;
}
bool is_device(const void* place, size_t n_bytes) { return is_kind(place, n_bytes, DEVICE); }
int unsupported(const char* name, int status) {
    fprintf(stderr, "emulated CUDA: %s is not emulated\n", name);
    return status;
}
}  // namespace emulated

extern "C" {
// For tests: while held, no stream begins anything.
void emulated_hold(bool is_held) { machine().is_held = is_held; }
// For tests: an error of this process's context that stays.
void emulated_fail(int error) { machine().gpus[current_gpu]->sticky = error; }

// For tests: what was asked for, as six numbers.
void emulated_counts(long long* found) {
    const std::atomic<long long>* all[] = {&counts.copies_in,  &counts.bytes_in, &counts.copies_out,
                                           &counts.bytes_out, &counts.launches, &counts.waits};
    for (int i = 0; i < 6; i++) found[i] = *all[i];
}

#define ENTER(call) \
    if (int error = enter(call)) return runtime(error)

cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDA_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* n) {
    *n = (int)machine().gpus.size();
    return runtime(*n ? 0 : cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* number) { return *number = current_gpu, cudaSuccess; }
cudaError_t cudaSetDevice(int number) {
    if (number < 0 || number >= (int)machine().gpus.size()) return runtime(cudaErrorInvalidDevice);
    current_gpu = number;
    ENTER("context");
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    return runtime(attribute_of(value, attribute));
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int number) {
    ENTER("context");
    if (number < 0 || number >= (int)machine().gpus.size()) return runtime(cudaErrorInvalidDevice);
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "emulated");
    properties->totalGlobalMem = machine().memory;
    properties->major = 9, properties->warpSize = 32, properties->multiProcessorCount = 4;
    properties->maxThreadsPerBlock = 1024, properties->sharedMemPerBlock = 48 << 10;
    const std::string& uuid = machine().gpus[number]->uuid;
    int n = 0;
    for (size_t i = 4; i < uuid.size() && n < 16; i++)
        if (isxdigit(uuid[i])) properties->uuid.bytes[n++] = (char)strtol(uuid.substr(i++, 2).c_str(), nullptr, 16);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    ENTER("context");
    Gpu& gpu = *machine().gpus[current_gpu];
    counts.waits++;
    wait_for_all(gpu);
    return runtime(gpu.sticky);
}
cudaError_t cudaGetLastError() {
    int error = last_error;
    last_error = 0;
    return (cudaError_t)error;
}
#define ERRORS(ONE)                                                                                         \
    ONE(cudaSuccess) ONE(cudaErrorInvalidValue) ONE(cudaErrorMemoryAllocation) ONE(cudaErrorInitializationError) \
    ONE(cudaErrorInsufficientDriver) ONE(cudaErrorDevicesUnavailable) ONE(cudaErrorNoDevice)                \
    ONE(cudaErrorInvalidDevice) ONE(cudaErrorECCUncorrectable) ONE(cudaErrorInvalidResourceHandle)          \
    ONE(cudaErrorNotReady) ONE(cudaErrorIllegalAddress) ONE(cudaErrorLaunchFailure)                         \
    ONE(cudaErrorHostMemoryAlreadyRegistered) ONE(cudaErrorHostMemoryNotRegistered)                         \
    ONE(cudaErrorNotSupported) ONE(cudaErrorInvalidKernelImage) ONE(cudaErrorSymbolNotFound)
const char* cudaGetErrorName(cudaError_t error) {
#define ONE(name) \
    if (error == name) return #name;
    ERRORS(ONE)
    return "cudaErrorUnknown";
}
const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "out of memory" : "emulated error";
}

cudaError_t cudaMalloc(void** place, size_t n_bytes) {
    ENTER("malloc");
    return runtime(take(place, n_bytes, DEVICE));
}
cudaError_t cudaFree(void* place) { return runtime(give_back(place, DEVICE)); }
cudaError_t cudaHostAlloc(void** place, size_t n_bytes, unsigned) {
    ENTER("context");
    return runtime(take(place, n_bytes, PINNED));
}
cudaError_t cudaFreeHost(void* place) { return runtime(give_back(place, PINNED)); }
cudaError_t cudaHostRegister(void* place, size_t n_bytes, unsigned) {
    ENTER("context");
    Lock lock(machine().mutex);
    if (block_of(place, 1)) return runtime(cudaErrorHostMemoryAlreadyRegistered);
    machine().blocks[(const char*)place] = {n_bytes, PINNED, machine().gpus[current_gpu]};
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* place) {
    wait_for_all(*machine().gpus[current_gpu]);
    Lock lock(machine().mutex);
    return runtime(machine().blocks.erase((const char*)place) ? 0 : cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaMemGetInfo(size_t* n_free, size_t* n_total) {
    ENTER("context");
    Lock lock(machine().mutex);
    *n_total = machine().memory, *n_free = *n_total - used_of(*machine().gpus[current_gpu]);
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* place) {
    Lock lock(machine().mutex);
    const Block* block = block_of(place, 1);
    memset(attributes, 0, sizeof *attributes);
    attributes->type = block ? (cudaMemoryType)block->kind : cudaMemoryTypeUnregistered;
    attributes->device = block ? block->gpu->number : -1;
    attributes->hostPointer = block && block->kind == DEVICE ? nullptr : (void*)place;
    attributes->devicePointer = block ? (void*)place : nullptr;
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t n_bytes, cudaMemcpyKind kind) {
    return runtime(copy(to, from, n_bytes, kind, nullptr, true));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n_bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return runtime(copy(to, from, n_bytes, kind, stream, false));
}
cudaError_t cudaMemsetAsync(void* place, int value, size_t n_bytes, cudaStream_t stream) {
    return runtime(fill(place, value, n_bytes, stream));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    ENTER("context");
    // One that waits for the default stream and lets it wait is not emulated.
    if (!(flags & cudaStreamNonBlocking)) return runtime(emulated::unsupported("a blocking stream", cudaErrorNotSupported));
    Lock lock(machine().mutex);
    Gpu* gpu = machine().gpus[current_gpu];
    gpu->streams.insert(*stream = start_stream(gpu));
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    Lock lock(machine().mutex);
    if (!stream->gpu->streams.erase(stream)) return runtime(cudaErrorInvalidResourceHandle);
    Lock its_own(stream->mutex);
    stream->is_closed = true;
    stream->changed.notify_all();
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    ENTER("context");
    CUstream_st* stream = stream_of(handle);
    if (!stream) return runtime(cudaErrorInvalidResourceHandle);
    counts.waits++;
    mark(stream).wait();
    return runtime(stream->gpu->sticky);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    ENTER("context");
    return *event = new CUevent_st, cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
    ENTER("context");
    CUstream_st* stream = stream_of(handle);
    if (!stream) return runtime(cudaErrorInvalidResourceHandle);
    return event->mark = mark(stream), cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    ENTER("context");
    return !event->mark.valid() || event->has_passed() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    ENTER("context");
    counts.waits++;
    if (event->mark.valid()) event->mark.wait();
    return runtime(machine().gpus[current_gpu]->sticky);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    if (!start->mark.valid() || !end->mark.valid()) return runtime(cudaErrorInvalidResourceHandle);
    if (!start->has_passed() || !end->has_passed()) return runtime(cudaErrorNotReady);
    *milliseconds = std::chrono::duration<float, std::milli>(end->mark.get() - start->mark.get()).count();
    return cudaSuccess;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
    return *name = cudaGetErrorName((cudaError_t)error), CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
    return *text = cudaGetErrorString((cudaError_t)error), CUDA_SUCCESS;
}
// The image is a library of the emulated compiler's.
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    if (int error = enter("context")) return (CUresult)error;
    size_t n_bytes = emulated::image_bytes(image);
    if (!n_bytes) return (CUresult)complain(CUDA_ERROR_INVALID_IMAGE, "a module of another compiler");
    char path[] = "/tmp/emulated-module-XXXXXX";
    int file = mkstemp(path);
    n_bytes -= sizeof(emulated::Image);
    bool is_written = write(file, (const emulated::Image*)image + 1, n_bytes) == (ssize_t)n_bytes;
    close(file);
    void* library = is_written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    unlink(path);
    if (!library) return (CUresult)complain(CUDA_ERROR_INVALID_IMAGE, dlerror());
    return *module = new CUmod_st{library, {}}, CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }  // Kernels may be on their way yet.
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    auto bind = (emulated::Bind)dlsym(module->library, (std::string("emulated_bind_") + name).c_str());
    if (!bind) return (CUresult)complain(CUDA_ERROR_NOT_FOUND, name);
    *function = &module->functions.insert({name, CUfunc_st{bind}}).first->second;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    bool fits = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0 && value <= 227 << 10;
    if (!fits) return (CUresult)complain(CUDA_ERROR_INVALID_VALUE, "an attribute of a kernel beyond a GPU");
    function->most_shared = value;
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream handle, void** arguments, void**) {
    bool fits = grid_x && grid_y && grid_z && block_x && block_y && block_z && grid_y <= 65535 && grid_z <= 65535 &&
                (size_t)block_x * block_y * block_z <= 1024 && shared <= (unsigned)function->most_shared;
    if (!fits) return (CUresult)complain(CUDA_ERROR_INVALID_VALUE, "a launch beyond the limits of a GPU");
    emulated::Kernel kernel = function->bind(arguments);
    emulated::Launch launch{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared};
    return (CUresult)emulated::enqueue(handle, [=] { return kernel(launch), 0; });
}
}
