"""Our own CUDA kernels, as text for NVRTC.

The texts are plain C besides the words ``__global__``, ``__shared__`` and ``__syncthreads``, so that a test
without a GPU compiles the very same text with a C++ compiler and compares. Image kernels are compiled without
fused multiply-add: texture decides ties by rounding (see `features`).
"""

IMAGE_OPTIONS = ("--fmad=false",)
HOUSEHOLDER_THREADS = 128
HOUSEHOLDER_SHARED_BYTES = 44 << 10
"""The matrix must fit, ``n_columns * (n_rows | 1)`` numbers: 48 KiB are there without asking, and 1 KiB of it
serves to add up what the threads found."""
HOUSEHOLDER_OWN_BYTES = 1 << 10
MATRICES_THREADS = 128
NEIGHBOURS_AT_ONCE = 96
NEIGHBOURS_SHARED_BYTES = 48 << 10
"""The most that is there without asking; each thread has (k + 1) numbers of a double and an int in it."""

IMAGES = r"""
typedef unsigned char byte;

extern "C" __global__ void grey(const byte* pixels, long long n, byte* out)
{
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x)
        out[i] = (19595 * pixels[3 * i] + 38470 * pixels[3 * i + 1] + 7471 * pixels[3 * i + 2] + 32768) >> 16;
}

__device__ double level(const byte* image, int height, int width, int y, int x)
{
    return y < 0 || y >= height || x < 0 || x >= width ? 0.0 : image[(long long)y * width + x];
}

__device__ int at_least(const byte* image, int height, int width, int y, int x, double dy, double dx)
{
    double row = y + dy, column = x + dx;
    int above = (int)floor(row), left = (int)floor(column);
    double fy = row - floor(row), fx = column - floor(column);
    double top = (1 - fx) * level(image, height, width, above, left)
               + fx * level(image, height, width, above, left + 1);
    double bottom = (1 - fx) * level(image, height, width, above + 1, left)
                  + fx * level(image, height, width, above + 1, left + 1);
    return (1 - fy) * top + fy * bottom >= level(image, height, width, y, x);
}

/* One image for each blockIdx.y; histogram (n, 256). */
extern "C" __global__ void patterns(const byte* images, int height, int width, unsigned long long* histogram)
{
    const double d = 0.70711;
    const byte* image = images + (long long)blockIdx.y * height * width;
    __shared__ unsigned int counts[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    long long n = (long long)height * width;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) {
        int y = (int)(i / width), x = (int)(i % width);
        double centre = image[i];
        int code = (level(image, height, width, y, x + 1) >= centre)
                 | (level(image, height, width, y - 1, x) >= centre) << 2
                 | (level(image, height, width, y, x - 1) >= centre) << 4
                 | (level(image, height, width, y + 1, x) >= centre) << 6
                 | at_least(image, height, width, y, x, -d, d) << 1
                 | at_least(image, height, width, y, x, -d, -d) << 3
                 | at_least(image, height, width, y, x, d, -d) << 5
                 | at_least(image, height, width, y, x, d, d) << 7;
        atomicAdd(&counts[code], 1u);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (counts[i]) atomicAdd(&histogram[blockIdx.y * 256 + i], (unsigned long long)counts[i]);
}

/* One image for each blockIdx.y; histogram (n, n_hue * n_saturation * n_value), at most 4096 bins. */
extern "C" __global__ void colours(const byte* images, long long n, int n_hue, int n_saturation, int n_value,
                                   unsigned long long* histogram)
{
    const byte* pixels = images + 3 * n * blockIdx.y;
    int n_bins = n_hue * n_saturation * n_value;
    __shared__ unsigned int counts[4096];
    for (int i = threadIdx.x; i < n_bins; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) {
        int red = pixels[3 * i], green = pixels[3 * i + 1], blue = pixels[3 * i + 2];
        int value = max(red, max(green, blue)), spread = value - min(red, min(green, blue));
        int hue = value == red ? green - blue
                : value == green ? blue - red + 2 * spread : red - green + 4 * spread;
        int circle = 6 * max(spread, 1);
        if (hue < 0) hue += circle;
        int saturation = min(spread * n_saturation / max(value, 1), n_saturation - 1);
        int bin = (hue * n_hue / circle * n_saturation + saturation) * n_value + value * n_value / 256;
        atomicAdd(&counts[bin], 1u);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n_bins; i += blockDim.x)
        if (counts[i])
            atomicAdd(&histogram[(long long)blockIdx.y * n_bins + i], (unsigned long long)counts[i]);
}
"""

HOUSEHOLDER = r"""
__device__ REAL block_reduce(REAL value, bool is_maximum)
{
    __shared__ REAL parts[128]; /* one for each thread */
    __syncthreads();
    parts[threadIdx.x] = value;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            REAL other = parts[threadIdx.x + half];
            parts[threadIdx.x] = is_maximum ? (other > parts[threadIdx.x] ? other : parts[threadIdx.x])
                                            : parts[threadIdx.x] + other;
        }
    }
    __syncthreads();
    return parts[0];
}

/* Columns first .. last - 1 of `a` become H a, for H = I - t v v' with v[j] = 1 and the rest in column j. */
__device__ void reflect(REAL* a, const REAL* v, int ld, int m, int j, REAL t, int first, int last)
{
    for (int c = first + threadIdx.x; c < last; c += blockDim.x) {
        REAL w = a[j + c * ld];
        for (int i = j + 1; i < m; i++) w += v[i] * a[i + c * ld];
        w *= t;
        a[j + c * ld] -= w;
        for (int i = j + 1; i < m; i++) a[i + c * ld] -= w * v[i];
    }
    __syncthreads();
}

/* One matrix (m, n) in columns for each block; blockDim.x is a power of two. LAPACK's packed form. */
extern "C" __global__ void factor(REAL* stack, REAL* scalars, int m, int n)
{
    extern __shared__ __align__(16) unsigned char memory[];
    REAL* a = (REAL*)memory;
    int ld = m | 1, k = m < n ? m : n;
    REAL* matrix = stack + (long long)blockIdx.x * m * n;
    for (int i = threadIdx.x; i < m * n; i += blockDim.x) a[i % m + i / m * ld] = matrix[i];
    __syncthreads();
    for (int j = 0; j < k; j++) {
        REAL* v = a + j * ld;
        REAL largest = 0, sum = 0, alpha = v[j];
        for (int i = j + 1 + threadIdx.x; i < m; i += blockDim.x)
            if (fabs(v[i]) > largest) largest = fabs(v[i]);
        largest = block_reduce(largest, true);
        REAL t = 0;
        if (largest > 0) {
            /* In shares of the largest: denormal numbers have few digits, and squares may overflow. */
            REAL unit = fabs(alpha) > largest ? fabs(alpha) : largest;
            for (int i = j + 1 + threadIdx.x; i < m; i += blockDim.x) sum += v[i] / unit * (v[i] / unit);
            sum = block_reduce(sum, false);
            alpha /= unit;
            REAL norm = sqrt(alpha * alpha + sum);
            REAL beta = alpha > 0 ? -norm : norm;
            t = (beta - alpha) / beta;
            for (int i = j + 1 + threadIdx.x; i < m; i += blockDim.x) v[i] = v[i] / unit / (alpha - beta);
            __syncthreads();
            reflect(a, v, ld, m, j, t, j + 1, n);
            if (threadIdx.x == 0) v[j] = beta * unit;
        }
        if (threadIdx.x == 0) scalars[(long long)blockIdx.x * k + j] = t;
        __syncthreads();
    }
    for (int i = threadIdx.x; i < m * n; i += blockDim.x) matrix[i] = a[i % m + i / m * ld];
}

/* Q (m, k) in place of the reflectors in its columns. */
extern "C" __global__ void write_out(REAL* stack, const REAL* scalars, int m, int k)
{
    extern __shared__ __align__(16) unsigned char memory[];
    REAL* a = (REAL*)memory;
    int ld = m | 1;
    REAL* matrix = stack + (long long)blockIdx.x * m * k;
    for (int i = threadIdx.x; i < m * k; i += blockDim.x) a[i % m + i / m * ld] = matrix[i];
    __syncthreads();
    for (int j = k - 1; j >= 0; j--) {
        REAL* v = a + j * ld;
        REAL t = scalars[(long long)blockIdx.x * k + j];
        for (int c = j + 1 + threadIdx.x; c < k; c += blockDim.x) a[j + c * ld] = 0;
        __syncthreads();
        reflect(a, v, ld, m, j, t, j + 1, k);
        for (int i = threadIdx.x; i < m; i += blockDim.x)
            v[i] = i < j ? 0 : i == j ? 1 - t : -t * v[i];
        __syncthreads();
    }
    for (int i = threadIdx.x; i < m * k; i += blockDim.x) matrix[i] = a[i % m + i / m * ld];
}
"""

MATRICES = r"""
/* Of a number that is `width` REALs: 1, or 2 if it is complex. */
__device__ REAL modulus(const REAL* number, int width)
{
    return width == 1 ? fabs(number[0]) : hypot(number[0], number[1]);
}

/* Marks each item (blockIdx.x) of a stack in which a number is not finite. If `order` is not 0, also each
   that is not Hermitian: its triangles may differ by `share` of the largest number on its diagonal. */
extern "C" __global__ void mark_unsound(const REAL* stack, long long n, int width, int order, double share,
                                        int* unsound)
{
    __shared__ REAL parts[128]; /* one for each thread */
    const REAL* a = stack + blockIdx.x * n * width;
    REAL largest = 0;
    for (int i = threadIdx.x; i < order; i += blockDim.x) {
        REAL each = modulus(a + ((long long)i * order + i) * width, width);
        if (each > largest) largest = each;
    }
    parts[threadIdx.x] = largest;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half && parts[threadIdx.x + half] > parts[threadIdx.x])
            parts[threadIdx.x] = parts[threadIdx.x + half];
    }
    __syncthreads();
    REAL allowed = share * parts[0];
    bool is_bad = false;
    for (long long i = blockIdx.y * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.y * blockDim.x) {
        const REAL* number = a + i * width;
        for (int k = 0; k < width; k++) is_bad |= number[k] - number[k] != 0; /* infinity, NaN */
        if (order && i / order >= i % order) {
            const REAL* other = a + (i % order * order + i / order) * width;
            REAL apart[2] = {number[0] - other[0], width == 1 ? 0 : number[1] + other[1]};
            is_bad |= !(modulus(apart, width) <= allowed);
        }
    }
    if (is_bad) unsound[blockIdx.x] = 1;
}

/* Where element (row, column) of a lower triangle stands in LAPACK's packed storage, column after column. */
__device__ long long packed_place(long long row, long long column, long long order)
{
    return row + column * (2 * order - column - 1) / 2;
}

/* The lower triangle of each item (order, order) of a stack of columns, from or to packed storage. */
extern "C" __global__ void unpack_triangle(REAL* stack, long long n, int width, int order, const REAL* packed)
{
    REAL* a = stack + blockIdx.x * n * width;
    const REAL* from = packed + blockIdx.x * ((long long)order * (order + 1) / 2) * width;
    for (long long i = blockIdx.y * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.y * blockDim.x)
        if (i % order >= i / order)
            for (int k = 0; k < width; k++)
                a[i * width + k] = from[packed_place(i % order, i / order, order) * width + k];
}

extern "C" __global__ void pack_triangle(const REAL* stack, long long n, int width, int order, REAL* packed)
{
    const REAL* a = stack + blockIdx.x * n * width;
    REAL* to = packed + blockIdx.x * ((long long)order * (order + 1) / 2) * width;
    for (long long i = blockIdx.y * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.y * blockDim.x)
        if (i % order >= i / order)
            for (int k = 0; k < width; k++)
                to[packed_place(i % order, i / order, order) * width + k] = a[i * width + k];
}

/* Zeros above the diagonal of each item (order, order) of a stack of columns. */
extern "C" __global__ void clear_upper(REAL* stack, long long n, int width, int order)
{
    REAL* a = stack + blockIdx.x * n * width;
    for (long long i = blockIdx.y * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.y * blockDim.x)
        if (i % order < i / order)
            for (int k = 0; k < width; k++) a[i * width + k] = 0;
}
"""

NEIGHBOURS = r"""
/* The k least of each row of (n, m), of equal ones the first, in one pass; the first `done` of `total` are
   known. One row for each block. Each thread keeps its own least in order, and these lists are merged. */
extern "C" __global__ void nearest(const double* distances, long long m, int total, int done, int k,
                                   int* neighbours, double* least)
{
    extern __shared__ double values[];
    const int step = blockDim.x, t = threadIdx.x;
    int* numbers = (int*)(values + (k + 1) * step);
    const double* row = distances + blockIdx.x * m;
    neighbours += blockIdx.x * (long long)total + done;
    least += blockIdx.x * (long long)total + done;
    double last = done ? least[-1] : -1.0;
    int last_number = done ? neighbours[-1] : -1, count = 0;
    for (long long i = t; i < m; i += step) {
        double value = row[i];
        if (value < last || (value == last && i <= last_number)) continue;
        if (count == k && value >= values[(k - 1) * step + t]) continue;
        int slot = count < k ? count++ : k - 1;
        for (; slot > 0 && values[(slot - 1) * step + t] > value; slot--) {
            values[slot * step + t] = values[(slot - 1) * step + t];
            numbers[slot * step + t] = numbers[(slot - 1) * step + t];
        }
        values[slot * step + t] = value;
        numbers[slot * step + t] = (int)i;
    }
    int head = 0;
    for (int j = 0; j < k; j++) {
        values[k * step + t] = head < count ? values[head * step + t] : 1.7976931348623157e308;
        numbers[k * step + t] = head < count ? numbers[head * step + t] : 2147483647;
        __syncthreads();
        for (int half = step / 2; half > 0; half /= 2) {
            if (t < half) {
                int own = k * step + t, other = own + half;
                if (values[other] < values[own]
                    || (values[other] == values[own] && numbers[other] < numbers[own])) {
                    values[own] = values[other];
                    numbers[own] = numbers[other];
                }
            }
            __syncthreads();
        }
        int best = numbers[k * step];
        if (head < count && numbers[head * step + t] == best) head++;
        if (t == 0) {
            neighbours[j] = best;
            least[j] = values[k * step];
        }
        __syncthreads();
    }
}
"""
