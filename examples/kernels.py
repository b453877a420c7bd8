"""A small but real set of CUDA kernels: what a library might compile at start-up."""

from __future__ import annotations

SAXPY = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""

SOFTMAX = r"""
extern "C" __global__ void softmax(const float* in, float* out, int columns) {
    __shared__ float shared[1024];
    const float* row = in + (long long)blockIdx.x * columns;
    float best = -3.4e38f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) best = fmaxf(best, row[i]);
    shared[threadIdx.x] = best;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + s]);
        __syncthreads();
    }
    best = shared[0];
    __syncthreads();
    float sum = 0.f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += __expf(row[i] - best);
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) shared[threadIdx.x] += shared[threadIdx.x + s];
        __syncthreads();
    }
    float scale = 1.f / shared[0];
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        out[(long long)blockIdx.x * columns + i] = __expf(row[i] - best) * scale;
}
"""

GEMM = r"""
template <int TILE>
__device__ void multiply(const float* a, const float* b, float* c, int n) {
    __shared__ float left[TILE][TILE + 1], right[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.f;
    for (int step = 0; step < n; step += TILE) {
        left[threadIdx.y][threadIdx.x] = a[row * n + step + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(step + threadIdx.y) * n + column];
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < TILE; ++k) sum = fmaf(left[threadIdx.y][k], right[k][threadIdx.x], sum);
        __syncthreads();
    }
    c[row * n + column] = sum;
}
extern "C" __global__ void gemm16(const float* a, const float* b, float* c, int n) { multiply<16>(a, b, c, n); }
extern "C" __global__ void gemm32(const float* a, const float* b, float* c, int n) { multiply<32>(a, b, c, n); }
"""

LAYERNORM = r"""
extern "C" __global__ void layernorm(const float* in, const float* weight, const float* bias, float* out, int n) {
    __shared__ float sums[32], squares[32];
    const float* row = in + (long long)blockIdx.x * n;
    float sum = 0.f, square = 0.f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) { sum += row[i]; square = fmaf(row[i], row[i], square); }
    #pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        sum += __shfl_xor_sync(~0u, sum, d);
        square += __shfl_xor_sync(~0u, square, d);
    }
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) { sums[warp] = sum; squares[warp] = square; }
    __syncthreads();
    sum = 0.f; square = 0.f;
    for (int w = 0; w < (blockDim.x + 31) / 32; ++w) { sum += sums[w]; square += squares[w]; }
    float mean = sum / n, scale = rsqrtf(square / n - mean * mean + 1e-5f);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        out[(long long)blockIdx.x * n + i] = (row[i] - mean) * scale * weight[i] + bias[i];
}
"""

HISTOGRAM = r"""
extern "C" __global__ void histogram(const unsigned* data, unsigned* bins, int n) {
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        #pragma unroll
        for (int b = 0; b < 4; ++b) atomicAdd(&local[(data[i] >> (8 * b)) & 255u], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local[i]);
}
"""

KERNELS = {"saxpy": SAXPY, "softmax": SOFTMAX, "gemm": GEMM, "layernorm": LAYERNORM, "histogram": HISTOGRAM}
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
