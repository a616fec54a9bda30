/* Records when a process keeps its GPU active: loaded by CUDA through CUDA_INJECTION64_PATH, it writes
 * one record for each kernel, copy and graph to $GPU_TRACE.PID. Times are CLOCK_MONOTONIC (ns), so that
 * they compare with those of other processes.
 *
 *     gcc -shared -fPIC -O2 -I$CUDA/include gpu_trace.c -L$CUDA/lib -lcupti -o gpu_trace.so
 */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KERNEL, NCCL, TO_GPU, FROM_GPU, ON_GPU };

struct record {
    uint64_t start, end;
    uint32_t kind, stream;
    uint64_t bytes; /* of a copy */
};

static FILE *out;

static uint64_t CUPTIAPI now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void CUPTIAPI provide(uint8_t **buffer, size_t *size, size_t *most) {
    *size = 4 << 20;
    *most = 0;
    *buffer = aligned_alloc(8, *size);
}

static void put(uint64_t start, uint64_t end, uint32_t kind, uint32_t stream, uint64_t bytes) {
    struct record r = {start, end, kind, stream, bytes};
    if (start && end >= start) fwrite(&r, sizeof r, 1, out);
}

static void CUPTIAPI take(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    CUpti_Activity *next = NULL;
    (void)context, (void)stream, (void)size;
    while (cuptiActivityGetNextRecord(buffer, valid, &next) == CUPTI_SUCCESS) {
        if (next->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            CUpti_ActivityKernel10 *k = (void *)next;
            put(k->start, k->end, k->name && strstr(k->name, "nccl") ? NCCL : KERNEL, k->streamId, 0);
        } else if (next->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            CUpti_ActivityMemcpy6 *m = (void *)next;
            uint32_t kind = m->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? TO_GPU
                            : m->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? FROM_GPU
                                                                             : ON_GPU;
            put(m->start, m->end, kind, m->streamId, m->bytes);
        } else if (next->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            CUpti_ActivityMemset4 *m = (void *)next;
            put(m->start, m->end, ON_GPU, m->streamId, 0);
        } else if (next->kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE) {
            CUpti_ActivityGraphTrace2 *g = (void *)next;
            put(g->start, g->end, KERNEL, g->streamId, 0);
        }
    }
    fflush(out);
    free(buffer);
}

int InitializeInjection(void) {
    const char *stem = getenv("GPU_TRACE");
    char path[4096];
    if (!stem || snprintf(path, sizeof path, "%s.%d", stem, getpid()) >= (int)sizeof path) return 1;
    out = fopen(path, "wb");
    if (!out) return 1;
    cuptiActivityRegisterTimestampCallback(now);
    cuptiActivityRegisterCallbacks(provide, take);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
    /* A graph is one record, unless its kernels matter (collectives in it): each costs time then. */
    if (!getenv("GPU_TRACE_NODES")) cuptiActivityEnable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
    cuptiActivityFlushPeriod(300);
    return 1;
}
