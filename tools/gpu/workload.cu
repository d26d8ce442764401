// Works on a GPU so that a container, a metric or a limit can be looked at.
//   workload query          prints the devices, their memory and their multiprocessors
//   workload check          allocates, runs a kernel, compares every number
//   workload burn SECONDS   keeps the GPU busy
//   workload hold SECONDS   keeps 1 GiB and does nothing
//   workload take MIB       allocates that much in one piece, and says whether it got it
// Memory is taken by cudaMalloc alone.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <unistd.h>
#include <vector>

#define CHECK(call)                                                            \
  do {                                                                         \
    cudaError_t code = (call);                                                 \
    if (code != cudaSuccess) {                                                 \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code));            \
      return 3;                                                                \
    }                                                                          \
  } while (0)

__global__ void scale(float *values, int count, float factor) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) values[at] = values[at] * factor + 1.0f;
}

__global__ void spin(float *values, int rounds) {
  float value = values[threadIdx.x];
  for (int i = 0; i < rounds; i++) value = value * 1.000001f + 0.5f;
  values[threadIdx.x] = value;
}

static int query() {
  int count = 0;
  CHECK(cudaGetDeviceCount(&count));
  printf("devices %d\n", count);
  for (int i = 0; i < count; i++) {
    cudaDeviceProp facts;
    size_t available = 0, total = 0;
    CHECK(cudaGetDeviceProperties(&facts, i));
    CHECK(cudaSetDevice(i));
    CHECK(cudaMemGetInfo(&available, &total));
    printf("device %d %s memory %zu free %zu multiprocessors %d\n", i, facts.name, total, available,
           facts.multiProcessorCount);
  }
  return 0;
}

static int check() {
  const int count = 1 << 20;
  std::vector<float> before(count), after(count);
  for (int i = 0; i < count; i++) before[i] = (float)(i % 1000);
  float *on_gpu = nullptr;
  CHECK(cudaMalloc(&on_gpu, count * sizeof(float)));
  CHECK(cudaMemcpy(on_gpu, before.data(), count * sizeof(float), cudaMemcpyHostToDevice));
  scale<<<(count + 255) / 256, 256>>>(on_gpu, count, 3.0f);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(after.data(), on_gpu, count * sizeof(float), cudaMemcpyDeviceToHost));
  CHECK(cudaFree(on_gpu));
  for (int i = 0; i < count; i++)
    if (after[i] != before[i] * 3.0f + 1.0f) {
      printf("wrong at %d: %f\n", i, after[i]);
      return 4;
    }
  printf("right %d\n", count);
  return 0;
}

static int burn(int seconds) {
  float *on_gpu = nullptr;
  CHECK(cudaMalloc(&on_gpu, 1024 * sizeof(float)));
  CHECK(cudaMemset(on_gpu, 0, 1024 * sizeof(float)));
  time_t end = time(nullptr) + seconds;
  printf("burning\n");
  fflush(stdout);
  while (time(nullptr) < end) {
    for (int i = 0; i < 8; i++) spin<<<1024, 256>>>(on_gpu, 1 << 16);
    CHECK(cudaDeviceSynchronize());
  }
  return 0;
}

static int hold(int seconds) {
  void *on_gpu = nullptr;
  CHECK(cudaMalloc(&on_gpu, (size_t)1 << 30));
  printf("holding\n");
  fflush(stdout);
  sleep(seconds);
  return 0;
}

static int take(size_t mib) {
  void *on_gpu = nullptr;
  cudaError_t code = cudaMalloc(&on_gpu, mib << 20);
  if (code == cudaErrorMemoryAllocation) {
    printf("refused %zu\n", mib);
    return 0;
  }
  CHECK(code);
  CHECK(cudaMemset(on_gpu, 1, mib << 20));
  CHECK(cudaDeviceSynchronize());
  printf("took %zu\n", mib);
  return 0;
}

int main(int count, char **words) {
  const char *what = count > 1 ? words[1] : "check";
  int seconds = count > 2 ? atoi(words[2]) : 10;
  if (!strcmp(what, "query")) return query();
  if (!strcmp(what, "burn")) return burn(seconds);
  if (!strcmp(what, "hold")) return hold(seconds);
  if (!strcmp(what, "take")) return take((size_t)seconds);
  return check();
}
