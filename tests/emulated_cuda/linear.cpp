// The functions of cuBLAS and cuSOLVER that this project and CuPy's products call, by LAPACK, each a piece of
// work on its handle's stream. Arrays have to be a GPU's memory, and a workspace is written over.
#include <cuda_runtime_api.h>
#include <library_types.h>

#include <complex>
#include <cstdio>
#include <cstring>
#include <vector>

#include "emulated.h"

using emulated::is_device;
using C32 = std::complex<float>;
using C64 = std::complex<double>;

struct Handle {
    cudaStream_t stream = nullptr;
    int math_mode = 0;
};

namespace {
constexpr int NOT_INITIALIZED = 1, INVALID_VALUE_BLAS = 7, INVALID_VALUE_SOLVER = 3, FAILED_BLAS = 13,
              FAILED_SOLVER = 6, NOT_SUPPORTED_BLAS = 15, WORK_NUMBERS = 64;

int begin_blas(Handle* handle, std::function<void()> work) {
    if (!handle) return NOT_INITIALIZED;
    return emulated::enqueue(handle->stream, [=] { return work(), 0; }) ? FAILED_BLAS : 0;
}
int begin_solver(Handle* handle, std::function<void()> work) {
    if (!handle) return NOT_INITIALIZED;
    return emulated::enqueue(handle->stream, [=] { return work(), 0; }) ? FAILED_SOLVER : 0;
}
// What LAPACK needs beside the caller's workspace, which is written over to show that it is there.
template <class T>
std::vector<T> own_work(T* work, int n_work, int n) {
    memset((void*)work, 0xFF, n_work * sizeof(T));
    return std::vector<T>(64 * (size_t)n);
}
char trans_of(int operation) { return "NTC"[operation]; }
char uplo_of(int fill) { return "LU"[fill]; }
char side_of(int side) { return "LR"[side]; }
char diag_of(int diagonal) { return "NU"[diagonal]; }
float conjugate(float x) { return x; }
double conjugate(double x) { return x; }
C32 conjugate(C32 x) { return std::conj(x); }
C64 conjugate(C64 x) { return std::conj(x); }
int refused(const char* function, const char* what, int status) {
    fprintf(stderr, "emulated CUDA: %s: %s is not a GPU's memory\n", function, what);
    return status;
}
#define NEEDS(place, n, status) \
    if (!is_device(place, (n) * sizeof *(place))) return refused(__func__, #place, status)
}  // namespace

extern "C" {
#define ROUTINES(l, org, orm) \
    void scipy_##l##gemm_(...); \
    void scipy_##l##trsm_(...); \
    void scipy_##l##getrf_(...); \
    void scipy_##l##getrs_(...); \
    void scipy_##l##potrf_(...); \
    void scipy_##l##geqrf_(...); \
    void scipy_##l##org##_(...); \
    void scipy_##l##orm##_(...);
ROUTINES(s, orgqr, ormqr)
ROUTINES(d, orgqr, ormqr)
ROUTINES(c, ungqr, unmqr)
ROUTINES(z, ungqr, unmqr)
void scipy_dsgesv_(...), scipy_zcgesv_(...);
void scipy_ssyevd_(...), scipy_dsyevd_(...), scipy_cheevd_(...), scipy_zheevd_(...);
void scipy_sgesvd_(...), scipy_dgesvd_(...), scipy_cgesvd_(...), scipy_zgesvd_(...);

#define HANDLES(library, version) \
    int library##Create##version(Handle** handle) { return *handle = new Handle, 0; } \
    int library##Destroy##version(Handle* handle) { return delete handle, 0; } \
    int library##SetStream##version(Handle* handle, cudaStream_t stream) { return handle->stream = stream, 0; } \
    int library##GetStream##version(Handle* handle, cudaStream_t* stream) { return *stream = handle->stream, 0; }
HANDLES(cublas, _v2)
HANDLES(cusolverDn, )
int cublasGetMathMode(Handle* handle, int* mode) { return *mode = handle->math_mode, 0; }

#define PRODUCTS(L, l, T) \
    int cublas##L##gemm_v2(Handle* handle, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, \
                           int lda, const T* b, int ldb, const T* beta, T* c, int ldc) { \
        NEEDS(a, 1, INVALID_VALUE_BLAS); \
        NEEDS(b, 1, INVALID_VALUE_BLAS); \
        NEEDS(c, (size_t)ldc * (n - 1) + m, INVALID_VALUE_BLAS); \
        T x = *alpha, y = *beta; \
        char p = trans_of(ta), q = trans_of(tb); \
        return begin_blas(handle, [=] { \
            scipy_##l##gemm_(&p, &q, &m, &n, &k, &x, a, &lda, b, &ldb, &y, c, &ldc); \
        }); \
    } \
    int cublas##L##trsm_v2(Handle* handle, int side, int fill, int turn, int diagonal, int m, int n, \
                           const T* alpha, const T* a, int lda, T* b, int ldb) { \
        NEEDS(a, 1, INVALID_VALUE_BLAS); \
        NEEDS(b, (size_t)ldb * (n - 1) + m, INVALID_VALUE_BLAS); \
        T x = *alpha; \
        char s = side_of(side), u = uplo_of(fill), t = trans_of(turn), d = diag_of(diagonal); \
        return begin_blas(handle, \
                          [=] { scipy_##l##trsm_(&s, &u, &t, &d, &m, &n, &x, a, &lda, b, &ldb); }); \
    } \
    int cublas##L##getrfBatched(Handle* handle, int n, T* const* a, int lda, int* pivots, int* status, \
                                int n_items) { \
        if (!pivots || !is_device(status, n_items * 4)) return INVALID_VALUE_BLAS; \
        return begin_blas(handle, [=] { \
            for (int i = 0; i < n_items; i++) \
                scipy_##l##getrf_(&n, &n, a[i], &lda, pivots + (size_t)i * n, status + i); \
        }); \
    } \
    int cublas##L##getrsBatched(Handle* handle, int turn, int n, int n_right, const T* const* a, int lda, \
                                const int* pivots, T* const* b, int ldb, int* status, int n_items) { \
        if (!pivots || is_device(status, 4)) return emulated::unsupported(__func__, NOT_SUPPORTED_BLAS); \
        *status = 0; \
        return begin_blas(handle, [=] { \
            char t = trans_of(turn); \
            int code; \
            for (int i = 0; i < n_items; i++) \
                scipy_##l##getrs_(&t, &n, &n_right, a[i], &lda, pivots + (size_t)i * n, b[i], &ldb, &code); \
        }); \
    }
PRODUCTS(S, s, float)
PRODUCTS(D, d, double)
PRODUCTS(C, c, C32)
PRODUCTS(Z, z, C64)

int cublasGemmStridedBatchedEx(Handle* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a,
                               int type_a, int lda, long long step_a, const void* b, int type_b, int ldb,
                               long long step_b, const void* beta, void* c, int type_c, int ldc, long long step_c,
                               int n_items, int, int) {
    if (type_a != type_b || type_a != type_c) return emulated::unsupported(__func__, NOT_SUPPORTED_BLAS);
    int status = 0;
    for (int i = 0; i < n_items && !status; i++) {
#define ONE(type, L, T) \
    if (type_a == type) \
        status = cublas##L##gemm_v2(handle, ta, tb, m, n, k, (const T*)alpha, (const T*)a + i * step_a, lda, \
                                    (const T*)b + i * step_b, ldb, (const T*)beta, (T*)c + i * step_c, ldc);
        ONE(CUDA_R_32F, S, float)
        ONE(CUDA_R_64F, D, double)
        ONE(CUDA_C_32F, C, C32)
        ONE(CUDA_C_64F, Z, C64)
    }
    bool is_known = type_a == CUDA_R_32F || type_a == CUDA_R_64F || type_a == CUDA_C_32F || type_a == CUDA_C_64F;
    return is_known ? status : emulated::unsupported(__func__, NOT_SUPPORTED_BLAS);
}
int cublasGemmEx(Handle* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a,
                 int lda, const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc,
                 int compute, int algorithm) {
    return cublasGemmStridedBatchedEx(handle, ta, tb, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c,
                                      type_c, ldc, 0, 1, compute, algorithm);
}
#define SIZE(L, name, ...) \
    int cusolverDn##L##name##_bufferSize(Handle*, __VA_ARGS__, int* n) { return *n = WORK_NUMBERS, 0; }
#define SOLVERS(L, l, T, org, orm) \
    SIZE(L, getrf, int, int, T*, int) \
    SIZE(L, potrf, int, int, T*, int) \
    SIZE(L, geqrf, int, int, T*, int) \
    SIZE(L, org, int, int, int, const T*, int, const T*) \
    SIZE(L, orm, int, int, int, int, int, const T*, int, const T*, const T*, int) \
    int cusolverDn##L##getrf(Handle* handle, int m, int n, T* a, int lda, T* work, int* pivots, int* status) { \
        NEEDS(a, (size_t)lda * (n - 1) + m, INVALID_VALUE_SOLVER); \
        NEEDS(work, WORK_NUMBERS, INVALID_VALUE_SOLVER); \
        return begin_solver(handle, [=] { \
            own_work(work, WORK_NUMBERS, 0); \
            scipy_##l##getrf_(&m, &n, a, &lda, pivots, status); \
        }); \
    } \
    int cusolverDn##L##potrf(Handle* handle, int fill, int n, T* a, int lda, T* work, int n_work, int* status) { \
        NEEDS(a, (size_t)lda * (n - 1) + n, INVALID_VALUE_SOLVER); \
        NEEDS(work, n_work, INVALID_VALUE_SOLVER); \
        char u = uplo_of(fill); \
        return begin_solver(handle, [=] { \
            own_work(work, n_work, 0); \
            scipy_##l##potrf_(&u, &n, a, &lda, status); \
        }); \
    } \
    int cusolverDn##L##potrfBatched(Handle* handle, int fill, int n, T** a, int lda, int* status, int n_items) { \
        if (!is_device(a, n_items * sizeof(T*)) || !is_device(status, n_items * 4)) return INVALID_VALUE_SOLVER; \
        char u = uplo_of(fill); \
        return begin_solver(handle, [=] { \
            for (int i = 0; i < n_items; i++) scipy_##l##potrf_(&u, &n, a[i], &lda, status + i); \
        }); \
    } \
    int cusolverDn##L##geqrf(Handle* handle, int m, int n, T* a, int lda, T* tau, T* work, int n_work, \
                             int* status) { \
        NEEDS(a, (size_t)lda * (n - 1) + m, INVALID_VALUE_SOLVER); \
        NEEDS(work, n_work, INVALID_VALUE_SOLVER); \
        return begin_solver(handle, [=] { \
            auto own = own_work(work, n_work, n); \
            int n_own = (int)own.size(); \
            scipy_##l##geqrf_(&m, &n, a, &lda, tau, own.data(), &n_own, status); \
        }); \
    } \
    int cusolverDn##L##org(Handle* handle, int m, int n, int k, T* a, int lda, const T* tau, T* work, \
                           int n_work, int* status) { \
        NEEDS(a, (size_t)lda * (n - 1) + m, INVALID_VALUE_SOLVER); \
        NEEDS(work, n_work, INVALID_VALUE_SOLVER); \
        return begin_solver(handle, [=] { \
            auto own = own_work(work, n_work, n); \
            int n_own = (int)own.size(); \
            scipy_##l##org##_(&m, &n, &k, a, &lda, tau, own.data(), &n_own, status); \
        }); \
    } \
    int cusolverDn##L##orm(Handle* handle, int side, int turn, int m, int n, int k, const T* a, int lda, \
                           const T* tau, T* c, int ldc, T* work, int n_work, int* status) { \
        NEEDS(c, (size_t)ldc * (n - 1) + m, INVALID_VALUE_SOLVER); \
        NEEDS(work, n_work, INVALID_VALUE_SOLVER); \
        char s = side_of(side), t = trans_of(turn); \
        return begin_solver(handle, [=] { \
            auto own = own_work(work, n_work, m > n ? m : n); \
            int n_own = (int)own.size(); \
            scipy_##l##orm##_(&s, &t, &m, &n, &k, a, &lda, tau, c, &ldc, own.data(), &n_own, status); \
        }); \
    }
SOLVERS(S, s, float, orgqr, ormqr)
SOLVERS(D, d, double, orgqr, ormqr)
SOLVERS(C, c, C32, ungqr, unmqr)
SOLVERS(Z, z, C64, ungqr, unmqr)

// Eigenvalues, singular values, whole systems. LAPACK gets work of its own; real routines take no rwork.
#define TRIANGLES(L, l, T) \
    int cublas##L##trsmBatched(Handle* handle, int side, int fill, int turn, int diagonal, int m, int n, \
                               const T* alpha, const T* const* a, int lda, T* const* b, int ldb, int n_items) { \
        NEEDS(a, n_items, INVALID_VALUE_BLAS); \
        NEEDS(b, n_items, INVALID_VALUE_BLAS); \
        T x = *alpha; \
        char s = side_of(side), u = uplo_of(fill), t = trans_of(turn), d = diag_of(diagonal); \
        return begin_blas(handle, [=] { \
            for (int i = 0; i < n_items; i++) \
                scipy_##l##trsm_(&s, &u, &t, &d, &m, &n, &x, a[i], &lda, b[i], &ldb); \
        }); \
    }
TRIANGLES(S, s, float)
TRIANGLES(D, d, double)
TRIANGLES(C, c, C32)
TRIANGLES(Z, z, C64)

#define REFLECTORS(L, l, T) \
    int cublas##L##geqrfBatched(Handle* handle, int m, int n, T* const* a, int lda, T* const* tau, int* status, \
                                int n_items) { \
        NEEDS(a, n_items, INVALID_VALUE_BLAS); \
        NEEDS(tau, n_items, INVALID_VALUE_BLAS); \
        if (is_device(status, 4)) return INVALID_VALUE_BLAS; \
        *status = 0; \
        return begin_blas(handle, [=] { \
            std::vector<T> own(64 * (size_t)n); \
            int n_own = (int)own.size(), code; \
            for (int i = 0; i < n_items; i++) \
                scipy_##l##geqrf_(&m, &n, a[i], &lda, tau[i], own.data(), &n_own, &code); \
        }); \
    }
REFLECTORS(S, s, float)
REFLECTORS(D, d, double)
REFLECTORS(C, c, C32)
REFLECTORS(Z, z, C64)

#define PACKED(L, l, T) \
    int cublas##L##tpttr(Handle* handle, int fill, int n, const T* packed, T* a, int lda) { \
        NEEDS(a, (size_t)lda * (n - 1) + n, INVALID_VALUE_BLAS); \
        char u = uplo_of(fill); \
        return begin_blas(handle, [=] { \
            int code; \
            scipy_##l##tpttr_(&u, &n, packed, a, &lda, &code); \
        }); \
    } \
    int cublas##L##trttp(Handle* handle, int fill, int n, const T* a, int lda, T* packed) { \
        NEEDS(packed, (size_t)n * (n + 1) / 2, INVALID_VALUE_BLAS); \
        char u = uplo_of(fill); \
        return begin_blas(handle, [=] { \
            int code; \
            scipy_##l##trttp_(&u, &n, a, &lda, packed, &code); \
        }); \
    }
void scipy_stpttr_(...), scipy_strttp_(...), scipy_dtpttr_(...), scipy_dtrttp_(...);
PACKED(S, s, float)
PACKED(D, d, double)

#define GETRS(L, l, T) \
    int cusolverDn##L##getrs(Handle* handle, int turn, int n, int n_right, const T* a, int lda, const int* pivots, \
                             T* b, int ldb, int* status) { \
        NEEDS(b, (size_t)ldb * (n_right - 1) + n, INVALID_VALUE_SOLVER); \
        char t = trans_of(turn); \
        return begin_solver( \
            handle, [=] { scipy_##l##getrs_(&t, &n, &n_right, a, &lda, pivots, b, &ldb, status); }); \
    }
GETRS(S, s, float)
GETRS(D, d, double)
GETRS(C, c, C32)
GETRS(Z, z, C64)

#define REFINED(L, l, T, LOW, RWORK) \
    int cusolverDn##L##gesv_bufferSize(Handle*, int, int, T*, int, int*, T*, int, T*, int, void*, size_t* n) { \
        return *n = WORK_NUMBERS, 0; \
    } \
    int cusolverDn##L##gesv(Handle* handle, int n, int n_right, T* a, int lda, int* pivots, T* b, int ldb, T* x, \
                            int ldx, char* work, size_t n_work, int* n_iterations, int* status) { \
        NEEDS(work, n_work, INVALID_VALUE_SOLVER); \
        NEEDS(x, (size_t)ldx * (n_right - 1) + n, INVALID_VALUE_SOLVER); \
        int code = begin_solver(handle, [=] { \
            std::vector<T> own((size_t)n * n_right); \
            std::vector<LOW> low((size_t)n * (n + n_right)); \
            std::vector<double> real(n); \
            scipy_##l##gesv_(&n, &n_right, a, &lda, pivots, b, &ldb, x, &ldx, own.data(), low.data(), RWORK \
                             n_iterations, status); \
        }); \
        return code ? code : (int)cudaStreamSynchronize(handle->stream); \
    }
REFINED(DS, ds, double, float, )
#define REAL_WORK real.data(),
REFINED(ZC, zc, C64, C32, REAL_WORK)

#define EIGENVALUES(L, l, T, R, routine, batched, RWORK) \
    static void eigenvalues_##l(int job, int fill, int n, T* a, int lda, R* w, int* status) { \
        char j = "NV"[job], u = uplo_of(fill); \
        int n_work = 1 + 6 * n + 2 * n * n, n_real = 1 + 5 * n + 2 * n * n, n_whole = 3 + 5 * n; \
        std::vector<T> own(n_work); \
        std::vector<R> real(n_real); \
        std::vector<int> whole(n_whole); \
        scipy_##l##routine##_(&j, &u, &n, a, &lda, w, own.data(), &n_work, RWORK whole.data(), &n_whole, status); \
    } \
    int cusolverDn##L##batched##_bufferSize(Handle*, int, int, int, const T*, int, const R*, int* n, void*, int) { \
        return *n = WORK_NUMBERS, 0; \
    } \
    int cusolverDn##L##batched(Handle* handle, int job, int fill, int n, T* a, int lda, R* w, T* work, int n_work, \
                               int* status, void*, int n_items) { \
        NEEDS(work, n_work, INVALID_VALUE_SOLVER); \
        return begin_solver(handle, [=] { \
            for (int i = 0; i < n_items; i++) \
                eigenvalues_##l(job, fill, n, a + (size_t)i * lda * n, lda, w + (size_t)i * n, status + i); \
        }); \
    }
#define REAL_COUNTED real.data(), &n_real,
EIGENVALUES(S, s, float, float, syevd, syevjBatched, )
EIGENVALUES(D, d, double, double, syevd, syevjBatched, )
EIGENVALUES(C, c, C32, float, heevd, heevjBatched, REAL_COUNTED)
EIGENVALUES(Z, z, C64, double, heevd, heevjBatched, REAL_COUNTED)

int cusolverDnXsyevd_bufferSize(Handle*, void*, int, int, int64_t, int, const void*, int64_t, int, const void*, int,
                                size_t* on_device, size_t* on_host) {
    return *on_device = WORK_NUMBERS, *on_host = 8, 0;
}
int cusolverDnXsyevd(Handle* handle, void*, int job, int fill, int64_t n, int type, void* a, int64_t lda, int,
                     void* w, int, char* work, size_t n_work, void*, size_t, int* status) {
    NEEDS(work, n_work, INVALID_VALUE_SOLVER);
    return begin_solver(handle, [=] {
        if (type == CUDA_R_32F) eigenvalues_s(job, fill, n, (float*)a, lda, (float*)w, status);
        if (type == CUDA_R_64F) eigenvalues_d(job, fill, n, (double*)a, lda, (double*)w, status);
        if (type == CUDA_C_32F) eigenvalues_c(job, fill, n, (C32*)a, lda, (float*)w, status);
        if (type == CUDA_C_64F) eigenvalues_z(job, fill, n, (C64*)a, lda, (double*)w, status);
    });
}

#define SINGULAR_VALUES(L, l, T, R, RWORK) \
    static void singular_values_##l(char u_job, char v_job, int m, int n, T* a, int lda, R* s, T* u, int ldu, T* vt, \
                                    int ldvt, int* status) { \
        int n_work = 64 * (m + n); \
        std::vector<T> own(n_work); \
        std::vector<R> real(5 * (m < n ? m : n)); \
        scipy_##l##gesvd_(&u_job, &v_job, &m, &n, a, &lda, s, u, &ldu, vt, &ldvt, own.data(), &n_work, RWORK status); \
    } \
    SIZE(L, gesvd, int, int) \
    int cusolverDn##L##gesvd(Handle* handle, signed char u_job, signed char v_job, int m, int n, T* a, int lda, R* s, \
                             T* u, int ldu, T* vt, int ldvt, T* work, int n_work, R*, int* status) { \
        NEEDS(work, n_work, INVALID_VALUE_SOLVER); \
        return begin_solver( \
            handle, [=] { singular_values_##l(u_job, v_job, m, n, a, lda, s, u, ldu, vt, ldvt, status); }); \
    } \
    int cusolverDn##L##gesvdjBatched_bufferSize(Handle*, int, int, int, const T*, int, const R*, const T*, int, \
                                                const T*, int, int* n, void*, int) { \
        return *n = WORK_NUMBERS, 0; \
    } \
    int cusolverDn##L##gesvdjBatched(Handle* handle, int job, int m, int n, T* a, int lda, R* s, T* u, int ldu, T* v, \
                                     int ldv, T* work, int n_work, int* status, void*, int n_items) { \
        NEEDS(work, n_work, INVALID_VALUE_SOLVER); \
        return begin_solver(handle, [=] { \
            char j = "NA"[job]; \
            int least = m < n ? m : n; \
            std::vector<T> vt((size_t)n * n); \
            for (int i = 0; i < n_items; i++) { \
                singular_values_##l(j, j, m, n, a + (size_t)i * lda * n, lda, s + (size_t)i * least, \
                                    u + (job ? (size_t)i * ldu * m : 0), ldu, vt.data(), n, status + i); \
                for (int row = 0; job && row < n; row++) \
                    for (int column = 0; column < n; column++) \
                        v[(size_t)i * ldv * n + row + (size_t)column * ldv] = \
                            conjugate(vt[column + (size_t)row * n]); \
            } \
        }); \
    }
#define REAL_ONLY real.data(),
SINGULAR_VALUES(S, s, float, float, )
SINGULAR_VALUES(D, d, double, double, )
SINGULAR_VALUES(C, c, C32, float, REAL_ONLY)
SINGULAR_VALUES(Z, z, C64, double, REAL_ONLY)

// CuPy asks which routines there are by the version: that of CUDA 12.9.
int cusolverGetProperty(int part, int* value) { return *value = part == 0 ? 11 : part == 1 ? 7 : 5, 0; }
#define SETTINGS(name) \
    int cusolverDnCreate##name(void** settings) { return *settings = new char, 0; } \
    int cusolverDnDestroy##name(void* settings) { return delete (char*)settings, 0; }
SETTINGS(Params)
SETTINGS(SyevjInfo)
SETTINGS(GesvdjInfo)
}
